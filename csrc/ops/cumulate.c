/* cumulate.c: running sum or product along the middle axis of x (outer, n, inner): y[j] = sum of
 * x[0..j], without x[j] itself when exclusive, from the far end when reverse. ONNX CumSum, CumProd.
 * Integers wrap. y may be x. */
#include "loops.h"

#define T float
#define CUMULATE cumulate_f32
#include "cumulate_typed.h"
#define T double
#define CUMULATE cumulate_f64
#include "cumulate_typed.h"
/* Integers of one size wrap alike, whatever their sign. */
#define T uint32_t
#define CUMULATE cumulate_i32
#include "cumulate_typed.h"
#define T uint64_t
#define CUMULATE cumulate_i64
#include "cumulate_typed.h"

static void cumulate_task(void *arg, int64_t task, int64_t thread) {
    const q7_cumulate_args *args = arg;
    (void)thread;
    switch (args->dtype) {
        case Q7_F32: cumulate_f32(args, task); break;
        case Q7_F64: cumulate_f64(args, task); break;
        case Q7_I32:
        case Q7_U32: cumulate_i32(args, task); break;
        default: cumulate_i64(args, task); break;
    }
}

void q7_op_cumulate(const q7_cumulate_args *args, const q7_call *call) {
    q7_parallel(call, args->n * args->inner == 0 ? 0 : args->outer, cumulate_task, (void *)args);
}
