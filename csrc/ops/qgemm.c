/* qgemm.c: integer products of 8-bit rows with packed weights. MatMulInteger, QLinearMatMul, and
 * linear layers between DequantizeLinear and QuantizeLinear, or of rows quantised as they come.
 *
 * A task is, of one product, a block of rows, QGEMM_TILES tiles of the kernel, times some panels.
 * rows: threads times what q7_qgemm_room() says of such a block. Read kernels/qgemm.h first. */
#include "../kernels/qgemm.h"

#include "loops.h"
#include "panels.h"
#include "qrows.h"

typedef struct qgemm_job {
    const q7_qgemm_args *x;
    const q7_call *call;
    q7_qfinish finish;
    int64_t rows, blocks, panels;
    int32_t a_zero;
} qgemm_job;

static void qgemm_task(void *arg, int64_t index, q7_span panels, int64_t thread) {
    const qgemm_job *job = arg;
    const q7_qgemm_args *x = job->x;
    const int64_t nr = job->call->nr, column = panels.begin * nr;
    const int64_t row = index % job->blocks * job->rows;
    const int64_t product = index / job->blocks;
    const int64_t a = q7_offset_of(product, x->batch, x->ndim, x->a_batch_stride);
    const int64_t b = q7_offset_of(product, x->batch, x->ndim, x->b_batch_stride);
    const int64_t at = (product * x->m + row) * x->n + column;
    const q7_qgemm_block block = {
        .m = q7_min(x->m - row, job->rows),
        .n = q7_min(x->n, panels.end * nr) - column,
        .k = x->k,
        .a = (const uint8_t *)x->a + a + row * x->a_stride,
        .a_stride = x->a_stride,
        .a_signed = x->a_dtype == Q7_I8,
        .a_zero = job->a_zero,
        .b = (const char *)x->b + b + panels.begin * x->panel_bytes,
        .b_bytes = x->panel_bytes,
        .b_zero = x->b_zero ? (const int32_t *)x->b_zero + column : NULL,
        .finish = q7_finish_from(&job->finish, column),
        .c = (char *)x->c + at * q7_sum_bytes(x->c_dtype),
        .c_stride = x->n,
        .room = q7_room_of(job->call, x->rows, job->rows * q7_qgemm_room(x->k), thread),
    };
    ((q7_qgemm_kernel)job->call->kernel)(&block);
}

void q7_op_qgemm(const q7_qgemm_args *x, const q7_call *call) {
    const int64_t products = q7_product(x->batch, x->ndim);
    if (products * x->m * x->n == 0) return;
    qgemm_job job = {.x = x,
                     .call = call,
                     .finish = {.c_dtype = x->c_dtype,
                                .scale = x->scale,
                                .scale_step = x->scales > 1,
                                .a_scale = x->a_scale ? *(const float *)x->a_scale : 1.0f,
                                .bias = x->bias,
                                .zero = q7_first_byte(x->zero, x->c_dtype),
                                .act = x->act,
                                .act_alpha = (float)x->act_alpha,
                                .act_beta = (float)x->act_beta},
                     .rows = call->mr * Q7_QGEMM_TILES,
                     .panels = q7_ceil_div(x->n, call->nr),
                     .a_zero = q7_first_byte(x->a_zero, x->a_dtype)};
    job.blocks = q7_ceil_div(x->m, job.rows);
    const int64_t blocks = products * job.blocks;
    q7_parallel_panels(call,
                       &(q7_panels_job){.blocks = blocks,
                                        .panels = job.panels,
                                        .unit = q7_panels_at_once(call, blocks, job.panels, 1),
                                        .most = job.panels,
                                        .work = products * x->m * x->n * x->k,
                                        .fn = qgemm_task,
                                        .arg = &job});
}
