/* arg_best.h: where the best of lines of floats are, without a branch for each element: ArgMax, ArgMin, and
 * TopK of one. -1 for a line with NaN, whose place topk.c tells. */
#ifndef Q7_OPS_ARG_BEST_H
#define Q7_OPS_ARG_BEST_H
#include "loops.h"

enum { Q7_BEST_COLUMNS = 64, Q7_BEST_BLOCK = 32 };

/* Whether v is better; of equals the last is, or the first. */
static inline bool q7_takes(float v, float best, bool largest, bool last) {
    const float more = largest ? v : best, less = largest ? best : v;
    return last ? more >= less : more > less;
}

/* Whether v is not, nor NaN. */
static inline bool q7_is_beaten(float v, float best, bool largest, bool last) {
    return q7_takes(best, v, largest, !last);
}

/* at[i] = the row where column i of x (n, stride) is best, of `count` columns. Compilers make vectors of
 * it, as largest and last are constants. */
static inline __attribute__((always_inline)) void q7_best_rows(const float *x, int64_t n,
                                                               int64_t stride, int64_t count,
                                                               int32_t *restrict at,
                                                               const bool largest,
                                                               const bool last) {
    float best[Q7_BEST_COLUMNS];
    int32_t none[Q7_BEST_COLUMNS];
    for (int64_t i = 0; i < count; i++) best[i] = x[i], at[i] = 0, none[i] = x[i] != x[i];
    for (int64_t j = 1; j < n; j++) {
        const float *row = x + j * stride;
        for (int64_t i = 0; i < count; i++) {
            const float v = row[i], old = best[i];
            const int32_t takes = -(int32_t)q7_takes(v, old, largest, last);
            at[i] = ((int32_t)j & takes) | (at[i] & ~takes); /* a condition would be a branch */
            best[i] = takes ? v : old;
            none[i] |= v != v;
        }
    }
    for (int64_t i = 0; i < count; i++) at[i] = none[i] ? -1 : at[i];
}

/* The best of x (n): in blocks, of which few have a better one than those before. */
static inline __attribute__((always_inline)) int64_t q7_best_of_row(const float *x, int64_t n,
                                                                    const bool largest,
                                                                    const bool last) {
    int64_t best = 0;
    float most = x[0];
    if (most != most) return -1;
    for (int64_t i = 0; i < n; i += Q7_BEST_BLOCK) {
        const int64_t some = q7_min(n - i, Q7_BEST_BLOCK);
        const float *block = x + i;
        int32_t any = some < Q7_BEST_BLOCK || i == 0, none = 0;
        if (!any)
            for (int64_t j = 0; j < Q7_BEST_BLOCK; j++)
                any |= !q7_is_beaten(block[j], most, largest, last);
        for (int64_t j = 0; j < some && any; j++) {
            const bool takes = q7_takes(block[j], most, largest, last);
            best = takes ? i + j : best;
            most = takes ? block[j] : most;
            none |= block[j] != block[j];
        }
        if (none) return -1;
    }
    return best;
}

/* at[i]: of `count` lines, columns of x (n, stride), or its rows where that is 1. */
static void q7_best_of(const float *x, int64_t n, int64_t stride, int64_t count, bool largest,
                       bool last, int64_t *at) {
    int32_t rows[Q7_BEST_COLUMNS];
#define BEST(largest, last)                                          \
    do {                                                             \
        if (stride > 1)                                              \
            q7_best_rows(x, n, stride, count, rows, largest, last);  \
        else                                                         \
            for (int64_t i = 0; i < count; i++)                      \
                at[i] = q7_best_of_row(x + i * n, n, largest, last); \
    } while (0)
    if (largest && last)
        BEST(true, true);
    else if (largest)
        BEST(true, false);
    else if (last)
        BEST(false, true);
    else
        BEST(false, false);
#undef BEST
    for (int64_t i = 0; i < count && stride > 1; i++) at[i] = rows[i];
}
#endif
