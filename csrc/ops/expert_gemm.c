/* expert_gemm.c: c[t] = act(a[t / repeat] @ b[e] + bias[e]) for e = expert[t], where every expert has
 * a matrix of its own, packed by pack_b, one after the other; gated as in gemm.c.
 *
 * Rows are sorted by expert and gathered, the rows of an expert are one product, and its results go
 * back to where they belong: a weight is read once, not once per row. A single row of an expert is
 * neither gathered nor brought back. A row's result depends on the other rows as in gemm.h. Blocks
 * of k are shorter than in gemm.c: what this replaces, a matrix times a vector for each row, is
 * summed in several accumulators. Index rules as in gather.c. Read gemm_tasks.h first.
 *
 * order: (m + 2 * (experts + 1)) * 8 bytes; rows: m * (k + n) * 4 bytes.
 * sums: as in gemm.c, but for k > Q7_EXPERT_K_BLOCK. */
#include <string.h>

#include "gemm_tasks.h"
#include "loops.h"

typedef struct expert_job {
    const q7_expert_gemm_args *x;
    const q7_call *call;
    int64_t *order;      /* (m,) rows by expert */
    int64_t *first_row;  /* (experts + 1,) of each expert, in order */
    int64_t *first_task; /* (experts + 1,) */
    float *a, *c;        /* (m, k) and (m, n) in that order */
} expert_job;

/* A counting sort, which keeps the rows of an expert in their order. Returns the most rows that an
 * expert has. */
static int64_t sort_rows(const expert_job *job) {
    const q7_expert_gemm_args *x = job->x;
    int64_t *count = job->first_row + 1, *next = job->first_task, most = 0;
    memset(job->first_row, 0, (size_t)(x->experts + 1) * sizeof(int64_t));
    for (int64_t t = 0; t < x->m; t++) {
        const int64_t raw = q7_read_index(x->expert, x->expert_dtype, t);
        const int64_t e = q7_checked_index(job->call, raw, x->experts);
        if (e >= 0) most = q7_max(most, ++count[e]);
    }
    for (int64_t e = 0; e < x->experts; e++) {
        next[e] = job->first_row[e];
        job->first_row[e + 1] += job->first_row[e];
    }
    for (int64_t t = 0; t < x->m; t++) {
        const int64_t raw = q7_read_index(x->expert, x->expert_dtype, t);
        const int64_t e = raw < 0 ? raw + x->experts : raw;
        if (e >= 0 && e < x->experts) job->order[next[e]++] = t;
    }
    return most;
}

static const float *row_of_a(const q7_expert_gemm_args *x, int64_t t) {
    return (const float *)x->a + t / x->repeat * x->a_stride;
}

static void gather_task(void *arg, int64_t e, int64_t thread) {
    (void)thread;
    const expert_job *job = arg;
    const int64_t first = job->first_row[e], last = job->first_row[e + 1], k = job->x->k;
    for (int64_t i = first; i < last && last - first > 1; i++)
        memcpy(job->a + i * k, row_of_a(job->x, job->order[i]), (size_t)k * sizeof(float));
}

static void scatter_task(void *arg, int64_t e, int64_t thread) {
    (void)thread;
    const expert_job *job = arg;
    const int64_t first = job->first_row[e], last = job->first_row[e + 1], n = job->x->n;
    for (int64_t i = first; i < last && last - first > 1; i++)
        memcpy((float *)job->x->c + job->order[i] * n, job->c + i * n, (size_t)n * sizeof(float));
}

/* The product of an expert that has rows. */
static q7_gemm_args product_of(const expert_job *job, int64_t e) {
    const q7_expert_gemm_args *x = job->x;
    const int64_t first = job->first_row[e], m = job->first_row[e + 1] - first;
    const int64_t nr = job->call->nr, width = x->gated ? nr / 2 : nr;
    const float *bias = x->bias, *up_bias = x->up_bias;
    const int64_t t = job->order[first];
    return (q7_gemm_args){.a = m == 1 ? row_of_a(x, t) : job->a + first * x->k,
                          .b = (const float *)x->b + e * q7_ceil_div(x->n, width) * nr * x->k,
                          .bias = bias ? bias + e * x->n : NULL,
                          .up_bias = up_bias ? up_bias + e * x->n : NULL,
                          .c = m == 1 ? (float *)x->c + t * x->n : job->c + first * x->n,
                          .sums = x->sums,
                          .m = m,
                          .n = x->n,
                          .k = x->k,
                          .a_stride = x->k,
                          .c_stride = x->n,
                          .gated = x->gated,
                          .act = x->act,
                          .alpha = 1.0,
                          .act_alpha = x->act_alpha,
                          .act_beta = x->act_beta};
}

static void product_task(void *arg, int64_t task, int64_t thread) {
    const expert_job *job = arg;
    int64_t e = 0;
    while (job->first_task[e + 1] <= task) e++;
    const q7_gemm_args product = product_of(job, e);
    q7_gemm_job part = q7_gemm_job_of(&product, product.k, job->call);
    part.k_block = q7_min(Q7_GEMM_K_BLOCK, q7_max(Q7_EXPERT_K_BLOCK, product.k / 8));
    const int64_t bytes = q7_gemm_sums(job->x->m, job->call->nr) * 4;
    float *sums = q7_room_of(job->call, product.sums, bytes, thread);
    q7_gemm_task(&part, task - job->first_task[e], sums);
}

void q7_op_expert_gemm(const q7_expert_gemm_args *x, const q7_call *call) {
    int64_t *order = x->order;
    expert_job job = {.x = x,
                      .call = call,
                      .order = order,
                      .first_row = order + x->m,
                      .first_task = order + x->m + x->experts + 1,
                      .a = x->rows,
                      .c = (float *)x->rows + x->m * x->k};
    const int64_t shared = sort_rows(&job) > 1 ? x->experts : 0;
    job.first_task[0] = 0;
    for (int64_t e = 0; e < x->experts; e++) {
        job.first_task[e + 1] = job.first_task[e];
        if (job.first_row[e + 1] == job.first_row[e]) continue;
        const q7_gemm_args product = product_of(&job, e);
        job.first_task[e + 1] += q7_gemm_job_of(&product, product.k, call).tasks;
    }
    q7_parallel(call, shared, gather_task, &job);
    q7_parallel(call, job.first_task[x->experts], product_task, &job);
    q7_parallel(call, shared, scatter_task, &job);
}
