/* arg_best.h: where the best of lines of elements of type T are, without a branch for each: ArgMax, ArgMin, and
 * TopK of one. -1 for a line with NaN (UNORDERED), whose place topk.c tells. Functions are named NAME_..; AT is
 * what holds an index beside an element, if not int32_t. Included once per dtype, behind loops.h. */
#ifndef Q7_OPS_ARG_BEST_H
#define Q7_OPS_ARG_BEST_H
enum { Q7_BEST_COLUMNS = 64, Q7_BEST_BLOCK = 32 };

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define IN(name) JOIN(NAME, name)
#endif
#ifndef AT
#define AT int32_t
#endif

/* Whether v is better; of equals the last is, or the first. */
static inline bool IN(_takes)(T v, T best, bool largest, bool last) {
    const T more = largest ? v : best, less = largest ? best : v;
    return last ? more >= less : more > less;
}

/* Whether v is not, nor NaN. */
static inline bool IN(_is_beaten)(T v, T best, bool largest, bool last) {
    return IN(_takes)(best, v, largest, !last);
}

/* at[i] = the row where column i of x (n, stride) is best, of `count` columns. Compilers make vectors of
 * it, as largest and last are constants. */
static inline __attribute__((always_inline)) void IN(_best_rows)(const T *x, int64_t n,
                                                                 int64_t stride, int64_t count,
                                                                 AT *restrict at,
                                                                 const bool largest,
                                                                 const bool last) {
    T best[Q7_BEST_COLUMNS];
    AT none[Q7_BEST_COLUMNS];
    for (int64_t i = 0; i < count; i++) best[i] = x[i], at[i] = 0, none[i] = UNORDERED(x[i]);
    for (int64_t j = 1; j < n; j++) {
        const T *row = x + j * stride;
        for (int64_t i = 0; i < count; i++) {
            const T v = row[i], old = best[i];
            const AT takes = -(AT)IN(_takes)(v, old, largest, last);
            at[i] = ((AT)j & takes) | (at[i] & ~takes); /* a condition would be a branch */
            best[i] = takes ? v : old;
            none[i] |= UNORDERED(v);
        }
    }
    for (int64_t i = 0; i < count; i++) at[i] = none[i] ? -1 : at[i];
}

/* The best of x (n): in blocks, of which few have a better one than those before. */
static inline __attribute__((always_inline)) int64_t IN(_best_of_row)(const T *x, int64_t n,
                                                                      const bool largest,
                                                                      const bool last) {
    int64_t best = 0;
    T most = x[0];
    if (UNORDERED(most)) return -1;
    for (int64_t i = 0; i < n; i += Q7_BEST_BLOCK) {
        const int64_t some = q7_min(n - i, Q7_BEST_BLOCK);
        const T *block = x + i;
        int32_t any = some < Q7_BEST_BLOCK || i == 0, none = 0;
        if (!any)
            for (int64_t j = 0; j < Q7_BEST_BLOCK; j++) {
                any |= !IN(_is_beaten)(block[j], most, largest, last);
                if (sizeof(T) == 8 && any) break; /* compilers make vectors of 32 bits only */
            }
        for (int64_t j = 0; j < some && any; j++) {
            const bool takes = IN(_takes)(block[j], most, largest, last);
            best = takes ? i + j : best;
            most = takes ? block[j] : most;
            none |= UNORDERED(block[j]);
        }
        if (none) return -1;
    }
    return best;
}

/* at[i]: of `count` lines, columns of x (n, stride), or its rows where that is 1. */
static void IN(_best_of)(const T *x, int64_t n, int64_t stride, int64_t count, bool largest,
                         bool last, int64_t *at) {
    AT rows[Q7_BEST_COLUMNS];
#define BEST(largest, last)                                            \
    do {                                                               \
        if (stride > 1)                                                \
            IN(_best_rows)(x, n, stride, count, rows, largest, last);  \
        else                                                           \
            for (int64_t i = 0; i < count; i++)                        \
                at[i] = IN(_best_of_row)(x + i * n, n, largest, last); \
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
