/* linear_attention.c: one task per batch entry and head of keys; of present the state comes first
 * from past. Read kernels/linear_attention.h first. */
#include "../kernels/linear_attention.h"

#include <string.h>

#include "loops.h"

typedef struct linear_attention_job {
    const q7_linear_attention_args *args;
    q7_linear_attention_kernel kernel;
} linear_attention_job;

static void linear_attention_task(void *arg, int64_t task, int64_t thread) {
    const linear_attention_job *job = arg;
    const q7_linear_attention_args *a = job->args;
    const int64_t b = task / a->Hkv, h = task % a->Hkv, size = a->Dk * a->Dv;
    const int64_t group = q7_max(1, a->Hq / a->Hkv), heads = q7_max(a->Hq, a->Hkv);
    const int64_t q_head = h * a->Hq / a->Hkv; /* the first of the group, or what keys share */
    (void)thread;
    float *state = (float *)a->present + task * size;
    if (a->past)
        memcpy(state, (const float *)a->past + task * size, (size_t)size * sizeof *state);
    else
        memset(state, 0, (size_t)size * sizeof *state);
    const q7_linear_attention_tile tile = {
        .T = a->T,
        .heads = group,
        .Dk = a->Dk,
        .Dv = a->Dv,
        .q = (const float *)a->q + b * a->q_b_stride + q_head * a->q_h_stride,
        .k = (const float *)a->k + b * a->k_b_stride + h * a->k_h_stride,
        .v = (const float *)a->v + b * a->v_b_stride + h * a->v_h_stride,
        .decay = a->decay ? (const float *)a->decay + (b * a->T * a->Hkv + h) * a->decays : NULL,
        .beta = a->beta ? (const float *)a->beta + b * a->T * a->betas + h % a->betas : NULL,
        .state = state,
        .o = (float *)a->o + (b * a->T * heads + h * group) * a->Dv,
        .q_stride = a->q_t_stride,
        .q_head_stride = a->q_h_stride,
        .k_stride = a->k_t_stride,
        .v_stride = a->v_t_stride,
        .decay_stride = a->Hkv * a->decays,
        .beta_stride = a->betas,
        .o_stride = heads * a->Dv,
        .decays = a->decays,
        .scale = (float)a->scale,
    };
    job->kernel(&tile);
}

void q7_op_linear_attention(const q7_linear_attention_args *args, const q7_call *call) {
    linear_attention_job job = {args, (q7_linear_attention_kernel)call->kernel};
    q7_parallel(call, args->B * args->Hkv, linear_attention_task, &job);
}
