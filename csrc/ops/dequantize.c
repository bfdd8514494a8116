/* dequantize.c: y = (x - zero) * scale; x (outer, n, inner) of uint8, int8 or int32, a scale and a
 * zero for all or for each of n. ONNX DequantizeLinear. */
#include "loops.h"

typedef struct dequantize_job {
    const q7_dequantize_args *args;
    int64_t per_task; /* elements along inner */
    int64_t blocks;   /* tasks per line of inner */
} dequantize_job;

static int32_t element(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
        case Q7_U8: return ((const uint8_t *)p)[i];
        case Q7_I8: return ((const int8_t *)p)[i];
        default: return ((const int32_t *)p)[i];
    }
}

static void dequantize_task(void *arg, int64_t task, int64_t thread) {
    const dequantize_job *job = arg;
    const q7_dequantize_args *args = job->args;
    (void)thread;
    const int64_t line = task / job->blocks, begin = task % job->blocks * job->per_task;
    const int64_t n = q7_min(args->inner - begin, job->per_task);
    const int64_t which = args->scales > 1 ? line % args->n : 0;
    const int64_t zero = args->zero ? element(args->zero, args->x_dtype, which) : 0;
    const float scale = ((const float *)args->scale)[which];
    const int64_t at = line * args->inner + begin;
    float *y = (float *)args->y + at;
    switch (args->x_dtype) { /* a loop for each, so that it is vectorised */
        case Q7_U8:
            for (int64_t i = 0; i < n; i++)
                y[i] = (float)((int32_t)((const uint8_t *)args->x)[at + i] - (int32_t)zero) * scale;
            break;
        case Q7_I8:
            for (int64_t i = 0; i < n; i++)
                y[i] = (float)((int32_t)((const int8_t *)args->x)[at + i] - (int32_t)zero) * scale;
            break;
        default:
            for (int64_t i = 0; i < n; i++)
                y[i] = (float)(((const int32_t *)args->x)[at + i] - zero) * scale;
            break;
    }
}

void q7_op_dequantize(const q7_dequantize_args *args, const q7_call *call) {
    dequantize_job job = {args, q7_min(args->inner, Q7_GRAIN), 0};
    if (args->outer * args->n * args->inner == 0) return;
    job.blocks = q7_ceil_div(args->inner, job.per_task);
    q7_parallel(call, args->outer * args->n * job.blocks, dequantize_task, &job);
}
