/* reduce.c: reductions over rows and over columns, of f32 here. One body, made constant per op by
 * inlining. Read reduce.h first. */
#include "reduce.h"

#include <math.h>

#include "../simd/simd.h"
#include "typed.h"

/* Rows that are a power of two apart share a cache set of 8 lines: a few of them are read at a time, in pieces
 * that caches fetch on: the sum of 1024 x 1024 took 1.8 times as long by 64 columns of all rows. */
enum { BLOCK = 64, LANES = 4, FEW = 8, WIDE = 1024 };

#ifdef Q7_ISA_avx512
/* Where rows are no whole lines of cache vectors of 64 bytes are parts of two lines, and those of 32 of
 * one: the sum of 49 x 1000 took 1.17 of avx2's time, of 196 x 136 1.18. */
void q7_reduce_any_avx2(int64_t dtype, int64_t op, int64_t count, int64_t n, int64_t stride,
                        const void *x, void *y);
#endif

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

/* The last `left` of a row of at least a vector, and what changes no result. */
Q7_INLINE q7_f32 load_rest(int64_t op, const float *x, int64_t left) {
    if (start_of(op) == 0.0f) return q7_load_tail(x, left);
    if (op != Q7_reduce_prod) return q7_load(x + left - Q7_W); /* the largest, once more */
    float lanes[Q7_W];
    q7_store(lanes, q7_set1(start_of(op)));
    q7_store_tail(lanes, q7_load_tail(x, left), left);
    return q7_load(lanes);
}

/* The lanes of a joined. In registers, but for prod: halving in memory stalls on every store, and
 * took most of the time of rows of 7x7. */
Q7_INLINE float across(int64_t op, q7_f32 a) {
    if (start_of(op) == 0.0f) return q7_hsum(a);
    if (op != Q7_reduce_prod) {
        if (q7_any(q7_unordered(a))) return NAN;
        return op == Q7_reduce_max ? q7_hmax(a) : -q7_hmax(q7_neg(a));
    }
    float lanes[2 * Q7_W];
    q7_store(lanes + Q7_W, a);
    for (int width = Q7_W / 2; width; width /= 2) { /* the upper half joins the lower */
        q7_store(lanes, a);
        a = join(op, a, q7_load(lanes + width));
    }
    q7_store(lanes, a);
    return lanes[0];
}

/* One row: LANES vectors of partial results, merged after every BLOCK steps. */
Q7_INLINE void row(int64_t op, int64_t n, const float *x, float *y) {
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
    if (i < n) all = step(op, all, load_rest(op, x + i, n - i));
    q7_store_tail(y, finish(op, q7_set1(across(op, all)), n), 1);
}

/* One row shorter than a vector, element by element: rows after it need not wait. */
Q7_INLINE void short_row(int64_t op, int64_t n, const float *x, float *y) {
    q7_f32 all = q7_set1(start_of(op)), other = all; /* by turns: sums err less */
    for (int64_t i = 0; i < n; i++) {
        const q7_f32 more = step(op, all, q7_set1(x[i]));
        all = other, other = more;
    }
    q7_store_tail(y, finish(op, join(op, all, other), n), 1);
}

/* Rows [first, end) of some vectors of columns, of the last one `last` columns. Partial results of a BLOCK of
 * rows are in `parts` until it ends, and those of the blocks before in y. */
Q7_INLINE void columns(int64_t op, int64_t n, int64_t stride, const float *x, float *y,
                       float *parts, const int vectors, int64_t last, int64_t first, int64_t end) {
    const bool begins = first % BLOCK == 0, ends = end % BLOCK == 0 || end == n;
    const q7_f32 start = q7_set1(start_of(op));
    q7_f32 part[LANES];
    for (int v = 0; v < vectors; v++) part[v] = begins ? start : q7_load(parts + v * Q7_W);
    const float *from = x + first * stride;
    for (int64_t j = first; j < end; j++, from += stride) {
        for (int v = 0; v < vectors - 1; v++) part[v] = step(op, part[v], q7_load(from + v * Q7_W));
        const q7_f32 end_of_row = q7_load_part(from + (vectors - 1) * Q7_W, last);
        part[vectors - 1] = step(op, part[vectors - 1], end_of_row);
    }
    for (int v = 0; v < vectors && !ends; v++) q7_store(parts + v * Q7_W, part[v]);
    for (int v = 0; v < vectors && ends; v++) {
        const int64_t lanes = v < vectors - 1 ? Q7_W : last;
        const q7_f32 before = first < BLOCK ? start : q7_load_part(y + v * Q7_W, lanes);
        const q7_f32 all = join(op, before, part[v]);
        q7_store_part(y + v * Q7_W, end == n ? finish(op, all, n) : all, lanes);
    }
}

Q7_INLINE void reduce(int64_t op, int64_t count, int64_t n, int64_t stride, const float *x,
                      float *y) {
    if (stride == 1 && n < Q7_W) {
        for (int64_t r = 0; r < count; r++) short_row(op, n, x + r * n, y + r);
        return;
    }
    if (stride == 1) {
        for (int64_t r = 0; r < count; r++) row(op, n, x + r * n, y + r);
        return;
    }
    float parts[WIDE];
    const int64_t rows = count > LANES * Q7_W ? FEW : BLOCK;
    for (int64_t c = 0; c < count; c += WIDE, x += WIDE, y += WIDE) {
        const int64_t width = q7_min(WIDE, count - c);
        int64_t first = 0, end;
        do {
            end = q7_min(n, first + rows);
#define PART(i, vectors, last) \
    columns(op, n, stride, x + i, y + i, parts + i, vectors, last, first, end)
            Q7_BY_4_VECTORS(width, PART)
#undef PART
            first = end;
        } while (first < n);
    }
}

void Q7_KERNEL(reduce_any)(int64_t dtype, int64_t op, int64_t count, int64_t n, int64_t stride,
                           const void *x, void *y) {
    if (dtype != Q7_F32) {
        Q7_KERNEL(reduce_typed)(dtype, op, count, n, stride, x, y);
        return;
    }
#ifdef Q7_ISA_avx512
    if (stride % Q7_W && stride > Q7_W && op != Q7_reduce_max && op != Q7_reduce_min) {
        q7_reduce_any_avx2(dtype, op, count, n, stride, x, y);
        return;
    }
#endif
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
