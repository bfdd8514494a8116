/* attention.c: one task per batch entry, head and block of queries; the kernel does the rest.
 *
 * Query i of batch entry b stands at position i + offset + offsets[b] and sees the keys from `left`
 * before it to `right` after it (-1: no bound) among the first lengths[b] (all Skv without lengths).
 * work: a slice of q7_attention_work() floats for each thread. */
#include "../kernels/attention.h"

#include <math.h>

#include "loops.h"

#define FAR (INT64_MAX / 4) /* beyond every key, and still no overflow when added to */

typedef struct attention_job {
    const q7_attention_args *args;
    q7_attention_kernel kernel;
    int64_t blocks;  /* of queries, per head */
    int64_t queries; /* per block, but for the last */
} attention_job;

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return q7_max(low, q7_min(x, high)); }

static void attention_task(void *arg, int64_t task, int64_t thread) {
    const attention_job *job = arg;
    const q7_attention_args *args = job->args;
    const int64_t head = task / job->blocks, b = head / args->H, h = head % args->H;
    const int64_t group = h / (args->H / args->Hkv);
    /* the last block first: with a causal mask it is the longest */
    const int64_t query = (job->blocks - 1 - task % job->blocks) * job->queries;
    const int64_t mask_at =
        b * args->mask_b_stride + h * args->mask_h_stride + query * args->mask_q_stride;
    const int64_t mask_bytes = mask_at * q7_dtype_bytes(args->mask_dtype);
    const int64_t bias_at =
        b * args->bias_b_stride + h * args->bias_h_stride + query * args->bias_q_stride;
    int64_t keys = args->Skv, position = query + args->offset;
    if (args->lengths) {
        const int64_t at = b * args->lengths_stride;
        keys = clamp(q7_read_index(args->lengths, args->lengths_dtype, at), 0, keys);
    }
    if (args->offsets) {
        const int64_t at = b * args->offsets_stride;
        position += clamp(q7_read_index(args->offsets, args->offsets_dtype, at), -FAR, FAR);
    }
    const q7_attention_tile tile = {
        .queries = q7_min(job->queries, args->Sq - query),
        .keys = keys,
        .D = args->D,
        .Dv = args->Dv,
        .q = (const float *)args->q + b * args->q_b_stride + h * args->q_h_stride +
             query * args->q_s_stride,
        .k = (const float *)args->k + b * args->k_b_stride + group * args->k_h_stride,
        .v = (const float *)args->v + b * args->v_b_stride + group * args->v_h_stride,
        .o = (float *)args->o + b * args->o_b_stride + h * args->o_h_stride +
             query * args->o_s_stride,
        .q_stride = args->q_s_stride,
        .k_stride = args->k_s_stride,
        .v_stride = args->v_s_stride,
        .o_stride = args->o_s_stride,
        .mask = {args->mask ? (const char *)args->mask + mask_bytes : NULL, args->mask_dtype,
                 args->mask_q_stride, args->mask_k_stride},
        .bias = {args->bias ? (const float *)args->bias + bias_at : NULL, Q7_F32,
                 args->bias_q_stride, args->bias_k_stride},
        .begin = args->left < 0 ? -FAR : position - q7_min(args->left, FAR),
        .end = args->right < 0 ? FAR : position + q7_min(args->right, FAR) + 1,
        .zero_masked_rows = args->zero_masked_rows || args->Skv == 0, /* an empty sum is 0 */
        .zero_nan_rows = args->zero_nan_rows != 0,
        .scale = (float)args->scale,
        .softcap = (float)args->softcap,
        .fill = (float)args->fill,
        .sink = args->sinks ? ((const float *)args->sinks)[h] : -INFINITY,
        .work = (float *)args->work +
                thread * q7_attention_work(args->Sq, args->Skv, args->D, args->Dv),
    };
    job->kernel(&tile);
}

void q7_op_attention(const q7_attention_args *args, const q7_call *call) {
    if (args->Sq == 0) return;
    const int64_t queries = q7_attention_queries(args->Sq), blocks = q7_ceil_div(args->Sq, queries);
    attention_job job = {args, (q7_attention_kernel)call->kernel, blocks, queries};
    q7_parallel(call, args->B * args->H * blocks, attention_task, &job);
}
