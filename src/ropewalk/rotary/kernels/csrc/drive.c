/* Walk over the rows of a job, on the threads of the runtime that torch uses. */
#include <string.h>

#include "rope.h"

#if defined(__linux__)
#include <unistd.h>
#endif

enum {
    BLOCK = 64,              /* positions whose table rows stay near while the heads pass by */
    FEW_HEADS = 8,           /* heads to an item of work where there are few blocks */
    CACHE_LINE = 64,
};
enum { B, H, S }; /* the three outer dimensions of a walk */

ptrdiff_t item_size(int dtype) {
    static const ptrdiff_t sizes[DTYPES] = {4, 2, 2, 8};
    return sizes[dtype];
}

static ptrdiff_t rows_of(const walk *w) { return w->sizes[B] * w->sizes[H] * w->sizes[S]; }

static ptrdiff_t known; /* bytes of the last-level cache; 0 before it was asked for */

void stream_above(ptrdiff_t bytes) { known = bytes; }

/* Size of the last-level cache, below which stores are better kept in it. */
static ptrdiff_t cache_size(void) {
    if (known == 0) {
        known = 32 << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
        const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
        if (size > 0) known = size;
#endif
    }
    return known;
}

/* How one walk is cut into items of work. */
typedef struct {
    const walk *w;
    row_fn row;
    int in_place, by_position;
    ptrdiff_t blocks, chunk, chunks, items;
} plan;

static int aligned(const job *work, const walk *w) {
    uintptr_t bits = (uintptr_t)(w->y + work->start * item_size(work->dtype));
    for (int i = 0; i < 3; i++)
        if (w->sizes[i] > 1) bits |= (uintptr_t)w->y_steps[i];
    return bits % CACHE_LINE == 0;
}

static plan plan_walk(const job *work, const walk *w, int threads) {
    plan p = {.w = w};
    const ptrdiff_t bytes = rows_of(w) * work->width * item_size(work->dtype);
    if (w->may_stream && bytes > cache_size() && aligned(work, w))
        p.row = row_for(work->dtype, work->pairs, 1);
    if (p.row == NULL) p.row = row_for(work->dtype, work->pairs, 0);
    p.in_place = w->x == w->y;
    p.by_position = w->x_steps[S] > w->x_steps[H];
    p.blocks = (w->sizes[S] + BLOCK - 1) / BLOCK;
    p.chunk = w->sizes[H];
    if (w->sizes[B] * p.blocks < 4 * threads && p.chunk > FEW_HEADS) p.chunk = FEW_HEADS;
    p.chunks = p.chunk ? (w->sizes[H] + p.chunk - 1) / p.chunk : 0;
    p.items = w->sizes[B] * p.blocks * p.chunks;
    return p;
}

/* One row after another: `count` of them, the outer dimension `along` apart. */
static void do_rows(const job *work, const plan *p, const ptrdiff_t first[3], int along,
                    ptrdiff_t count) {
    const walk *w = p->w;
    const char *x = w->x, *cosine = work->table[0], *sine = work->table[1];
    char *y = w->y;
    for (int i = 0; i < 3; i++) {
        x += first[i] * w->x_steps[i];
        y += first[i] * w->y_steps[i];
        cosine += first[i] * w->table_steps[0][i];
        sine += first[i] * w->table_steps[1][i];
    }
    const ptrdiff_t item = item_size(work->dtype), from = work->start * item;
    const ptrdiff_t slice = 2 * work->pairs * item, rest = work->width * item - from - slice;
    const int keeps = p->in_place && work->source != work->target;
    for (ptrdiff_t n = 0; n < count; n++) {
        double kept[WIDEST_HEAD]; /* a row that changes its layout in place is read first */
        const char *source = x + from;
        if (keeps) source = memcpy(kept, source, (size_t)slice);
        if (!p->in_place && from) memcpy(y, x, (size_t)from);
        if (!p->in_place && rest) memcpy(y + from + slice, x + from + slice, (size_t)rest);
        p->row(source, y + from, cosine, sine, work->pairs, work->source, work->target,
               work->sign);
        x += w->x_steps[along];
        y += w->y_steps[along];
        cosine += w->table_steps[0][along];
        sine += w->table_steps[1][along];
    }
}

static ptrdiff_t at_most(ptrdiff_t value, ptrdiff_t limit) { return value < limit ? value : limit; }

static void do_item(const job *work, const plan *p, ptrdiff_t item) {
    const ptrdiff_t *sizes = p->w->sizes;
    const ptrdiff_t b = item / p->chunks / p->blocks;
    const ptrdiff_t h0 = item % p->chunks * p->chunk, h1 = at_most(h0 + p->chunk, sizes[H]);
    const ptrdiff_t s0 = item / p->chunks % p->blocks * BLOCK, s1 = at_most(s0 + BLOCK, sizes[S]);
    if (p->by_position) {
        for (ptrdiff_t s = s0; s < s1; s++)
            do_rows(work, p, (const ptrdiff_t[3]){b, h0, s}, H, h1 - h0);
    } else {
        for (ptrdiff_t h = h0; h < h1; h++)
            do_rows(work, p, (const ptrdiff_t[3]){b, h, s0}, S, s1 - s0);
    }
}

typedef struct {
    const job *work;
    plan plans[2];
    ptrdiff_t items;
} cut_job;

static void do_part(const void *argument, ptrdiff_t part, ptrdiff_t parts) {
    const cut_job *all = argument;
    const ptrdiff_t last = all->items * (part + 1) / parts;
    for (ptrdiff_t i = all->items * part / parts; i < last; i++) {
        const ptrdiff_t first = all->plans[0].items;
        do_item(all->work, &all->plans[i >= first], i >= first ? i - first : i);
    }
    finish_streaming();
}

void run_job(const job *work, int threads) {
    cut_job all = {.work = work};
    for (int i = 0; i < work->n_walks; i++) {
        all.plans[i] = plan_walk(work, &work->walks[i], threads);
        all.items += all.plans[i].items;
    }
    if (all.items) run_parts(do_part, &all, (int)at_most(threads, all.items));
}

ptrdiff_t job_elements(const job *work) {
    ptrdiff_t elements = 0;
    for (int i = 0; i < work->n_walks; i++) elements += rows_of(&work->walks[i]) * work->width;
    return elements;
}
