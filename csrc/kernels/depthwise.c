/* depthwise.c: the kernel of depthwise.h for every ISA. Several lines at once share a weight, and
 * are independent sums that hide the latency of fma. Read depthwise.h first. */
#include "depthwise.h"

#include "math.h"

#if defined(Q7_ISA_avx2) || defined(Q7_ISA_scalar)
enum { LINES = 4 }; /* two sums for each, of 16 registers */
#else
enum { LINES = 8 };
#endif

/* Every stride-th float from `from` on. */
Q7_INLINE void pick(float *restrict to, const float *restrict from, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];
}

/* n zeros at `to`, or n floats of `from`; inline, as lines are short. */
Q7_INLINE void zero(float *to, int64_t n) {
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) q7_store(to + i, q7_set1(0.0f));
    if (i < n) q7_store_tail(to + i, q7_set1(0.0f), n - i);
}

Q7_INLINE void copy(float *restrict to, const float *restrict from, int64_t n) {
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) q7_store(to + i, q7_load(from + i));
    if (i < n) q7_store_tail(to + i, q7_load_tail(from + i, n - i), n - i);
}

/* One line of x (W,), or zeros for NULL, as the parts of a packed line. */
static void pack_line(const q7_depthwise_args *x, const float *from, int64_t part, float *to) {
    const int64_t s = x->stride_w;
    if (!from) {
        zero(to, s * part);
        return;
    }
    for (int64_t p = 0; p < s; p++, to += part) {
        const int64_t w = p - x->pad_left; /* of to[0] */
        int64_t low = 0, high = 0;         /* what lies within [0, W) */
        if (w < x->W) {
            low = w >= 0 ? 0 : s == 1 ? q7_min(part, -w) : q7_min(part, q7_ceil_div(-w, s));
            high = s == 1 ? x->W - w : q7_ceil_div(x->W - w, s);
            high = q7_min(part, q7_max(low, high));
        }
        zero(to, low);
        if (s == 1)
            copy(to + low, from + w + low, high - low);
        else if (s == 2)
            pick(to + low, from + w + 2 * low, high - low, 2);
        else
            pick(to + low, from + w + s * low, high - low, s);
        zero(to + high, part - high);
    }
}

/* The sums of `lines` lines, a constant where this is inlined, from line `at` of the tile on. */
Q7_INLINE void sum_lines(const q7_depthwise_args *x, const q7_depthwise_tile *t, int64_t at,
                         const int lines, const float *w, float bias, float *y) {
    const int64_t stride = x->stride_h * x->stride_w * t->part;
    for (int64_t column = 0; column < x->OW; column += Q7_W) {
        const float *from = t->line + at * stride + column, *weight = w;
        const int64_t *tap = t->taps;
        q7_f32 sum[LINES], part[LINES];
        Q7_UNROLL
        for (int r = 0; r < lines; r++) sum[r] = q7_set1(bias);
        for (int64_t i = 0; i < x->kh; i++) {
            Q7_UNROLL
            for (int r = 0; r < lines; r++) part[r] = q7_set1(0.0f);
            for (int64_t j = 0; j < x->kw; j++, tap++, weight++) {
                const q7_f32 v = q7_set1(*weight);
                Q7_UNROLL
                for (int r = 0; r < lines; r++)
                    part[r] = q7_fma(v, q7_load(from + *tap + r * stride), part[r]);
            }
            Q7_UNROLL
            for (int r = 0; r < lines; r++) sum[r] = q7_add(sum[r], part[r]);
        }
        const int64_t left = x->OW - column;
        float *to = y + at * x->OW + column;
        Q7_UNROLL
        for (int r = 0; r < lines; r++) {
            if (left >= Q7_W)
                q7_store(to + r * x->OW, sum[r]);
            else
                q7_store_tail(to + r * x->OW, sum[r], left);
        }
    }
}

/* y = act(y) + residual, or act(y + residual) with residual_first, for n floats. */
Q7_INLINE void finish_as(const q7_depthwise_args *x, float *y, const float *residual, int64_t n,
                         const int64_t act) {
    const q7_f32 alpha = q7_set1((float)x->act_alpha), beta = q7_set1((float)x->act_beta);
    for (int64_t i = 0; i < n; i += Q7_W) {
        const int64_t lanes = q7_min(n - i, Q7_W);
        const q7_f32 term = residual ? q7_load_tail(residual + i, lanes) : q7_set1(0.0f);
        q7_f32 v = q7_load_tail(y + i, lanes);
        if (residual && x->residual_first) v = q7_add(v, term);
        v = q7_act(act, v, alpha, beta);
        if (residual && !x->residual_first) v = q7_add(v, term);
        q7_store_tail(y + i, v, lanes);
    }
}

static void finish(const q7_depthwise_args *x, float *y, const float *residual, int64_t n) {
    switch (x->act) { /* a loop for each */
#define ACT(act)                                    \
    case Q7_act_##act:                              \
        finish_as(x, y, residual, n, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}

void Q7_KERNEL(depthwise_f32)(const q7_depthwise_args *x, const q7_depthwise_tile *t) {
    const int64_t m = t->filter % (x->C * x->repeat);
    const float *plane = (const float *)x->x + t->filter / x->repeat * x->H * x->W;
    const int64_t needed = (t->lines - 1) * x->stride_h + (x->kh - 1) * x->dilation_h + 1;
    for (int64_t i = 0; i < needed; i++) {
        const int64_t h = t->first * x->stride_h - x->pad_top + i;
        const float *from = h >= 0 && h < x->H ? plane + h * x->W : NULL;
        pack_line(x, from, t->part, t->line + i * x->stride_w * t->part);
    }
    const float *w = (const float *)x->w + m * x->kh * x->kw;
    const float bias = x->bias ? ((const float *)x->bias)[m] : 0.0f;
    const int64_t out = (t->filter * x->OH + t->first) * x->OW;
    float *y = (float *)x->y + out;
    int64_t at = 0;
    for (; at + LINES <= t->lines; at += LINES) sum_lines(x, t, at, LINES, w, bias, y);
    if (at + 4 <= t->lines) sum_lines(x, t, at, 4, w, bias, y), at += 4;
    if (at + 2 <= t->lines) sum_lines(x, t, at, 2, w, bias, y), at += 2;
    if (at < t->lines) sum_lines(x, t, at, 1, w, bias, y);
    const float *residual = x->residual ? (const float *)x->residual + out : NULL;
    if (x->act || residual) finish(x, y, residual, t->lines * x->OW);
}
