/* The parallel region of the OpenMP runtime that torch uses, found in the running process.
 *
 * Linking one would risk a second runtime with a second pool of threads (pytorch/pytorch#44282), as
 * wheels of torch carry theirs under names of their own.
 */
#if defined(__linux__)
#define _GNU_SOURCE
#include <dlfcn.h>
#endif

#include "rope.h"

typedef void (*parallel_fn)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*count_fn)(void);

static parallel_fn parallel; /* GOMP_parallel, which LLVM's and Intel's runtimes offer as well */
static count_fn thread_number, thread_count;
static const char *source = "";

typedef struct {
    task_fn task;
    const void *argument;
} region;

static void run_region(void *data) {
    const region *r = data;
    r->task(r->argument, thread_number(), thread_count());
}

void run_parts(task_fn task, const void *argument, int threads) {
    region r = {task, argument};
    if (parallel && threads > 1)
        parallel(run_region, &r, (unsigned)threads, 0);
    else
        task(argument, 0, 1);
}

const char *threads_from(void) { return source; }

void lose_threads(void) {
    parallel = NULL;
    source = "";
}

int find_threads(const char *library) {
#if defined(__linux__)
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) return 0;
    /* A handle stands for the library and what it depends on, torch's own runtime included. */
    void *found[3] = {dlsym(handle, "GOMP_parallel"), dlsym(handle, "omp_get_thread_num"),
                      dlsym(handle, "omp_get_num_threads")};
    Dl_info where;
    if (found[0] && found[1] && found[2] && dladdr(found[0], &where)) {
        *(void **)&thread_number = found[1];
        *(void **)&thread_count = found[2];
        *(void **)&parallel = found[0];
        source = where.dli_fname;
    }
    dlclose(handle);
#else
    (void)library;
#endif
    return parallel != NULL;
}
