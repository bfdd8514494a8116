/* mix.c: y[b,m,i] = the sum over c of w[m,c] x[b,c,i], plus bias[m], for few planes. x and y are dense, w (M, C).
 * A task is a part of the planes of a batch. */
#include "../kernels/mix.h"

#include "loops.h"

enum { WIDTH = 256 }; /* floats of a task are a multiple of it: whole vectors */

typedef struct mix_job {
    const q7_mix_args *x;
    q7_mix_kernel kernel;
    int64_t parts, width; /* of a plane */
} mix_job;

static void mix_task(void *arg, int64_t task, int64_t thread) {
    const mix_job *job = arg;
    const q7_mix_args *x = job->x;
    const int64_t batch = task / job->parts, first = task % job->parts * job->width;
    (void)thread;
    const q7_mix_part part = {.x = (const float *)x->x + batch * x->C * x->n + first,
                              .w = x->w,
                              .bias = x->bias,
                              .y = (float *)x->y + batch * x->M * x->n + first,
                              .C = x->C,
                              .M = x->M,
                              .n = q7_min(job->width, x->n - first),
                              .x_stride = x->n,
                              .y_stride = x->n};
    job->kernel(&part);
}

void q7_op_mix(const q7_mix_args *x, const q7_call *call) {
    if (x->batch * x->M * x->n == 0) return;
    mix_job job = {.x = x, .kernel = (q7_mix_kernel)call->kernel};
    const int64_t most = q7_ceil_div(4 * Q7_GRAIN, x->C * x->M + x->C + x->M);
    const int64_t width = q7_units_of_task(call, x->batch * x->n, most);
    job.width = q7_ceil_div(width, WIDTH) * WIDTH;
    job.parts = q7_ceil_div(x->n, job.width);
    q7_parallel(call, x->batch * job.parts, mix_task, &job);
}
