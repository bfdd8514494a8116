/* depthwise.c: a convolution whose groups have one channel each, or few, channels last.
 *
 * x is (N, D, H, W, C) of any strides but 1 for C, w (kd, kh, kw, width, C); pixels of y and residual
 * are y_stride and residual_stride apart. y does not overlap x. A task is some lines of some channels;
 * where images come from beyond L2, which is fast in the order of memory, some pixels of a line and
 * all channels at a time, unless a kernel has so many taps that sums take longer than memory. Read
 * kernels/depthwise.h first. */
#include "../kernels/depthwise.h"

#include "loops.h"

enum {
    CHANNELS = 64,   /* of a task, and up to as many that are left */
    LARGE = 1 << 18, /* floats of an image that L2 does not keep */
    STRIP = 8,       /* pixels of it at a time, in so many lines, which share lines of x, */
    LINES = 4,       /* unless channels are more than FEW, where all of them compete for L1 */
    FEW = 384,
    MANY = 25 /* products for each element of x, which take longer than its memory */
};

typedef struct depthwise_job {
    const q7_depthwise_args *x;
    q7_depthwise_kernel kernel;
    int64_t strip, high;     /* pixels at a time, and lines */
    int64_t lines, per_task; /* of y, an image and plane after the other */
    int64_t bands, blocks;   /* of lines, of channels */
} depthwise_job;

static void depthwise_task(void *arg, int64_t task, int64_t thread) {
    const depthwise_job *job = arg;
    const q7_depthwise_args *x = job->x;
    const int64_t block = task / job->bands;
    (void)thread;
    q7_depthwise_part part = {.first = block * CHANNELS,
                              .end = block + 1 < job->blocks ? (block + 1) * CHANNELS : x->C};
    const int64_t first = task % job->bands * job->per_task;
    const int64_t end = q7_min(first + job->per_task, job->lines);
    for (int64_t line = first, n; line < end; line += n) {
        part.n = line / x->OH / x->OD;
        part.od = line / x->OH % x->OD;
        part.oh = line % x->OH;
        n = q7_min(q7_min(job->high, x->OH - part.oh), end - line);
        part.oh_end = part.oh + n;
        for (part.ow = 0; part.ow < x->OW; part.ow = part.ow_end) {
            part.ow_end = q7_min(part.ow + job->strip, x->OW);
            job->kernel(x, &part);
        }
    }
}

void q7_op_depthwise(const q7_depthwise_args *x, const q7_call *call) {
    if (x->N * x->C * x->OD * x->OH * x->OW == 0) return;
    depthwise_job job = {.x = x, .kernel = (q7_depthwise_kernel)call->kernel};
    job.lines = x->N * x->OD * x->OH;
    const int64_t taps = x->kd * x->kh * x->kw * x->width;
    const bool large = x->D * x->H * x->W * x->C > LARGE &&
                       taps < MANY * x->stride_h * x->stride_w &&
                       job.lines >= call->threads; /* signals have one line */
    job.strip = large ? STRIP : x->OW;
    job.high = !large ? x->OH : x->C > FEW ? 1 : LINES;
    job.blocks = large ? 1 : q7_max(1, x->C / CHANNELS);
    const int64_t line = x->OW * (x->C / job.blocks) * taps;
    job.per_task = q7_max(large ? job.high : 1, 8 * Q7_GRAIN / q7_max(line, 1));
    job.bands = q7_ceil_div(job.lines, job.per_task);
    q7_parallel(call, job.blocks * job.bands, depthwise_task, &job);
}
