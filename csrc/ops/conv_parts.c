/* conv_parts.c: conv_last of two dims, stride 1 and one group, in tiles of AMX that read x as parts. A task is a
 * block of lines of y times a chunk of panels. Read kernels/conv_parts.h first.
 *
 * room: threads * Q7_CONV_PARTS_ROOM bytes, which a line of y has room in. */
#include "../kernels/conv_parts.h"

#include "panels.h"

typedef struct conv_job {
    const q7_conv_parts_args *x;
    const q7_call *call;
    int64_t lines, blocks, panels, chunk, chunks;
} conv_job;

static void conv_task(void *arg, int64_t task, int64_t thread) {
    const conv_job *job = arg;
    const int64_t block = task / job->chunks, panel = task % job->chunks * job->chunk;
    const q7_conv_parts_block part = {.first = q7_part(job->lines, job->blocks, block),
                                      .end = q7_part(job->lines, job->blocks, block + 1),
                                      .first_panel = panel,
                                      .panel = q7_min(panel + job->chunk, job->panels),
                                      .room = (char *)job->x->room + thread * Q7_CONV_PARTS_ROOM};
    ((q7_conv_parts_kernel)job->call->kernel)(job->x, &part);
}

void q7_op_conv_parts(const q7_conv_parts_args *x, const q7_call *call) {
    conv_job job = {.x = x, .call = call, .lines = x->N * x->OH};
    if (job.lines * x->OW * x->M == 0) return;
    job.panels = q7_ceil_div(x->M, call->nr);
    int64_t least = 1;
    while (q7_conv_parts_room(x, q7_ceil_div(job.lines, least)) > Q7_CONV_PARTS_ROOM) least++;
    /* What is cut once for all taps costs next to nothing. */
    const q7_cut cut = q7_cut_for_tiles(call, job.lines * x->OW, 0, job.panels, least, job.lines);
    job.blocks = cut.blocks;
    job.chunk = cut.chunk;
    job.chunks = q7_ceil_div(job.panels, job.chunk);
    q7_parallel(call, job.blocks * job.chunks, conv_task, &job);
}
