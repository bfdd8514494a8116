/* gemm.c: c = act(alpha * a @ b + bias) + residual for a packed b; the kernel is that of kernels/gemm.h.
 *
 * Rows are cut evenly into tiles of at most mr, tiles into blocks that fit the L2 cache together with
 * what they meet; a task is a row block times a chunk of panels. Within a task k runs in blocks of
 * Q7_GEMM_K_BLOCK, c holding the sums between two of them. Neither the split nor the number of
 * threads changes the arithmetic of any element.
 *
 * residual may be c itself only if k <= Q7_GEMM_K_BLOCK. a and c may not overlap.
 * pack: m * (k + 16) * 4 bytes, or NULL. */
#include "../kernels/gemm.h"

#include <string.h>

#include "../abi.h"

enum {
    BLOCK_ROWS = 224,    /* 224 x 256 floats of a: 229 KB of L2 */
    CHUNK_PANELS = 12,
    TASKS_PER_THREAD = 4, /* so that a stolen core does not stall the step */
    SMALL = 1 << 16,      /* multiply-adds, about 2 us: not worth waking a thread */
    CONFLICT_BYTES = 4096 /* rows this far apart share the sets of an L1 cache */
};

typedef struct gemm_job {
    const q7_gemm_args *x;
    const q7_call *call;
    const float *a;
    int64_t a_stride;
    int64_t row_tiles, row_blocks, panels, chunk;
} gemm_job;

/* Consecutive tasks share their row block, which L2 keeps, and read b on; b is prefetched.
 * The i-th of n even parts of [0, count) starts here. */
static int64_t part(int64_t count, int64_t n, int64_t i) { return count * i / n; }

static void gemm_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const gemm_job *job = arg;
    const q7_gemm_args *x = job->x;
    const int64_t nr = job->call->nr;
    const q7_gemm_kernel kernel = (q7_gemm_kernel)job->call->kernel;
    const int64_t chunks = q7_ceil_div(job->panels, job->chunk), block = task / chunks;
    const int64_t first_tile = part(job->row_tiles, job->row_blocks, block);
    const int64_t last_tile = part(job->row_tiles, job->row_blocks, block + 1);
    const int64_t first = task % chunks * job->chunk, last = q7_min(first + job->chunk, job->panels);
    /* A single row tile reads b once, in memory order, a few panels at a time. Else a panel stays in
     * L1 for all row tiles, while the next is fetched. */
    const int64_t tiles = last_tile - first_tile, step = tiles == 1 ? 4 : 1, group = tiles == 1 ? step : last - first;

    for (int64_t g = first; g < last; g += group) {
        for (int64_t k0 = 0; k0 == 0 || k0 < x->k; k0 += Q7_GEMM_K_BLOCK) {
            const int64_t k = q7_min(x->k - k0, Q7_GEMM_K_BLOCK);
            for (int64_t p = g; p < q7_min(g + group, last); p += step) {
                const int64_t column = p * nr, n = q7_min(step * nr, q7_min(last * nr, x->n) - column);
                q7_gemm_epilogue epilogue = {.alpha = (float)x->alpha,
                                             .bias = x->bias ? (const float *)x->bias + column : NULL,
                                             .residual_stride = x->residual_stride,
                                             .act = x->act};
                q7_gemm_tile t = {.n = n,
                                  .k = k,
                                  .a_row_stride = job->a_stride,
                                  .a_k_stride = 1,
                                  .b = (const float *)x->b + (p * x->k + k0) * nr,
                                  .b_stride = nr,
                                  .b_packed = true,
                                  .b_panel_stride = x->k * nr,
                                  .c_stride = x->c_stride,
                                  .accumulate = k0 > 0,
                                  .epilogue = k0 + k >= x->k ? &epilogue : NULL};
                if (epilogue.alpha == 1.0f && !x->bias && !x->residual && !x->act) t.epilogue = NULL;
                t.prefetch = tiles == 1 ? t.b + 512 : t.b + t.b_panel_stride;
                t.prefetch_stride = tiles == 1 ? nr : q7_ceil_div(nr, tiles);
                for (int64_t tile = first_tile; tile < last_tile; tile++) {
                    const int64_t row = part(x->m, job->row_tiles, tile);
                    t.m = part(x->m, job->row_tiles, tile + 1) - row;
                    t.a = job->a + row * job->a_stride + k0;
                    t.c = (float *)x->c + row * x->c_stride + column;
                    if (x->residual) epilogue.residual = (const float *)x->residual + row * x->residual_stride + column;
                    kernel(&t);
                    t.prefetch += k * t.prefetch_stride;
                }
            }
        }
    }
}

static void copy_rows(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const gemm_job *job = arg;
    const q7_gemm_args *x = job->x;
    for (int64_t row = part(x->m, job->row_tiles, task); row < part(x->m, job->row_tiles, task + 1); row++)
        memcpy((float *)x->pack + row * (x->k + 16), (const float *)x->a + row * x->a_stride, (size_t)x->k * 4);
}

void q7_op_gemm(const q7_gemm_args *x, const q7_call *call) {
    if (x->m == 0 || x->n == 0) return;
    gemm_job job = {.x = x, .call = call, .a = x->a, .a_stride = x->a_stride};
    job.row_tiles = q7_ceil_div(x->m, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_max(1, BLOCK_ROWS / call->mr));
    job.panels = q7_ceil_div(x->n, call->nr);
    job.chunk = job.panels;
    if (x->m * x->n * x->k > SMALL) {
        const int64_t even = job.panels * job.row_blocks / (call->threads * TASKS_PER_THREAD);
        job.chunk = q7_max(1, q7_min(even, CHUNK_PANELS));
    }
    /* Eight rows or fewer that meet in the same sets still leave ways for b and c. */
    if (x->pack && x->a_stride * 4 % CONFLICT_BYTES == 0 && q7_min(x->m, call->mr) > 8) {
        q7_parallel(call, job.row_tiles, copy_rows, &job);
        job.a = x->pack;
        job.a_stride = x->k + 16;
    }
    q7_parallel(call, job.row_blocks * q7_ceil_div(job.panels, job.chunk), gemm_task, &job);
}
