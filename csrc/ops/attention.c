/* attention.c: one task per batch entry, head and block of queries; the kernel does the rest.
 *
 * Query i of batch entry b stands at position i + offset + offsets[b] and sees the keys from `left`
 * before it to `right` after it (-1: no bound) among the first lengths[b] (all Skv without lengths).
 * work: work_floats for each thread, which keeps copies of `kept` blocks of keys and values.
 * Of up to Q7_ATTENTION_FEW queries the keys are cut into parts as well, of Q7_ATTENTION_PART, so that
 * there are tasks for all threads; partial: Dv + 2 floats for each head, query and part. */
#include "../kernels/attention.h"

#include <math.h>
#include <string.h>

#include "loops.h"

#define FAR (INT64_MAX / 4) /* beyond every key, and still no overflow when added to */

typedef struct attention_job {
    const q7_attention_args *args;
    const q7_call *call;
    q7_attention_kernel kernel;
    int64_t heads;   /* of a task, which share keys and values */
    int64_t parts;   /* tasks of the heads that share them */
    int64_t blocks;  /* of queries, per head */
    int64_t queries; /* per block, but for the last */
    int64_t n_parts; /* of keys */
    bool joins;      /* what became of those */
} attention_job;

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return q7_max(low, q7_min(x, high)); }

static float *work_of(const attention_job *job, int64_t thread) {
    const q7_attention_args *args = job->args;
    return q7_room_of(job->call, args->work, args->work_floats * 4, thread);
}

/* Whether all of x (n) are numbers. */
static bool is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* Whether a mask hides all keys from the only query of a tile by -inf: its result is NaN, or 0. */
static bool is_blind(const q7_attention_tile *t) {
    const q7_attention_mask *mask = &t->mask;
    const int64_t first = clamp(t->begin, 0, t->keys), end = clamp(t->end, first, t->keys);
    if (!mask->at) return first == end;
    for (int64_t key = first; key < end; key++) {
        const int64_t at = key * mask->k_stride;
        if (mask->dtype == Q7_BOOL ? t->fill != -INFINITY || ((const uint8_t *)mask->at)[at]
                                   : ((const float *)mask->at)[at] != -INFINITY)
            return false;
    }
    return true;
}

/* Of a query by itself. */
static q7_attention_tile row_of(const q7_attention_tile *t, int64_t head, int64_t query) {
    q7_attention_tile row = *t;
    row.heads = row.queries = 1;
    row.q += head * t->q_h_stride + query * t->q_stride;
    row.o += head * t->o_h_stride + query * t->o_stride;
    row.mask = q7_attention_mask_of(&t->mask, head, query);
    row.bias = q7_attention_mask_of(&t->bias, head, query);
    row.begin += query;
    row.end += query;
    if (t->sinks) row.sinks += head;
    if (t->partial) row.partial += (head * t->queries + query) * t->n_parts * (t->Dv + 2);
    return row;
}

/* NaN and infinities among keys and values that one query does not see reach it where it shares a panel with
 * another that does: what is not finite is computed again, of each query by itself. */
static void run_tile(const attention_job *job, q7_attention_tile *t) {
    const bool zero_nan_rows = t->zero_nan_rows, is_part = t->n_parts > 1;
    const bool is_shared = t->heads * t->queries > 1 && t->part < t->n_parts;
    t->zero_nan_rows = zero_nan_rows && !is_shared;
    if (job->kernel(t) || !is_shared) return;
    for (int64_t head = 0; head < t->heads; head++)
        for (int64_t query = 0; query < t->queries; query++) {
            q7_attention_tile row = row_of(t, head, query);
            row.zero_nan_rows = zero_nan_rows;
            const float *sums = is_part ? row.partial + t->part * (t->Dv + 2) : row.o;
            if (!is_finite(sums, t->Dv) && (zero_nan_rows || !is_blind(&row))) job->kernel(&row);
        }
}

static void attention_task(void *arg, int64_t task, int64_t thread) {
    const attention_job *job = arg;
    const q7_attention_args *args = job->args;
    const int64_t group = args->H / args->Hkv;
    const int64_t key_part = job->joins ? job->n_parts : task % job->n_parts;
    if (!job->joins) task /= job->n_parts;
    const int64_t part = task / job->blocks, kv_head = part / job->parts, b = kv_head / args->Hkv;
    const int64_t first = part % job->parts * job->heads, h = kv_head % args->Hkv * group + first;
    /* the last block first: with a causal mask it is the longest */
    const int64_t query = (job->blocks - 1 - task % job->blocks) * job->queries;
    int64_t keys = args->Skv, position = query + args->offset;
    if (args->lengths) {
        const int64_t at = b * args->lengths_stride;
        keys = clamp(q7_read_index(args->lengths, args->lengths_dtype, at), 0, keys);
    }
    if (args->offsets) {
        const int64_t at = b * args->offsets_stride;
        position += clamp(q7_read_index(args->offsets, args->offsets_dtype, at), -FAR, FAR);
    }
    q7_attention_mask mask = {args->mask, args->mask_dtype, args->mask_h_stride,
                              args->mask_q_stride, args->mask_k_stride};
    q7_attention_mask bias = {args->bias, Q7_F32, args->bias_h_stride, args->bias_q_stride,
                              args->bias_k_stride};
    if (args->mask)
        mask.at = (const char *)args->mask + b * args->mask_b_stride * q7_dtype_bytes(mask.dtype);
    if (args->bias) bias.at = (const float *)args->bias + b * args->bias_b_stride;
    q7_attention_tile tile = {
        .heads = q7_min(job->heads, group - first),
        .queries = q7_min(job->queries, args->Sq - query),
        .all_queries = args->Sq,
        .keys = keys,
        .D = args->D,
        .Dv = args->Dv,
        .q = (const float *)args->q + b * args->q_b_stride + h * args->q_h_stride +
             query * args->q_s_stride,
        .k = (const float *)args->k + b * args->k_b_stride + kv_head % args->Hkv * args->k_h_stride,
        .v = (const float *)args->v + b * args->v_b_stride + kv_head % args->Hkv * args->v_h_stride,
        .o = (float *)args->o + b * args->o_b_stride + h * args->o_h_stride +
             query * args->o_s_stride,
        .q_stride = args->q_s_stride,
        .k_stride = args->k_s_stride,
        .v_stride = args->v_s_stride,
        .o_stride = args->o_s_stride,
        .q_h_stride = args->q_h_stride,
        .o_h_stride = args->o_h_stride,
        .mask = q7_attention_mask_of(&mask, h, query),
        .bias = q7_attention_mask_of(&bias, h, query),
        .begin = args->left < 0 ? -FAR : position - q7_min(args->left, FAR),
        .end = args->right < 0 ? FAR : position + q7_min(args->right, FAR) + 1,
        .zero_masked_rows = args->zero_masked_rows || args->Skv == 0, /* an empty sum is 0 */
        .zero_nan_rows = args->zero_nan_rows != 0,
        .scale = (float)args->scale,
        .softcap = (float)args->softcap,
        .fill = (float)args->fill,
        .sinks = args->sinks ? (const float *)args->sinks + h : NULL,
        .work = work_of(job, thread),
        .kept = args->kept,
        .kv_head = kv_head,
        .all_keys = args->Skv,
        .part = key_part,
        .n_parts = job->n_parts,
    };
    if (args->partial)
        tile.partial =
            (float *)args->partial + (b * args->H + h) * args->Sq * job->n_parts * (args->Dv + 2);
    run_tile(job, &tile);
}

/* Tasks for the threads there are: what a query gets does not depend on them. Fewer, larger ones
 * read keys and values less often. */
void q7_op_attention(const q7_attention_args *args, const q7_call *call) {
    if (args->Sq == 0 || args->B * args->H == 0) return;
    const int64_t group = args->H / args->Hkv, wanted = 4 * call->threads;
    attention_job job = {args,       call,        (q7_attention_kernel)call->kernel,
                         .heads = 1, .blocks = 1, .n_parts = 1};
    if (args->Sq <= Q7_ATTENTION_FEW) {
        const int64_t most = q7_min(group, Q7_ATTENTION_ROWS / args->Sq);
        job.n_parts = q7_max(1, q7_ceil_div(args->Skv, Q7_ATTENTION_PART));
        job.heads = clamp(args->B * args->H * job.n_parts / call->threads, 1, most);
    } else {
        job.blocks = q7_max(q7_ceil_div(args->Sq, Q7_ATTENTION_QUERIES),
                            q7_min(q7_ceil_div(args->Sq, Q7_ATTENTION_SHORT),
                                   q7_ceil_div(wanted, args->B * args->H)));
    }
    job.parts = q7_ceil_div(group, job.heads);
    job.queries =
        q7_ceil_div(q7_ceil_div(args->Sq, job.blocks), Q7_ATTENTION_LANES) * Q7_ATTENTION_LANES;
    job.blocks = q7_ceil_div(args->Sq, job.queries);
    for (int64_t i = 0; i < call->threads; i++) /* copies of an earlier call */
        memset(work_of(&job, i), 0xff, (size_t)args->kept * sizeof(int64_t));
    const int64_t tasks = args->B * args->Hkv * job.parts * job.blocks;
    q7_parallel(call, tasks * job.n_parts, attention_task, &job);
    if (job.n_parts == 1) return;
    job.joins = true;
    q7_parallel(call, tasks, attention_task, &job);
}
