/* reduce_loops.h: the loops of reduce_typed.c for elements of type T, added up in W. Included once per
 * dtype. One body, made constant per op by inlining, as in reduce.c. */
#include "typed_name.h"

/* The better of two elements. In two steps, of which compilers make vectors. */
Q7_INLINE T NAMED(better)(int64_t op, T a, T v) {
    const T best = (op == Q7_reduce_max ? v > a : v < a) ? v : a;
    return UNORDERED(v) ? v : best;
}

/* The best of a row, some side by side. */
Q7_INLINE void NAMED(best_of_row)(int64_t op, int64_t n, const T *x, T *y) {
    enum { LANES = BEST_BYTES / sizeof(T) };
    T best[LANES];
    for (int64_t i = 0; i < LANES; i++) best[i] = op == Q7_reduce_max ? LOWEST : HIGHEST;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int64_t i = 0; i < LANES; i++) best[i] = NAMED(better)(op, best[i], x[j + i]);
    for (int64_t i = 0; j < n; i++, j++) best[i] = NAMED(better)(op, best[i], x[j]);
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++) best[i] = NAMED(better)(op, best[i], best[i + half]);
    *y = best[0];
}

/* The best of each of some columns. */
Q7_INLINE void NAMED(best_of_columns)(int64_t op, int64_t count, int64_t n, int64_t stride,
                                      const T *restrict x, T *restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = op == Q7_reduce_max ? LOWEST : HIGHEST;
    for (int64_t j = 0; j < n; j++, x += stride)
        for (int64_t i = 0; i < count; i++) y[i] = NAMED(better)(op, y[i], x[i]);
}

/* One more element v in the result r so far. */
Q7_INLINE W NAMED(step)(int64_t op, W r, W v) {
    switch (op) {
        case Q7_reduce_prod: return TIMES(r, v);
        case Q7_reduce_sumsq:
        case Q7_reduce_l2: return ADD(r, TIMES(v, v));
        case Q7_reduce_l1: return ADD(r, IS_NEGATIVE(v) ? TIMES(v, -1) : v);
        default: return ADD(r, v); /* sum, mean */
    }
}

Q7_INLINE T NAMED(finish)(int64_t op, W r, int64_t n) {
    if (op == Q7_reduce_mean) return (T)MEAN(r, n);
    return op == Q7_reduce_l2 ? (T)ROOT(r) : (T)r;
}

/* r[i] with what others have come to. */
Q7_INLINE void NAMED(merge)(int64_t op, int64_t n, W *r, const W *others) {
    for (int64_t i = 0; i < n; i++)
        r[i] = op == Q7_reduce_prod ? TIMES(r[i], others[i]) : ADD(r[i], others[i]);
}

/* The sum of a row, some elements side by side. */
Q7_INLINE void NAMED(sum_of_row)(int64_t op, int64_t n, const T *x, T *y) {
    const W start = op == Q7_reduce_prod;
    W total[LANES], r[LANES];
    for (int64_t i = 0; i < LANES; i++) total[i] = start;
    for (int64_t j = 0; j < n;) {
        const int64_t end = q7_min(n, j + BLOCK * LANES);
        for (int64_t i = 0; i < LANES; i++) r[i] = start;
        for (; j + LANES <= end; j += LANES)
            for (int64_t i = 0; i < LANES; i++) r[i] = NAMED(step)(op, r[i], x[j + i]);
        for (int64_t i = 0; j < end; i++, j++) r[i] = NAMED(step)(op, r[i], x[j]);
        NAMED(merge)(op, LANES, total, r);
    }
    for (int64_t half = LANES / 2; half > 0; half /= 2) NAMED(merge)(op, half, total, total + half);
    *y = NAMED(finish)(op, total[0], n);
}

Q7_INLINE void NAMED(sum_of_columns)(int64_t op, int64_t count, int64_t n, int64_t stride,
                                     const T *x, T *y) {
    const W start = op == Q7_reduce_prod;
    W total[COLUMNS], r[COLUMNS];
    for (int64_t i = 0; i < count; i++) total[i] = start;
    for (int64_t j = 0; j < n;) {
        const int64_t end = q7_min(n, j + BLOCK);
        for (int64_t i = 0; i < count; i++) r[i] = start;
        for (; j < end; j++, x += stride)
            for (int64_t i = 0; i < count; i++) r[i] = NAMED(step)(op, r[i], x[i]);
        NAMED(merge)(op, count, total, r);
    }
    for (int64_t i = 0; i < count; i++) y[i] = NAMED(finish)(op, total[i], n);
}

Q7_INLINE void NAMED(fold)(int64_t op, int64_t count, int64_t n, int64_t stride, const T *x, T *y) {
    const bool is_best = op == Q7_reduce_max || op == Q7_reduce_min;
    if (stride == 1) {
        for (int64_t r = 0; r < count; r++, x += n, y++)
            if (is_best)
                NAMED(best_of_row)(op, n, x, y);
            else
                NAMED(sum_of_row)(op, n, x, y);
        return;
    }
    for (int64_t c = 0; c < count; c += COLUMNS) {
        const int64_t some = q7_min(COLUMNS, count - c);
        if (is_best)
            NAMED(best_of_columns)(op, some, n, stride, x + c, y + c);
        else
            NAMED(sum_of_columns)(op, some, n, stride, x + c, y + c);
    }
}

static void NAMED(reduce)(int64_t op, int64_t count, int64_t n, int64_t stride, const void *x,
                          void *y) {
    switch (op) {
#define REDUCE(name)                                           \
    case Q7_reduce_##name:                                     \
        NAMED(fold)(Q7_reduce_##name, count, n, stride, x, y); \
        break;
#include "../ops.def"
#undef REDUCE
        default: break;
    }
}
#include "typed_end.h"
