/* pool.c: the kernel of pool.h for every ISA. One body, made constant per op by inlining. Read
 * pool.h first. */
#include "pool.h"

#include <math.h>

#include "../simd/simd.h"

#ifdef Q7_ISA_avx512
/* Where means do nothing but load, and pixels are no whole lines of cache, vectors of 64 bytes are parts
 * of two lines and those of 32 of one: 1.1 to 1.25 of avx2's time (56x56x24, 28x28x136, 28x28x100). So do
 * maxima of 24 channels, which are three vectors of 32 bytes (1.08 to 1.2; of 8, 16 and from 32 on 0.8 to
 * 0.96). */
void q7_pool_f32_avx2(const q7_pool_args *args, int64_t line, int64_t end, const float *counts,
                      float *work);
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

/* p[0], p[2], .. of `left` floats, of which 2 * Q7_W may be loaded if there are more. */
Q7_INLINE q7_f32 load_evens(const float *p, int64_t left) {
    if (left >= 2 * Q7_W) return q7_evens(q7_load(p), q7_load(p + Q7_W));
    const q7_f32 high = left > Q7_W ? q7_load_tail(p + Q7_W, left - Q7_W) : q7_set1(0.0f);
    return q7_evens(q7_load_part(p, left), high);
}

/* What is joined, as what y holds; taps: how many count for mean. */
Q7_INLINE q7_f32 result(int64_t op, q7_f32 all, q7_f32 taps, float p) {
    if (op == Q7_pool_mean) return q7_div(all, taps);
    if (op != Q7_pool_lp || p == 1.0f) return all;
    if (p == 2.0f) return q7_sqrt(all);
    float lanes[Q7_W];
    q7_store(lanes, all);
    for (int i = 0; i < Q7_W; i++) lanes[i] = powf(lanes[i], 1 / p);
    return q7_load(lanes);
}

/* y[i] = the join of line[i * stride + j * dilation] over j, stride 1 or 2. */
Q7_INLINE void join_columns(int64_t op, float *y, const float *line, int64_t n, int64_t k,
                            const int64_t stride, int64_t dilation, float taps, const float *counts,
                            float p) {
    for (int64_t i = 0; i < n; i += Q7_W) {
        const int64_t left = stride * (n - i - 1) + 1; /* of the last window */
        q7_f32 all = q7_set1(0.0f);
        for (int64_t j = 0; j < k; j++) {
            const float *from = line + stride * i + j * dilation;
            const q7_f32 x = stride == 1 ? q7_load_part(from, left) : load_evens(from, left);
            all = j ? join(op, all, x) : x;
        }
        const q7_f32 columns = op == Q7_pool_mean ? q7_load_part(counts + i, n - i) : all;
        q7_store_part(y + i, result(op, all, q7_mul(q7_set1(taps), columns), p), n - i);
    }
}

/* y[i] = the join of line[i * stride + j * dilation] over j, in loops that compilers vectorise. */
Q7_INLINE void join_strided(int64_t op, float *restrict y, const float *restrict line, int64_t n,
                            int64_t k, int64_t stride, int64_t dilation, float taps,
                            const float *counts, float p) {
    for (int64_t i = 0; i < n; i++) y[i] = line[i * stride];
    for (int64_t j = 1; j < k; j++) {
        const float *from = line + j * dilation;
        for (int64_t i = 0; i < n; i++) {
            const float x = from[i * stride];
            y[i] = op != Q7_pool_max ? y[i] + x : x > y[i] || x != x ? x : y[i];
        }
    }
    for (int64_t i = 0; i < n && op == Q7_pool_mean; i++) y[i] /= taps * counts[i];
    for (int64_t i = 0; i < n && op == Q7_pool_lp && p != 1.0f; i++)
        y[i] = p == 2.0f ? sqrtf(y[i]) : powf(y[i], 1 / p);
}

/* The lines of x under a window. */
typedef struct window {
    int64_t first; /* element of x */
    int64_t planes, lines, plane_stride, line_stride;
    float taps; /* how many count for mean */
} window;

/* Where a line of y is: (n, od, oh). */
typedef struct place {
    int64_t n, od, oh;
} place;

Q7_INLINE place place_of(const q7_pool_args *x, int64_t line) {
    return (place){line / x->OH / x->OD, line / x->OH % x->OD, line % x->OH};
}

Q7_INLINE void go_on(const q7_pool_args *x, place *at) {
    if (++at->oh < x->OH) return;
    at->oh = 0;
    if (++at->od < x->OD) return;
    at->od = 0;
    at->n++;
}

Q7_INLINE window window_at(const q7_pool_args *x, place at) {
    const int64_t d = at.od * x->stride_d - x->pad_front, h = at.oh * x->stride_h - x->pad_top;
    const q7_taps planes = q7_taps_within(d, x->kd, x->dilation_d, 0, x->D);
    const q7_taps lines = q7_taps_within(h, x->kh, x->dilation_h, 0, x->H);
    int64_t taps = (planes.end - planes.first) * (lines.end - lines.first);
    if (x->count_pads)
        taps = q7_pool_count(d, x->kd, x->dilation_d, x->D, x->pad_front, x->pad_back, true) *
               q7_pool_count(h, x->kh, x->dilation_h, x->H, x->pad_top, x->pad_bottom, true);
    const int64_t first = (at.n * x->D + d + planes.first * x->dilation_d) * x->H + h;
    return (window){
        .first = (first + lines.first * x->dilation_h) * x->W,
        .planes = planes.end - planes.first,
        .lines = lines.end - lines.first,
        .plane_stride = x->dilation_d * x->H * x->W,
        .line_stride = x->dilation_h * x->W,
        .taps = (float)taps,
    };
}

/* y = the terms of the lines of a window of x joined, for some vectors, of the last one `last` elements: a
 * result, or else what columns are yet to join. */
Q7_INLINE void join_lines(int64_t op, const float *x, float *y, const window *in, const int vectors,
                          int64_t last, float p, const bool is_result) {
    q7_f32 all[4];
    for (int v = 0; v < vectors; v++) all[v] = q7_set1(start_of(op));
    for (int64_t l = 0; l < in->planes; l++)
        for (int64_t i = 0; i < in->lines; i++) {
            const float *from = x + l * in->plane_stride + i * in->line_stride;
            for (int v = 0; v < vectors; v++, from += Q7_W) {
                const q7_f32 one = v < vectors - 1 ? q7_load(from) : q7_load_part(from, last);
                all[v] = join(op, all[v], term(op, one, p));
            }
        }
    for (int v = 0; v < vectors; v++) {
        if (is_result) all[v] = result(op, all[v], q7_set1(in->taps), p);
        q7_store_part(y + v * Q7_W, all[v], v < vectors - 1 ? Q7_W : last);
    }
}

/* What has not been under a window before, of one further on. Inline: gcc drops calls that only prefetch. */
Q7_INLINE void prefetch_soon(const q7_pool_args *x, const window *in, const float *first) {
    for (int64_t l = q7_max(0, in->planes - x->stride_d); l < in->planes; l++)
        for (int64_t i = 0; i < q7_min(in->lines, x->stride_h) * x->W; i += Q7_LINE_FLOATS)
            q7_prefetch(first + l * in->plane_stride + i + SOON);
}

Q7_INLINE void pool_elements(const q7_pool_args *x, int64_t line, int64_t end, int64_t op) {
    const bool is_far = x->N * x->D * x->H * x->W > FAR;
    for (place at = place_of(x, line); line < end; line++, go_on(x, &at)) {
        const window in = window_at(x, at);
        const float *first = (const float *)x->x + in.first;
        float *y = (float *)x->y + line * x->W;
        if (is_far) prefetch_soon(x, &in, first);
#define PART(i, vectors, last) join_lines(op, first + i, y + i, &in, vectors, last, 2, true)
        Q7_BY_4_VECTORS(x->W, PART)
#undef PART
    }
}

/* The maxima of a line of bytes; those of int8 turned into what has the same order in uint8. */
static __attribute__((noinline)) void max_bytes(const q7_pool_args *x, int64_t line) {
    enum { BLOCK = 4 * Q7_W };
    const window in = window_at(x, place_of(x, line));
    const q7_block flip = q7_block_set1(x->dtype == Q7_I8 ? 128 : 0);
    const uint8_t *first = (const uint8_t *)x->x + in.first;
    uint8_t *y = (uint8_t *)x->y + line * x->W;
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
static __attribute__((noinline)) void by_element(const q7_pool_args *x, int64_t line, int64_t end) {
    switch (x->op) {
        case Q7_pool_max: pool_elements(x, line, end, Q7_pool_max); break;
        case Q7_pool_mean: pool_elements(x, line, end, Q7_pool_mean); break;
        default: pool_elements(x, line, end, Q7_pool_lp); break;
    }
}

/* The lines of windows join for some lines of y, each with its pads, before columns do for the first of
 * them: what was just stored is not loaded from another place at once. */
Q7_INLINE void pool(const q7_pool_args *x, int64_t line, int64_t end, const float *counts,
                    float *work, const int64_t op, const float p) {
    const int64_t length = q7_pool_line(x), band = q7_pool_band(length);
    for (int64_t i = 0; i < band * length; i++) work[i] = start_of(op);
    place at = place_of(x, line);
    for (int64_t lines; line < end; line += lines) {
        lines = q7_min(band, end - line);
        float taps[Q7_POOL_LINES];
        for (int64_t b = 0; b < lines; b++, go_on(x, &at)) {
            const window in = window_at(x, at);
            const float *first = (const float *)x->x + in.first;
            float *middle = work + b * length + x->pad_left;
            taps[b] = in.taps;
#define PART(i, vectors, last) join_lines(op, first + i, middle + i, &in, vectors, last, p, false)
            Q7_BY_4_VECTORS(x->W, PART)
#undef PART
        }
        for (int64_t b = 0; b < lines; b++) {
            float *y = (float *)x->y + (line + b) * x->OW;
            const float *joined = work + b * length;
#define COLUMNS(join, stride) \
    join(op, y, joined, x->OW, x->kw, stride, x->dilation_w, taps[b], counts, p)
            const bool is_wide = Q7_W > 4; /* four lanes: compilers do it in 0.75 of the time */
            if (x->stride_w == 1)
                COLUMNS(join_columns, 1);
            else if (x->stride_w == 2 && is_wide)
                COLUMNS(join_columns, 2);
            else if (x->stride_w == 2)
                COLUMNS(join_strided, 2);
            else
                COLUMNS(join_strided, x->stride_w);
#undef COLUMNS
        }
    }
}

static __attribute__((noinline)) void by_line(const q7_pool_args *x, int64_t line, int64_t end,
                                              const float *counts, float *work) {
    switch (x->op) {
        case Q7_pool_max: pool(x, line, end, counts, work, Q7_pool_max, 1); break;
        case Q7_pool_mean: pool(x, line, end, counts, work, Q7_pool_mean, 1); break;
        default:
            if (x->p == 2)
                pool(x, line, end, counts, work, Q7_pool_lp, 2);
            else
                pool(x, line, end, counts, work, Q7_pool_lp, (float)x->p);
    }
}

void Q7_KERNEL(pool_f32)(const q7_pool_args *x, int64_t line, int64_t end, const float *counts,
                         float *work) {
    if (x->dtype != Q7_F32)
        for (; line < end; line++) max_bytes(x, line);
    else if (!q7_pool_by_element(x))
        by_line(x, line, end, counts, work);
#ifdef Q7_ISA_avx512
    else if (x->W % Q7_W && (x->op == Q7_pool_mean || 2 * x->W == 3 * Q7_W))
        q7_pool_f32_avx2(x, line, end, counts, work);
#endif
    else
        by_element(x, line, end);
}
