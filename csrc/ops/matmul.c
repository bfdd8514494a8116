/* matmul.c: c[i] = alpha * a[i] @ b[i] over broadcast batch dims; both operands come from the
 * graph.
 *
 * Any strides. Few rows read b in place if its columns are contiguous, and any number of them a single
 * column; else some panels are packed, a block of k at a time, by the task that uses them. a is read in
 * place. The arithmetic of an element is that of gemm.c; one row by columns that are contiguous is a column of
 * c transposed. c overlaps neither a nor b. Read panels.h first.
 *
 * pack: threads * min(k, Q7_GEMM_K_BLOCK) * min(panels, Q7_MATMUL_PANELS) * nr * 4 bytes. */
#include <string.h>

#include "loops.h"
#include "panels.h"

enum { BLOCK_ROWS = 512 }; /* rows that share one packing of a panel of b */

typedef struct matmul_job {
    const q7_matmul_args *x;
    const q7_call *call;
    bool in_place;
    int64_t row_tiles, row_blocks, panels;
} matmul_job;

/* Columns [column, column + n) of c for one batch element and the rows [row, end). */
static void matmul_panels(const matmul_job *job, const float *a, const float *b, float *c,
                          int64_t column, int64_t n, int64_t row, int64_t end, float *pack) {
    const q7_matmul_args *x = job->x;
    const int64_t nr = job->call->nr;
    const q7_gemm_epilogue epilogue = {.alpha = (float)x->alpha};
    b += column * x->b_col_stride;
    const int64_t k = job->in_place ? q7_max(1, x->k) : Q7_GEMM_K_BLOCK;
    for (int64_t k0 = 0; k0 == 0 || k0 < x->k; k0 += k) {
        q7_gemm_block t = {.m = end - row,
                           .n = n,
                           .k = q7_min(x->k - k0, k),
                           .k_block = Q7_GEMM_K_BLOCK,
                           .a = a + row * x->a_row_stride + k0 * x->a_col_stride,
                           .a_row_stride = x->a_row_stride,
                           .a_k_stride = x->a_col_stride,
                           .b = b + k0 * x->b_row_stride,
                           .b_stride = x->b_row_stride,
                           .b_is_column = x->n == 1,
                           .c = c + row * x->n + column,
                           .c_stride = x->n,
                           .accumulate = k0 > 0};
        if (!job->in_place) {
            for (int64_t p = 0; p < n; p += nr)
                q7_pack_panel(t.b + p * x->b_col_stride, x->b_row_stride, x->b_col_stride, t.k,
                              q7_min(nr, n - p), nr, nr, pack + p * t.k);
            t.b = pack;
            t.b_stride = nr;
            t.b_packed = true;
            t.b_panel_stride = t.k * nr;
        }
        if (k0 + t.k >= x->k && epilogue.alpha != 1.0f) t.epilogue = &epilogue;
        ((q7_gemm_kernel)job->call->kernel)(&t);
    }
}

static int64_t first_row(const matmul_job *job, int64_t block) {
    return q7_part(job->x->m, job->row_tiles, q7_part(job->row_tiles, job->row_blocks, block));
}

static void matmul_task(void *arg, int64_t product, q7_span panels, int64_t thread) {
    const matmul_job *job = arg;
    const q7_matmul_args *x = job->x;
    const int64_t nr = job->call->nr, block = product % job->row_blocks;
    const int64_t batch = product / job->row_blocks;
    const float *a =
        (const float *)x->a + q7_offset_of(batch, x->batch, x->ndim, x->a_batch_stride);
    const float *b =
        (const float *)x->b + q7_offset_of(batch, x->batch, x->ndim, x->b_batch_stride);
    float *c = (float *)x->c + batch * x->m * x->n;
    const int64_t room = q7_min(x->k, Q7_GEMM_K_BLOCK) * q7_min(job->panels, Q7_MATMUL_PANELS) * nr;
    const int64_t step = !job->in_place ? Q7_MATMUL_PANELS : x->m > 1 ? 1 : panels.end;
    for (int64_t p = panels.begin; p < panels.end; p += step) {
        const int64_t end = q7_min(x->n, q7_min(p + step, panels.end) * nr);
        matmul_panels(job, a, b, c, p * nr, end - p * nr, first_row(job, block),
                      first_row(job, block + 1), q7_room_of(job->call, x->pack, room * 4, thread));
    }
}

static void product(const q7_matmul_args *x, const q7_call *call) {
    const int64_t batches = q7_product(x->batch, x->ndim);
    const int64_t work = batches * x->m * x->n * x->k;
    if (batches * x->m * x->n == 0) return;
    matmul_job job = {.x = x, .call = call};
    job.row_tiles = q7_ceil_div(x->m, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_max(1, BLOCK_ROWS / call->mr));
    job.panels = q7_ceil_div(x->n, call->nr);
    const int64_t wanted = q7_tasks_of(call, work);
    /* Rows for threads that have no panel of their own; each packs the panels that it shares. */
    const int64_t cuts = q7_ceil_div(q7_min(call->threads, wanted), batches * job.panels);
    job.row_blocks = q7_max(job.row_blocks, q7_min(job.row_tiles, cuts));
    job.in_place = x->n == 1 || (x->b_col_stride == 1 && job.row_tiles <= Q7_FEW_TILES);
    q7_parallel_panels(call, &(q7_panels_job){.blocks = batches * job.row_blocks,
                                              .panels = job.panels,
                                              .unit = 1,
                                              .most = job.panels,
                                              .work = work,
                                              .fn = matmul_task,
                                              .arg = &job});
}

void q7_op_matmul(const q7_matmul_args *args, const q7_call *call) {
    if (args->m != 1 || args->b_row_stride != 1 || args->b_col_stride == 1) {
        product(args, call);
        return;
    }
    /* Columns that are contiguous are read along, as rows by a column are: the same product, c
     * transposed, whose row is a column. */
    q7_matmul_args x = *args;
    x.m = args->n, x.n = 1;
    x.a = args->b, x.a_row_stride = args->b_col_stride, x.a_col_stride = args->b_row_stride;
    x.b = args->a, x.b_row_stride = args->a_col_stride, x.b_col_stride = args->a_row_stride;
    memcpy(x.a_batch_stride, args->b_batch_stride, sizeof x.a_batch_stride);
    memcpy(x.b_batch_stride, args->a_batch_stride, sizeof x.b_batch_stride);
    product(&x, call);
}
