/* rope.c: one task per run of positions; at each, cos and sin serve all heads of q, then of k. */
#include "../kernels/rope.h"

#include "loops.h"

typedef struct rope_job {
    const q7_rope_args *args;
    q7_rope_kernel kernel;
    int64_t positions, positions_per_task;
} rope_job;

static void rope_task(void *arg, int64_t task, int64_t thread) {
    const rope_job *job = arg;
    const q7_rope_args *a = job->args;
    (void)thread;
    const int64_t first = task * job->positions_per_task;
    const int64_t end = q7_min(job->positions, first + job->positions_per_task);
    for (int64_t position = first; position < end; position++) {
        const int64_t b = position / a->S, s = position % a->S;
        q7_rope_tile tile = {
            .heads = a->H,
            .D = a->D,
            .R = a->R,
            .x = (const float *)a->q + b * a->q_b_stride + s * a->q_s_stride,
            .y = (float *)a->q_out + b * a->q_out_b_stride + s * a->q_out_s_stride,
            .x_stride = a->q_h_stride,
            .y_stride = a->q_out_h_stride,
            .cos = (const float *)a->cos + b * a->cos_b_stride + s * a->cos_s_stride,
            .sin = (const float *)a->sin + b * a->sin_b_stride + s * a->sin_s_stride,
            .half = a->half != 0,
            .interleaved = a->interleaved != 0,
        };
        job->kernel(&tile);
        if (!a->k) continue;
        tile.heads = a->Hkv;
        tile.x = (const float *)a->k + b * a->k_b_stride + s * a->k_s_stride;
        tile.y = (float *)a->k_out + b * a->k_out_b_stride + s * a->k_out_s_stride;
        tile.x_stride = a->k_h_stride;
        tile.y_stride = a->k_out_h_stride;
        job->kernel(&tile);
    }
}

void q7_op_rope(const q7_rope_args *args, const q7_call *call) {
    const int64_t work = q7_max(1, (args->H + args->Hkv) * args->D);
    const int64_t positions = args->B * args->S;
    rope_job job = {args, (q7_rope_kernel)call->kernel, positions,
                    q7_units_of_task(call, positions, Q7_GRAIN / work)};
    q7_parallel(call, q7_ceil_div(job.positions, job.positions_per_task), rope_task, &job);
}
