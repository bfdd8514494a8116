/* depthwise.c: the kernel of depthwise.h for every ISA. Several pixels at once share a weight and are
 * independent sums, which hide the latency of fma; where a kernel sticks out of x, a pixel at a time,
 * several vectors of channels are. Read depthwise.h first. */
#include "depthwise.h"

#include <math.h>

#include "math.h"
#include "windows.h"

enum { PIXELS = 4, FEW = 2, MANY = 4 }; /* pixels at once; vectors of channels of them, of one */
enum { ROW = 8, MOST_TAPS = 5 };        /* pixels at once where a load serves several of them */

/* Where the windows of a line lie, and the taps that count for all of them. */
typedef struct place {
    const q7_depthwise_args *x;
    const float *corner; /* of the window at ow = 0, channel 0 */
    q7_taps planes, lines;
    float *y;
    int64_t pixel;    /* of y, at ow = 0 */
    q7_f32 low, high; /* what sums are clamped to */
} place;

/* Whether `put` does all that is wanted of a sum; else finish() does the rest. */
Q7_INLINE bool clamps(const q7_depthwise_args *x) {
    return !x->residual &&
           (x->act == Q7_act_none || x->act == Q7_act_relu || x->act == Q7_act_clip);
}

Q7_INLINE void put(const place *at, int64_t ow, int64_t c, q7_f32 sum, int64_t lanes) {
    q7_store_part(at->y + ow * at->x->y_stride + c, q7_vmin(at->high, q7_vmax(at->low, sum)),
                  lanes);
}

/* The sums of some vectors of channels from c on, the last of `lanes`, for some pixels from ow on;
 * vectors and pixels are constants where this is inlined. */
Q7_INLINE void tile(const place *at, int64_t ow, q7_taps columns, int64_t c, const int pixels,
                    const int vectors, int64_t lanes) {
    const q7_depthwise_args *x = at->x;
    const int64_t step = x->stride_w * x->x_w_stride;
    const float *corner = at->corner + ow * step + c;
    q7_f32 sum[PIXELS * MANY], w[MANY];
    Q7_UNROLL
    for (int v = 0; v < vectors; v++) {
        const q7_f32 bias =
            x->bias ? q7_load_part((const float *)x->bias + c + v * Q7_W, lanes) : q7_set1(0.0f);
        Q7_UNROLL
        for (int p = 0; p < pixels; p++) sum[p * vectors + v] = bias;
    }
    for (int64_t l = at->planes.first; l < at->planes.end; l++)
        for (int64_t i = at->lines.first; i < at->lines.end; i++) {
            const float *line =
                corner + l * x->dilation_d * x->x_d_stride + i * x->dilation_h * x->x_h_stride;
            const float *weight = (const float *)x->w + ((l * x->kh + i) * x->kw) * x->C + c;
            for (int64_t j = columns.first; j < columns.end; j++) {
                const float *from = line + j * x->dilation_w * x->x_w_stride;
                Q7_UNROLL
                for (int v = 0; v < vectors; v++)
                    w[v] = q7_load_part(weight + j * x->C + v * Q7_W, lanes);
                Q7_UNROLL
                for (int p = 0; p < pixels; p++) {
                    Q7_UNROLL
                    for (int v = 0; v < vectors; v++)
                        sum[p * vectors + v] =
                            q7_fma(w[v], q7_load_part(from + p * step + v * Q7_W, lanes),
                                   sum[p * vectors + v]);
                }
            }
        }
    Q7_UNROLL
    for (int p = 0; p < pixels; p++) {
        Q7_UNROLL
        for (int v = 0; v < vectors; v++)
            put(at, ow + p, c + v * Q7_W, sum[p * vectors + v], lanes);
    }
}

/* The same for a vector of channels and kernels of `taps` columns, a constant as is `stride`: what is
 * loaded of x is used for every pixel that it is under. */
Q7_INLINE void row(const place *at, int64_t ow, int64_t c, const int pixels, const int taps,
                   const int stride, int64_t lanes) {
    const q7_depthwise_args *x = at->x;
    const float *corner = at->corner + ow * stride * x->x_w_stride + c;
    const q7_f32 bias = x->bias ? q7_load_part((const float *)x->bias + c, lanes) : q7_set1(0.0f);
    q7_f32 sum[ROW], w[MOST_TAPS];
    Q7_UNROLL
    for (int p = 0; p < pixels; p++) sum[p] = bias;
    for (int64_t l = at->planes.first; l < at->planes.end; l++)
        for (int64_t i = at->lines.first; i < at->lines.end; i++) {
            const float *line =
                corner + l * x->dilation_d * x->x_d_stride + i * x->dilation_h * x->x_h_stride;
            const float *weight = (const float *)x->w + ((l * x->kh + i) * taps) * x->C + c;
            Q7_UNROLL
            for (int j = 0; j < taps; j++) w[j] = q7_load_part(weight + j * x->C, lanes);
            Q7_UNROLL
            for (int at_x = 0; at_x < (pixels - 1) * stride + taps; at_x++) {
                const q7_f32 v = q7_load_part(line + at_x * x->x_w_stride, lanes);
                Q7_UNROLL
                for (int p = 0; p < pixels; p++)
                    if (at_x >= p * stride && at_x < p * stride + taps)
                        sum[p] = q7_fma(w[at_x - p * stride], v, sum[p]);
            }
        }
    Q7_UNROLL
    for (int p = 0; p < pixels; p++) put(at, ow + p, c, sum[p], lanes);
}

/* All channels of the line for some pixels by row(), where there is one for this kernel. */
Q7_INLINE bool rows(const place *at, const q7_depthwise_line *line, int64_t ow, const int pixels) {
    const q7_depthwise_args *x = at->x;
    if (x->dilation_w != 1) return false;
#define ROWS(taps, stride)                                                                   \
    if (x->kw == (taps) && x->stride_w == (stride)) {                                        \
        int64_t c = line->first;                                                             \
        for (; c + Q7_W <= line->end; c += Q7_W) row(at, ow, c, pixels, taps, stride, Q7_W); \
        if (c < line->end) row(at, ow, c, pixels, taps, stride, line->end - c);              \
        return true;                                                                         \
    }
    /* clang-format off */
    ROWS(3, 1) ROWS(3, 2) ROWS(5, 1) ROWS(5, 2)
    /* clang-format on */
#undef ROWS
        return false;
}

/* All channels of the line for some pixels. */
Q7_INLINE void channels(const place *at, const q7_depthwise_line *line, int64_t ow, q7_taps columns,
                        const int pixels, const int vectors) {
    int64_t c = line->first;
    for (; c + vectors * Q7_W <= line->end; c += vectors * Q7_W)
        tile(at, ow, columns, c, pixels, vectors, Q7_W);
    for (; c + Q7_W <= line->end; c += Q7_W) tile(at, ow, columns, c, pixels, 1, Q7_W);
    if (c < line->end) tile(at, ow, columns, c, pixels, 1, line->end - c);
}

/* y = act(y) + residual, or act(y + residual) with residual_first. */
Q7_INLINE void finish_as(const place *at, const q7_depthwise_line *line, const int64_t act) {
    const q7_depthwise_args *x = at->x;
    const q7_f32 alpha = q7_set1((float)x->act_alpha), beta = q7_set1((float)x->act_beta);
    const float *residual = x->residual;
    for (int64_t ow = 0; ow < x->OW; ow++) {
        const float *added = residual ? residual + (at->pixel + ow) * x->residual_stride : NULL;
        float *y = at->y + ow * x->y_stride;
        for (int64_t c = line->first; c < line->end; c += Q7_W) {
            const int64_t lanes = line->end - c;
            const q7_f32 term = added ? q7_load_part(added + c, lanes) : q7_set1(0.0f);
            q7_f32 v = q7_load_part(y + c, lanes);
            if (added && x->residual_first) v = q7_add(v, term);
            v = q7_act(act, v, alpha, beta);
            if (added && !x->residual_first) v = q7_add(v, term);
            q7_store_part(y + c, v, lanes);
        }
    }
}

static void finish(const place *at, const q7_depthwise_line *line) {
    switch (at->x->act) { /* a loop for each */
#define ACT(act)                           \
    case Q7_act_##act:                     \
        finish_as(at, line, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}

void Q7_KERNEL(depthwise_f32)(const q7_depthwise_args *x, const q7_depthwise_line *line) {
    const int64_t d = line->od * x->stride_d - x->pad_front;
    const int64_t h = line->oh * x->stride_h - x->pad_top;
    place at = {.x = x,
                .corner = (const float *)x->x + line->n * x->x_n_stride + d * x->x_d_stride +
                          h * x->x_h_stride - x->pad_left * x->x_w_stride,
                .planes = q7_taps_within(d, x->kd, x->dilation_d, 0, x->D),
                .lines = q7_taps_within(h, x->kh, x->dilation_h, 0, x->H),
                .pixel = ((line->n * x->OD + line->od) * x->OH + line->oh) * x->OW};
    at.y = (float *)x->y + at.pixel * x->y_stride;
    const bool done = clamps(x);
    at.low = q7_set1(!done || !x->act        ? -INFINITY
                     : x->act == Q7_act_clip ? (float)x->act_alpha
                                             : 0.0f);
    at.high = q7_set1(done && x->act == Q7_act_clip ? (float)x->act_beta : INFINITY);
    const q7_taps all = {0, x->kw};
    for (int64_t ow = 0; ow < x->OW;) {
        const int64_t w = ow * x->stride_w - x->pad_left;
        const int64_t last = x->W - (x->kw - 1) * x->dilation_w; /* where windows stick out */
        const int64_t whole =
            w < 0 ? 0 : q7_min(x->OW - ow, q7_ceil_div(last - w, x->stride_w)); /* do not */
        if (whole >= ROW && rows(&at, line, ow, ROW)) {
            ow += ROW;
        } else if (whole >= PIXELS) {
            if (!rows(&at, line, ow, PIXELS)) channels(&at, line, ow, all, PIXELS, FEW);
            ow += PIXELS;
        } else {
            channels(&at, line, ow, q7_taps_within(w, x->kw, x->dilation_w, 0, x->W), 1, MANY);
            ow++;
        }
    }
    if (!done) finish(&at, line);
}
