/* Rows in plain C for any processor; compilers turn these loops into vector code of their own. */
#include "numbers.h"
#include "rope.h"

#if defined(__clang__)
#define NO_OVERLAP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define NO_OVERLAP _Pragma("GCC ivdep")
#else
#define NO_OVERLAP
#endif

#define SAME(value) (value)

/* In place a pair is read before it is written, and no other pair touches it. */
#define ROTATE_PAIRS(IN_A, IN_B, OUT_A, OUT_B)                                                     \
    NO_OVERLAP                                                                                     \
    for (ptrdiff_t i = 0; i < pairs; i++) {                                                        \
        const WIDE a = UP(x[IN_A]), b = UP(x[IN_B]), sine = turn * s[i];                           \
        y[OUT_A] = DOWN(a * c[i] - b * sine);                                                      \
        y[OUT_B] = DOWN(b * c[i] + a * sine);                                                      \
    }

#define DEFINE_ROW(NAME)                                                                           \
    static void NAME(const void *from, void *to, const void *cosines, const void *sines,           \
                     ptrdiff_t pairs, int source, int target, double sign) {                       \
        const NARROW *x = from;                                                                    \
        NARROW *y = to;                                                                            \
        const WIDE *c = cosines, *s = sines, turn = (WIDE)sign;                                    \
        if (source == HALF && target == HALF) {                                                    \
            ROTATE_PAIRS(i, pairs + i, i, pairs + i)                                               \
        } else if (source == HALF) {                                                               \
            ROTATE_PAIRS(i, pairs + i, 2 * i, 2 * i + 1)                                           \
        } else if (target == HALF) {                                                               \
            ROTATE_PAIRS(2 * i, 2 * i + 1, i, pairs + i)                                           \
        } else {                                                                                   \
            ROTATE_PAIRS(2 * i, 2 * i + 1, 2 * i, 2 * i + 1)                                       \
        }                                                                                          \
    }

#define NARROW float
#define WIDE float
#define UP SAME
#define DOWN SAME
DEFINE_ROW(row_float32)
#undef NARROW
#undef WIDE
#define NARROW double
#define WIDE double
DEFINE_ROW(row_float64)
#undef NARROW
#undef WIDE
#undef UP
#undef DOWN
#define NARROW uint16_t
#define WIDE float
#define UP widen_bfloat16
#define DOWN narrow_bfloat16
DEFINE_ROW(row_bfloat16)
#undef UP
#undef DOWN
#define UP widen_float16
#define DOWN narrow_float16
DEFINE_ROW(row_float16)

static int always(void) { return 1; }

const instruction_set SET_GENERIC = {
    .name = "generic",
    .runs_here = always,
    .lanes = 1,
    .rows = {[FLOAT32] = row_float32,
             [BFLOAT16] = row_bfloat16,
             [FLOAT16] = row_float16,
             [FLOAT64] = row_float64},
};
