/* col2im.c: y[n,m,d,h,w] = act(bias[m] + the sum of cols[n,m,l,i,j,od,oh,ow] over all places with
 * d = od * stride_d - pad_front + l * dilation_d, h and w likewise): the windows of an image added
 * up where they overlap, the second half of a transposed convolution.
 *
 * cols (N, M, kd, kh, kw, OD, OH, OW), y (N, M, D, H, W) does not overlap it. Each element is
 * summed by one task, over (l, i, j) in order. A task is some lines of y.
 *
 * col2im_last: the same for images whose channels lie side by side, cols (N, OD, OH, OW, kd, kh, kw, M)
 * and y (N, D, H, W, M); the pixels of y are y_stride apart. */
#include <string.h>

#include "../kernels/unary.h"
#include "../kernels/windows.h"
#include "loops.h"

_Static_assert(Q7_unary_squared_relu - Q7_unary_relu == Q7_act_squared_relu - Q7_act_relu,
               "activations are listed in the same order among the unary ops");

typedef struct col2im_job {
    const q7_col2im_args *args;
    q7_unary_kernel kernel;
    int64_t per_task; /* lines */
} col2im_job;

/* Which window has its tap at `tap * dilation` on pixel p, or -1. */
static inline int64_t window_at(int64_t p, int64_t pad, int64_t tap, int64_t dilation,
                                int64_t stride, int64_t windows) {
    const int64_t start = p + pad - tap * dilation;
    return start >= 0 && start % stride == 0 && start / stride < windows ? start / stride : -1;
}

/* The windows of a line, OW in all, `stride` apart, whose tap on column w + o * stride is one of
 * [0, W). */
static inline q7_taps windows_on(int64_t W, int64_t OW, int64_t stride, int64_t w) {
    return (q7_taps){w < 0 ? q7_ceil_div(-w, stride) : 0,
                     w < W ? q7_min(OW, q7_ceil_div(W - w, stride)) : 0};
}

/* y (W,) += windows (OW,), of which the first starts at column w. */
static void add_line(const q7_col2im_args *args, const float *restrict windows, int64_t w,
                     float *restrict y) {
    const int64_t s = args->stride_w;
    const q7_taps on = windows_on(args->W, args->OW, s, w);
    if (s == 1)
        for (int64_t o = on.first; o < on.end; o++) y[w + o] += windows[o];
    else
        for (int64_t o = on.first; o < on.end; o++) y[w + o * s] += windows[o];
}

static void line_of(const q7_col2im_args *args, int64_t line, float *y) {
    const int64_t h = line % args->H, d = line / args->H % args->D, nm = line / args->H / args->D;
    const float bias = args->bias ? ((const float *)args->bias)[nm % args->M] : 0.0f;
    for (int64_t w = 0; w < args->W; w++) y[w] = bias;
    for (int64_t l = 0; l < args->kd; l++) {
        const int64_t od =
            window_at(d, args->pad_front, l, args->dilation_d, args->stride_d, args->OD);
        for (int64_t i = 0; od >= 0 && i < args->kh; i++) {
            const int64_t oh =
                window_at(h, args->pad_top, i, args->dilation_h, args->stride_h, args->OH);
            for (int64_t j = 0; oh >= 0 && j < args->kw; j++) {
                const int64_t tap = ((nm * args->kd + l) * args->kh + i) * args->kw + j;
                const int64_t at = ((tap * args->OD + od) * args->OH + oh) * args->OW;
                add_line(args, (const float *)args->cols + at,
                         j * args->dilation_w - args->pad_left, y);
            }
        }
    }
}

static void col2im_task(void *arg, int64_t task, int64_t thread) {
    const col2im_job *job = arg;
    const q7_col2im_args *args = job->args;
    (void)thread;
    const int64_t first = task * job->per_task;
    const int64_t lines = q7_min(job->per_task, args->N * args->M * args->D * args->H - first);
    float *y = (float *)args->y + first * args->W;
    for (int64_t i = 0; i < lines; i++) line_of(args, first + i, y + i * args->W);
    if (args->act)
        job->kernel(Q7_unary_relu + args->act - Q7_act_relu, lines * args->W, y, y, args->act_alpha,
                    args->act_beta);
}

void q7_op_col2im(const q7_col2im_args *args, const q7_call *call) {
    const int64_t lines = args->N * args->M * args->D * args->H;
    if (lines * args->W == 0) return;
    col2im_job job = {.args = args, .kernel = (q7_unary_kernel)call->kernel};
    const int64_t windows =
        args->kd * args->kh * args->kw / (args->stride_d * args->stride_h); /* that meet a line */
    job.per_task = q7_max(1, Q7_GRAIN / (args->W * q7_max(1, windows)));
    q7_parallel(call, q7_ceil_div(lines, job.per_task), col2im_task, &job);
}

/* ---- channels last ---- */

typedef struct last_job {
    const q7_col2im_last_args *args;
    q7_unary_kernel kernel;
    int64_t parts, width; /* of a line, and the pixels of one */
} last_job;

/* y (width, M) += a tap (M,) of each window of a line, of which the first meets column w. */
static void add_pixels(const q7_col2im_last_args *args, const float *windows, int64_t w,
                       int64_t width, float *y) {
    const int64_t M = args->M, window = args->kd * args->kh * args->kw * M;
    const q7_taps on = windows_on(width, args->OW, args->stride_w, w);
    for (int64_t o = on.first; o < on.end; o++) {
        const float *restrict from = windows + o * window;
        float *restrict to = y + (w + o * args->stride_w) * args->y_stride;
        for (int64_t m = 0; m < M; m++) to[m] += from[m];
    }
}

/* `width` pixels of a line, from column `first` on. */
static void pixels_of(const q7_col2im_last_args *args, int64_t line, int64_t first, int64_t width,
                      float *y) {
    const int64_t h = line % args->H, d = line / args->H % args->D, n = line / args->H / args->D;
    const size_t bytes = (size_t)args->M * sizeof(float);
    for (int64_t w = 0; w < width; w++) {
        if (args->bias)
            memcpy(y + w * args->y_stride, args->bias, bytes);
        else
            memset(y + w * args->y_stride, 0, bytes);
    }
    for (int64_t l = 0; l < args->kd; l++) {
        const int64_t od =
            window_at(d, args->pad_front, l, args->dilation_d, args->stride_d, args->OD);
        for (int64_t i = 0; od >= 0 && i < args->kh; i++) {
            const int64_t oh =
                window_at(h, args->pad_top, i, args->dilation_h, args->stride_h, args->OH);
            for (int64_t j = 0; oh >= 0 && j < args->kw; j++) {
                const int64_t place = ((n * args->OD + od) * args->OH + oh) * args->OW;
                const int64_t tap = ((place * args->kd + l) * args->kh + i) * args->kw + j;
                add_pixels(args, (const float *)args->cols + tap * args->M,
                           j * args->dilation_w - args->pad_left - first, width, y);
            }
        }
    }
}

static void last_task(void *arg, int64_t task, int64_t thread) {
    const last_job *job = arg;
    const q7_col2im_last_args *args = job->args;
    (void)thread;
    const int64_t op = Q7_unary_relu + args->act - Q7_act_relu;
    const int64_t line = task / job->parts, first = task % job->parts * job->width;
    const int64_t width = q7_min(job->width, args->W - first);
    const int64_t runs = args->y_stride == args->M ? 1 : width, run = width / runs * args->M;
    float *y = (float *)args->y + (line * args->W + first) * args->y_stride;
    pixels_of(args, line, first, width, y);
    for (int64_t r = 0; args->act && r < runs; r++, y += args->y_stride)
        job->kernel(op, run, y, y, args->act_alpha, args->act_beta);
}

void q7_op_col2im_last(const q7_col2im_last_args *args, const q7_call *call) {
    const int64_t lines = args->N * args->D * args->H;
    if (lines * args->W * args->M == 0) return;
    last_job job = {.args = args, .kernel = (q7_unary_kernel)call->kernel};
    job.width = q7_min(args->W, q7_max(1, Q7_GRAIN / args->M));
    job.parts = q7_ceil_div(args->W, job.width);
    q7_parallel(call, lines * job.parts, last_task, &job);
}
