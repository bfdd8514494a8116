/* gemm.c: c = act(alpha * a @ b + bias) + residual for a b packed by pack_b; with `gated`
 * c = act(a @ gate + bias) * (a @ up + up_bias) for a b that holds both (alpha 1, no residual).
 *
 * Rows are cut evenly into tiles of at most mr, tiles into blocks that stay in L2; a task is a
 * block of rows times a chunk of panels. Within a task k runs in blocks of Q7_GEMM_K_BLOCK; between
 * two of them c holds the sums, or `sums` where there are two for each element of c. Read panels.h
 * first.
 *
 * residual may be c itself only if k <= Q7_GEMM_K_BLOCK. c overlaps neither a nor b.
 * sums: gated and k > Q7_GEMM_K_BLOCK only, threads * min(m, Q7_GEMM_ROWS) * Q7_GEMM_PANELS * nr * 4
 * bytes. */
#include "gemm_tasks.h"
#include "panels.h"

enum { WIDE = 4 }; /* chunks for a single row tile are multiples; divides Q7_GEMM_PANELS */

/* c += or = a @ b for k in [k0, k0 + k), columns [column, column + n) of b and row tiles [first,
 * last). sums: where gated those of these rows from this column on, chunk * nr apart, or NULL. next:
 * where what this panel fetches of the next two begins. */
static void multiply(const q7_gemm_job *job, int64_t k0, int64_t k, int64_t column, int64_t n,
                     int64_t first, int64_t last, float *sums, const float *next) {
    const q7_gemm_args *x = job->x;
    const int64_t nr = job->call->nr, tiles = last - first;
    const int64_t out = x->gated ? column / 2 : column; /* column of c, and of the biases */
    const float *residual = x->residual, *bias = x->bias, *up_bias = x->up_bias;
    q7_gemm_epilogue epilogue = {.alpha = (float)x->alpha,
                                 .bias = bias ? bias + out : NULL,
                                 .residual_stride = x->residual_stride,
                                 .act = x->act,
                                 .act_alpha = (float)x->act_alpha,
                                 .act_beta = (float)x->act_beta,
                                 .gated_stride = x->c_stride,
                                 .gated_n = x->n - out,
                                 .up_bias = up_bias ? up_bias + out : NULL};
    const bool plain =
        epilogue.alpha == 1.0f && !bias && !residual && x->act == Q7_act_none && !x->gated;
    q7_gemm_tile t = {.n = n,
                      .k = k,
                      .a_row_stride = x->a_stride,
                      .a_k_stride = 1,
                      .b = (const float *)x->b + column * x->k + k0 * nr,
                      .b_stride = nr,
                      .b_packed = true,
                      .b_panel_stride = x->k * nr,
                      .c_stride = x->gated ? job->chunk * nr : x->c_stride,
                      .accumulate = k0 > 0,
                      .epilogue = k0 + k < x->k || plain ? NULL : &epilogue};
    /* One row tile: what follows in memory. Else, a part per tile, half of two panels that come
     * next: two streams keep more of the memory busy, 16 rows of weights from there 14 % faster. */
    t.prefetch = tiles == 1 ? t.b + Q7_GEMM_AHEAD : next;
    t.prefetch_stride = tiles == 1 ? nr : q7_ceil_div(nr, 2 * tiles);
    t.prefetch_gap = x->k * nr;
    const int64_t first_row = q7_part(x->m, job->row_tiles, first);
    for (int64_t tile = first; tile < last; tile++) {
        const int64_t row = q7_part(x->m, job->row_tiles, tile);
        t.m = q7_part(x->m, job->row_tiles, tile + 1) - row;
        t.a = (const float *)x->a + row * x->a_stride + k0;
        float *c = (float *)x->c + row * x->c_stride + out;
        t.c = sums ? sums + (row - first_row) * t.c_stride : c;
        epilogue.gated = x->gated ? c : NULL;
        if (residual) epilogue.residual = residual + row * x->residual_stride + column;
        ((q7_gemm_kernel)job->call->kernel)(&t);
        t.prefetch += k * t.prefetch_stride;
    }
}

void q7_gemm_task(const q7_gemm_job *job, int64_t task, float *sums) {
    const q7_gemm_args *x = job->x;
    const int64_t nr = job->call->nr, chunks = q7_ceil_div(job->panels, job->chunk);
    const int64_t first = task % chunks * job->chunk;
    const int64_t last = q7_min(first + job->chunk, job->panels);
    const int64_t block = task / chunks; /* consecutive tasks share the rows, which L2 holds */
    const int64_t first_tile = q7_part(job->row_tiles, job->row_blocks, block);
    const int64_t last_tile = q7_part(job->row_tiles, job->row_blocks, block + 1);
    /* A single row tile reads b once and in the order of memory: all k of the panels that the kernel
     * takes at once, then the next. Else a panel stays in L1 for all row tiles, and a block of a in
     * L2 for all panels. */
    const bool single = last_tile - first_tile == 1;
    const int64_t step = single ? q7_gemm_panels(x->m, job->call->mr) : 1;
    const int64_t group = single ? step : last - first;

    for (int64_t g = first, stop; g < last; g = stop) {
        stop = q7_min(g + group, last);
        for (int64_t k0 = 0, k1; k0 == 0 || k0 < x->k; k0 = k1) {
            k1 = k0 + job->k_block;
            for (int64_t p = g; p < stop; p += step) {
                const int64_t end = q7_min(q7_min(p + step, last) * nr, job->columns);
                const int64_t k = q7_min(x->k - k0, job->k_block), pair = p - (p - g) % 2;
                const int64_t next = pair + 2 < stop ? (pair + 2) * x->k + k0
                                     : k1 < x->k     ? g * x->k + k1
                                                     : stop * x->k;
                multiply(job, k0, k, p * nr, end - p * nr, first_tile, last_tile,
                         sums ? sums + (p - first) * nr : NULL,
                         (const float *)x->b + nr * next + (p - pair) * k * nr / 2);
            }
        }
    }
}

q7_gemm_job q7_gemm_job_of(const q7_gemm_args *x, const q7_call *call) {
    q7_gemm_job job = {.x = x, .call = call, .k_block = Q7_GEMM_K_BLOCK};
    if (x->m == 0 || x->n == 0) return job;
    job.row_tiles = q7_ceil_div(x->m, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_max(1, Q7_GEMM_ROWS / call->mr));
    job.panels = q7_ceil_div(x->n, x->gated ? call->nr / 2 : call->nr);
    job.columns = x->gated ? job.panels * call->nr : x->n;
    job.chunk = x->sums ? q7_min(job.panels, Q7_GEMM_PANELS) : job.panels;
    if (x->m * x->n * x->k > Q7_SMALL_WORK) {
        const int64_t even = job.panels * job.row_blocks / (call->threads * Q7_TASKS_PER_THREAD);
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
    q7_parallel(call, job.tasks, gemm_task, &job);
}
