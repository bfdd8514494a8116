/* dequantize.c: y = (x - zero) * scale; x (outer, n, inner) of an integer dtype of up to 32 bits, a
 * scale and a zero for all, for each of n or for each block of n. ONNX DequantizeLinear. */
#include "../kernels/quantize.h"
#include "scaled_lines.h"

typedef struct dequantize_job {
    const q7_dequantize_args *args;
    q7_dequantize_kernel kernel; /* for 8 and 16 bits */
} dequantize_job;

static void dequantize_piece(const void *arg, q7_scaled_piece piece) {
    const dequantize_job *job = arg;
    const q7_dequantize_args *args = job->args;
    const int64_t dtype = args->x_dtype, at = piece.at;
    const float *scale = piece.scale + piece.which;
    float *y = (float *)args->y + at;
    const bool is_byte = dtype == Q7_U8 || dtype == Q7_I8;
    const bool is_wide = dtype == Q7_U16 || dtype == Q7_I16;
    if (is_byte || is_wide) {
        const q7_dequantize_line line = {
            .n = piece.count,
            .x = (const uint8_t *)args->x + (at << is_wide),
            .y = y,
            .is_signed = dtype == Q7_I8 || dtype == Q7_I16,
            .is_wide = is_wide,
            .scale = *scale,
            .zero = q7_scaled_zero(&piece, dtype, piece.which),
            .scales = piece.step ? scale : NULL,
            .zeros = piece.step ? q7_quantized_from(piece.zero, dtype, piece.which) : NULL};
        job->kernel(&line);
        return;
    }
    for (int64_t i = 0; i < piece.count; i++) {
        const int64_t of = i * piece.step;
        const int64_t own = q7_scaled_zero(&piece, dtype, piece.which + of);
        y[i] = (float)(q7_quantized(args->x, dtype, at + i) - own) * scale[of];
    }
}

void q7_op_dequantize(const q7_dequantize_args *args, const q7_call *call) {
    const dequantize_job job = {args, (q7_dequantize_kernel)call->kernel};
    const q7_scaled_lines lines = {Q7_SCALED_LINES(args, args->x_dtype), .body = dequantize_piece,
                                   .args = &job};
    q7_scaled_run(lines, call);
}
