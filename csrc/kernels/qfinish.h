/* qfinish.h: floats to the bytes of an integer product, for qgemm.c and qconv.c. */
#ifndef Q7_QFINISH_H
#define Q7_QFINISH_H
#include "../abi.h"
#include "../simd/simd.h"

/* x rounded to even and clamped to [low, high], both integers: adding 1.5 * 2^23 leaves no bits
 * for a fraction. */
Q7_INLINE int32_t q7_rounded(float x, float low, float high) {
    const float magic = 12582912.0f;
    x = x > low ? x : low;
    x = x < high ? x : high;
    return (int32_t)((x + magic) - magic);
}

/* c[i] = saturate(round(x[i]) + zero) as c_dtype, Q7_U8 or Q7_I8. */
Q7_INLINE void q7_quantized(int64_t n, const float *x, int32_t zero, int64_t c_dtype, void *c) {
    const int32_t low = c_dtype == Q7_U8 ? 0 : -128, high = low + 255;
    const float from = (float)(low - zero), to = (float)(high - zero);
    for (int64_t i = 0; i < n; i++)
        ((uint8_t *)c)[i] = (uint8_t)(q7_rounded(x[i], from, to) + zero);
}
#endif
