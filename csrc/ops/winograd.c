/* winograd.c: conv_last of 3x3 kernels, stride 1 or 2, with stride 1 dilated or not, or of lines, by
 * Winograd's algorithm. A task is a block of tiles times some panels, of one group. Read
 * kernels/winograd.h first.
 *
 * room: threads * q7_winograd_room floats, of the channels of a group. */
#include "../kernels/winograd.h"

#include "panels.h"

enum { ENOUGH = 8 }; /* panels, to transform tiles again */

typedef struct winograd_job {
    const q7_winograd_args *x;
    const q7_call *call;
    int64_t tiles, blocks, panels; /* of a group */
} winograd_job;

/* The convolution of one group, an image whose pixels are as far apart. */
static q7_winograd_args group_of(const winograd_job *job, int64_t group) {
    q7_winograd_args x = *job->x;
    x.C /= x.groups;
    x.M /= x.groups;
    x.x = (const float *)x.x + group * x.C;
    x.w = (const float *)x.w + group * job->panels * job->call->nr * q7_winograd_rows(&x);
    x.y = (float *)x.y + group * x.M;
    if (x.bias) x.bias = (const float *)x.bias + group * x.M;
    if (x.residual) x.residual = (const float *)x.residual + group * x.M;
    if (x.scale) x.scale = (const float *)x.scale + group * x.M;
    if (x.shift) x.shift = (const float *)x.shift + group * x.M;
    return x;
}

static void winograd_task(void *arg, int64_t block, q7_span panels, int64_t thread) {
    const winograd_job *job = arg;
    const q7_span tiles = q7_span_of(job->tiles, job->blocks, block % job->blocks);
    const q7_winograd_args x = group_of(job, block / job->blocks);
    const q7_winograd_block part = {
        .first = tiles.begin,
        .end = tiles.end,
        .first_panel = panels.begin,
        .panel = panels.end,
        .room = q7_room_of(job->call, x.room, q7_winograd_room(&x, job->call->nr) * 4, thread)};
    ((q7_winograd_kernel)job->call->kernel)(&x, &part);
}

void q7_op_winograd(const q7_winograd_args *x, const q7_call *call) {
    winograd_job job = {.x = x, .call = call};
    job.tiles = x->N * x->OD * q7_winograd_tile_lines(x) * q7_winograd_lines(x->OW, x->dilation_w);
    if (job.tiles * x->M == 0) return;
    job.panels = q7_ceil_div(x->M / x->groups, call->nr);
    const int64_t small = q7_ceil_div(job.tiles, Q7_WINOGRAD_TILES); /* where each thread has few */
    job.blocks = q7_max(q7_ceil_div(job.tiles, x->block), q7_min(small, call->threads));
    const int64_t even = q7_ceil_div(job.blocks, call->threads) * call->threads;
    if (job.blocks * x->groups % call->threads && even * call->mr <= job.tiles)
        job.blocks = even; /* as much for each thread */
    const int64_t blocks = x->groups * job.blocks;
    q7_parallel_panels(call,
                       &(q7_panels_job){.blocks = blocks,
                                        .panels = job.panels,
                                        .unit = q7_panels_at_once(call, blocks, job.panels, ENOUGH),
                                        .most = job.panels,
                                        .work = job.tiles * x->C * x->M,
                                        .fn = winograd_task,
                                        .arg = &job});
}
