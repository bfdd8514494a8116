/* halves.h: float16 and bfloat16 as bit patterns, to float and back (to nearest even). */
#ifndef Q7_KERNELS_HALVES_H
#define Q7_KERNELS_HALVES_H
#include <stdint.h>
#include <string.h>

typedef struct f16 {
    uint16_t bits;
} f16;
typedef struct bf16 {
    uint16_t bits;
} bf16;

static inline float of_f16(f16 h) {
    const uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, magnitude = h.bits & 0x7fff;
    uint32_t bits;
    float x;
    if (magnitude < 0x0400) { /* zero and subnormals: a multiple of 2^-24 */
        x = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &x, 4);
    } else {
        bits = (magnitude << 13) + (magnitude < 0x7c00 ? UINT32_C(112) << 23 : UINT32_C(224) << 23);
        bits |= magnitude > 0x7c00 ? 0x00400000 : 0; /* a quiet NaN, as CPUs make it */
    }
    bits |= sign;
    memcpy(&x, &bits, 4);
    return x;
}

static inline f16 f16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    uint32_t h;
    if (bits > 0x7f800000) {
        h = 0x7e00 | (bits >> 13 & 0x03ff); /* NaN keeps the top of its payload */
    } else if (bits >= 0x477ff000) {
        h = 0x7c00; /* from 65520 on: infinity */
    } else if (bits < 0x38800000) {
        float magnitude; /* below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits */
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&h, &magnitude, 4);
        h -= 0x3f000000;
    } else {
        h = (bits - (UINT32_C(112) << 23) + 0x0fff + (bits >> 13 & 1)) >> 13;
    }
    return (f16){(uint16_t)(sign | h)};
}

static inline float of_bf16(bf16 h) {
    const uint32_t bits = (uint32_t)h.bits << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline bf16 bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) /* NaN keeps the top of its payload */
        return (bf16){(uint16_t)(bits >> 16 | 0x0040)};
    return (bf16){(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#endif
