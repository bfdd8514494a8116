/* quantize.h: floats to bytes of one scale and back, or to 16 bits, and the range of floats.
 *
 *     y[i] = saturate(round(x[i] / scale) + zero), to even; a NaN gives the lowest
 *
 * The quotient is rounded to float before it is rounded to an integer, as by a division. */
#ifndef Q7_QUANTIZE_H
#define Q7_QUANTIZE_H
#include "../abi.h"

/* y[i] = (x[i] - zero) * scale */
typedef struct q7_dequantize_line {
    int64_t n;
    const uint8_t *x;
    float *y;
    bool is_signed, is_wide; /* wide: x are integers of 16 bits */
    float scale;
    int32_t zero;
    const float *scales; /* NULL, or of each element, */
    const void *zeros;   /* as are these, integers like x, or none */
} q7_dequantize_line;

typedef struct q7_quantize_line {
    int64_t n;
    const float *x;
    const q7_dequantize_line *from; /* two of n bytes whose sum is x, or NULL */
    uint8_t *y; /* NULL: only low and high, min(low, x..) and max(high, x..), are wanted */
    bool is_signed, is_wide; /* wide: y are integers of 16 bits, and `from` is NULL */
    float scale, low, high;
    int32_t zero;
    const float *scales; /* NULL, or of each element, */
    const void *zeros;   /* as are these, integers like y, or none */
} q7_quantize_line;

typedef void (*q7_quantize_kernel)(q7_quantize_line *line);

typedef void (*q7_dequantize_kernel)(const q7_dequantize_line *line);
#endif
