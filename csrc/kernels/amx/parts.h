/* parts.h: products of floats by AMX, whose tiles multiply bfloat16 only.
 *
 * A float is exactly the sum of three bfloat16, its 24 bits cut in three: x = x0 + x1 + x2. The
 * product of two floats is that of the parts
 *
 *     a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0)
 *
 * less three products that are 2^-24 of it together on average: six tile products, of which AMX does
 * 16 in the time of a fused multiply-add of AVX-512. A tile product sums 32 k values before it adds
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
#include <math.h>

#include "../tile.h"

enum {
    Q7_PARTS = 3,
    Q7_PARTS_STEP = 32,                           /* k values */
    Q7_PARTS_ROWS = 32,                           /* of a, in two tiles */
    Q7_PARTS_TILE = 512,                          /* bfloat16 of a tile */
    Q7_PARTS_SIZE = 2 * Q7_PARTS * Q7_PARTS_TILE, /* of a step of 32 rows or columns */
};

typedef uint16_t q7_bf16;

/* Pairs of low and high as their three parts, `stride` bfloat16 apart; `largest` is the largest
 * magnitude of each lane. */
Q7_INLINE void q7_store_parts(__m512 low, __m512 high, q7_bf16 *to, int64_t stride,
                              __m512 *largest) {
    enum { MAX_MAGNITUDE = 3, POSITIVE = 2 << 2, UPPER_OF_SECOND = 0xea }; /* (a & b) | c */
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    *largest = _mm512_range_ps(*largest, low, MAX_MAGNITUDE | POSITIVE);
    *largest = _mm512_range_ps(*largest, high, MAX_MAGNITUDE | POSITIVE);
    Q7_UNROLL
    for (int i = 0; i < Q7_PARTS; i++) {
        const __m512i x = _mm512_castps_si512(low), y = _mm512_castps_si512(high);
        _mm512_store_si512(
            to + i * stride,
            _mm512_ternarylogic_epi32(y, upper, _mm512_srli_epi32(x, 16), UPPER_OF_SECOND));
        low = _mm512_sub_ps(low, _mm512_castsi512_ps(_mm512_and_epi32(x, upper)));
        high = _mm512_sub_ps(high, _mm512_castsi512_ps(_mm512_and_epi32(y, upper)));
    }
}

/* Lanes whose largest magnitude is 0 or within [2^-40, 2^128). */
Q7_INLINE __mmask16 q7_parts_fit(__m512 largest) {
    const __mmask16 finite = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    return finite & (_mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-40f), _CMP_GE_OQ) |
                     _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_EQ_OQ));
}
#endif
