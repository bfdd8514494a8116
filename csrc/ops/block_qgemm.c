/* block_qgemm.c: block_gemm with rows rounded to int8: all rows first, then blocks of rows times
 * panels. Read kernels/block_qgemm.h first.
 *
 * rows: m * q7_block_row_bytes(k, block); room: threads * q7_block_room(nr). */
#include "../kernels/block_qgemm.h"

#include "panels.h"

enum { GRAIN = 4 }; /* rows that a task rounds */

typedef struct block_job {
    const q7_block_qgemm_args *x;
    const q7_call *call;
    int64_t panels, row_bytes;
} block_job;

static q7_block_qtile tile_of(const block_job *job, int64_t row, int64_t rows) {
    const q7_block_qgemm_args *x = job->x;
    return (q7_block_qtile){.m = q7_min(x->m - row, rows),
                            .k = x->k,
                            .a = (const float *)x->a + row * x->a_stride,
                            .a_stride = x->a_stride,
                            .c_stride = x->n,
                            .bits = x->bits,
                            .block = x->block,
                            .rows = (char *)x->rows + row * job->row_bytes,
                            .streams = x->m <= Q7_BLOCK_STREAMED};
}

static void round_task(void *arg, int64_t task, int64_t thread) {
    const block_job *job = arg;
    const q7_block_qtile t = tile_of(job, task * GRAIN, GRAIN);
    (void)thread;
    ((q7_block_qgemm_kernel)job->call->kernel)(&t);
}

static void product_task(void *arg, int64_t block, q7_span panels, int64_t thread) {
    const block_job *job = arg;
    const q7_block_qgemm_args *x = job->x;
    const int64_t nr = job->call->nr, row = block * Q7_GEMM_ROWS;
    const int64_t groups = q7_ceil_div(x->k, Q7_BLOCK_GROUP);
    const int64_t q_bytes = groups * Q7_BLOCK_GROUP * x->bits / 8 * nr;
    const int64_t scales = q7_ceil_div(x->k, x->block) * nr;
    q7_block_qtile t = tile_of(job, row, Q7_GEMM_ROWS);
    t.room = q7_room_of(job->call, x->room, q7_block_room(nr), thread);
    for (int64_t panel = panels.begin; panel < panels.end; panel++) {
        const int64_t column = panel * nr;
        t.n = q7_min(nr, x->n - column);
        t.bias = x->bias ? (const float *)x->bias + column : NULL;
        t.c = (float *)x->c + row * x->n + column;
        t.q = (const uint8_t *)x->q + panel * q_bytes;
        t.scale = (const float *)x->scale + panel * scales;
        t.zero = x->zero ? (const uint8_t *)x->zero + panel * scales : NULL;
        ((q7_block_qgemm_kernel)job->call->kernel)(&t);
    }
}

void q7_op_block_qgemm(const q7_block_qgemm_args *x, const q7_call *call) {
    if (x->m == 0 || x->n == 0) return;
    block_job job = {.x = x,
                     .call = call,
                     .panels = q7_ceil_div(x->n, call->nr),
                     .row_bytes = q7_block_row_bytes(x->k, x->block)};
    q7_parallel(call, q7_ceil_div(x->m, GRAIN), round_task, &job);
    q7_parallel_panels(call, &(q7_panels_job){.blocks = q7_ceil_div(x->m, Q7_GEMM_ROWS),
                                              .panels = job.panels,
                                              .unit = 1,
                                              .most = job.panels,
                                              .work = x->m * x->n * x->k,
                                              .fn = product_task,
                                              .arg = &job});
}
