/* gemm.c: c = act(alpha * a @ b + bias) + residual for a b packed by pack_b; with `gated`
 * c = act(a @ gate + bias) * (a @ up + up_bias) for a b that holds both (alpha 1, no residual).
 *
 * Rows are cut evenly into tiles of at most mr, tiles into blocks that stay in L2; a task is a
 * block of rows times a chunk of panels. While k runs in blocks of Q7_GEMM_K_BLOCK, c holds the sums,
 * or `sums` where there are two for each element of c. Read panels.h first.
 *
 * residual may be c itself only if k <= Q7_GEMM_K_BLOCK. c overlaps neither a nor b.
 * cuts: rows of a as amx multiplies them, which are made once for all tasks if all of m is one block;
 * else each task makes its own. Q7_GEMM_CUT_BYTES for each Q7_GEMM_CUT_ROWS rows and block of k.
 * sums: gated and k > Q7_GEMM_K_BLOCK only, threads * min(m, Q7_GEMM_ROWS) * Q7_GEMM_PANELS * nr * 4
 * bytes. */
#include "gemm_tasks.h"
#include "panels.h"

enum { WIDE = 4 }; /* chunks for a single row tile are multiples; divides Q7_GEMM_PANELS */

void q7_gemm_task(const q7_gemm_job *job, int64_t task, float *sums) {
    const q7_gemm_args *x = job->x;
    const int64_t nr = job->call->nr, chunks = q7_ceil_div(job->panels, job->chunk);
    const int64_t first = task % chunks * job->chunk;
    const int64_t last = q7_min(first + job->chunk, job->panels);
    const int64_t block = task / chunks; /* consecutive tasks share the rows, which L2 holds */
    const int64_t row =
        q7_part(x->m, job->row_tiles, q7_part(job->row_tiles, job->row_blocks, block));
    const int64_t end =
        q7_part(x->m, job->row_tiles, q7_part(job->row_tiles, job->row_blocks, block + 1));
    const int64_t column = first * nr; /* of b; of c, and of the biases: */
    const int64_t out = x->gated ? column / 2 : column;
    const float *residual = x->residual, *bias = x->bias, *up_bias = x->up_bias;
    float *c = (float *)x->c + row * x->c_stride + out;
    const q7_gemm_epilogue epilogue = {
        .alpha = (float)x->alpha,
        .bias = bias ? bias + out : NULL,
        .residual = residual ? residual + row * x->residual_stride + column : NULL,
        .residual_stride = x->residual_stride,
        .act = x->act,
        .act_alpha = (float)x->act_alpha,
        .act_beta = (float)x->act_beta,
        .gated = x->gated ? c : NULL,
        .gated_stride = x->c_stride,
        .gated_n = x->n - out,
        .up_bias = up_bias ? up_bias + out : NULL};
    const bool plain =
        epilogue.alpha == 1.0f && !bias && !residual && x->act == Q7_act_none && !x->gated;
    const q7_gemm_block part = {.m = end - row,
                                .n = q7_min(last * nr, job->columns) - column,
                                .k = x->k,
                                .k_block = job->k_block,
                                .a = (const float *)x->a + row * x->a_stride,
                                .a_row_stride = x->a_stride,
                                .a_k_stride = 1,
                                .b = (const float *)x->b + column * x->k,
                                .b_stride = nr,
                                .b_packed = true,
                                .b_panel_stride = x->k * nr,
                                .c = sums ? sums : c,
                                .c_stride = sums ? job->chunk * nr : x->c_stride,
                                .epilogue = plain ? NULL : &epilogue,
                                .cuts = job->cuts ? x->cuts : NULL};
    ((q7_gemm_kernel)job->call->kernel)(&part);
}

/* Some rows of a and a block of k as parts. */
static void cut_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const q7_gemm_job *job = arg;
    const q7_gemm_args *x = job->x;
    const int64_t groups = q7_ceil_div(x->m, Q7_GEMM_CUT_ROWS);
    const int64_t row = task % groups * Q7_GEMM_CUT_ROWS, k0 = task / groups * Q7_GEMM_K_BLOCK;
    const q7_gemm_block part = {.m = q7_min(Q7_GEMM_CUT_ROWS, x->m - row),
                                .k = q7_min(Q7_GEMM_K_BLOCK, x->k - k0),
                                .a = (const float *)x->a + row * x->a_stride + k0,
                                .a_row_stride = x->a_stride,
                                .a_k_stride = 1,
                                .cuts = (char *)x->cuts + task * Q7_GEMM_CUT_BYTES,
                                .cuts_only = true};
    ((q7_gemm_kernel)job->call->kernel)(&part);
}

q7_gemm_job q7_gemm_job_of(const q7_gemm_args *x, const q7_call *call) {
    q7_gemm_job job = {.x = x, .call = call, .k_block = Q7_GEMM_K_BLOCK};
    if (x->m == 0 || x->n == 0) return job;
    job.row_tiles = q7_ceil_div(x->m, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_max(1, Q7_GEMM_ROWS / call->mr));
    job.panels = q7_ceil_div(x->n, x->gated ? call->nr / 2 : call->nr);
    job.columns = x->gated ? job.panels * call->nr : x->n;
    job.chunk = x->sums ? q7_min(job.panels, Q7_GEMM_PANELS) : job.panels;
    job.cuts = x->cuts && x->m > Q7_GEMM_FEW && x->m <= Q7_GEMM_ROWS;
    if (x->m * x->n * x->k > Q7_SMALL_WORK) {
        const bool cut_by_each = call->mr == Q7_GEMM_CUT_ROWS && !job.cuts;
        const int64_t tasks = call->threads * (cut_by_each ? 1 : Q7_TASKS_PER_THREAD);
        const int64_t even = job.panels * job.row_blocks / tasks;
        job.chunk = q7_max(1, q7_min(even, Q7_GEMM_PANELS));
        if (job.row_tiles == 1) job.chunk = q7_ceil_div(job.chunk, WIDE) * WIDE;
    }
    job.tasks = job.row_blocks * q7_ceil_div(job.panels, job.chunk);
    return job;
}

static void gemm_task(void *arg, int64_t task, int64_t thread) {
    const q7_gemm_job *job = arg;
    float *sums = job->x->sums;
    if (sums) sums += thread * q7_gemm_sums(job->x->m, job->call->nr);
    q7_gemm_task(job, task, sums);
}

void q7_op_gemm(const q7_gemm_args *x, const q7_call *call) {
    q7_gemm_job job = q7_gemm_job_of(x, call);
    const int64_t cuts = q7_ceil_div(x->m, Q7_GEMM_CUT_ROWS) * q7_ceil_div(x->k, Q7_GEMM_K_BLOCK);
    if (job.cuts) q7_parallel(call, cuts, cut_task, &job);
    q7_parallel(call, job.tasks, gemm_task, &job);
}
