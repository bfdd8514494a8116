/* rmsnorm.c: plain and skip (x + skip + skip_bias) RMS norm are one op. ONNX RMSNormalization over
 * trailing axes; SkipSimplifiedLayerNormalization of com.microsoft. */
#include "norm.h"

void q7_op_rmsnorm(const q7_rmsnorm_args *args, const q7_call *call) {
    const q7_layernorm_tile all = {
        .rows = args->rows,
        .cols = args->cols,
        .skip_rows = args->skip_rows,
        .inner_rows = args->inner_rows,
        .x_outer_stride = args->x_outer_stride,
        .x_row_stride = args->x_row_stride,
        .y_stride = args->y_stride,
        .x = args->x,
        .skip = args->skip,
        .skip_bias = args->skip_bias,
        .weight_rows = args->weight_rows,
        .run = args->run,
        .weight = args->weight,
        .y = args->y,
        .sum = args->sum,
        .eps = (float)args->eps,
    };
    q7_norm_run(&all, call);
}
