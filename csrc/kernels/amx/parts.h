/* parts.h: products of floats by AMX, whose tiles multiply bfloat16 only.
 *
 * A float is exactly the sum of three bfloat16, its 24 bits cut in three: x = x0 + x1 + x2. The
 * product of two floats is that of the parts
 *
 *     a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0)
 *
 * less three products below 2^-23 of it together, 2^-24 on average: six tile products take 6/16 of
 * the time that fused multiply-adds of AVX-512 take. A tile product sums 32 k values before it adds
 * them to what the tile held, so that sums of 256 have half the error of 256 fused multiply-adds
 * (docs/decisions.md 52).
 *
 * Tiles take numbers below 2^-126 for 0, and parts of an infinity are NaN. q7_parts_fit() tells
 * which rows of a and columns of b are 0, or largest within [2^-40, 2^128): there what is lost is
 * below 2^-62 of the largest product. Others are for the kernel of AVX-512.
 *
 * Both operands are cut along k in steps of 32, the i-th of which holds
 *
 *     a    for each part: 32 rows of 16 pairs of k = 32 i + j and 32 i + 16 + j
 *     b    for each part, and 16 columns: 16 rows j of 16 such pairs */
#ifndef Q7_PARTS_H
#define Q7_PARTS_H
#include "../tile.h"

enum {
    Q7_PARTS = 3,
    Q7_PARTS_STEP = 32,                             /* k values */
    Q7_PARTS_ROWS = 32,                             /* of a, in two tiles */
    Q7_PARTS_TILE = 512,                            /* bfloat16 of a tile */
    Q7_PARTS_SIZE = 2 * Q7_PARTS * Q7_PARTS_TILE,   /* of a step of 32 rows or columns */
};

typedef uint16_t q7_bf16;

/* The parts of 16 floats, each the upper half of a word. */
Q7_INLINE void q7_split(__m512 x, __m512i *parts) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int i = 0; i < Q7_PARTS; i++) {
        parts[i] = _mm512_and_epi32(_mm512_castps_si512(x), upper);
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(parts[i]));
    }
}

/* Pairs of low and high as their three parts, `stride` bfloat16 apart; the largest magnitude of each
 * lane is kept as bits. */
Q7_INLINE void q7_store_parts(__m512 low, __m512 high, q7_bf16 *to, int64_t stride,
                              __m512i *largest) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i p[Q7_PARTS], q[Q7_PARTS];
    q7_split(low, p);
    q7_split(high, q);
    for (int i = 0; i < Q7_PARTS; i++)
        _mm512_store_si512(to + i * stride, _mm512_or_si512(_mm512_srli_epi32(p[i], 16), q[i]));
    *largest = _mm512_max_epu32(*largest, _mm512_and_epi32(_mm512_castps_si512(low), magnitude));
    *largest = _mm512_max_epu32(*largest, _mm512_and_epi32(_mm512_castps_si512(high), magnitude));
}

/* Lanes whose largest magnitude is 0 or within [2^-40, 2^128). */
Q7_INLINE __mmask16 q7_parts_fit(__m512i largest) {
    const uint32_t least = (127 - 40) << 23, infinity = 255u << 23;
    const __m512i above = _mm512_sub_epi32(largest, _mm512_set1_epi32((int)least));
    return _mm512_cmplt_epu32_mask(above, _mm512_set1_epi32((int)(infinity - least))) |
           _mm512_testn_epi32_mask(largest, largest);
}
#endif
