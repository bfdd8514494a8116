/* qdepthwise.c: an integer convolution whose groups have one channel each, channels last.
 *
 * A task is some lines. work: (C in multiples of 64 + threads * 8 * q7_qdepthwise_taps()) bytes. Read
 * kernels/qdepthwise.h first. */
#include "../kernels/qdepthwise.h"

#include <string.h>

#include "loops.h"
#include "qrows.h"

typedef struct qdepthwise_job {
    const q7_qdepthwise_args *x;
    q7_qdepthwise_kernel kernel;
    q7_qdepthwise_line line;
    int64_t lines, per_task;
} qdepthwise_job;

static void qdepthwise_task(void *arg, int64_t task, int64_t thread) {
    const qdepthwise_job *job = arg;
    const q7_qdepthwise_args *x = job->x;
    q7_qdepthwise_line line = job->line;
    line.taps += thread * q7_qdepthwise_taps(x->kh, x->kw);
    const int64_t first = task * job->per_task;
    for (int64_t i = first; i < q7_min(first + job->per_task, job->lines); i++) {
        line.n = i / x->OH;
        line.oh = i % x->OH;
        job->kernel(x, &line);
    }
}

void q7_op_qdepthwise(const q7_qdepthwise_args *x, const q7_call *call) {
    if (x->N * x->C * x->OH * x->OW == 0) return;
    qdepthwise_job job = {.x = x, .kernel = (q7_qdepthwise_kernel)call->kernel};
    job.line.x_zero = q7_first_byte(x->x_zero, x->x_dtype);
    job.line.zero = q7_first_byte(x->zero, x->y_dtype);
    job.line.outside = x->work;
    job.line.taps = (const uint8_t **)(void *)((char *)x->work + q7_ceil_div(x->C, 64) * 64);
    memset(x->work, job.line.x_zero, (size_t)x->C);
    job.lines = x->N * x->OH;
    job.per_task = q7_max(1, 4 * Q7_GRAIN / (x->OW * x->C * x->kh));
    q7_parallel(call, q7_ceil_div(job.lines, job.per_task), qdepthwise_task, &job);
}
