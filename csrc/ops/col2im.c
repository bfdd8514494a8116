/* col2im.c: y[n,m,d,h,w] = act(bias[m] + the sum of cols[n,m,l,i,j,od,oh,ow] over all places with
 * d = od * stride_d - pad_front + l * dilation_d, h and w likewise): the windows of an image added
 * up where they overlap, the second half of a transposed convolution.
 *
 * cols (N, M, kd, kh, kw, OD, OH, OW), y (N, M, D, H, W) does not overlap it; with `last` the channels
 * lie side by side, cols (N, OD, OH, OW, kd, kh, kw, M), y (N, D, H, W, M). The pixels of y are y_stride
 * apart. With w (kd, kh, kw, M) and `last`, windows are those of a transposed convolution whose groups
 * have one channel each: the pixels x (N, OD, OH, OW, M), which cols are then, times w. Each element is
 * summed by one task, over (l, i, j) in order. A task is some lines of y, or a part of one. */
#include <string.h>

#include "../kernels/unary.h"
#include "../kernels/windows.h"
#include "loops.h"

_Static_assert(Q7_unary_squared_relu - Q7_unary_relu == Q7_act_squared_relu - Q7_act_relu,
               "activations are listed in the same order among the unary ops");

typedef struct col2im_job {
    const q7_col2im_args *args;
    q7_unary_kernel kernel;
    int64_t run;          /* channels of a pixel: planes are images of one */
    int64_t taps;         /* of a window */
    int64_t tap, place;   /* floats of cols from a tap to the next, and from a window, */
    int64_t image;        /* and from an image */
    int64_t all;          /* lines */
    int64_t lines, width; /* of a task, and pixels of each */
    int64_t parts;        /* of a line */
    bool is_alone;        /* whether each pixel is met by one tap */
} col2im_job;

/* Which window has its tap at `tap * dilation` on pixel p, or -1. */
static inline int64_t window_at(int64_t p, int64_t pad, int64_t tap, int64_t dilation,
                                int64_t stride, int64_t windows) {
    const int64_t start = p + pad - tap * dilation;
    return start >= 0 && start % stride == 0 && start / stride < windows ? start / stride : -1;
}

/* The windows of a line whose tap lies on one of `width` pixels, where that of the first is on pixel w. */
static inline q7_taps windows_on(const q7_col2im_args *args, int64_t width, int64_t w) {
    const int64_t s = args->stride_w;
    return (q7_taps){w < 0 ? q7_ceil_div(-w, s) : 0,
                     w < width ? q7_min(args->OW, q7_ceil_div(width - w, s)) : 0};
}

/* The taps of n windows of a line, and the pixels that they meet, `step` floats apart. */
typedef struct met {
    const float *windows;
    float *y;
    int64_t n, step;
} met;

/* Of `width` pixels from y on, where the tap of the first window is on pixel w. */
static inline met met_by(const col2im_job *job, const float *windows, int64_t w, int64_t width,
                         float *y) {
    const q7_taps on = windows_on(job->args, width, w);
    const int64_t s = job->args->stride_w;
    if (on.end <= on.first) return (met){.n = 0};
    return (met){.windows = windows + on.first * job->place,
                 .y = y + (w + on.first * s) * job->args->y_stride,
                 .n = on.end - on.first,
                 .step = s * job->args->y_stride};
}

/* y += what is met; with weights (M,), those times what is in its place. */
static void add_tap(const col2im_job *job, met at, const float *restrict weights) {
    const float *restrict windows = at.windows;
    float *restrict y = at.y;
    const int64_t place = job->place, run = job->run, n = at.n, step = at.step;
    if (weights)
        for (int64_t o = 0; o < n; o++)
            for (int64_t m = 0; m < run; m++)
                y[o * step + m] += windows[o * place + m] * weights[m];
    else if (run > 1)
        for (int64_t o = 0; o < n; o++)
            for (int64_t m = 0; m < run; m++) y[o * step + m] += windows[o * place + m];
    else if (place == 1 && step == 1)
        for (int64_t o = 0; o < n; o++) y[o] += windows[o];
    else
        for (int64_t o = 0; o < n; o++) y[o * step] += windows[o * place];
}

/* y = bias + the only tap of these pixels: nothing is filled and read again. */
static void put_tap(const col2im_job *job, met at, const float *restrict bias) {
    const float *restrict windows = at.windows;
    float *restrict y = at.y;
    const int64_t place = job->place, run = job->run, n = at.n, step = at.step;
    const float value = bias ? *bias : 0.0f;
    if (run == 1)
        for (int64_t o = 0; o < n; o++) y[o * step] = value + windows[o * place];
    else if (bias)
        for (int64_t o = 0; o < n; o++)
            for (int64_t m = 0; m < run; m++) y[o * step + m] = bias[m] + windows[o * place + m];
    else
        for (int64_t o = 0; o < n; o++)
            for (int64_t m = 0; m < run; m++) y[o * step + m] = 0.0f + windows[o * place + m];
}

/* y = the biases of `width` pixels, from which sums begin. */
static void fill(const col2im_job *job, const float *bias, int64_t width, float *y) {
    const int64_t run = job->run, stride = job->args->y_stride;
    if (run == 1) {
        const float value = bias ? *bias : 0.0f;
        for (int64_t w = 0; w < width; w++) y[w * stride] = value;
    }
    for (int64_t w = 0; run > 1 && w < width; w++, y += stride)
        if (bias)
            memcpy(y, bias, (size_t)run * sizeof(float));
        else
            memset(y, 0, (size_t)run * sizeof(float));
}

/* `width` pixels of a line, from column `first` on. */
static void pixels_of(const col2im_job *job, int64_t line, int64_t first, int64_t width, float *y) {
    const q7_col2im_args *args = job->args;
    const int64_t h = line % args->H, d = line / args->H % args->D,
                  image = line / args->H / args->D;
    const float *bias = args->bias, *weights = args->w;
    const float *cols = (const float *)args->cols + image * job->image;
    if (bias) bias += image * job->run % args->M;
    if (!job->is_alone) fill(job, bias, width, y);
    for (int64_t l = 0; l < args->kd; l++) {
        const int64_t od =
            window_at(d, args->pad_front, l, args->dilation_d, args->stride_d, args->OD);
        for (int64_t i = 0; od >= 0 && i < args->kh; i++) {
            const int64_t oh =
                window_at(h, args->pad_top, i, args->dilation_h, args->stride_h, args->OH);
            const float *windows = cols + (od * args->OH + oh) * args->OW * job->place;
            for (int64_t j = 0; oh >= 0 && j < args->kw; j++) {
                const int64_t tap = (l * args->kh + i) * args->kw + j;
                const int64_t w = j * args->dilation_w - args->pad_left - first;
                const met at = met_by(job, windows + tap * job->tap, w, width, y);
                if (job->is_alone)
                    put_tap(job, at, bias);
                else
                    add_tap(job, at, weights ? weights + tap * args->M : NULL);
            }
        }
    }
}

static void col2im_task(void *arg, int64_t task, int64_t thread) {
    const col2im_job *job = arg;
    const q7_col2im_args *args = job->args;
    (void)thread;
    const int64_t first = task / job->parts * job->lines, column = task % job->parts * job->width;
    const int64_t lines = q7_min(job->lines, job->all - first);
    const int64_t width = q7_min(job->width, args->W - column), pixels = lines * width;
    float *y = (float *)args->y + (first * args->W + column) * args->y_stride;
    for (int64_t i = 0; i < lines; i++)
        pixels_of(job, first + i, column, width, y + i * args->W * args->y_stride);
    const int64_t runs = args->y_stride == job->run ? 1 : pixels, run = pixels / runs * job->run;
    for (int64_t r = 0; args->act && r < runs; r++, y += args->y_stride)
        job->kernel(Q7_F32, Q7_unary_relu + args->act - Q7_act_relu, run, y, y, args->act_alpha,
                    args->act_beta);
}

/* Whether windows tile an axis: side by side, and to its end. */
static bool tiles(int64_t kernel, int64_t stride, int64_t dilation, int64_t pad, int64_t windows,
                  int64_t size) {
    return stride == kernel && (dilation == 1 || kernel == 1) && pad == 0 &&
           size == windows * stride;
}

void q7_op_col2im(const q7_col2im_args *args, const q7_call *call) {
    col2im_job job = {.args = args,
                      .kernel = (q7_unary_kernel)call->kernel,
                      .run = args->last ? args->M : 1,
                      .taps = args->kd * args->kh * args->kw};
    if (args->N * args->M * args->D * args->H * args->W == 0) return;
    job.is_alone =
        !args->w &&
        tiles(args->kd, args->stride_d, args->dilation_d, args->pad_front, args->OD, args->D) &&
        tiles(args->kh, args->stride_h, args->dilation_h, args->pad_top, args->OH, args->H) &&
        tiles(args->kw, args->stride_w, args->dilation_w, args->pad_left, args->OW, args->W);
    const int64_t places = args->OD * args->OH * args->OW;
    job.tap = args->w ? 0 : args->last ? args->M : places;
    job.place = args->w ? args->M : args->last ? job.taps * args->M : 1;
    job.image = args->last ? places * job.place : places * job.taps;
    job.all = args->N * args->M / job.run * args->D * args->H;
    const int64_t windows = job.taps / (args->stride_d * args->stride_h); /* that meet a line */
    const int64_t pixels = Q7_GRAIN / (job.run * q7_max(1, windows));     /* of a task */
    job.lines = q7_max(1, pixels / args->W);
    job.width = q7_min(args->W, q7_max(1, pixels));
    job.parts = q7_ceil_div(args->W, job.width);
    q7_parallel(call, q7_ceil_div(job.all, job.lines) * job.parts, col2im_task, &job);
}
