/* hardmax.c: y[o,j,i] = 1 where x[o,:,i] is largest, 0 elsewhere; of equals the first, and NaN beats
 * every number. f32 and f64. ONNX Hardmax. */
#include "loops.h"

#define T float
#define DTYPE f32
#include "hardmax_typed.h"
#define T double
#define DTYPE f64
#include "hardmax_typed.h"

static void hardmax_task(void *arg, int64_t task, int64_t thread) {
    const q7_hardmax_args *args = arg;
    (void)thread;
    if (args->dtype == Q7_F32)
        hardmax_f32(args, task);
    else
        hardmax_f64(args, task);
}

void q7_op_hardmax(const q7_hardmax_args *args, const q7_call *call) {
    q7_parallel(call, args->n == 0 ? 0 : args->outer, hardmax_task, (void *)args);
}
