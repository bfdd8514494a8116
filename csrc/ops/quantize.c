/* quantize.c: y = saturate(round(x / scale) + zero), to even; x (outer, n, inner), a scale and a
 * zero for all or for each of n. ONNX QuantizeLinear to uint8 and int8. NaN gives the lowest. */
#include "scaled_lines.h"

/* Clamped before it is rounded, so that adding 1.5 * 2^23 can do the rounding. */
static void quantize_line(const float *x, uint8_t *y, int64_t n, float scale, int32_t zero,
                          int32_t low, int32_t high) {
    const float bottom = (float)(low - zero), top = (float)(high - zero), magic = 12582912.0f;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] / scale;
        v = v > bottom ? v : bottom;
        v = v < top ? v : top;
        y[i] = (uint8_t)((int32_t)((v + magic) - magic) + zero);
    }
}

static void quantize_piece(const void *arg, int64_t which, int64_t at, int64_t count) {
    const q7_quantize_args *args = arg;
    const bool is_signed = args->y_dtype == Q7_I8;
    int32_t zero = 0;
    if (args->zero)
        zero =
            is_signed ? ((const int8_t *)args->zero)[which] : ((const uint8_t *)args->zero)[which];
    quantize_line((const float *)args->x + at, (uint8_t *)args->y + at, count,
                  ((const float *)args->scale)[which], zero, is_signed ? -128 : 0,
                  is_signed ? 127 : 255);
}

void q7_op_quantize(const q7_quantize_args *args, const q7_call *call) {
    q7_scaled_lines lines = {args->outer,      args->n,        args->inner,
                             args->scales > 1, quantize_piece, args};
    q7_scaled_run(&lines, call);
}
