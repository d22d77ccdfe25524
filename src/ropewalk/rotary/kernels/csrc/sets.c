/* Which instruction set is in use. */
#include <string.h>

#include "rope.h"

static const instruction_set *const SETS[] = {&SET_GENERIC, &SET_AVX2, &SET_AVX512,
                                              &SET_AVX512_BF16, NULL};
static int selected = -1;

const instruction_set *const *all_sets(void) { return SETS; }

static int best(void) {
    int found = 0;
    for (int i = 0; SETS[i]; i++)
        if (SETS[i]->runs_here()) found = i;
    return found;
}

const char *selected_set(void) {
    if (selected < 0) selected = best();
    return SETS[selected]->name;
}

int select_set(const char *name) {
    if (name == NULL) {
        selected = best();
        return 1;
    }
    for (int i = 0; SETS[i]; i++)
        if (strcmp(SETS[i]->name, name) == 0 && SETS[i]->runs_here()) {
            selected = i;
            return 1;
        }
    return 0;
}

/* The largest set in use that has such a row and whose vectors the pairs fill. The generic one has
 * all of them. */
row_fn row_for(int dtype, ptrdiff_t pairs, int streamed) {
    selected_set();
    for (int i = selected; i >= 0; i--) {
        const row_fn row = streamed ? SETS[i]->streamed[dtype] : SETS[i]->rows[dtype];
        if (row && (pairs % SETS[i]->lanes == 0 || (!streamed && pairs > 4 * SETS[i]->lanes)))
            return row;
    }
    return streamed ? NULL : SET_GENERIC.rows[dtype];
}

/* Stores past the caches become visible to other threads here. */
void finish_streaming(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_sfence();
#endif
}
