/* Tensors as torch shows them to Python, without torch's headers. */
#ifndef ROPEWALK_VIEWS_H
#define ROPEWALK_VIEWS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rope.h"

enum { MOST_DIMS = 8 };

typedef struct {
    char *data;
    int ndim, dtype;
    ptrdiff_t size[MOST_DIMS], stride[MOST_DIMS]; /* strides in elements */
} view;

/* What is asked of torch; owned for the life of the process. */
typedef struct {
    PyObject *tensor, *dtypes;         /* the class; float32, bfloat16, float16, float64 */
    PyObject *data_ptr, *stride, *is_neg, *is_inference;       /* methods, unbound */
    PyObject *empty_like, *contiguous; /* a function; its keywords for contiguous memory */
    PyObject *is_grad_enabled, *is_inference_mode_enabled;
    PyObject *unless;                  /* functions that must all answer nothing or 0 */
    PyObject *forward_ad;              /* module with _current_level */
    PyObject *increment_version, *get_num_threads;
    PyObject *dtype, *is_cpu, *requires_grad, *shape, *current_level; /* names of attributes */
} torch_api;
extern torch_api torch;

/* The functions below answer 1 for yes, 0 for no or not known; no error is left set. */
int read_view(PyObject *tensor, int any_subclass, view *into);
int plain_call(void);                  /* no mode, transform or tracer is at work */
int records_gradients(void);
int wants_gradient(PyObject *tensor);
int may_be_written(PyObject *tensor);
int answers_true(PyObject *callable, PyObject *argument);

int same_memory(const view *a, const view *b);
int disjoint(const view *a, const view *b);
int overlaps_itself(const view *a);
int has_memory_order(const view *a);   /* strides tell which dimension lies inside which */
ptrdiff_t count(const view *a);
void ease_first_touch(const view *fresh);

#endif
