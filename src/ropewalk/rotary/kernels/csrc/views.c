/* Reading tensors, and whether two of them share memory. */
#include "views.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

/* glibc gives larger blocks a mapping of their own, which is unmapped when they are freed. */
enum { OWN_MAPPING = 32 << 20 };

torch_api torch;

static int no(void) {
    PyErr_Clear();
    return 0;
}

/* Truth of what a function answers; -1 where it fails. The reference is consumed. */
static int truth(PyObject *answer) {
    if (answer == NULL) return no(), -1;
    if (answer == Py_None || answer == Py_False || answer == Py_True) { /* nearly always */
        const int yes = answer == Py_True;
        Py_DECREF(answer);
        return yes;
    }
    const int value = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return value < 0 ? (no(), -1) : value;
}

int answers_true(PyObject *callable, PyObject *argument) {
    return truth(PyObject_CallFunctionObjArgs(callable, argument, NULL)) > 0;
}

static int attribute_true(PyObject *object, PyObject *name) {
    return truth(PyObject_GetAttr(object, name)) > 0;
}

int plain_call(void) {
    const Py_ssize_t n = PyTuple_Size(torch.unless);
    for (Py_ssize_t i = 0; i < n; i++)
        if (truth(PyObject_CallNoArgs(PyTuple_GetItem(torch.unless, i)))) return 0;
    PyObject *level = PyObject_GetAttr(torch.forward_ad, torch.current_level);
    if (level == NULL) return no();
    const long value = PyLong_AsLong(level);
    Py_DECREF(level);
    return value < 0 && !PyErr_Occurred() ? 1 : no();
}

int records_gradients(void) { return truth(PyObject_CallNoArgs(torch.is_grad_enabled)) != 0; }

int wants_gradient(PyObject *tensor) { return attribute_true(tensor, torch.requires_grad); }

/* Outside inference mode torch refuses writes to tensors that were made in it. */
int may_be_written(PyObject *tensor) {
    return !answers_true(torch.is_inference, tensor) ||
           truth(PyObject_CallNoArgs(torch.is_inference_mode_enabled)) > 0;
}

static int read_sizes(PyObject *sizes, int ndim, ptrdiff_t *into) {
    if (sizes == NULL) return no();
    int good = PyTuple_Check(sizes) && PyTuple_Size(sizes) == ndim;
    for (int i = 0; good && i < ndim; i++) {
        into[i] = PyLong_AsSsize_t(PyTuple_GetItem(sizes, i));
        good = into[i] >= 0 && !PyErr_Occurred();
    }
    Py_DECREF(sizes);
    return good ? 1 : no();
}

static int read_dtype(PyObject *tensor) {
    PyObject *dtype = PyObject_GetAttr(tensor, torch.dtype);
    if (dtype == NULL) return no() - 1;
    int found = -1;
    for (int i = 0; i < DTYPES; i++)
        if (PyTuple_GetItem(torch.dtypes, i) == dtype) found = i;
    Py_DECREF(dtype);
    return found;
}

int read_view(PyObject *tensor, int any_subclass, view *into) {
    const int plain = (PyObject *)Py_TYPE(tensor) == torch.tensor;
    if (!plain && !(any_subclass && PyObject_IsInstance(tensor, torch.tensor) == 1)) return no();
    into->dtype = read_dtype(tensor);
    if (into->dtype < 0 || !attribute_true(tensor, torch.is_cpu) || answers_true(torch.is_neg, tensor))
        return 0;
    PyObject *shape = PyObject_GetAttr(tensor, torch.shape);
    if (shape == NULL) return no();
    const Py_ssize_t ndim = PyTuple_Size(shape);
    into->ndim = (int)ndim;
    if (ndim < 1 || ndim > MOST_DIMS) {
        Py_DECREF(shape);
        return no();
    }
    if (!read_sizes(shape, into->ndim, into->size)) return 0;
    /* Nested, sparse and opaque tensors have no strides or no address, and end here. */
    if (!read_sizes(PyObject_CallFunctionObjArgs(torch.stride, tensor, NULL), into->ndim,
                    into->stride))
        return 0;
    PyObject *address = PyObject_CallFunctionObjArgs(torch.data_ptr, tensor, NULL);
    if (address == NULL) return no();
    into->data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    /* C may read numbers at addresses that are multiples of their size alone. */
    return into->data && (uintptr_t)into->data % (size_t)item_size(into->dtype) == 0 ? 1 : no();
}

ptrdiff_t count(const view *a) {
    ptrdiff_t n = 1;
    for (int i = 0; i < a->ndim; i++) n *= a->size[i];
    return n;
}

int has_memory_order(const view *a) {
    for (int i = 0; i < a->ndim; i++) {
        if (a->stride[i] == 0) return 0;
        for (int j = 0; j < i; j++)
            if (a->stride[i] == a->stride[j] && a->size[i] > 1 && a->size[j] > 1) return 0;
    }
    return 1;
}

int same_memory(const view *a, const view *b) {
    if (a->data != b->data || a->ndim != b->ndim || a->dtype != b->dtype) return 0;
    for (int i = 0; i < a->ndim; i++)
        if (a->size[i] != b->size[i] || (a->size[i] > 1 && a->stride[i] != b->stride[i])) return 0;
    return 1;
}

/* Elements from the first to the last, both included, in the dimensions that step less than
 * `period`; 0 if another dimension does not step by whole periods. */
static ptrdiff_t extent(const view *a, ptrdiff_t period) {
    ptrdiff_t length = 1;
    for (int i = 0; i < a->ndim; i++) {
        if (a->size[i] <= 1) continue;
        if (a->stride[i] < period)
            length += (a->size[i] - 1) * a->stride[i];
        else if (a->stride[i] % period)
            return 0;
    }
    return length;
}

int disjoint(const view *a, const view *b) {
    const ptrdiff_t size_a = item_size(a->dtype), size_b = item_size(b->dtype);
    const char *end_a = a->data + extent(a, PTRDIFF_MAX) * size_a;
    const char *end_b = b->data + extent(b, PTRDIFF_MAX) * size_b;
    if (end_a <= b->data || end_b <= a->data) return 1;
    /* Slices of one buffer, like q and k of a fused projection, lie in different parts of every
     * period of it. */
    const ptrdiff_t bytes = b->data - a->data;
    if (size_a != size_b || bytes % size_a) return 0;
    for (int i = 0; i < a->ndim; i++) {
        const ptrdiff_t period = a->stride[i];
        if (a->size[i] <= 1 || period <= 1) continue;
        const ptrdiff_t from = (bytes / size_a % period + period) % period;
        const ptrdiff_t length_a = extent(a, period), length_b = extent(b, period);
        if (length_a && length_b && from >= length_a && from + length_b <= period) return 1;
    }
    return 0;
}

/* Whether two indices may mean one element: no where every dimension steps over the smaller ones. */
int overlaps_itself(const view *a) {
    for (int i = 0; i < a->ndim; i++) {
        if (a->size[i] <= 1) continue;
        ptrdiff_t inside = 1;
        for (int j = 0; j < a->ndim; j++)
            if (j != i && a->size[j] > 1) {
                if (a->stride[j] < a->stride[i]) inside += (a->size[j] - 1) * a->stride[j];
                if (a->stride[j] == a->stride[i]) return 1;
            }
        if (a->stride[i] < inside) return 1;
    }
    return 0;
}

/* Ask for large pages: the first touch of 64 MiB costs several times a copy in small ones. */
void ease_first_touch(const view *fresh) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const ptrdiff_t bytes = count(fresh) * item_size(fresh->dtype);
    if (bytes < OWN_MAPPING) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)fresh->data;
    const uintptr_t first = (start + page - 1) / page * page;
    madvise((void *)first, (size_t)(start + (uintptr_t)bytes - first), MADV_HUGEPAGE);
#else
    (void)fresh;
#endif
}
