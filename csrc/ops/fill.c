/* fill.c: every element of y is the low elem_bytes of bits. */
#include "loops.h"

static void fill_task(void *arg, int64_t task, int64_t thread) {
    const q7_fill_args *args = arg;
    (void)thread;
    const int64_t begin = task * Q7_GRAIN, end = q7_min(args->n, begin + Q7_GRAIN);
    const uint64_t bits = (uint64_t)args->bits;
    switch (args->elem_bytes) {
        case 1:
            for (int64_t i = begin; i < end; i++) ((uint8_t *)args->y)[i] = (uint8_t)bits;
            break;
        case 2:
            for (int64_t i = begin; i < end; i++) ((uint16_t *)args->y)[i] = (uint16_t)bits;
            break;
        case 4:
            for (int64_t i = begin; i < end; i++) ((uint32_t *)args->y)[i] = (uint32_t)bits;
            break;
        default:
            for (int64_t i = begin; i < end; i++) ((uint64_t *)args->y)[i] = bits;
            break;
    }
}

void q7_op_fill(const q7_fill_args *args, const q7_call *call) {
    q7_parallel(call, q7_ceil_div(args->n, Q7_GRAIN), fill_task, (void *)args);
}
