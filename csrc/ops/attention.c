/* attention.c: one task per batch entry, head and block of queries; the kernel does the rest.
 * work: a slice of q7_attention_work() floats for each thread. */
#include "../kernels/attention.h"

#include "loops.h"

typedef struct attention_job {
    const q7_attention_args *args;
    q7_attention_kernel kernel;
    int64_t blocks;  /* of queries, per head */
    int64_t queries; /* per block, but for the last */
} attention_job;

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
    const q7_attention_tile tile = {
        .queries = q7_min(job->queries, args->Sq - query),
        .keys = args->Skv,
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
        .mask = args->mask ? (const char *)args->mask + mask_bytes : NULL,
        .mask_dtype = args->mask_dtype,
        .mask_q_stride = args->mask_q_stride,
        .mask_k_stride = args->mask_k_stride,
        .causal = args->causal != 0,
        .zero_masked_rows = args->zero_masked_rows != 0,
        .visible = args->Skv - args->Sq + query + 1,
        .scale = (float)args->scale,
        .fill = (float)args->fill,
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
