/* quantize.c: y = saturate(round(x / scale) + zero), to even; x (outer, n, inner), a scale and a
 * zero for all, for each of n or for each block of n. ONNX QuantizeLinear to integers of 2 to 16
 * bits; less than 8 are the lowest of a byte, the others 0. x, scale and their quotient are rounded to
 * `precision`. NaN gives the lowest. */
#include "../kernels/quantize.h"

#include "../kernels/halves.h"
#include "scaled_lines.h"

typedef struct range {
    int32_t low, high;
} range;

static range range_of(int64_t dtype) {
    switch (dtype) {
        case Q7_U8: return (range){0, 255};
        case Q7_U16: return (range){0, 65535};
        case Q7_I16: return (range){-32768, 32767};
        case Q7_U4: return (range){0, 15};
        case Q7_I4: return (range){-8, 7};
        case Q7_U2: return (range){0, 3};
        case Q7_I2: return (range){-2, 1};
        default: return (range){-128, 127};
    }
}

static float narrowed(float x, int64_t precision) {
    if (precision == Q7_F16) return of_f16(f16_of(x));
    return precision == Q7_BF16 ? of_bf16(bf16_of(x)) : x;
}

static float quotient(float x, float scale, int64_t precision) {
    return narrowed(narrowed(x, precision) / narrowed(scale, precision), precision);
}

/* Clamped before it is rounded, so that adding 1.5 * 2^23 can do the rounding. */
static inline int32_t rounded(float x, int32_t zero, range to) {
    const float bottom = (float)(to.low - zero), top = (float)(to.high - zero);
    const float magic = 12582912.0f;
    x = x > bottom ? x : bottom;
    x = x < top ? x : top;
    return (int32_t)((x + magic) - magic) + zero;
}

typedef struct quantize_job {
    const q7_quantize_args *x;
    q7_quantize_kernel kernel;
} quantize_job;

static void quantize_piece(const void *arg, q7_scaled_piece piece) {
    const quantize_job *job = arg;
    const q7_quantize_args *args = job->x;
    const range to = range_of(args->y_dtype);
    const float *x = (const float *)args->x + piece.at, *scale = piece.scale;
    const bool is_byte = args->y_dtype == Q7_U8 || args->y_dtype == Q7_I8;
    const bool is_wide = args->y_dtype == Q7_U16 || args->y_dtype == Q7_I16;
    if ((is_byte || is_wide) && args->precision == Q7_F32) {
        q7_quantize_line line = {
            .n = piece.count,
            .x = x,
            .y = (uint8_t *)args->y + (piece.at << is_wide),
            .is_signed = to.low < 0,
            .is_wide = is_wide,
            .scale = scale[piece.which],
            .zero = q7_scaled_zero(&piece, args->y_dtype, piece.which),
            .scales = piece.step ? scale + piece.which : NULL,
            .zeros = piece.step ? q7_quantized_from(piece.zero, args->y_dtype, piece.which) : NULL};
        job->kernel(&line);
        return;
    }
    const int32_t bits = to.high - to.low; /* all that the dtype has */
    for (int64_t i = 0; i < piece.count; i++) {
        const int64_t which = piece.which + i * piece.step;
        const int32_t zero = q7_scaled_zero(&piece, args->y_dtype, which);
        const int32_t q = rounded(quotient(x[i], scale[which], args->precision), zero, to) & bits;
        if (is_wide)
            ((uint16_t *)args->y)[piece.at + i] = (uint16_t)q;
        else
            ((uint8_t *)args->y)[piece.at + i] = (uint8_t)q;
    }
}

void q7_op_quantize(const q7_quantize_args *args, const q7_call *call) {
    const quantize_job job = {args, (q7_quantize_kernel)call->kernel};
    const q7_scaled_lines lines = {Q7_SCALED_LINES(args, args->y_dtype), .body = quantize_piece,
                                   .args = &job};
    q7_scaled_run(lines, call);
}
