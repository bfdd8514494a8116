/* arange.c: y[i] = start + i * step, in double for float dtypes (rounded once), else in int64. */
#include "loops.h"

static void arange_task(void *arg, int64_t task, int64_t thread) {
    const q7_arange_args *args = arg;
    (void)thread;
    const int64_t begin = task * Q7_GRAIN, end = q7_min(args->n, begin + Q7_GRAIN);
    const uint64_t start = (uint64_t)args->istart,
                   step = (uint64_t)args->istep; /* wraps, as numpy does */
    switch (args->dtype) {
        case Q7_F32:
            for (int64_t i = begin; i < end; i++)
                ((float *)args->y)[i] = (float)(args->start + (double)i * args->step);
            break;
        case Q7_F64:
            for (int64_t i = begin; i < end; i++)
                ((double *)args->y)[i] = args->start + (double)i * args->step;
            break;
        case Q7_I16:
            for (int64_t i = begin; i < end; i++)
                ((int16_t *)args->y)[i] = (int16_t)(start + (uint64_t)i * step);
            break;
        case Q7_I32:
            for (int64_t i = begin; i < end; i++)
                ((int32_t *)args->y)[i] = (int32_t)(start + (uint64_t)i * step);
            break;
        default:
            for (int64_t i = begin; i < end; i++)
                ((int64_t *)args->y)[i] = (int64_t)(start + (uint64_t)i * step);
            break;
    }
}

void q7_op_arange(const q7_arange_args *args, const q7_call *call) {
    q7_parallel(call, q7_ceil_div(args->n, Q7_GRAIN), arange_task, (void *)args);
}
