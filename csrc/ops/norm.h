/* norm.h: hands blocks of rows to a kernel of kernels/layernorm.h. */
#ifndef Q7_OPS_NORM_H
#define Q7_OPS_NORM_H
#include "../kernels/layernorm.h"
#include "loops.h"

typedef struct q7_norm_job {
    const q7_layernorm_tile *all;
    q7_layernorm_kernel kernel;
    int64_t rows_per_task;
} q7_norm_job;

static inline void q7_norm_task(void *arg, int64_t task, int64_t thread) {
    const q7_norm_job *job = arg;
    (void)thread;
    q7_layernorm_tile tile = *job->all;
    tile.first_row = task * job->rows_per_task;
    tile.rows = q7_min(tile.rows - tile.first_row, job->rows_per_task);
    job->kernel(&tile);
}

/* All rows of a tile that starts at row 0. */
static inline void q7_norm_run(const q7_layernorm_tile *all, const q7_call *call) {
    if (all->cols == 0) return;
    const int64_t rows_per_task = q7_units_of_task(call, all->rows, Q7_GRAIN / 2 / all->cols);
    q7_norm_job job = {all, (q7_layernorm_kernel)call->kernel, rows_per_task};
    q7_parallel(call, q7_ceil_div(all->rows, rows_per_task), q7_norm_task, &job);
}
#endif
