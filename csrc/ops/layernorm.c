/* layernorm.c: hands blocks of rows to the kernel; plain and skip (x + skip + skip_bias) layer norm
 * are one op. ONNX LayerNormalization over trailing axes; SkipLayerNormalization of com.microsoft.
 */
#include "../kernels/layernorm.h"

#include "loops.h"

typedef struct layernorm_job {
    const q7_layernorm_args *args;
    q7_layernorm_kernel kernel;
    int64_t rows_per_task;
} layernorm_job;

static void layernorm_task(void *arg, int64_t task, int64_t thread) {
    const layernorm_job *job = arg;
    const q7_layernorm_args *args = job->args;
    (void)thread;
    const int64_t first = task * job->rows_per_task;
    const q7_layernorm_tile tile = {
        .first_row = first,
        .rows = q7_min(args->rows - first, job->rows_per_task),
        .cols = args->cols,
        .skip_rows = args->skip_rows,
        .x = args->x,
        .skip = args->skip,
        .skip_bias = args->skip_bias,
        .weight = args->weight,
        .bias = args->bias,
        .y = args->y,
        .sum = args->sum,
        .eps = (float)args->eps,
    };
    job->kernel(&tile);
}

void q7_op_layernorm(const q7_layernorm_args *args, const q7_call *call) {
    if (args->cols == 0) return;
    const int64_t rows_per_task = q7_max(1, Q7_GRAIN / 2 / args->cols);
    layernorm_job job = {args, (q7_layernorm_kernel)call->kernel, rows_per_task};
    q7_parallel(call, q7_ceil_div(args->rows, rows_per_task), layernorm_task, &job);
}
