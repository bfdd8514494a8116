/* cumulate.c: running sum or product along the middle axis of x (outer, n, inner): y[j] = sum of
 * x[0..j], without x[j] itself when exclusive, from the far end when reverse. ONNX CumSum, CumProd.
 * Integers wrap. y may be x. */
#include "loops.h"

enum {
    COLUMNS = 512, /* that are read line by line, */
    FEW = 4        /* and so few one by one: a line costs as much as that */
};

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

typedef struct cumulate_job {
    const q7_cumulate_args *args;
    int64_t columns, blocks, units, per_task; /* of a block; blocks of a slab, all, of a task */
} cumulate_job;

static void cumulate_task(void *arg, int64_t task, int64_t thread) {
    const cumulate_job *job = arg;
    const q7_cumulate_args *args = job->args;
    (void)thread;
    const int64_t end = q7_min(job->units, (task + 1) * job->per_task), inner = args->inner;
    for (int64_t unit = task * job->per_task; unit < end; unit++) {
        const int64_t column = unit % job->blocks * job->columns;
        const int64_t line = args->reverse ? args->n - 1 : 0, step = args->reverse ? -inner : inner;
        const int64_t first = (unit / job->blocks * args->n + line) * inner + column;
        const int64_t width = q7_min(job->columns, inner - column);
        switch (args->dtype) {
            case Q7_F32: cumulate_f32(args, first, step, width); break;
            case Q7_F64: cumulate_f64(args, first, step, width); break;
            case Q7_I32:
            case Q7_U32: cumulate_i32(args, first, step, width); break;
            default: cumulate_i64(args, first, step, width); break;
        }
    }
}

void q7_op_cumulate(const q7_cumulate_args *args, const q7_call *call) {
    if (args->outer * args->n * args->inner == 0) return;
    cumulate_job job = {.args = args, .columns = args->inner < FEW ? 1 : COLUMNS};
    job.blocks = q7_ceil_div(args->inner, job.columns);
    job.units = args->outer * job.blocks;
    const int64_t elements = args->n * q7_min(job.columns, args->inner);
    job.per_task = q7_units_of_task(call, job.units, Q7_GRAIN / elements);
    q7_parallel(call, q7_ceil_div(job.units, job.per_task), cumulate_task, &job);
}
