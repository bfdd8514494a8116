/* matmul_plain.c: c[i] = a[i] @ b[i] over broadcast batch dims, for dtypes without a GEMM kernel: f64,
 * and integers of 32 and 64 bits, which wrap, so that their sign plays no part. Any strides; sums
 * run in order of k. c overlaps neither a nor b. */
#include "loops.h"

enum { ROWS = 4 }; /* of a task, which read b together */

#define T double
#define DTYPE f64
#include "matmul_plain_typed.h"
#include "typed_end.h"
#define T uint32_t
#define DTYPE u32
#include "matmul_plain_typed.h"
#include "typed_end.h"
#define T uint64_t
#define DTYPE u64
#include "matmul_plain_typed.h"
#include "typed_end.h"

static void matmul_task(void *arg, int64_t task, int64_t thread) {
    const q7_matmul_plain_args *x = arg;
    (void)thread;
    const int64_t blocks = q7_ceil_div(x->m, ROWS), batch = task / blocks;
    const int64_t first = task % blocks * ROWS, last = q7_min(x->m, first + ROWS);
    const int64_t bytes = q7_dtype_bytes(x->dtype);
    const char *a = x->a, *b = x->b;
    for (int64_t d = x->ndim - 1, rest = batch; d >= 0; rest /= x->batch[d], d--) {
        a += rest % x->batch[d] * x->a_batch_stride[d] * bytes;
        b += rest % x->batch[d] * x->b_batch_stride[d] * bytes;
    }
    char *c = (char *)x->c + batch * x->m * x->n * bytes;
    switch (x->dtype) {
        case Q7_F64: multiply_f64(x, a, b, c, first, last); break;
        case Q7_I32:
        case Q7_U32: multiply_u32(x, a, b, c, first, last); break;
        default: multiply_u64(x, a, b, c, first, last); break; /* Q7_I64, Q7_U64 */
    }
}

void q7_op_matmul_plain(const q7_matmul_plain_args *x, const q7_call *call) {
    const int64_t batches = q7_product(x->batch, x->ndim);
    if (batches * x->m * x->n == 0) return;
    q7_parallel(call, batches * q7_ceil_div(x->m, ROWS), matmul_task, (void *)x);
}
