/* depthwise.c: a convolution whose groups have one channel each, `repeat` filters to a channel.
 *
 * A product of matrices would have a single row there; the kernel walks lines instead. A task is
 * some tiles of up to Q7_DEPTHWISE_LINES lines. x is (N, C, H, W), y does not overlap it. Read
 * kernels/depthwise.h first.
 *
 * lines: threads * ((tile lines - 1) * stride_h + (kh - 1) * dilation_h + 1) * stride_w * part * 4
 * bytes, part = OW rounded up to Q7_DEPTHWISE_SLACK, and (kw - 1) * dilation_w / stride_w.
 * taps: kh * kw * 8 bytes. */
#include "../kernels/depthwise.h"

#include "loops.h"

typedef struct depthwise_job {
    const q7_depthwise_args *x;
    q7_depthwise_kernel kernel;
    int64_t part, line_floats; /* of one thread */
    int64_t blocks;            /* tiles of a plane */
    int64_t tiles, per_task;
} depthwise_job;

static void depthwise_task(void *arg, int64_t task, int64_t thread) {
    const depthwise_job *job = arg;
    const q7_depthwise_args *x = job->x;
    const int64_t end = q7_min(job->tiles, (task + 1) * job->per_task);
    for (int64_t i = task * job->per_task; i < end; i++) {
        const int64_t first = i % job->blocks * Q7_DEPTHWISE_LINES;
        const q7_depthwise_tile tile = {.filter = i / job->blocks,
                                        .first = first,
                                        .lines = q7_min(Q7_DEPTHWISE_LINES, x->OH - first),
                                        .part = job->part,
                                        .taps = x->taps,
                                        .line = (float *)x->lines + thread * job->line_floats};
        job->kernel(x, &tile);
    }
}

void q7_op_depthwise(const q7_depthwise_args *x, const q7_call *call) {
    if (x->N * x->C * x->repeat * x->OH * x->OW == 0) return;
    depthwise_job job = {.x = x, .kernel = (q7_depthwise_kernel)call->kernel};
    const int64_t lines = q7_min(Q7_DEPTHWISE_LINES, x->OH);
    job.part = q7_ceil_div(x->OW, Q7_DEPTHWISE_SLACK) * Q7_DEPTHWISE_SLACK +
               (x->kw - 1) * x->dilation_w / x->stride_w;
    job.line_floats =
        ((lines - 1) * x->stride_h + (x->kh - 1) * x->dilation_h + 1) * x->stride_w * job.part;
    job.blocks = q7_ceil_div(x->OH, Q7_DEPTHWISE_LINES);
    job.tiles = x->N * x->C * x->repeat * job.blocks;
    job.per_task = q7_max(1, 8 * Q7_GRAIN / q7_max(1, lines * job.part * x->kh * x->kw));
    int64_t *taps = x->taps;
    for (int64_t i = 0; i < x->kh; i++)
        for (int64_t j = 0; j < x->kw; j++)
            *taps++ =
                (i * x->dilation_h * x->stride_w + j * x->dilation_w % x->stride_w) * job.part +
                j * x->dilation_w / x->stride_w;
    q7_parallel(call, q7_ceil_div(job.tiles, job.per_task), depthwise_task, &job);
}
