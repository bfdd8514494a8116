/* block_gemm.c: c = a @ w + bias for weights of 2, 4 or 8 bits that stay packed: they are read as
 * they are, and made floats a panel and Q7_BLOCK_GEMM_K of k at a time, in L1. Read
 * kernels/block_gemm.h first.
 *
 * A task is a block of rows times some panels; q, scale and zero are panels one after the
 * other. room: threads * Q7_BLOCK_GEMM_K * nr * 4 bytes. */
#include "../kernels/block_gemm.h"

#include "gemm_tasks.h"
#include "panels.h"

typedef struct block_job {
    const q7_block_gemm_args *x;
    const q7_call *call;
    bool in_tiles;
    int64_t panels, chunks;
    int64_t tile, row_tiles, row_blocks; /* rows of a tile */
    int64_t first_id;                    /* of rows in tiles, or 0 */
} block_job;

static int64_t zero_bytes(const q7_block_gemm_args *x) {
    return x->zero_dtype == Q7_U8 ? 1 : (int64_t)sizeof(float);
}

/* Of one panel, or of several in tiles. */
static void multiply(const block_job *job, q7_span panels, int64_t row, int64_t m, float *room) {
    const q7_block_gemm_args *x = job->x;
    const int64_t nr = job->call->nr, panel = panels.begin, column = panel * nr;
    const int64_t q_rows = q7_ceil_div(x->k * x->bits, 8), blocks = q7_ceil_div(x->k, x->block);
    const float *bias = x->bias;
    const char *zero = x->zero;
    const q7_gemm_epilogue biased = {.alpha = 1.0f, .bias = bias ? bias + column : NULL};
    q7_block_tile t = {.gemm = {.m = m,
                                .n = q7_min(panels.end * nr, x->n) - column,
                                .k_block = Q7_BLOCK_GEMM_K,
                                .a_row_stride = x->a_stride,
                                .a_k_stride = 1,
                                .c = (float *)x->c + row * x->n + column,
                                .c_stride = x->n},
                       .bits = x->bits,
                       .block = x->block,
                       .k = x->k,
                       .blocks = blocks,
                       .q = (const uint8_t *)x->q + panel * q_rows * nr,
                       .scale = (const float *)x->scale + panel * blocks * nr,
                       .zero = zero ? zero + panel * blocks * nr * zero_bytes(x) : NULL,
                       .byte_zeros = x->zero_dtype == Q7_U8,
                       .room = room};
    if (m <= Q7_BLOCK_FEW || job->in_tiles) {
        t.gemm.k = x->k;
        t.gemm.a = (const float *)x->a + row * x->a_stride;
        t.gemm.a_id = q7_id_of(job->first_id, row);
        t.gemm.n_after = q7_max(0, x->n - panels.end * nr);
        t.gemm.epilogue = bias ? &biased : NULL;
        ((q7_block_gemm_kernel)job->call->kernel)(&t);
        return;
    }
    for (t.first = 0; t.first == 0 || t.first < x->k; t.first += Q7_BLOCK_GEMM_K) {
        t.gemm.k = q7_min(Q7_BLOCK_GEMM_K, x->k - t.first);
        t.gemm.a = (const float *)x->a + row * x->a_stride + t.first;
        t.gemm.accumulate = t.first > 0;
        t.gemm.epilogue = bias && t.first + t.gemm.k == x->k ? &biased : NULL;
        ((q7_block_gemm_kernel)job->call->kernel)(&t);
    }
}

static void block_panels(void *arg, int64_t block, q7_span panels, int64_t thread) {
    const block_job *job = arg;
    const q7_span tiles = q7_span_of(job->row_tiles, job->row_blocks, block);
    const int64_t row = tiles.begin * job->tile, end = q7_min(job->x->m, tiles.end * job->tile);
    const int64_t bytes = Q7_BLOCK_GEMM_K * job->call->nr * 4;
    float *room = q7_room_of(job->call, job->x->room, bytes, thread);
    if (job->in_tiles)
        multiply(job, panels, row, end - row, room);
    else
        for (int64_t p = panels.begin; p < panels.end; p++)
            multiply(job, (q7_span){p, p + 1}, row, end - row, room);
}

static void tiles_task(void *arg, int64_t task, int64_t thread) {
    const block_job *job = arg;
    const q7_span panels = q7_span_of(job->panels, job->chunks, task % job->chunks);
    block_panels(arg, task / job->chunks, panels, thread);
}

void q7_op_block_gemm(const q7_block_gemm_args *x, const q7_call *call) {
    if (x->m == 0 || x->n == 0) return;
    block_job job = {.x = x, .call = call, .panels = q7_ceil_div(x->n, call->nr)};
    const int64_t work = x->m * x->n * x->k;
    job.in_tiles = call->mr == Q7_TALL && x->m > Q7_BLOCK_UNTILED;
    job.tile = job.in_tiles ? Q7_TALL : Q7_GEMM_ROWS;
    job.row_tiles = q7_ceil_div(x->m, job.tile);
    if (job.in_tiles) {
        const q7_cut cut = q7_cut_for_tiles(call, x->m, x->k, job.panels, Q7_GEMM_TILE_PANELS);
        job.row_blocks = cut.blocks;
        job.chunks = q7_ceil_div(job.panels, cut.chunk);
        job.first_id = q7_new_ids(x->m);
        q7_parallel(call, job.row_blocks * job.chunks, tiles_task, &job);
    } else {
        job.row_blocks = job.row_tiles;
        q7_parallel_panels(call, &(q7_panels_job){.blocks = job.row_blocks,
                                                  .panels = job.panels,
                                                  .unit = 1,
                                                  .most = job.panels,
                                                  .work = work,
                                                  .fn = block_panels,
                                                  .arg = &job});
    }
}
