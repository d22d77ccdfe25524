/* The Python side: rotate tensors where that is safe, else answer None.
 *
 * None is never an error. It means that the caller has to take the reference, which either computes
 * the case or names what is wrong with it. So every doubt is settled by None, and all messages are
 * in one place.
 */
#include "views.h"

enum { BATCH, HEAD, POSITION };

typedef struct {
    PyObject *x, *out, *result; /* borrowed, borrowed or NULL, owned */
    view in, to;
} operand;

/* A free dimension: one that the table does not know. */
typedef struct {
    ptrdiff_t size, x_step, y_step;
} loop;

static void set_loop(walk *w, int slot, loop l) {
    w->sizes[slot] = l.size;
    w->x_steps[slot] = l.x_step;
    w->y_steps[slot] = l.y_step;
}

/* Drop dimensions of size 1, and join neighbours where memory allows, until `most` are left. */
static int join_loops(loop *loops, int n, int most) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (loops[i].size != 1) loops[kept++] = loops[i];
    for (int i = kept - 2; i >= 0 && kept > most; i--) {
        loop *outer = &loops[i], *inner = &loops[i + 1];
        if (outer->x_step != inner->size * inner->x_step ||
            outer->y_step != inner->size * inner->y_step)
            continue;
        inner->size *= outer->size;
        for (int j = i; j + 1 < kept; j++) loops[j] = loops[j + 1];
        kept--;
    }
    return kept;
}

/* Bring a tensor into the order batch, head, position; 0 where the table does not fit it. */
static int lay_out(const operand *o, const view *cosine, const view *sine, Py_ssize_t seq_dim,
                   walk *w) {
    const view *x = &o->in, *y = &o->to;
    const ptrdiff_t item = item_size(x->dtype), entry = item_size(cosine->dtype);
    const int last = x->ndim - 1, ranks = cosine->ndim;
    const Py_ssize_t seq = seq_dim < 0 ? seq_dim + x->ndim : seq_dim;
    const loop one = {1, 0, 0};
    w->x = x->data;
    w->y = y->data;
    for (int slot = 0; slot < 3; slot++) {
        set_loop(w, slot, one);
        w->table_steps[0][slot] = w->table_steps[1][slot] = 0;
    }
    if (ranks >= 2) {
        if (seq < 0 || seq >= last || x->size[seq] != cosine->size[ranks - 2]) return 0;
        w->table_steps[0][POSITION] = cosine->stride[ranks - 2] * entry;
        w->table_steps[1][POSITION] = sine->stride[ranks - 2] * entry;
    }
    if (ranks == 3) {
        if (seq == 0 || (cosine->size[0] != 1 && cosine->size[0] != x->size[0])) return 0;
        if (cosine->size[0] > 1) {
            w->table_steps[0][BATCH] = cosine->stride[0] * entry;
            w->table_steps[1][BATCH] = sine->stride[0] * entry;
        }
    }
    loop free_loops[MOST_DIMS];
    int n = 0;
    for (int i = 0; i < last; i++) {
        const loop l = {x->size[i], x->stride[i] * item, y->stride[i] * item};
        if (ranks >= 2 && i == seq)
            set_loop(w, POSITION, l);
        else if (ranks == 3 && i == 0)
            set_loop(w, BATCH, l);
        else
            free_loops[n++] = l;
    }
    static const int slots[] = {POSITION, HEAD, BATCH}; /* innermost first */
    const int first = ranks >= 2, most = (ranks == 3 ? 2 : 3) - first;
    n = join_loops(free_loops, n, most);
    if (n > most) return 0;
    for (int i = 0; i < n; i++) set_loop(w, slots[first + i], free_loops[n - 1 - i]);
    return 1;
}

/* A fresh tensor in the memory order of x, as the reference would make it. */
static PyObject *allocate(const operand *o) {
    if (has_memory_order(&o->in)) return PyObject_CallFunctionObjArgs(torch.empty_like, o->x, NULL);
    PyObject *arguments = PyTuple_Pack(1, o->x);
    if (arguments == NULL) return NULL;
    PyObject *result = PyObject_Call(torch.empty_like, arguments, torch.contiguous);
    Py_DECREF(arguments);
    return result;
}

/* Whether one slice of x, of the width that the work expects, can turn by the table. */
static int fits(const view *x, const view *cosine, const job *work) {
    const int last = x->ndim - 1;
    const int table = x->dtype == FLOAT64 ? FLOAT64 : FLOAT32;
    return x->stride[last] == 1 && x->size[last] <= WIDEST_HEAD && x->size[last] == work->width &&
           cosine->dtype == table && work->pairs > 0 && work->start >= 0 &&
           work->start <= x->size[last] && work->pairs <= (x->size[last] - work->start) / 2 &&
           count(x) > 0;
}

/* Whether the tensor to write to is there, or can be: then o->to and, if fresh, o->result. */
static int find_output(operand *o, int any_subclass) {
    if (o->out == NULL) {
        o->result = allocate(o);
        if (o->result == NULL) return PyErr_Clear(), 0;
        if (!read_view(o->result, any_subclass, &o->to) || o->to.stride[o->to.ndim - 1] != 1)
            return 0;
        ease_first_touch(&o->to);
        return 1;
    }
    if (o->out == o->x)
        o->to = o->in;
    else if (!read_view(o->out, any_subclass, &o->to))
        return 0;
    if (o->to.dtype != o->in.dtype ||
        o->to.ndim != o->in.ndim || o->to.stride[o->to.ndim - 1] != 1 || overlaps_itself(&o->to) ||
        !may_be_written(o->out))
        return 0;
    for (int i = 0; i < o->to.ndim; i++)
        if (o->to.size[i] != o->in.size[i]) return 0;
    if (!same_memory(&o->to, &o->in) && !disjoint(&o->to, &o->in)) return 0;
    Py_INCREF(o->out);
    o->result = o->out;
    return 1;
}

static int outputs_are_apart(const operand *all, int n, const view *cosine, const view *sine) {
    for (int i = 0; i < n; i++) {
        const view *to = &all[i].to;
        if (all[i].out == NULL) continue;
        if (!disjoint(to, cosine) || !disjoint(to, sine)) return 0;
        for (int j = 0; j < n; j++)
            if (j != i && (!disjoint(to, &all[j].in) || !disjoint(to, &all[j].to))) return 0;
    }
    return 1;
}

/* Tell autograd that memory was written behind its back. */
static int announce_writes(const operand *all, int n) {
    PyObject *written = PyList_New(0);
    int good = written != NULL;
    for (int i = 0; i < n && good; i++)
        if (all[i].out) good = PyList_Append(written, all[i].out) == 0;
    if (good && PyList_Size(written)) {
        PyObject *none = PyObject_CallFunctionObjArgs(torch.increment_version, written, NULL);
        good = none != NULL;
        Py_XDECREF(none);
    }
    Py_XDECREF(written);
    return good;
}

static int threads_for(const job *work) {
    if (job_elements(work) < WORTH_THREADS) return 1;
    PyObject *threads = PyObject_CallNoArgs(torch.get_num_threads);
    const long value = threads ? PyLong_AsLong(threads) : 1;
    Py_XDECREF(threads);
    if (PyErr_Occurred()) PyErr_Clear();
    return value > 1 ? (int)value : 1;
}

static void run(const job *work) {
    const int threads = threads_for(work);
    if (job_elements(work) < WORTH_THREADS) {
        run_job(work, threads);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    run_job(work, threads);
    Py_END_ALLOW_THREADS
}

/* Read everything, decide, and rotate. 1 done, 0 left to the reference, -1 an error is set. */
static int rotate_all(job *work, operand *all, int n, PyObject *cos_sin[2], Py_ssize_t seq_dim,
                      int guarded) {
    view table[2];
    if (guarded && !plain_call()) return 0;
    if (guarded && records_gradients()) {
        if (wants_gradient(cos_sin[0]) || wants_gradient(cos_sin[1])) return 0;
        for (int i = 0; i < n; i++)
            if (wants_gradient(all[i].x) || (all[i].out && wants_gradient(all[i].out))) return 0;
    }
    for (int i = 0; i < 2; i++) {
        if (!read_view(cos_sin[i], !guarded, &table[i]) || table[i].ndim > 3 ||
            table[i].ndim != table[0].ndim || table[i].dtype != table[0].dtype ||
            table[i].stride[table[i].ndim - 1] != 1)
            return 0;
        work->table[i] = table[i].data;
    }
    for (int i = 0; i < table[0].ndim; i++)
        if (table[0].size[i] != table[1].size[i]) return 0;
    const ptrdiff_t columns = table[0].size[table[0].ndim - 1];
    if (work->pairs && work->pairs != columns) return 0;
    work->pairs = columns;
    work->n_walks = n;
    for (int i = 0; i < n; i++) {
        const view *x = &all[i].in;
        if (!read_view(all[i].x, !guarded, &all[i].in) || x->dtype != all[0].in.dtype) return 0;
        if (work->width == 0) work->width = x->size[x->ndim - 1];
        if (!fits(x, &table[0], work)) return 0;
    }
    work->dtype = all[0].in.dtype;
    for (int i = 0; i < n; i++) {
        if (!find_output(&all[i], !guarded) ||
            !lay_out(&all[i], &table[0], &table[1], seq_dim, &work->walks[i]))
            return 0;
        work->walks[i].may_stream = all[i].out && all[i].to.data != all[i].in.data;
    }
    if (!outputs_are_apart(all, n, &table[0], &table[1])) return 0;
    run(work);
    return announce_writes(all, n) ? 1 : -1;
}

/* (start, source, target, sign, width, pairs); the last two are what the module of the caller
 * expects of heads and table, 0 for any. */
static int read_geometry(PyObject *geometry, job *work) {
    ptrdiff_t values[6];
    if (!PyTuple_Check(geometry) || PyTuple_Size(geometry) != 6) {
        PyErr_SetString(PyExc_TypeError,
                        "geometry must be (start, source, target, sign, width, pairs)");
        return 0;
    }
    for (int i = 0; i < 6; i++) {
        values[i] = PyLong_AsSsize_t(PyTuple_GetItem(geometry, i));
        if (PyErr_Occurred()) return 0;
    }
    work->start = values[0];
    work->source = values[1] ? INTERLEAVED : HALF;
    work->target = values[2] ? INTERLEAVED : HALF;
    work->sign = values[3] < 0 ? -1.0 : 1.0;
    work->width = values[4];
    work->pairs = values[5];
    return 1;
}

/* rotate(guarded, geometry, seq_dim, cos, sin, x, out) or (..., q, out_q, k, out_k) */
static PyObject *rotate(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if ((nargs != 7 && nargs != 9) || torch.tensor == NULL) {
        PyErr_SetString(PyExc_TypeError, "rotate takes 7 or 9 arguments, after bind");
        return NULL;
    }
    job work = {0};
    const int guarded = PyObject_IsTrue(args[0]);
    /* A seq_dim that is no integer is the reference's to refuse. */
    if (!PyLong_CheckExact(args[2])) Py_RETURN_NONE;
    const Py_ssize_t seq_dim = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (!read_geometry(args[1], &work)) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    const int n = nargs == 9 ? 2 : 1;
    operand all[2] = {{0}, {0}};
    for (int i = 0; i < n; i++) {
        all[i].x = args[5 + 2 * i];
        all[i].out = args[6 + 2 * i] == Py_None ? NULL : args[6 + 2 * i];
    }
    PyObject *table[2] = {args[3], args[4]}, *result = NULL;
    const int done = rotate_all(&work, all, n, table, seq_dim, guarded);
    if (done == 1)
        result = n == 2 ? PyTuple_Pack(2, all[0].result, all[1].result)
                        : PyTuple_Pack(1, all[0].result);
    for (int i = 0; i < n; i++) Py_XDECREF(all[i].result);
    if (done == 0) Py_RETURN_NONE;
    return result;
}

static PyObject *own(PyObject *names, const char *name) {
    PyObject *value = PyDict_GetItemString(names, name);
    if (value == NULL) PyErr_Format(PyExc_KeyError, "bind needs %s", name);
    Py_XINCREF(value);
    return value;
}

static int intern_names(void) {
    return (torch.dtype = PyUnicode_InternFromString("dtype")) &&
           (torch.is_cpu = PyUnicode_InternFromString("is_cpu")) &&
           (torch.requires_grad = PyUnicode_InternFromString("requires_grad")) &&
           (torch.shape = PyUnicode_InternFromString("shape")) &&
           (torch.current_level = PyUnicode_InternFromString("_current_level"));
}

/* bind(names, library): what to ask of torch, and whose threads to use. */
static PyObject *bind(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *names;
    const char *library;
    if (!PyArg_ParseTuple(args, "Os", &names, &library)) return NULL;
    const struct {
        const char *name;
        PyObject **place;
    } wanted[] = {
        {"dtypes", &torch.dtypes},
        {"data_ptr", &torch.data_ptr},
        {"stride", &torch.stride},
        {"is_neg", &torch.is_neg},
        {"is_inference", &torch.is_inference},
        {"empty_like", &torch.empty_like},
        {"contiguous", &torch.contiguous},
        {"is_grad_enabled", &torch.is_grad_enabled},
        {"is_inference_mode_enabled", &torch.is_inference_mode_enabled},
        {"unless", &torch.unless},
        {"forward_ad", &torch.forward_ad},
        {"increment_version", &torch.increment_version},
        {"get_num_threads", &torch.get_num_threads},
        {"tensor", &torch.tensor}, /* last: all is there when this is */
    };
    if (!intern_names()) return NULL;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if ((*wanted[i].place = own(names, wanted[i].name)) == NULL) return NULL;
    return PyBool_FromLong(find_threads(library));
}

static PyObject *instruction_sets(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *names = PyDict_New();
    for (const instruction_set *const *set = all_sets(); names && *set; set++) {
        PyObject *here = PyBool_FromLong((*set)->runs_here());
        if (here == NULL || PyDict_SetItemString(names, (*set)->name, here) < 0) Py_CLEAR(names);
        Py_XDECREF(here);
    }
    return names;
}

/* select(name): True if that instruction set is now used; None takes the largest there is. */
static PyObject *select_by_name(PyObject *self, PyObject *name) {
    (void)self;
    if (name == Py_None) return PyBool_FromLong(select_set(NULL));
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (bytes == NULL) return NULL;
    const int done = select_set(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return PyBool_FromLong(done);
}

/* stream_above(bytes): send larger outputs past the caches; 0 goes by the size of the cache. */
static PyObject *set_streaming(PyObject *self, PyObject *bytes) {
    (void)self;
    const Py_ssize_t value = PyLong_AsSsize_t(bytes);
    if (PyErr_Occurred()) return NULL;
    stream_above(value);
    Py_RETURN_NONE;
}

static PyObject *status(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return Py_BuildValue("(ss)", selected_set(), threads_from());
}

static PyObject *after_fork(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    lose_threads();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"rotate", (PyCFunction)(void (*)(void))rotate, METH_FASTCALL,
     "Rotate tensors; None where the reference has to."},
    {"bind", bind, METH_VARARGS, "Hand over what is asked of torch."},
    {"instruction_sets", instruction_sets, METH_NOARGS, "Names, and whether each runs here."},
    {"stream_above", set_streaming, METH_O, "Send outputs of more bytes past the caches."},
    {"select", select_by_name, METH_O, "Use one instruction set."},
    {"after_fork", after_fork, METH_NOARGS, "Use one thread: the pool did not survive the fork."},
    {"status", status, METH_NOARGS, "The instruction set in use, and the library of the threads."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Rotations in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
