/* x86.h: the verbs of simd.h that AVX2 and AVX-512 spell alike. MM(verb) is an intrinsic of the width of
 * q7_f32 and q7_i32, SI its name for vectors of bits. Included by avx2.h and avx512.h. */
Q7_INLINE q7_f32 q7_set1(float x) { return MM(set1_ps)(x); }
Q7_INLINE q7_f32 q7_load(const float *p) { return MM(loadu_ps)(p); }
Q7_INLINE void q7_store(float *p, q7_f32 v) { MM(storeu_ps)(p, v); }
Q7_INLINE q7_f32 q7_repeat_pair(const float *p) {
    double pair;
    memcpy(&pair, p, sizeof pair);
    return MM(castpd_ps)(MM(set1_pd)(pair));
}
Q7_INLINE q7_f32 q7_swap_pairs(q7_f32 v) { return MM(permute_ps)(v, 0xb1); }

/* Blocks of 4 x 4: t[4 i + j] has columns j, j + 4, .. of rows 4 i to 4 i + 3. */
Q7_INLINE void q7_transpose_fours(const q7_f32 v[Q7_W], q7_f32 t[Q7_W]) {
    Q7_UNROLL
    for (int i = 0; i < Q7_W; i += 4) {
        const q7_f32 low01 = MM(unpacklo_ps)(v[i], v[i + 1]),
                     low23 = MM(unpacklo_ps)(v[i + 2], v[i + 3]);
        const q7_f32 high01 = MM(unpackhi_ps)(v[i], v[i + 1]),
                     high23 = MM(unpackhi_ps)(v[i + 2], v[i + 3]);
        t[i] = MM(shuffle_ps)(low01, low23, 0x44);
        t[i + 1] = MM(shuffle_ps)(low01, low23, 0xee);
        t[i + 2] = MM(shuffle_ps)(high01, high23, 0x44);
        t[i + 3] = MM(shuffle_ps)(high01, high23, 0xee);
    }
}

Q7_INLINE q7_f32 q7_add(q7_f32 a, q7_f32 b) { return MM(add_ps)(a, b); }
Q7_INLINE q7_f32 q7_sub(q7_f32 a, q7_f32 b) { return MM(sub_ps)(a, b); }
Q7_INLINE q7_f32 q7_mul(q7_f32 a, q7_f32 b) { return MM(mul_ps)(a, b); }
Q7_INLINE q7_f32 q7_div(q7_f32 a, q7_f32 b) { return MM(div_ps)(a, b); }
Q7_INLINE q7_f32 q7_fma(q7_f32 a, q7_f32 b, q7_f32 c) { return MM(fmadd_ps)(a, b, c); }
Q7_INLINE q7_f32 q7_fnma(q7_f32 a, q7_f32 b, q7_f32 c) { return MM(fnmadd_ps)(a, b, c); }
Q7_INLINE q7_f32 q7_vmax(q7_f32 a, q7_f32 b) { return MM(max_ps)(a, b); }
Q7_INLINE q7_f32 q7_vmin(q7_f32 a, q7_f32 b) { return MM(min_ps)(a, b); }
Q7_INLINE q7_f32 q7_neg(q7_f32 a) { return MM(xor_ps)(a, MM(set1_ps)(-0.0f)); }
Q7_INLINE q7_f32 q7_abs(q7_f32 a) { return MM(andnot_ps)(MM(set1_ps)(-0.0f), a); }
Q7_INLINE q7_f32 q7_copysign(q7_f32 magnitude, q7_f32 sign) {
    const q7_f32 bit = MM(set1_ps)(-0.0f);
    return MM(or_ps)(MM(andnot_ps)(bit, magnitude), MM(and_ps)(bit, sign));
}
Q7_INLINE q7_f32 q7_sqrt(q7_f32 a) { return MM(sqrt_ps)(a); }
Q7_INLINE float q7_hsum_of_8(__m256 a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
/* In every four lanes: the sums of those of v[0], .., v[3]. */
Q7_INLINE q7_f32 q7_sums_in_fours(const q7_f32 v[4]) {
    q7_f32 sum[2];
    Q7_UNROLL
    for (int i = 0; i < 2; i++)
        sum[i] = MM(add_ps)(MM(shuffle_ps)(v[2 * i], v[2 * i + 1], 0x88),
                            MM(shuffle_ps)(v[2 * i], v[2 * i + 1], 0xdd));
    return MM(add_ps)(MM(shuffle_ps)(sum[0], sum[1], 0x88), MM(shuffle_ps)(sum[0], sum[1], 0xdd));
}
Q7_INLINE void q7_store_fours(float *p, __m256 a) {
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
}
Q7_INLINE float q7_hmax_of_8(__m256 a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

Q7_INLINE q7_i32 q7_i32_set1(int32_t x) { return MM(set1_epi32)(x); }
Q7_INLINE q7_i32 q7_i32_load(const int32_t *p) {
    return SI(loadu)((const q7_i32 *)(const void *)p);
}
Q7_INLINE void q7_i32_store(int32_t *p, q7_i32 v) { SI(storeu)((q7_i32 *)(void *)p, v); }
Q7_INLINE q7_i32 q7_i32_add(q7_i32 a, q7_i32 b) { return MM(add_epi32)(a, b); }
Q7_INLINE q7_i32 q7_i32_mul(q7_i32 a, q7_i32 b) { return MM(mullo_epi32)(a, b); }
Q7_INLINE q7_i32 q7_i32_up(q7_i32 a, const int bits) { return MM(slli_epi32)(a, bits); }
Q7_INLINE q7_f32 q7_float(q7_i32 v) { return MM(cvtepi32_ps)(v); }
Q7_INLINE q7_i32 q7_int(q7_f32 v) { return MM(cvttps_epi32)(v); }
Q7_INLINE q7_f32 q7_bits(q7_i32 v, int shift, int mask) {
    v = MM(srlv_epi32)(v, MM(set1_epi32)(shift));
    return MM(cvtepi32_ps)(SI(and)(v, MM(set1_epi32)(mask)));
}
Q7_INLINE q7_i32 q7_madd_pairs(q7_i32 sum, const int16_t *p, q7_i32 pair) {
    const q7_i32 b = SI(loadu)((const q7_i32 *)(const void *)p);
    return MM(add_epi32)(sum, MM(madd_epi16)(b, pair));
}

#ifndef Q7_EXTENSION
#define Q7_QUADS_SATURATE
#define Q7_QUAD_FLIP 0
Q7_INLINE q7_i32 q7_add_pairs(q7_i32 sum, q7_i32 pairs) {
    return MM(add_epi32)(sum, MM(madd_epi16)(pairs, MM(set1_epi16)(1)));
}
Q7_INLINE q7_i32 q7_dot_unsigned(q7_i32 sum, q7_i32 w, q7_i32 quad) {
    return q7_add_pairs(sum, MM(maddubs_epi16)(w, quad));
}
Q7_INLINE q7_i32 q7_pairs_of(const int8_t *p, q7_i32 quad) {
    return MM(maddubs_epi16)(quad, q7_i32_load((const int32_t *)(const void *)p));
}
Q7_INLINE q7_i32 q7_dot_quads(q7_i32 sum, const int8_t *p, q7_i32 quad) {
    return q7_add_pairs(sum, q7_pairs_of(p, quad));
}
Q7_INLINE q7_i32 q7_pairs_add(q7_i32 a, q7_i32 b) { return MM(add_epi16)(a, b); }
Q7_INLINE q7_i32 q7_choose_bytes(q7_i32 bytes, const int8_t *which) {
    return MM(shuffle_epi8)(bytes, q7_i32_load((const int32_t *)(const void *)which));
}
#endif

typedef q7_i32 q7_block;

Q7_INLINE q7_block q7_block_set1(uint8_t x) { return MM(set1_epi8)((char)x); }
Q7_INLINE q7_block q7_block_load(const uint8_t *p) {
    return SI(loadu)((const q7_block *)(const void *)p);
}
Q7_INLINE void q7_block_store(uint8_t *p, q7_block v) { SI(storeu)((q7_block *)(void *)p, v); }
Q7_INLINE q7_block q7_block_xor(q7_block a, q7_block b) { return SI(xor)(a, b); }
Q7_INLINE q7_block q7_block_max(q7_block a, q7_block b) { return MM(max_epu8)(a, b); }
Q7_INLINE void q7_zip_pairs(const q7_block x[2], q7_i32 pairs[4]) {
    const q7_i32 zero = SI(setzero)();
    const q7_i32 low = MM(unpacklo_epi8)(x[0], x[1]), high = MM(unpackhi_epi8)(x[0], x[1]);
    pairs[0] = MM(unpacklo_epi8)(low, zero);
    pairs[1] = MM(unpackhi_epi8)(low, zero);
    pairs[2] = MM(unpacklo_epi8)(high, zero);
    pairs[3] = MM(unpackhi_epi8)(high, zero);
}
Q7_INLINE void q7_zip_quads(const q7_block x[4], q7_i32 quads[4]) {
    const q7_i32 low01 = MM(unpacklo_epi8)(x[0], x[1]), low23 = MM(unpacklo_epi8)(x[2], x[3]);
    const q7_i32 high01 = MM(unpackhi_epi8)(x[0], x[1]), high23 = MM(unpackhi_epi8)(x[2], x[3]);
    quads[0] = MM(unpacklo_epi16)(low01, low23);
    quads[1] = MM(unpackhi_epi16)(low01, low23);
    quads[2] = MM(unpacklo_epi16)(high01, high23);
    quads[3] = MM(unpackhi_epi16)(high01, high23);
}
Q7_INLINE q7_i32 q7_rounded(q7_f32 x) { /* NaN: the lowest */
    return MM(cvtps_epi32)(MM(min_ps)(MM(set1_ps)(0x1p30f), x));
}
Q7_INLINE q7_block q7_block_of(const q7_f32 x[4], int32_t zero, bool is_signed) {
    const q7_i32 offset = MM(set1_epi16)((int16_t)zero);
    const q7_i32 low = MM(packs_epi32)(q7_rounded(x[0]), q7_rounded(x[1]));
    const q7_i32 high = MM(packs_epi32)(q7_rounded(x[2]), q7_rounded(x[3]));
    const q7_i32 first = MM(adds_epi16)(low, offset), second = MM(adds_epi16)(high, offset);
    return is_signed ? MM(packs_epi16)(first, second) : MM(packus_epi16)(first, second);
}
#undef MM
#undef SI
