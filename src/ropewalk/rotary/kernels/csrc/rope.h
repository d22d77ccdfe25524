/* What the parts of the kernel share: rows that rotate, jobs that walk over rows, threads.
 *
 * A row is one head vector at one position. Its rotated slice holds `pairs` pairs, and every pair
 * (a, b) becomes (a cos - b sin, b cos + a sin). Arithmetic is float32 (float64 for float64) with
 * every product and sum rounded on its own, so that all instruction sets give the same bits.
 */
#ifndef ROPEWALK_ROPE_H
#define ROPEWALK_ROPE_H

#include <stddef.h>
#include <stdint.h>

enum layout { HALF, INTERLEAVED };
enum dtype { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, DTYPES };

/* Rotate one slice. x and y are its first coordinates in memory, y may be x if both layouts are
 * the same; c and s have `pairs` entries; sign -1 turns back. */
typedef void (*row_fn)(const void *x, void *y, const void *c, const void *s, ptrdiff_t pairs,
                       int source, int target, double sign);

/* Row functions of one instruction set; NULL where the next smaller set serves. */
typedef struct {
    const char *name;
    int (*runs_here)(void);
    ptrdiff_t lanes;           /* pairs it does at a time; other widths are better done by less */
    row_fn rows[DTYPES];       /* ordinary stores */
    row_fn streamed[DTYPES];   /* stores past the caches; y aligned to `lanes` elements */
} instruction_set;

extern const instruction_set SET_GENERIC, SET_AVX2, SET_AVX512, SET_AVX512_BF16;

/* One tensor, its dimensions brought into the order batch, head, position, coordinate. Steps are in
 * bytes, and the coordinates of a head lie side by side. */
typedef struct {
    const char *x;
    char *y;
    ptrdiff_t sizes[3];
    ptrdiff_t x_steps[3], y_steps[3];
    ptrdiff_t table_steps[2][3];       /* of cos and of sin; 0 where the table is shared */
    int may_stream;                    /* y is memory of its own that was there before */
} walk;

typedef struct {
    walk walks[2];
    int n_walks;
    const char *table[2];              /* cos, sin */
    ptrdiff_t width, start, pairs;     /* of a head, of the slice in it */
    int source, target, dtype;
    double sign;
} job;

/* Rotate everything of a job with at most `threads` threads. */
void run_job(const job *work, int threads);
ptrdiff_t job_elements(const job *work);
void stream_above(ptrdiff_t bytes);    /* size of outputs that go past the caches; 0: their own */
enum { WORTH_THREADS = 1 << 16 };      /* elements below which one thread is quicker than several */

/* Run task(argument, part, parts) for every part, on the OpenMP runtime that `library` uses; in
 * turn where none has been found. */
typedef void (*task_fn)(const void *argument, ptrdiff_t part, ptrdiff_t parts);
void run_parts(task_fn task, const void *argument, int threads);
int find_threads(const char *library);
const char *threads_from(void);
void lose_threads(void);               /* go on without: in a forked child none of them is left */

/* Instruction sets, smallest first, ended by NULL. select_set returns 0 for an unknown or absent
 * one; NULL selects the largest that runs here. */
const instruction_set *const *all_sets(void);
int select_set(const char *name);
const char *selected_set(void);
row_fn row_for(int dtype, ptrdiff_t pairs, int streamed); /* NULL: no such streamed row */
void finish_streaming(void);

ptrdiff_t item_size(int dtype);
enum { WIDEST_HEAD = 1024 };           /* coordinates; a row of that length is kept on the stack */

#endif
