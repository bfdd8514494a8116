/* col2im.c: y[n,m,d,h,w] = act(bias[m] + the sum of cols[n,m,l,i,j,od,oh,ow] over all places with
 * d = od * stride_d - pad_front + l * dilation_d, h and w likewise): the windows of an image added
 * up where they overlap, the second half of a transposed convolution.
 *
 * cols (N, M, kd, kh, kw, OD, OH, OW), y (N, M, D, H, W) does not overlap it. Each element is
 * summed by one task, over (l, i, j) in order. A task is some lines of y. */
#include "../kernels/unary.h"
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

/* y (W,) += windows (OW,), of which the first starts at column w. */
static void add_line(const q7_col2im_args *args, const float *restrict windows, int64_t w,
                     float *restrict y) {
    const int64_t s = args->stride_w;
    const int64_t low = w < 0 ? q7_ceil_div(-w, s) : 0;
    const int64_t high = w < args->W ? q7_min(args->OW, q7_ceil_div(args->W - w, s)) : 0;
    if (s == 1)
        for (int64_t o = low; o < high; o++) y[w + o] += windows[o];
    else
        for (int64_t o = low; o < high; o++) y[w + o * s] += windows[o];
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
