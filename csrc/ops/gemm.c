/* gemm.c: c = act(alpha * a @ b + bias) + residual for a b packed by pack_b; with `gated`
 * c = act(a @ gate + bias) * (a @ up + up_bias) for a b that holds both (alpha 1, no residual).
 *
 * Rows are cut evenly into tiles of at most mr, tiles into blocks that stay in L2; a task is a
 * block of rows times some panels. While k runs in blocks of Q7_GEMM_K_BLOCK, c holds the sums,
 * or `sums` where there are two for each element of c. Read panels.h first.
 *
 * residual may be c itself only if k <= Q7_GEMM_K_BLOCK. c overlaps neither a nor b.
 * sums: gated and k > Q7_GEMM_K_BLOCK only, threads * min(m, Q7_GEMM_ROWS) * Q7_GEMM_PANELS * nr * 4
 * bytes. */
#include <stdatomic.h>

#include "gemm_tasks.h"
#include "panels.h"

enum {
    WIDE = 4,        /* panels of few rows, which are multiplied at once; divides Q7_GEMM_PANELS */
    WIDE_ROWS = 6,   /* rows up to which several panels are multiplied at once */
    LEAST_TILES = 2, /* of those in a task: one may have too few rows to be made */
};

int64_t q7_new_ids(int64_t rows) {
    static atomic_int_least64_t last;
    return atomic_fetch_add_explicit(&last, rows, memory_order_relaxed) + 1;
}

/* The time of a thread: where the product of 16 rows and a panel takes 1, cutting 16 rows into parts takes 2
 * and a panel 2, beginning with rows half of that product and 2. Rows whose k is one block are kept for the
 * task behind, which begins with 1. The more threads there are, the likelier one of them lags, and shorter
 * tasks leave others more of its share: a quarter of a task for each thread, or beyond two if rows are not
 * kept (docs/decisions.md 64, 136). */
q7_cut q7_cut_for_tiles(const q7_call *call, int64_t rows, int64_t k, int64_t panels,
                        int64_t longest) {
    enum { TILE = 16, ROWS = 2, PANEL = 2, QUARTERS = 4 };
    const int64_t row_tiles = q7_ceil_div(rows, Q7_TALL);
    const int64_t least = q7_ceil_div(row_tiles, Q7_GEMM_TILE_ROWS / Q7_TALL);
    const int64_t most = q7_max(least, q7_min(row_tiles / LEAST_TILES, least + call->threads));
    const bool kept = k <= Q7_GEMM_TILE_K;
    const int64_t lag = call->threads < 2 ? 0 : kept ? call->threads : call->threads - 2;
    q7_cut best = {0};
    int64_t best_time = INT64_MAX;
    for (int64_t blocks = least; blocks <= most; blocks++)
        for (int64_t chunk = q7_min(panels, longest); chunk > 0; chunk--) {
            const int64_t tiles = q7_ceil_div(q7_ceil_div(rows, blocks), TILE);
            const int64_t tasks = blocks * q7_ceil_div(panels, chunk);
            const int64_t begin = kept ? 1 : tiles / 2 + 2, cut = tiles * ROWS;
            const int64_t task = begin + (PANEL + tiles) * chunk + (kept ? 0 : cut);
            const int64_t once = kept ? cut * q7_ceil_div(blocks, call->threads) : 0;
            const int64_t in_turn = q7_ceil_div(tasks, call->threads);
            const int64_t time = QUARTERS * once + task * (QUARTERS * in_turn + lag);
            if (time < best_time) best_time = time, best = (q7_cut){blocks, chunk};
        }
    return best;
}

/* The first panel of a chunk. */
static int64_t first_panel(const q7_gemm_job *job, int64_t chunk) {
    const int64_t units = q7_ceil_div(job->panels, job->unit);
    return q7_min(q7_part(units, job->chunks, chunk) * job->unit, job->panels);
}

/* The first row of a block. Tiles of AMX take as long with fewer rows, others are cut evenly. */
static int64_t first_row(const q7_gemm_job *job, int64_t block) {
    const int64_t tile = q7_part(job->row_tiles, job->row_blocks, block);
    if (job->call->mr == Q7_TALL) return q7_min(tile * Q7_TALL, job->x->m);
    return q7_part(job->x->m, job->row_tiles, tile);
}

/* A block of rows by some panels. */
static void multiply(const q7_gemm_job *job, int64_t block, q7_span panels, float *sums) {
    const q7_gemm_args *x = job->x;
    const int64_t nr = job->call->nr;
    const int64_t row = first_row(job, block), end = first_row(job, block + 1);
    const int64_t column = panels.begin * nr;           /* of b; of c, and of the biases: */
    const int64_t per = q7_is_half(x->b_dtype) ? 2 : 1; /* elements of b to a float */
    const int64_t out = x->gated ? column / 2 : column;
    const bool ends = job->k0 + job->k == x->k;
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
                                .n = q7_min(panels.end * nr, job->columns) - column,
                                .k = job->k,
                                .k_block = job->k_block,
                                .a = (const float *)x->a + row * x->a_stride + job->k0,
                                .a_row_stride = x->a_stride,
                                .a_k_stride = 1,
                                .a_id = q7_id_of(job->first_id, row),
                                .n_after = q7_max(0, job->columns - panels.end * nr),
                                .b = (const float *)x->b + (column * x->k + job->k0 * nr) / per,
                                .b_stride = nr / per,
                                .b_packed = true,
                                .b_is_column = job->columns == 1,
                                .b_panel_stride = x->k * nr / per,
                                .b_dtype = x->b_dtype,
                                .c = sums ? sums : c,
                                .c_stride = sums ? Q7_GEMM_PANELS * nr : x->c_stride,
                                .accumulate = job->k0 > 0,
                                .epilogue = plain || !ends ? NULL : &epilogue};
    ((q7_gemm_kernel)job->call->kernel)(&part);
}

void q7_gemm_task(const q7_gemm_job *job, int64_t task, float *sums) {
    /* Consecutive tasks share the rows, which L2 holds, or what one thread has read of weights if they
     * are more: two that want the same lines at once wait for each other. */
    const bool rows_first = job->call->threads == 1 && job->row_blocks < job->chunks;
    const int64_t inner = rows_first ? job->row_blocks : job->chunks;
    const int64_t block = rows_first ? task % inner : task / inner;
    const int64_t chunk = rows_first ? task / inner : task % inner;
    const q7_span panels = {first_panel(job, chunk), first_panel(job, chunk + 1)};
    multiply(job, block, panels, sums);
}

/* How many k values are multiplied at a time, where rows in tiles are too few for tasks of whole ones: those
 * of more would be cut again in each task. A last block of less than a step is no kernel's alone. */
static int64_t k_at_a_time(const q7_gemm_args *x, const q7_call *call) {
    enum { FEW_BLOCKS = 2, STEP = 32 };
    const int64_t last = x->k % Q7_GEMM_TILE_K;
    const bool tall = call->mr == Q7_TALL && q7_gemm_in_tiles(x->m);
    const bool split = call->threads > 1 && tall && !x->sums && (last == 0 || last >= STEP) &&
                       x->m <= FEW_BLOCKS * Q7_GEMM_TILE_ROWS;
    return split ? q7_min(x->k, Q7_GEMM_TILE_K) : x->k;
}

/* How many even parts panels are cut into, beside `blocks` of rows, for so many tasks or more: as
 * many for each thread, if that is possible. */
static int64_t chunks_of(const q7_call *call, int64_t panels, int64_t blocks, int64_t tasks) {
    const int64_t least = q7_min(q7_ceil_div(tasks, blocks), panels);
    for (int64_t chunks = least; chunks < 2 * least && chunks <= panels; chunks++)
        if (chunks * blocks % call->threads == 0) return chunks;
    return least;
}

q7_gemm_job q7_gemm_job_of(const q7_gemm_args *x, int64_t k, const q7_call *call) {
    q7_gemm_job job = {.x = x, .call = call, .k_block = Q7_GEMM_K_BLOCK, .k = k, .unit = 1};
    if (x->m == 0 || x->n == 0) return job;
    job.row_tiles = q7_ceil_div(x->m, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_tiles_of_task(call));
    job.panels = q7_ceil_div(x->n, x->gated ? call->nr / 2 : call->nr);
    job.columns = x->gated ? job.panels * call->nr : x->n;
    job.chunks = x->sums ? q7_ceil_div(job.panels, Q7_GEMM_PANELS) : 1;
    const int64_t work = x->m * x->n * x->k;
    const bool large = work > Q7_SMALL_WORK;
    if (large && call->mr == Q7_TALL && q7_gemm_in_tiles(x->m)) {
        const q7_cut best = q7_cut_for_tiles(call, x->m, k, job.panels,
                                             x->sums ? Q7_GEMM_PANELS : Q7_GEMM_TILE_PANELS);
        job.row_blocks = best.blocks;
        job.chunks = q7_ceil_div(job.panels, best.chunk);
    } else if (large) {
        const int64_t least = q7_ceil_div(job.panels, Q7_GEMM_PANELS) * job.row_blocks;
        int64_t tasks = q7_tasks_of(call, work);
        if (x->m <= WIDE_ROWS) { /* whole units, unless these are too few for even shares */
            if (job.panels >= WIDE * tasks)
                job.unit = WIDE;
            else
                tasks = call->threads;
        }
        job.chunks = chunks_of(call, q7_ceil_div(job.panels, job.unit), job.row_blocks,
                               q7_max(least, tasks));
    }
    job.tasks = job.row_blocks * job.chunks;
    return job;
}

static float *sums_of(const q7_gemm_job *job, int64_t thread) {
    const int64_t bytes = q7_gemm_sums(job->x->m, job->call->nr) * 4;
    return q7_room_of(job->call, job->x->sums, bytes, thread);
}

static void gemm_task(void *arg, int64_t task, int64_t thread) {
    q7_gemm_task(arg, task, sums_of(arg, thread));
}

static void gemm_panels(void *arg, int64_t block, q7_span panels, int64_t thread) {
    multiply(arg, block, panels, sums_of(arg, thread));
}

void q7_op_gemm(const q7_gemm_args *x, const q7_call *call) {
    const int64_t k = k_at_a_time(x, call);
    q7_gemm_job job = q7_gemm_job_of(x, k, call);
    const bool few = x->m <= WIDE_ROWS && job.unit == 1; /* and an even share for each thread */
    if (call->threads > 1 && call->mr != Q7_TALL && !few) {
        q7_parallel_panels(call, &(q7_panels_job){.blocks = job.row_blocks,
                                                  .panels = job.panels,
                                                  .unit = job.unit,
                                                  .most = Q7_GEMM_PANELS,
                                                  .work = x->m * x->n * x->k,
                                                  .fn = gemm_panels,
                                                  .arg = &job});
        return;
    }
    do {
        job.k = q7_min(k, x->k - job.k0);
        if (call->mr == Q7_TALL) job.first_id = q7_new_ids(x->m);
        q7_parallel(call, job.tasks, gemm_task, &job);
        job.k0 += job.k;
    } while (job.k0 < x->k);
}
