/* cumsum.c: running sum along the middle axis of x (outer, n, inner): y[j] = sum of x[0..j],
 * without x[j] itself when exclusive, from the far end when reverse. ONNX CumSum. Integers wrap. y
 * may be x. */
#include "loops.h"

#define T float
#define ADD(a, b) ((a) + (b))
#define CUMSUM cumsum_f32
#include "cumsum_typed.h"
#define T double
#define ADD(a, b) ((a) + (b))
#define CUMSUM cumsum_f64
#include "cumsum_typed.h"
#define T int32_t
#define ADD(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define CUMSUM cumsum_i32
#include "cumsum_typed.h"
#define T int64_t
#define ADD(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define CUMSUM cumsum_i64
#include "cumsum_typed.h"

static void cumsum_task(void *arg, int64_t task, int64_t thread) {
    const q7_cumsum_args *args = arg;
    (void)thread;
    switch (args->dtype) {
        case Q7_F32: cumsum_f32(args, task); break;
        case Q7_F64: cumsum_f64(args, task); break;
        case Q7_I32: cumsum_i32(args, task); break;
        default: cumsum_i64(args, task); break;
    }
}

void q7_op_cumsum(const q7_cumsum_args *args, const q7_call *call) {
    q7_parallel(call, args->n * args->inner == 0 ? 0 : args->outer, cumsum_task, (void *)args);
}
