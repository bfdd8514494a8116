/* parts.h: products of floats by AMX, whose tiles multiply bfloat16 only.
 *
 * A float is exactly the sum of three bfloat16, its 24 bits cut in three: x = x0 + x1 + x2. The
 * product of two floats is that of the parts
 *
 *     a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0)
 *
 * less three products: six tile products, of which AMX does 16 in the time of a fused multiply-add of
 * AVX-512. The parts of b have its sign, those of a are nearest to what is left and so of either sign:
 * what is left out, 2^-25 of a product, has a mean of 0, where with truncated parts of both it was 2^-23
 * of any sum of one sign (docs/decisions.md 69). A tile product sums 32 k values before it adds
 * them to what the tile held, so that sums of 256 have half the error of 256 fused multiply-adds
 * (docs/decisions.md 52).
 *
 * Tiles take numbers below 2^-126 for 0, and parts of an infinity are NaN. q7_parts_fit() tells
 * which rows of a and columns of b are 0, or largest within [2^-40, 2^127): there what is lost is
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
#include "tiles.h"

enum {
    Q7_PARTS = 3,
    Q7_PARTS_STEP = 32,                           /* k values */
    Q7_PARTS_ROWS = 32,                           /* of a, in two tiles */
    Q7_PARTS_TILE = 512,                          /* bfloat16 of a tile */
    Q7_PARTS_SIZE = 2 * Q7_PARTS * Q7_PARTS_TILE, /* of a step of 32 rows or columns */
};

typedef uint16_t q7_bf16;

/* Upper halves of low and high, in pairs: the nearest bfloat16, or what is left without the lower ones. */
Q7_INLINE __m512i q7_upper_halves(__m512 low, __m512 high, const bool nearest) {
    enum { UPPER_OF_FIRST = 0xea }; /* (a & b) | c */
    const __m512i x = _mm512_castps_si512(low), y = _mm512_castps_si512(high);
    if (!nearest)
        return _mm512_ternarylogic_epi32(y, _mm512_set1_epi32((int)0xffff0000),
                                         _mm512_srli_epi32(x, 16), UPPER_OF_FIRST);
    const __m512i pairs =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* Pairs of low and high as their first `parts` parts, `stride` bfloat16 apart. */
Q7_INLINE void q7_store_some_parts(__m512 low, __m512 high, const int parts, const bool nearest,
                                   q7_bf16 *to, int64_t stride) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    Q7_UNROLL
    for (int i = 0; i < parts; i++) {
        const __m512i part = q7_upper_halves(low, high, nearest && i < parts - 1);
        _mm512_store_si512(to + i * stride, part);
        low = _mm512_sub_ps(low, _mm512_castsi512_ps(_mm512_slli_epi32(part, 16)));
        high = _mm512_sub_ps(high, _mm512_castsi512_ps(_mm512_and_epi32(part, upper)));
    }
}

/* The largest magnitude of each lane so far. */
Q7_INLINE void q7_note_largest(__m512 *largest, __m512 low, __m512 high) {
    enum { MAX_MAGNITUDE = 3, POSITIVE = 2 << 2 };
    *largest = _mm512_range_ps(*largest, low, MAX_MAGNITUDE | POSITIVE);
    *largest = _mm512_range_ps(*largest, high, MAX_MAGNITUDE | POSITIVE);
}

/* As all three. */
Q7_INLINE void q7_store_parts(__m512 low, __m512 high, const bool nearest, q7_bf16 *to,
                              int64_t stride, __m512 *largest) {
    q7_note_largest(largest, low, high);
    q7_store_some_parts(low, high, Q7_PARTS, nearest, to, stride);
}

/* Of `left` floats, which may be more than a vector holds, or none. */
Q7_INLINE __m512 q7_load_left(const float *p, int64_t left) {
    return q7_load_part(p, q7_max(0, left));
}

/* Lanes whose largest magnitude is 0 or within [2^-40, 2^127). */
Q7_INLINE __mmask16 q7_parts_fit(__m512 largest) {
    const __mmask16 none = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_EQ_OQ);
    const __mmask16 large = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-40f), _CMP_GE_OQ);
    return _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p127f), _CMP_LT_OQ) & (large | none);
}

/* Of all lanes, a row. */
Q7_INLINE bool q7_row_fits(__m512 largest) {
    return q7_parts_fit(_mm512_set1_ps(_mm512_reduce_max_ps(largest))) != 0;
}

/* Of 32 columns. */
static inline bool q7_columns_fit(const __m512 largest[2]) {
    return (q7_parts_fit(largest[0]) & q7_parts_fit(largest[1])) == 0xffff;
}

/* Of 16 rows: sums in tiles 0 and 1, rows in 4; of the other pair 2, 3 and 5. `pair` is a constant. */
Q7_INLINE void q7_zero_pair(const int pair) {
    if (pair) {
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
}

Q7_INLINE void q7_load_rows_of(const q7_bf16 *a, const int pair) {
    if (pair)
        _tile_loadd(5, a, 64);
    else
        _tile_loadd(4, a, 64);
}

Q7_INLINE void q7_add_products_of(const int pair) {
    if (pair) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

Q7_INLINE void q7_store_pair(float *to, int64_t stride, const int pair) {
    if (pair) {
        _tile_stored(2, to, 4 * stride);
        _tile_stored(3, to + 16, 4 * stride);
    } else {
        _tile_stored(0, to, 4 * stride);
        _tile_stored(1, to + 16, 4 * stride);
    }
}

/* Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b; of 32 rows, or of 16 unless `two`,
 * which is a constant where these are inlined. */
Q7_INLINE void q7_zero_sums(const bool two) {
    q7_zero_pair(0);
    if (two) q7_zero_pair(1);
}

Q7_INLINE void q7_load_sums(const float *from, int64_t stride, const bool two) {
    _tile_loadd(0, from, 4 * stride);
    _tile_loadd(1, from + 16, 4 * stride);
    if (two) _tile_loadd(2, from + 16 * stride, 4 * stride);
    if (two) _tile_loadd(3, from + 16 * stride + 16, 4 * stride);
}

/* a and b: steps. */
Q7_INLINE void q7_load_rows(const q7_bf16 *a, int part, const bool two) {
    q7_load_rows_of(a + 2 * part * Q7_PARTS_TILE, 0);
    if (two) q7_load_rows_of(a + (2 * part + 1) * Q7_PARTS_TILE, 1);
}

Q7_INLINE void q7_load_columns(const q7_bf16 *b, int part) {
    _tile_loadd(6, b + 2 * part * Q7_PARTS_TILE, 64);
    _tile_loadd(7, b + (2 * part + 1) * Q7_PARTS_TILE, 64);
}

Q7_INLINE void q7_add_products(const bool two) {
    q7_add_products_of(0);
    if (two) q7_add_products_of(1);
}

/* A store of any tile in every step: one that comes more than a microsecond of products after the
 * last, as those of sums would, waits for 1000 cycles. */
Q7_INLINE void q7_keep_stores_fast(float *unused) { _tile_stored(4, unused, 64); }

Q7_INLINE void q7_store_sums(float *to, int64_t stride, const bool two) {
    q7_store_pair(to, stride, 0);
    if (two) q7_store_pair(to + 16 * stride, stride, 1);
    BARRIER();
}
#endif
