/* matmul_plain.c: c[i] = a[i] @ b[i] + bias over broadcast batch dims, of doubles by kernel, and of
 * integers of 32 and 64 bits, which wrap, so that their sign plays no part, in plain loops. Any
 * strides, or of doubles b in panels as kernels/dgemm.h has them; sums run in order of k; bias (n,) or
 * NULL. c overlaps neither a nor b. */
#include "../kernels/dgemm.h"
#include "loops.h"

/* Of a task, at least: rows that read b together, which is packed for each task, and its panels. */
enum { ROWS = 128, PANELS = 4, INT_ROWS = 4 };
/* Columns of integers, fewer than make a loop along a row of b worth it, and values of k of one that are copied. */
enum { FEW = 8, DEEP = 256 };

#define T uint32_t
#define DTYPE u32
#include "matmul_plain_typed.h"
#define T uint64_t
#define DTYPE u64
#include "matmul_plain_typed.h"

typedef struct matmul_job {
    const q7_matmul_plain_args *x;
    q7_dgemm_kernel kernel;
    int64_t rows, columns;   /* of a task */
    int64_t blocks, stripes; /* of those */
} matmul_job;

static void matmul_task(void *arg, int64_t task, int64_t thread) {
    const matmul_job *job = arg;
    const q7_matmul_plain_args *x = job->x;
    (void)thread;
    const int64_t column = task % job->stripes * job->columns;
    const int64_t row = task / job->stripes % job->blocks * job->rows;
    const int64_t batch = task / job->stripes / job->blocks;
    const int64_t m = q7_min(x->m - row, job->rows), n = q7_min(x->n - column, job->columns);
    int64_t a = row * x->a_row_stride, b = column * (x->b_panel_stride ? x->k : x->b_col_stride);
    a += q7_offset_of(batch, x->batch, x->ndim, x->a_batch_stride);
    b += q7_offset_of(batch, x->batch, x->ndim, x->b_batch_stride);
    const int64_t c = (batch * x->m + row) * x->n + column;
    if (x->dtype == Q7_F64)
        job->kernel(&(q7_dgemm_block){
            .m = m,
            .n = n,
            .k = x->k,
            .a = (const double *)x->a + a,
            .a_row_stride = x->a_row_stride,
            .a_col_stride = x->a_col_stride,
            .b = (const double *)x->b + b,
            .b_row_stride = x->b_row_stride,
            .b_col_stride = x->b_col_stride,
            .b_panel_stride = x->b_panel_stride,
            .bias = x->bias ? (const double *)x->bias + column : NULL,
            .c = (double *)x->c + c,
            .c_stride = x->n,
        });
    else if (q7_dtype_bytes(x->dtype) == 4)
        multiply_u32(x, a, b, c, m);
    else
        multiply_u64(x, a, b, c, m);
}

void q7_op_matmul_plain(const q7_matmul_plain_args *x, const q7_call *call) {
    const int64_t batches = q7_product(x->batch, x->ndim);
    if (batches * x->m * x->n == 0) return;
    const int64_t k = q7_max(x->k, 1), row = x->n * k; /* multiply-adds */
    matmul_job job = {x, (q7_dgemm_kernel)call->kernel, q7_max(INT_ROWS, Q7_GRAIN / row), x->n, 0,
                      0};
    if (x->dtype == Q7_F64) { /* some 20 us of work */
        const int64_t work = 8 * Q7_GRAIN;
        job.rows = q7_ceil_div(q7_max(ROWS, work / row), call->mr) * call->mr;
        const int64_t column = q7_min(x->m, job.rows) * k; /* multiply-adds */
        job.columns = q7_max(PANELS, work / (column * call->nr)) * call->nr;
    }
    job.blocks = q7_ceil_div(x->m, job.rows);
    job.stripes = q7_ceil_div(x->n, job.columns);
    q7_parallel(call, batches * job.blocks * job.stripes, matmul_task, &job);
}
