/* reduce_loops.h: the loops of reduce_typed.c for elements of type T, added up in W. Included once per
 * dtype. One body, made constant by inlining for `by`, the op that adds up as `op` does: sum for mean, sumsq
 * for l2. */
#include "typed_name.h"

/* The better of two elements; is_number: v is no NaN. In two steps, of which compilers make vectors. */
Q7_INLINE T NAMED(better)(int64_t op, const bool is_number, T a, T v) {
    const T best = (op == Q7_reduce_max ? v > a : v < a) ? v : a;
    return !is_number && UNORDERED(v) ? v : best;
}

/* The best of n elements, `lanes` of them side by side, or of as many as there are. What is left behind blocks
 * is the end of one more block: no element is better than itself. */
Q7_INLINE T NAMED(best_of)(int64_t op, const bool is_number, const int64_t lanes, int64_t n,
                           const T *x) {
    T best[BEST_BYTES / sizeof(T)];
    for (int64_t i = 0; i < lanes; i++) best[i] = x[i];
    for (int64_t j = lanes; j + lanes <= n; j += lanes)
        for (int64_t i = 0; i < lanes; i++)
            best[i] = NAMED(better)(op, is_number, best[i], x[j + i]);
    x += n - lanes;
    for (int64_t i = 0; i < lanes; i++) best[i] = NAMED(better)(op, is_number, best[i], x[i]);
    for (int64_t half = lanes / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++)
            best[i] = NAMED(better)(op, is_number, best[i], best[i + half]);
    return best[0];
}

/* A short row is looked through for NaN first: its few elements side by side are no vectors. */
Q7_INLINE void NAMED(best_of_row)(int64_t op, int64_t n, const T *x, T *y) {
    enum { MANY = BEST_BYTES / sizeof(T), SOME = MANY / 8, LONG = 3 * MANY };
    int64_t is_unordered = 0;
    for (int64_t i = 0; i < n && n < LONG; i++) is_unordered |= UNORDERED(x[i]);
    if (n >= LONG)
        *y = NAMED(best_of)(op, false, MANY, n, x);
    else if (is_unordered)
        *y = (T)(HIGHEST - HIGHEST); /* NaN */
    else if (n >= SOME)
        *y = NAMED(best_of)(op, true, SOME, n, x);
    else
        *y = n > 0 ? NAMED(best_of)(op, true, 1, n, x) : op == Q7_reduce_max ? LOWEST : HIGHEST;
}

/* The best of each of some columns. */
Q7_INLINE void NAMED(best_of_columns)(int64_t op, int64_t count, int64_t n, int64_t stride,
                                      const T *restrict x, T *restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = op == Q7_reduce_max ? LOWEST : HIGHEST;
    for (int64_t j = 0; j < n; j++, x += stride)
        for (int64_t i = 0; i < count; i++) y[i] = NAMED(better)(op, false, y[i], x[i]);
}

/* One more element v in the result r so far. */
Q7_INLINE W NAMED(step)(int64_t by, W r, W v) {
    switch (by) {
        case Q7_reduce_prod: return TIMES(r, v);
        case Q7_reduce_sumsq: return ADD(r, TIMES(v, v));
        case Q7_reduce_l1: return ADD(r, IS_NEGATIVE(v) ? TIMES(v, -1) : v);
        default: return ADD(r, v); /* sum */
    }
}

Q7_INLINE T NAMED(finish)(int64_t op, W r, int64_t n) {
    if (op == Q7_reduce_mean) return (T)MEAN(r, n);
    return op == Q7_reduce_l2 ? (T)ROOT(r) : (T)r;
}

/* r[i] with what others have come to. */
Q7_INLINE void NAMED(merge)(int64_t by, int64_t n, W *r, const W *others) {
    for (int64_t i = 0; i < n; i++)
        r[i] = by == Q7_reduce_prod ? TIMES(r[i], others[i]) : ADD(r[i], others[i]);
}

/* The sum of a row, some elements side by side; of integers one, which compilers make vectors of: of several of
 * 8 or 16 bits gcc 12 makes wrong ones. */
Q7_INLINE void NAMED(sum_of_row)(int64_t by, int64_t op, int64_t n, const T *x, T *y) {
    const W start = by == Q7_reduce_prod;
    W total[LANES], r[LANES];
    if (n < LANES || IS_WHOLE) {
        W sum = start;
        for (int64_t j = 0; j < n; j++) sum = NAMED(step)(by, sum, x[j]);
        *y = NAMED(finish)(op, sum, n);
        return;
    }
    for (int64_t i = 0; i < LANES; i++) total[i] = start;
    for (int64_t j = 0; j < n;) {
        const int64_t end = q7_min(n, j + BLOCK * LANES);
        for (int64_t i = 0; i < LANES; i++) r[i] = start;
        for (; j + LANES <= end; j += LANES)
            for (int64_t i = 0; i < LANES; i++) r[i] = NAMED(step)(by, r[i], x[j + i]);
        for (int64_t i = 0; j < end; i++, j++) r[i] = NAMED(step)(by, r[i], x[j]);
        NAMED(merge)(by, LANES, total, r);
    }
    for (int64_t half = LANES / 2; half > 0; half /= 2) NAMED(merge)(by, half, total, total + half);
    *y = NAMED(finish)(op, total[0], n);
}

Q7_INLINE void NAMED(sum_of_columns)(int64_t by, int64_t op, int64_t count, int64_t n,
                                     int64_t stride, const T *x, T *y) {
    const W start = by == Q7_reduce_prod;
    W total[COLUMNS], r[COLUMNS];
    for (int64_t i = 0; i < count; i++) total[i] = start;
    for (int64_t j = 0; j < n;) {
        const int64_t end = q7_min(n, j + BLOCK);
        for (int64_t i = 0; i < count; i++) r[i] = start;
        for (; j < end; j++, x += stride)
            for (int64_t i = 0; i < count; i++) r[i] = NAMED(step)(by, r[i], x[i]);
        NAMED(merge)(by, count, total, r);
    }
    for (int64_t i = 0; i < count; i++) y[i] = NAMED(finish)(op, total[i], n);
}

Q7_INLINE void NAMED(fold)(int64_t by, int64_t op, int64_t count, int64_t n, int64_t stride,
                           const T *x, T *y) {
    const bool is_best = by == Q7_reduce_max || by == Q7_reduce_min;
    if (stride == 1) {
        for (int64_t r = 0; r < count; r++, x += n, y++)
            if (is_best)
                NAMED(best_of_row)(by, n, x, y);
            else
                NAMED(sum_of_row)(by, op, n, x, y);
        return;
    }
    for (int64_t c = 0; c < count; c += COLUMNS) {
        const int64_t some = q7_min(COLUMNS, count - c);
        if (is_best)
            NAMED(best_of_columns)(by, some, n, stride, x + c, y + c);
        else
            NAMED(sum_of_columns)(by, op, some, n, stride, x + c, y + c);
    }
}

static void NAMED(reduce)(int64_t op, int64_t count, int64_t n, int64_t stride, const void *x,
                          void *y) {
    switch (op) {
        case Q7_reduce_max: NAMED(fold)(Q7_reduce_max, op, count, n, stride, x, y); break;
        case Q7_reduce_min: NAMED(fold)(Q7_reduce_min, op, count, n, stride, x, y); break;
        case Q7_reduce_prod: NAMED(fold)(Q7_reduce_prod, op, count, n, stride, x, y); break;
        case Q7_reduce_l1: NAMED(fold)(Q7_reduce_l1, op, count, n, stride, x, y); break;
        case Q7_reduce_sumsq:
        case Q7_reduce_l2: NAMED(fold)(Q7_reduce_sumsq, op, count, n, stride, x, y); break;
        default: NAMED(fold)(Q7_reduce_sum, op, count, n, stride, x, y); break; /* mean, too */
    }
}
#include "typed_end.h"
