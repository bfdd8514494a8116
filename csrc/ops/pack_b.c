/* pack_b.c: b (k, n) of any strides into panels of nr columns; kernels/gemm.h shows the layout.
 * Panels that two matrices share are filled by a step for each. Rows (n_stride 1) may have any
 * alignment: a model file has weights wherever their names end. */
#include "panels.h"

typedef struct pack_job {
    const q7_pack_b_args *x;
    int64_t nr;
} pack_job;

static void pack_task(void *arg, int64_t panel, int64_t thread) {
    (void)thread;
    const pack_job *job = arg;
    const q7_pack_b_args *x = job->x;
    const int64_t column = panel * x->width, k = x->k / q7_max(1, x->taps);
    for (int64_t tap = 0; tap < x->taps; tap++)
        q7_pack_panel((const q7_loose_float *)x->b + tap * x->tap_stride + column * x->n_stride,
                      x->k_stride, x->n_stride, k, q7_min(x->width, x->n - column), x->width,
                      job->nr,
                      (float *)x->packed + panel * job->nr * x->k + tap * k * job->nr + x->first);
}

void q7_op_pack_b(const q7_pack_b_args *x, const q7_call *call) {
    pack_job job = {x, call->nr};
    q7_parallel(call, q7_ceil_div(x->n, x->width), pack_task, &job);
}
