/* fill.c: every element of y is the low elem_bytes of bits. */
#include "../kernels/move.h"
#include "loops.h"

static void fill_task(void *arg, int64_t task, int64_t thread) {
    const q7_fill_args *args = arg;
    (void)thread;
    const int64_t begin = task * Q7_GRAIN, n = q7_min(args->n - begin, Q7_GRAIN);
    q7_repeat((char *)args->y + begin * args->elem_bytes, &args->bits, n, args->elem_bytes);
}

void q7_op_fill(const q7_fill_args *args, const q7_call *call) {
    q7_parallel(call, q7_ceil_div(args->n, Q7_GRAIN), fill_task, (void *)args);
}
