/* topk.c: the k greatest (or least) along the middle axis of x (outer, n, inner), best first, and
 * where they are. ONNX TopK, ArgMax, ArgMin. Of equals the lower index comes first, or the higher one
 * if `last`; NaN beats every number if `nan_first`, else none. One heap of k indices per line, kept in
 * the output. */
#include <stdbool.h>

#include "loops.h"

/* x[0], x[inner], .. is a line; heap[0], heap[inner], .. holds k of its indices, the worst on top.
 */
typedef struct topk_line {
    const void *x;
    int64_t *heap;
    int64_t inner, k;
    bool largest, last, nan_first;
} topk_line;

#define T float
#define NAME topk_f32
#define UNORDERED(v) ((v) != (v))
#include "topk_typed.h"
#define T double
#define NAME topk_f64
#define UNORDERED(v) ((v) != (v))
#include "topk_typed.h"
#define T int8_t
#define NAME topk_i8
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T uint8_t
#define NAME topk_u8
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T int16_t
#define NAME topk_i16
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T uint16_t
#define NAME topk_u16
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T uint32_t
#define NAME topk_u32
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T uint64_t
#define NAME topk_u64
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T int32_t
#define NAME topk_i32
#define UNORDERED(v) 0
#include "topk_typed.h"
#define T int64_t
#define NAME topk_i64
#define UNORDERED(v) 0
#include "topk_typed.h"

typedef struct {
    const q7_topk_args *args;
    int64_t per_task; /* slabs */
} topk_job;

/* The lines of one slab. */
static void slab(const q7_topk_args *args, int64_t outer) {
    const int64_t bytes = q7_dtype_bytes(args->dtype), inner = args->inner;
    for (int64_t i = 0; i < inner; i++) {
        const int64_t from = outer * args->n * inner + i, to = outer * args->k * inner + i;
        const topk_line line = {(const char *)args->x + from * bytes,
                                (int64_t *)args->indices + to,
                                inner,
                                args->k,
                                args->largest != 0,
                                args->last != 0,
                                args->nan_first != 0};
        void *values = args->values ? (char *)args->values + to * bytes : NULL;
        switch (args->dtype) {
            case Q7_F32: topk_f32(&line, args->n, values); break;
            case Q7_F64: topk_f64(&line, args->n, values); break;
            case Q7_I8: topk_i8(&line, args->n, values); break;
            case Q7_U8: topk_u8(&line, args->n, values); break;
            case Q7_I16: topk_i16(&line, args->n, values); break;
            case Q7_U16: topk_u16(&line, args->n, values); break;
            case Q7_I32: topk_i32(&line, args->n, values); break;
            case Q7_U32: topk_u32(&line, args->n, values); break;
            case Q7_U64: topk_u64(&line, args->n, values); break;
            default: topk_i64(&line, args->n, values); break;
        }
    }
}

static void topk_task(void *arg, int64_t task, int64_t thread) {
    const topk_job *job = arg;
    const int64_t first = task * job->per_task;
    (void)thread;
    for (int64_t i = first; i < q7_min(first + job->per_task, job->args->outer); i++)
        slab(job->args, i);
}

void q7_op_topk(const q7_topk_args *args, const q7_call *call) {
    if (args->k == 0) return;
    const int64_t most = Q7_GRAIN / 4 / q7_max(args->n * args->inner, 1);
    topk_job job = {args, q7_units_of_task(call, args->outer, most)};
    q7_parallel(call, q7_ceil_div(args->outer, job.per_task), topk_task, &job);
}
