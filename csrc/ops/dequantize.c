/* dequantize.c: y = (x - zero) * scale; x (outer, n, inner) of uint8, int8 or int32, a scale and a
 * zero for all or for each of n. ONNX DequantizeLinear. */
#include "scaled_lines.h"

static int32_t element(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
        case Q7_U8: return ((const uint8_t *)p)[i];
        case Q7_I8: return ((const int8_t *)p)[i];
        default: return ((const int32_t *)p)[i];
    }
}

static void dequantize_piece(const void *arg, int64_t which, int64_t at, int64_t count) {
    const q7_dequantize_args *args = arg;
    const int64_t zero = args->zero ? element(args->zero, args->x_dtype, which) : 0;
    const float scale = ((const float *)args->scale)[which];
    float *y = (float *)args->y + at;
    switch (args->x_dtype) { /* a loop for each, so that it is vectorised */
        case Q7_U8:
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)((int32_t)((const uint8_t *)args->x)[at + i] - (int32_t)zero) * scale;
            break;
        case Q7_I8:
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)((int32_t)((const int8_t *)args->x)[at + i] - (int32_t)zero) * scale;
            break;
        default:
            for (int64_t i = 0; i < count; i++)
                y[i] = (float)(((const int32_t *)args->x)[at + i] - zero) * scale;
            break;
    }
}

void q7_op_dequantize(const q7_dequantize_args *args, const q7_call *call) {
    q7_scaled_lines lines = {args->outer,      args->n,          args->inner,
                             args->scales > 1, dequantize_piece, args};
    q7_scaled_run(&lines, call);
}
