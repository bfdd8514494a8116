/* pool.c: the kernel of pool.h for every ISA. One body, made constant per op by inlining. Read
 * pool.h first. */
#include "pool.h"

#include <math.h>

#include "../simd/simd.h"

#ifdef Q7_ISA_avx512
/* Where means do nothing but load, and pixels are no whole lines of cache, vectors of 64 bytes are parts
 * of two lines and those of 32 of one: 1.1 to 1.25 of avx2's time (56x56x24, 28x28x136, 28x28x100). */
void q7_pool_f32_avx2(const q7_pool_args *args, int64_t line, const float *taps, float *work);
#endif

/* Elements of an x that no cache has, of which what is soon under a window is prefetched: 0.6 of the time
 * (docs/decisions.md 68). */
enum { FAR = 1 << 21, SOON = 512 };

/* What a window of nothing gives. */
Q7_INLINE float start_of(int64_t op) { return op == Q7_pool_max ? -INFINITY : 0.0f; }

Q7_INLINE q7_f32 join(int64_t op, q7_f32 a, q7_f32 x) {
    if (op != Q7_pool_max) return q7_add(a, x);
    return q7_select(q7_unordered(x), x, q7_vmax(x, a)); /* tests x, off the chain of maxima */
}

/* x, or the powers that lp sums. */
Q7_INLINE q7_f32 term(int64_t op, q7_f32 x, float p) {
    if (op != Q7_pool_lp) return x;
    if (p == 2.0f || p == 1.0f) return p == 2.0f ? q7_mul(x, x) : q7_abs(x);
    float lanes[Q7_W];
    q7_store(lanes, x);
    for (int i = 0; i < Q7_W; i++) lanes[i] = powf(fabsf(lanes[i]), p);
    return q7_load(lanes);
}

/* line = the terms of x, joined with what it holds but for the first. */
Q7_INLINE void join_line(int64_t op, float *line, const float *x, int64_t n, bool first, float p) {
    for (int64_t i = 0; i < n; i += Q7_W) {
        const q7_f32 v = term(op, q7_load_part(x + i, n - i), p);
        q7_store_part(line + i, first ? v : join(op, q7_load_part(line + i, n - i), v), n - i);
    }
}

/* y[i] = the join of line[i + j * dilation] over j. */
Q7_INLINE void join_columns(int64_t op, float *y, const float *line, int64_t n, int64_t k,
                            int64_t dilation) {
    for (int64_t i = 0; i < n; i += Q7_W) {
        q7_f32 all = q7_load_part(line + i, n - i);
        for (int64_t j = 1; j < k; j++)
            all = join(op, all, q7_load_part(line + i + j * dilation, n - i));
        q7_store_part(y + i, all, n - i);
    }
}

/* p[0], p[2], .. of `left` floats, of which 2 * Q7_W may be loaded if there are more. */
Q7_INLINE q7_f32 load_evens(const float *p, int64_t left) {
    if (left >= 2 * Q7_W) return q7_evens(q7_load(p), q7_load(p + Q7_W));
    const q7_f32 high = left > Q7_W ? q7_load_tail(p + Q7_W, left - Q7_W) : q7_set1(0.0f);
    return q7_evens(q7_load_part(p, left), high);
}

/* y[i] = the join of line[2 * i + j * dilation] over j. */
Q7_INLINE void join_every_other(int64_t op, float *y, const float *line, int64_t n, int64_t k,
                                int64_t dilation) {
    for (int64_t i = 0; i < n; i += Q7_W) {
        const int64_t left = 2 * (n - i) - 1; /* of the last window */
        q7_f32 all = load_evens(line + 2 * i, left);
        for (int64_t j = 1; j < k; j++)
            all = join(op, all, load_evens(line + 2 * i + j * dilation, left));
        q7_store_part(y + i, all, n - i);
    }
}

/* y[i] = the join of line[i * stride + j * dilation] over j, in loops that compilers vectorise. */
Q7_INLINE void join_strided(int64_t op, float *restrict y, const float *restrict line, int64_t n,
                            int64_t k, int64_t stride, int64_t dilation) {
    for (int64_t i = 0; i < n; i++) y[i] = line[i * stride];
    for (int64_t j = 1; j < k; j++) {
        const float *from = line + j * dilation;
        for (int64_t i = 0; i < n; i++) {
            const float x = from[i * stride];
            y[i] = op != Q7_pool_max ? y[i] + x : x > y[i] || x != x ? x : y[i];
        }
    }
}

/* The lines of x under a window. */
typedef struct window {
    int64_t first; /* element of x */
    int64_t planes, lines, plane_stride, line_stride;
    float taps; /* how many count for mean */
} window;

Q7_INLINE window window_of(const q7_pool_args *x, int64_t at) {
    const int64_t oh = at % x->OH, od = at / x->OH % x->OD, n = at / x->OH / x->OD;
    const int64_t d = od * x->stride_d - x->pad_front, h = oh * x->stride_h - x->pad_top;
    const q7_taps planes = q7_taps_within(d, x->kd, x->dilation_d, 0, x->D);
    const q7_taps lines = q7_taps_within(h, x->kh, x->dilation_h, 0, x->H);
    const int64_t taps =
        q7_pool_count(d, x->kd, x->dilation_d, x->D, x->pad_front, x->pad_back, x->count_pads) *
        q7_pool_count(h, x->kh, x->dilation_h, x->H, x->pad_top, x->pad_bottom, x->count_pads);
    const int64_t first = (n * x->D + d + planes.first * x->dilation_d) * x->H + h;
    return (window){
        .first = (first + lines.first * x->dilation_h) * x->W,
        .planes = planes.end - planes.first,
        .lines = lines.end - lines.first,
        .plane_stride = x->dilation_d * x->H * x->W,
        .line_stride = x->dilation_h * x->W,
        .taps = (float)taps,
    };
}

/* y = the terms of the lines of a window of x joined, for some vectors, of the last one `last` elements. */
Q7_INLINE void join_elements(int64_t op, const float *x, float *y, const window *in,
                             const int vectors, int64_t last) {
    q7_f32 all[4];
    for (int v = 0; v < vectors; v++) all[v] = q7_set1(start_of(op));
    for (int64_t l = 0; l < in->planes; l++)
        for (int64_t i = 0; i < in->lines; i++) {
            const float *from = x + l * in->plane_stride + i * in->line_stride;
            for (int v = 0; v < vectors; v++, from += Q7_W) {
                const q7_f32 one = v < vectors - 1 ? q7_load(from) : q7_load_part(from, last);
                all[v] = join(op, all[v], term(op, one, 2));
            }
        }
    for (int v = 0; v < vectors; v++) {
        if (op == Q7_pool_mean) all[v] = q7_div(all[v], q7_set1(in->taps));
        if (op == Q7_pool_lp) all[v] = q7_sqrt(all[v]);
        q7_store_part(y + v * Q7_W, all[v], v < vectors - 1 ? Q7_W : last);
    }
}

/* What has not been under a window before, of one further on. Inline: gcc drops calls that only prefetch. */
Q7_INLINE void prefetch_soon(const q7_pool_args *x, const window *in, const float *first) {
    for (int64_t l = q7_max(0, in->planes - x->stride_d); l < in->planes; l++)
        for (int64_t i = 0; i < q7_min(in->lines, x->stride_h) * x->W; i += Q7_LINE_FLOATS)
            q7_prefetch(first + l * in->plane_stride + i + SOON);
}

Q7_INLINE void pool_elements(const q7_pool_args *x, int64_t at, int64_t op) {
    const window in = window_of(x, at);
    const float *first = (const float *)x->x + in.first;
    float *y = (float *)x->y + at * x->W;
    if (x->N * x->D * x->H * x->W > FAR) prefetch_soon(x, &in, first);
#define PART(i, vectors, last) join_elements(op, first + i, y + i, &in, vectors, last)
    Q7_BY_4_VECTORS(x->W, PART)
#undef PART
}

/* The maxima of a line of bytes; those of int8 turned into what has the same order in uint8. */
static __attribute__((noinline)) void max_bytes(const q7_pool_args *x, int64_t at) {
    enum { BLOCK = 4 * Q7_W };
    const window in = window_of(x, at);
    const q7_block flip = q7_block_set1(x->dtype == Q7_I8 ? 128 : 0);
    const uint8_t *first = (const uint8_t *)x->x + in.first;
    uint8_t *y = (uint8_t *)x->y + at * x->W;
    for (int64_t c = 0; c < x->W; c += BLOCK) {
        const int64_t n = q7_min(BLOCK, x->W - c);
        q7_block most = q7_block_set1(0);
        for (int64_t l = 0; l < in.planes; l++)
            for (int64_t i = 0; i < in.lines; i++) {
                const uint8_t *from = first + l * in.plane_stride + i * in.line_stride + c;
                const q7_block v = n == BLOCK ? q7_block_load(from) : q7_block_load_tail(from, n);
                most = q7_block_max(most, q7_block_xor(v, flip));
            }
        most = q7_block_xor(most, flip);
        if (n == BLOCK)
            q7_block_store(y + c, most);
        else
            q7_block_store_tail(y + c, most, n);
    }
}

/* Apart from `by_line`, as gcc makes loops worse in a larger function: 1.4x on scalar. */
static __attribute__((noinline)) void by_element(const q7_pool_args *x, int64_t at) {
    switch (x->op) {
        case Q7_pool_max: pool_elements(x, at, Q7_pool_max); break;
        case Q7_pool_mean: pool_elements(x, at, Q7_pool_mean); break;
        default: pool_elements(x, at, Q7_pool_lp); break;
    }
}

Q7_INLINE void pool(const q7_pool_args *x, int64_t at, const float *counts, float *work,
                    const int64_t op, const float p) {
    const window in = window_of(x, at);
    const float *top = (const float *)x->x + in.first;
    float *y = (float *)x->y + at * x->OW;
    const int64_t end = q7_pool_line(x);
    float *middle = work + x->pad_left;
    bool first = true;
    for (int64_t l = 0; l < in.planes; l++)
        for (int64_t i = 0; i < in.lines; i++, first = false)
            join_line(op, middle, top + l * in.plane_stride + i * in.line_stride, x->W, first, p);
    for (int64_t i = 0; i < x->pad_left; i++) work[i] = start_of(op);
    for (int64_t i = first ? 0 : x->W; i < end - x->pad_left; i++) middle[i] = start_of(op);
    if (x->stride_w == 1)
        join_columns(op, y, work, x->OW, x->kw, x->dilation_w);
    else if (x->stride_w == 2 && Q7_W > 4) /* four lanes: compilers do it in 0.75 of the time */
        join_every_other(op, y, work, x->OW, x->kw, x->dilation_w);
    else if (x->stride_w == 2)
        join_strided(op, y, work, x->OW, x->kw, 2, x->dilation_w);
    else
        join_strided(op, y, work, x->OW, x->kw, x->stride_w, x->dilation_w);
    if (op == Q7_pool_mean) {
        for (int64_t i = 0; i < x->OW; i++) y[i] /= in.taps * counts[i];
    } else if (op == Q7_pool_lp && p != 1.0f) {
        for (int64_t i = 0; i < x->OW; i++) y[i] = p == 2.0f ? sqrtf(y[i]) : powf(y[i], 1 / p);
    }
}

static __attribute__((noinline)) void by_line(const q7_pool_args *x, int64_t at, const float *taps,
                                              float *work) {
    switch (x->op) {
        case Q7_pool_max: pool(x, at, taps, work, Q7_pool_max, 1); break;
        case Q7_pool_mean: pool(x, at, taps, work, Q7_pool_mean, 1); break;
        default:
            if (x->p == 2)
                pool(x, at, taps, work, Q7_pool_lp, 2);
            else
                pool(x, at, taps, work, Q7_pool_lp, (float)x->p);
    }
}

void Q7_KERNEL(pool_f32)(const q7_pool_args *x, int64_t line, const float *taps, float *work) {
    if (x->dtype != Q7_F32)
        max_bytes(x, line);
    else if (!q7_pool_by_element(x))
        by_line(x, line, taps, work);
#ifdef Q7_ISA_avx512
    else if (x->op == Q7_pool_mean && x->W % Q7_W)
        q7_pool_f32_avx2(x, line, taps, work);
#endif
    else
        by_element(x, line);
}
