/* depthwise.c: a convolution whose groups have one channel each, channels last.
 *
 * x is (N, D, H, W, C) of any strides but 1 for C, w (kd, kh, kw, C); pixels of y and residual are
 * y_stride and residual_stride apart. y does not overlap x. A task is some lines of some channels, so
 * few that what the lines share stays in L1; of all channels where images come from beyond L2, which
 * is fast in the order of memory (96 channels of 112x112, stride 2: 440 us and 290; 576 of 14x14: 38
 * and 49). Read kernels/depthwise.h first. */
#include "../kernels/depthwise.h"

#include "loops.h"

enum { CHANNELS = 64, LARGE = 1 << 18 }; /* of a task; floats of an image that L2 does not keep */

typedef struct depthwise_job {
    const q7_depthwise_args *x;
    q7_depthwise_kernel kernel;
    int64_t lines, per_task; /* of an image */
    int64_t channels;        /* of a task */
    int64_t bands, blocks;   /* of lines, of channels */
} depthwise_job;

static void depthwise_task(void *arg, int64_t task, int64_t thread) {
    const depthwise_job *job = arg;
    const q7_depthwise_args *x = job->x;
    (void)thread;
    q7_depthwise_line line = {.n = task / job->bands / job->blocks,
                              .first = task / job->bands % job->blocks * job->channels};
    line.end = q7_min(line.first + job->channels, x->C);
    const int64_t first = task % job->bands * job->per_task;
    for (int64_t i = first; i < q7_min(first + job->per_task, job->lines); i++) {
        line.od = i / x->OH;
        line.oh = i % x->OH;
        job->kernel(x, &line);
    }
}

void q7_op_depthwise(const q7_depthwise_args *x, const q7_call *call) {
    if (x->N * x->C * x->OD * x->OH * x->OW == 0) return;
    depthwise_job job = {.x = x, .kernel = (q7_depthwise_kernel)call->kernel};
    job.lines = x->OD * x->OH;
    job.channels = q7_min(x->C, x->D * x->H * x->W * x->C > LARGE ? x->C : CHANNELS);
    const int64_t line = x->OW * job.channels * x->kd * x->kh * x->kw;
    job.per_task = q7_max(1, 8 * Q7_GRAIN / line);
    job.bands = q7_ceil_div(job.lines, job.per_task);
    job.blocks = q7_ceil_div(x->C, job.channels);
    q7_parallel(call, x->N * job.blocks * job.bands, depthwise_task, &job);
}
