/* qpack.c: matrices of bytes that a run has made, as the panels of qgemm: see kernels/qpack.h.
 *
 * packed: for each matrix its panels; in quads, zeros are those of whole panels, less 128 where b are
 * uint8. */
#include "../kernels/qpack.h"

#include "../kernels/qgemm.h"
#include "loops.h"

enum { MOST_COLUMNS = 64 }; /* of a panel */

typedef struct qpack_job {
    const q7_qpack_args *x;
    const q7_call *call;
    int64_t panels;
} qpack_job;

static int32_t zero_of(const q7_qpack_args *x, int64_t column) {
    if (!x->zero || column >= x->n) return 0;
    const int64_t at = x->per_column ? column : 0;
    return x->dtype == Q7_I8 ? ((const int8_t *)x->zero)[at] : ((const uint8_t *)x->zero)[at];
}

static void qpack_task(void *arg, int64_t task, int64_t thread) {
    const qpack_job *job = arg;
    const q7_qpack_args *x = job->x;
    (void)thread;
    const int64_t nr = job->call->nr, column = task % job->panels * nr;
    const int64_t at = q7_offset_of(task / job->panels, x->batch, x->ndim, x->batch_stride);
    int32_t zero[MOST_COLUMNS];
    for (int64_t j = 0; j < nr; j++) zero[j] = zero_of(x, column + j);
    ((q7_qpack_kernel)job->call->kernel)(&(q7_qpack_panel){
        .k = x->k,
        .n = q7_min(nr, x->n - column),
        .b = (const uint8_t *)x->b + at + column * x->col_stride,
        .row_stride = x->row_stride,
        .col_stride = x->col_stride,
        .is_signed = x->dtype == Q7_I8,
        .zero = zero,
        .panel = (char *)x->packed + task * x->panel_bytes,
    });
}

void q7_op_qpack(const q7_qpack_args *x, const q7_call *call) {
    qpack_job job = {x, call, q7_ceil_div(x->n, call->nr)};
    int32_t *zeros = x->zeros, low = x->dtype == Q7_I8 ? 0 : 128;
    for (int64_t j = 0; zeros && j < job.panels * call->nr; j++) zeros[j] = zero_of(x, j) - low;
    q7_parallel(call, q7_product(x->batch, x->ndim) * job.panels, qpack_task, &job);
}
