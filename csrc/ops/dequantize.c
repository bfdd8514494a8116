/* dequantize.c: y = (x - zero) * scale; x (outer, n, inner) of an integer dtype of up to 32 bits, a
 * scale and a zero for all, for each of n or for each block of n. ONNX DequantizeLinear. */
#include "scaled_lines.h"

static void dequantize_piece(const void *arg, q7_scaled_piece piece) {
    const q7_dequantize_args *args = arg;
    const int64_t dtype = args->x_dtype, at = piece.at;
    const int32_t zero = args->zero ? q7_quantized(args->zero, dtype, piece.which) : 0;
    const float *scales = (const float *)args->scale + piece.which, scale = *scales;
    float *y = (float *)args->y + at;
    if (piece.step == 0 && dtype == Q7_U8) { /* loops of their own, so that they are vectorised */
        const uint8_t *x = (const uint8_t *)args->x + at;
        for (int64_t i = 0; i < piece.count; i++) y[i] = (float)(x[i] - zero) * scale;
    } else if (piece.step == 0 && dtype == Q7_I8) {
        const int8_t *x = (const int8_t *)args->x + at;
        for (int64_t i = 0; i < piece.count; i++) y[i] = (float)(x[i] - zero) * scale;
    } else {
        for (int64_t i = 0; i < piece.count; i++) {
            const int64_t of = i * piece.step;
            const int64_t own = args->zero ? q7_quantized(args->zero, dtype, piece.which + of) : 0;
            y[i] = (float)(q7_quantized(args->x, dtype, at + i) - own) * scales[of];
        }
    }
}

void q7_op_dequantize(const q7_dequantize_args *args, const q7_call *call) {
    q7_scaled_lines lines = {.outer = args->outer,
                             .n = args->n,
                             .inner = args->inner,
                             .per_line = args->scales > 1,
                             .block = args->block,
                             .body = dequantize_piece,
                             .args = args};
    q7_scaled_run(&lines, call);
}
