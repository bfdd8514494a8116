/* dynamic_quantize.c: x as uint8 in the scale of its own range: ONNX DynamicQuantizeLinear, with
 * onnxruntime's scale of 1 where all elements are 0. ranges: two floats for each task. Read
 * kernels/quantize.h first. */
#include <math.h>

#include "../kernels/quantize.h"
#include "loops.h"

typedef struct dynamic_job {
    const q7_dynamic_quantize_args *x;
    q7_quantize_kernel kernel;
    float scale;
    int32_t zero;
} dynamic_job;

static q7_quantize_line line_of(const q7_dynamic_quantize_args *x, int64_t task) {
    const int64_t first = task * Q7_QUANTIZE_GRAIN;
    return (q7_quantize_line){.n = q7_min(x->n - first, Q7_QUANTIZE_GRAIN),
                              .x = (const float *)x->x + first};
}

static void range_task(void *arg, int64_t task, int64_t thread) {
    const dynamic_job *job = arg;
    q7_quantize_line line = line_of(job->x, task);
    (void)thread;
    job->kernel(&line);
    float *range = (float *)job->x->ranges + 2 * task;
    range[0] = line.low;
    range[1] = line.high;
}

static void quantize_task(void *arg, int64_t task, int64_t thread) {
    const dynamic_job *job = arg;
    q7_quantize_line line = line_of(job->x, task);
    (void)thread;
    line.y = (uint8_t *)job->x->y + task * Q7_QUANTIZE_GRAIN;
    line.scale = job->scale;
    line.zero = job->zero;
    job->kernel(&line);
}

void q7_op_dynamic_quantize(const q7_dynamic_quantize_args *x, const q7_call *call) {
    dynamic_job job = {.x = x, .kernel = (q7_quantize_kernel)call->kernel, .scale = 1.0f};
    const int64_t tasks = q7_ceil_div(x->n, Q7_QUANTIZE_GRAIN);
    q7_parallel(call, tasks, range_task, &job);
    float low = 0.0f, high = 0.0f;
    for (int64_t i = 0; i < tasks; i++) {
        const float *range = (const float *)x->ranges + 2 * i;
        low = range[0] < low ? range[0] : low;
        high = range[1] > high ? range[1] : high;
    }
    if (low < high) job.scale = (high - low) / 255.0f;
    const float zero = nearbyintf(-low / job.scale);
    job.zero = zero < 255.0f ? (int32_t)zero : 255; /* as is that of -inf, whose scale is inf */
    *(float *)x->scale = job.scale;
    *(uint8_t *)x->zero = (uint8_t)job.zero;
    q7_parallel(call, tasks, quantize_task, &job);
}
