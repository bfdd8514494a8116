/* avx2.h: the verbs of simd.h for x86-64 with AVX2 and FMA. */
#include <immintrin.h>
#define Q7_W 8

typedef __m256i q7_i32;
typedef __m256 q7_f32;
typedef __m256 q7_mask; /* all bits of a lane equal */

/* lanes [0, n) */
Q7_INLINE __m256i q7_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
Q7_INLINE q7_f32 q7_set1(float x) { return _mm256_set1_ps(x); }
Q7_INLINE q7_f32 q7_keep(q7_f32 v) {
    __asm__("" : "+x"(v));
    return v;
}
Q7_INLINE q7_f32 q7_load(const float *p) { return _mm256_loadu_ps(p); }
Q7_INLINE void q7_store(float *p, q7_f32 v) { _mm256_storeu_ps(p, v); }
Q7_INLINE q7_f32 q7_load_tail(const float *p, int64_t n) {
    return _mm256_maskload_ps(p, q7_lanes(n));
}
Q7_INLINE void q7_store_tail(float *p, q7_f32 v, int64_t n) {
    _mm256_maskstore_ps(p, q7_lanes(n), v);
}

Q7_INLINE q7_f32 q7_load_twice(const float *p) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                    _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
Q7_INLINE q7_f32 q7_swap_pairs(q7_f32 v) { return _mm256_permute_ps(v, 0xb1); }
Q7_INLINE q7_f32 q7_evens(q7_f32 a, q7_f32 b) {
    const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* of a, b, a, b */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xd8));
}

#define Q7_HAS_TRANSPOSE
Q7_INLINE void q7_transpose(q7_f32 v[Q7_W]) {
    __m256 t[8]; /* t[4 i + j]: columns j and j + 4 of rows 4 i to 4 i + 3 */
    Q7_UNROLL
    for (int i = 0; i < 8; i += 4) {
        const __m256 low01 = _mm256_unpacklo_ps(v[i], v[i + 1]),
                     low23 = _mm256_unpacklo_ps(v[i + 2], v[i + 3]);
        const __m256 high01 = _mm256_unpackhi_ps(v[i], v[i + 1]),
                     high23 = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm256_shuffle_ps(low01, low23, 0x44);
        t[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
        t[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
        t[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
    }
    Q7_UNROLL
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
        v[4 + j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
    }
}

Q7_INLINE q7_f32 q7_add(q7_f32 a, q7_f32 b) { return _mm256_add_ps(a, b); }
Q7_INLINE q7_f32 q7_sub(q7_f32 a, q7_f32 b) { return _mm256_sub_ps(a, b); }
Q7_INLINE q7_f32 q7_mul(q7_f32 a, q7_f32 b) { return _mm256_mul_ps(a, b); }
Q7_INLINE q7_f32 q7_div(q7_f32 a, q7_f32 b) { return _mm256_div_ps(a, b); }
Q7_INLINE q7_f32 q7_fma(q7_f32 a, q7_f32 b, q7_f32 c) { return _mm256_fmadd_ps(a, b, c); }
Q7_INLINE q7_f32 q7_fnma(q7_f32 a, q7_f32 b, q7_f32 c) { return _mm256_fnmadd_ps(a, b, c); }

Q7_INLINE q7_mask q7_lt(q7_f32 a, q7_f32 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
Q7_INLINE q7_mask q7_le(q7_f32 a, q7_f32 b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
Q7_INLINE q7_mask q7_eq(q7_f32 a, q7_f32 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
Q7_INLINE q7_mask q7_unordered(q7_f32 a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
Q7_INLINE q7_mask q7_mask_and(q7_mask a, q7_mask b) { return _mm256_and_ps(a, b); }
Q7_INLINE q7_mask q7_mask_or(q7_mask a, q7_mask b) { return _mm256_or_ps(a, b); }
Q7_INLINE q7_mask q7_mask_not(q7_mask a) {
    return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
Q7_INLINE q7_f32 q7_select(q7_mask m, q7_f32 a, q7_f32 b) { return _mm256_blendv_ps(b, a, m); }
Q7_INLINE bool q7_any(q7_mask m) { return _mm256_movemask_ps(m) != 0; }
Q7_INLINE q7_mask q7_load_bool(const uint8_t *p) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(x, _mm256_setzero_si256()));
}
Q7_INLINE q7_mask q7_load_bool_tail(const uint8_t *p, int64_t n) {
    uint8_t bytes[Q7_W] = {0};
    for (int64_t i = 0; i < n; i++) bytes[i] = p[i];
    return q7_load_bool(bytes);
}

Q7_INLINE q7_f32 q7_vmax(q7_f32 a, q7_f32 b) { return _mm256_max_ps(a, b); }
Q7_INLINE q7_f32 q7_vmin(q7_f32 a, q7_f32 b) { return _mm256_min_ps(a, b); }
Q7_INLINE q7_f32 q7_neg(q7_f32 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
Q7_INLINE q7_f32 q7_abs(q7_f32 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
Q7_INLINE q7_f32 q7_copysign(q7_f32 magnitude, q7_f32 sign) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
Q7_INLINE q7_f32 q7_sqrt(q7_f32 a) { return _mm256_sqrt_ps(a); }
Q7_INLINE q7_f32 q7_round_even(q7_f32 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Q7_INLINE q7_f32 q7_floor(q7_f32 a) { return _mm256_floor_ps(a); }
Q7_INLINE float q7_hsum(q7_f32 a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
Q7_INLINE float q7_hmax(q7_f32 a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
Q7_INLINE q7_f32 q7_exp2i(q7_f32 n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
Q7_INLINE q7_f32 q7_ldexp(q7_f32 a, q7_f32 n) {
    const q7_f32 half = q7_floor(_mm256_mul_ps(n, q7_set1(0.5f)));
    return _mm256_mul_ps(_mm256_mul_ps(a, q7_exp2i(half)), q7_exp2i(_mm256_sub_ps(n, half)));
}
#define Q7_HAS_POWER
Q7_INLINE q7_f32 q7_power(q7_f32 t) { /* bits of 2^(i / 8), less i << 20 */
    const __m256i powers = _mm256_setr_epi32(0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                             0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7);
    const __m256i bits = _mm256_castps_si256(t), chosen = _mm256_permutevar8x32_epi32(powers, bits);
    return _mm256_castsi256_ps(_mm256_add_epi32(chosen, _mm256_slli_epi32(bits, 20)));
}
Q7_INLINE q7_f32 q7_frexp(q7_f32 a, q7_f32 *e) {
    const __m256i bits = _mm256_castps_si256(a);
    *e = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srai_epi32(bits, 23), _mm256_set1_epi32(127)));
    return _mm256_castsi256_ps(_mm256_or_si256(
        _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff)), _mm256_set1_epi32(0x3f800000)));
}

Q7_INLINE q7_i32 q7_i32_set1(int32_t x) { return _mm256_set1_epi32(x); }
Q7_INLINE q7_i32 q7_i32_load(const int32_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
Q7_INLINE void q7_i32_store(int32_t *p, q7_i32 v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }
Q7_INLINE q7_i32 q7_i32_add(q7_i32 a, q7_i32 b) { return _mm256_add_epi32(a, b); }
Q7_INLINE q7_i32 q7_i32_mul(q7_i32 a, q7_i32 b) { return _mm256_mullo_epi32(a, b); }
Q7_INLINE q7_f32 q7_float(q7_i32 v) { return _mm256_cvtepi32_ps(v); }
#ifdef __AVXVNNI__
#define Q7_QUAD_FLIP 0
Q7_INLINE q7_i32 q7_dot_quads(q7_i32 sum, const int8_t *p, q7_i32 quad) {
    return _mm256_dpbusd_avx_epi32(sum, quad, _mm256_loadu_si256((const __m256i *)(const void *)p));
}
Q7_INLINE q7_i32 q7_dot_unsigned(q7_i32 sum, q7_i32 w, q7_i32 quad) {
    return _mm256_dpbusd_avx_epi32(sum, w, quad);
}
#endif
Q7_INLINE q7_i32 q7_load_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
Q7_INLINE q7_f32 q7_bits(q7_i32 v, int shift, int mask) {
    v = _mm256_srlv_epi32(v, _mm256_set1_epi32(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(mask)));
}
Q7_INLINE q7_i32 q7_madd_pairs(q7_i32 sum, const int16_t *p, q7_i32 pair) {
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(b, pair));
}

typedef __m256i q7_block;

Q7_INLINE q7_block q7_block_set1(uint8_t x) { return _mm256_set1_epi8((char)x); }
Q7_INLINE q7_block q7_block_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
Q7_INLINE void q7_block_store(uint8_t *p, q7_block v) {
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}
Q7_INLINE q7_block q7_block_load_tail(const uint8_t *p, int64_t n) {
    if (n == 16) return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    uint8_t bytes[32] = {0};
    memcpy(bytes, p, (size_t)n);
    return q7_block_load(bytes);
}
Q7_INLINE void q7_block_store_tail(uint8_t *p, q7_block v, int64_t n) {
    uint8_t bytes[32];
    q7_block_store(bytes, v);
    memcpy(p, bytes, (size_t)n);
}
Q7_INLINE q7_block q7_block_xor(q7_block a, q7_block b) { return _mm256_xor_si256(a, b); }
Q7_INLINE q7_block q7_block_max(q7_block a, q7_block b) { return _mm256_max_epu8(a, b); }
Q7_INLINE void q7_zip_pairs(const q7_block x[2], q7_i32 pairs[4]) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_unpacklo_epi8(x[0], x[1]), high = _mm256_unpackhi_epi8(x[0], x[1]);
    pairs[0] = _mm256_unpacklo_epi8(low, zero);
    pairs[1] = _mm256_unpackhi_epi8(low, zero);
    pairs[2] = _mm256_unpacklo_epi8(high, zero);
    pairs[3] = _mm256_unpackhi_epi8(high, zero);
}
Q7_INLINE void q7_zip_quads(const q7_block x[4], q7_i32 quads[4]) {
    const __m256i low01 = _mm256_unpacklo_epi8(x[0], x[1]),
                  low23 = _mm256_unpacklo_epi8(x[2], x[3]);
    const __m256i high01 = _mm256_unpackhi_epi8(x[0], x[1]);
    const __m256i high23 = _mm256_unpackhi_epi8(x[2], x[3]);
    quads[0] = _mm256_unpacklo_epi16(low01, low23);
    quads[1] = _mm256_unpackhi_epi16(low01, low23);
    quads[2] = _mm256_unpacklo_epi16(high01, high23);
    quads[3] = _mm256_unpackhi_epi16(high01, high23);
}
Q7_INLINE __m256i q7_rounded(q7_f32 x) { /* NaN: the lowest */
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(0x1p30f), x));
}
Q7_INLINE q7_block q7_block_of(const q7_f32 x[4], int32_t zero, bool is_signed) {
    const __m256i offset = _mm256_set1_epi16((int16_t)zero);
    const __m256i low = _mm256_packs_epi32(q7_rounded(x[0]), q7_rounded(x[1]));
    const __m256i high = _mm256_packs_epi32(q7_rounded(x[2]), q7_rounded(x[3]));
    const __m256i first = _mm256_adds_epi16(low, offset), second = _mm256_adds_epi16(high, offset);
    return is_signed ? _mm256_packs_epi16(first, second) : _mm256_packus_epi16(first, second);
}
Q7_INLINE q7_block q7_block_in_order(q7_block v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
Q7_INLINE void q7_block_store_halves(uint8_t *p, uint8_t *q, q7_block v, int64_t n) {
    uint8_t bytes[32];
    if (n == 16) {
        _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(v));
        _mm_storeu_si128((__m128i *)(void *)q, _mm256_extracti128_si256(v, 1));
        return;
    }
    q7_block_store(bytes, v);
    memcpy(p, bytes, (size_t)n);
    memcpy(q, bytes + 16, (size_t)n);
}
