/* reduce.c: f32 reductions over rows and over columns. One body, made constant per op by inlining.
 * Read reduce.h first. */
#include "reduce.h"

#include <math.h>

#include "../simd/simd.h"

enum { BLOCK = 64, LANES = 4 };

Q7_INLINE float start_of(int64_t op) {
    switch (op) {
        case Q7_reduce_max: return -INFINITY;
        case Q7_reduce_min: return INFINITY;
        case Q7_reduce_prod: return 1.0f;
        default: return 0.0f;
    }
}

/* One more element x in the partial result a. */
Q7_INLINE q7_f32 step(int64_t op, q7_f32 a, q7_f32 x) {
    switch (op) {
        case Q7_reduce_max: return q7_select(q7_unordered(a), a, q7_vmax(a, x));
        case Q7_reduce_min: return q7_select(q7_unordered(a), a, q7_vmin(a, x));
        case Q7_reduce_prod: return q7_mul(a, x);
        case Q7_reduce_sumsq:
        case Q7_reduce_l2: return q7_fma(x, x, a);
        case Q7_reduce_l1: return q7_add(a, q7_abs(x));
        default: return q7_add(a, x); /* sum, mean */
    }
}

/* Two partial results in one. */
Q7_INLINE q7_f32 join(int64_t op, q7_f32 a, q7_f32 b) {
    const bool same = op == Q7_reduce_max || op == Q7_reduce_min || op == Q7_reduce_prod;
    return same ? step(op, a, b) : q7_add(a, b);
}

Q7_INLINE q7_f32 finish(int64_t op, q7_f32 a, int64_t n) {
    if (op == Q7_reduce_mean) return q7_div(a, q7_set1((float)n));
    return op == Q7_reduce_l2 ? q7_sqrt(a) : a;
}

/* The lanes past `left` hold `fill`. */
Q7_INLINE q7_f32 load_filled(const float *p, int64_t left, q7_f32 fill) {
    float lanes[Q7_W];
    q7_store(lanes, fill);
    q7_store_tail(lanes, q7_load_tail(p, left), left);
    return q7_load(lanes);
}

/* One row: LANES vectors of partial results, merged after every BLOCK steps, lanes halved at the
 * end. */
Q7_INLINE float row(int64_t op, int64_t n, const float *x) {
    const q7_f32 start = q7_set1(start_of(op));
    q7_f32 all = start;
    int64_t i = 0;
    while (i + LANES * Q7_W <= n) {
        q7_f32 part[LANES] = {start, start, start, start};
        const int64_t end = q7_min(n, i + BLOCK * LANES * Q7_W);
        for (; i + LANES * Q7_W <= end; i += LANES * Q7_W)
            for (int k = 0; k < LANES; k++) part[k] = step(op, part[k], q7_load(x + i + k * Q7_W));
        all = join(op, all, join(op, join(op, part[0], part[1]), join(op, part[2], part[3])));
    }
    for (; i + Q7_W <= n; i += Q7_W) all = step(op, all, q7_load(x + i));
    if (i < n) all = step(op, all, load_filled(x + i, n - i, start));
    float lanes[2 * Q7_W];
    q7_store(lanes + Q7_W, start);
    for (int width = Q7_W / 2; width; width /= 2) { /* the upper half joins the lower */
        q7_store(lanes, all);
        all = join(op, all, q7_load(lanes + width));
    }
    q7_store(lanes, finish(op, all, n));
    return lanes[0];
}

/* Q7_W columns at once, or the last `left` of them. */
Q7_INLINE void columns(int64_t op, int64_t n, int64_t stride, const float *x, float *y,
                       int64_t left) {
    q7_f32 all = q7_set1(start_of(op));
    for (int64_t j = 0; j < n;) {
        q7_f32 part = q7_set1(start_of(op));
        for (const int64_t end = q7_min(n, j + BLOCK); j < end; j++)
            part =
                step(op, part,
                     left == Q7_W ? q7_load(x + j * stride) : q7_load_tail(x + j * stride, left));
        all = join(op, all, part);
    }
    q7_store_tail(y, finish(op, all, n), left);
}

Q7_INLINE void reduce(int64_t op, int64_t count, int64_t n, int64_t stride, const float *x,
                      float *y) {
    if (stride == 1) {
        for (int64_t r = 0; r < count; r++) y[r] = row(op, n, x + r * n);
        return;
    }
    int64_t c = 0;
    for (; c + Q7_W <= count; c += Q7_W) columns(op, n, stride, x + c, y + c, Q7_W);
    if (c < count) columns(op, n, stride, x + c, y + c, count - c);
}

void Q7_KERNEL(reduce_f32)(int64_t op, int64_t count, int64_t n, int64_t stride, const float *x,
                           float *y) {
    switch (op) {
#define REDUCE(name)                                      \
    case Q7_reduce_##name:                                \
        reduce(Q7_reduce_##name, count, n, stride, x, y); \
        break;
#include "../ops.def"
#undef REDUCE
        default: break;
    }
}
