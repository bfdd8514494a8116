/* avx2.h: the verbs of simd.h for x86-64 with AVX2 and FMA. */
#include <immintrin.h>
#define Q7_W 8

typedef __m256i q7_i32;
typedef __m256 q7_f32;
typedef __m256 q7_mask; /* all bits of a lane equal */

#define MM(verb) _mm256_##verb
#define SI(verb) _mm256_##verb##_si256
#include "x86.h"

/* lanes [0, n) */
Q7_INLINE __m256i q7_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
Q7_INLINE q7_f32 q7_keep(q7_f32 v) {
    __asm__("" : "+x"(v));
    return v;
}
Q7_INLINE q7_f32 q7_load_tail(const float *p, int64_t n) {
    return _mm256_maskload_ps(p, q7_lanes(n));
}
/* By halves: up to Zen 3 a masked store is 42 operations. */
Q7_INLINE void q7_store_tail(float *p, q7_f32 v, int64_t n) {
    __m128 left = _mm256_castps256_ps128(v);
    if (n >= Q7_W) {
        q7_store(p, v);
        return;
    }
    if (n & 4) {
        _mm_storeu_ps(p, left);
        left = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)(void *)p, left);
        left = _mm_movehl_ps(left, left);
        p += 2;
    }
    if (n & 1) _mm_store_ss(p, left);
}

Q7_INLINE q7_f32 q7_load_twice(const float *p) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                    _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
Q7_INLINE q7_f32 q7_permute(q7_f32 v, q7_i32 which) { return _mm256_permutevar8x32_ps(v, which); }
Q7_INLINE q7_f32 q7_evens(q7_f32 a, q7_f32 b) {
    const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* of a, b, a, b */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xd8));
}

#define Q7_HAS_TRANSPOSE
Q7_INLINE void q7_transpose(q7_f32 v[Q7_W]) {
    q7_f32 t[Q7_W];
    q7_transpose_fours(v, t);
    Q7_UNROLL
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
        v[4 + j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
    }
}

/* Inserting from memory takes no unit of shuffles, and two operations of Zen 1, where permuting takes 8. */
#define Q7_HAS_LOAD_TRANSPOSED
Q7_INLINE void q7_load_transposed(const float *p, int64_t stride, q7_f32 v[Q7_W]) {
    q7_f32 rows[Q7_W]; /* i and 4 + i, of four columns each */
    Q7_UNROLL
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < Q7_W; j += 4) {
            const __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(p + i * stride + j));
            rows[j + i] = _mm256_insertf128_ps(low, _mm_loadu_ps(p + (4 + i) * stride + j), 1);
        }
    q7_transpose_fours(rows, v);
}

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

Q7_INLINE q7_f32 q7_round_even(q7_f32 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Q7_INLINE q7_f32 q7_floor(q7_f32 a) { return _mm256_floor_ps(a); }
Q7_INLINE float q7_hsum(q7_f32 a) { return q7_hsum_of_8(a); }
Q7_INLINE void q7_hsum_4(const q7_f32 v[4], float *p) { q7_store_fours(p, q7_sums_in_fours(v)); }
Q7_INLINE float q7_hmax(q7_f32 a) { return q7_hmax_of_8(a); }
Q7_INLINE q7_f32 q7_exp2i(q7_f32 t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
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

Q7_INLINE q7_i32 q7_i32_select(q7_mask m, q7_i32 a, q7_i32 b) {
    return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m));
}
Q7_INLINE q7_f32 q7_gather(const float *p, q7_i32 at) {
    const __m256i inside = _mm256_cmpgt_epi32(at, _mm256_set1_epi32(-1));
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, at, _mm256_castsi256_ps(inside), 4);
}

#ifdef Q7_EXTENSION /* VNNI */
#define Q7_QUAD_FLIP 0
Q7_INLINE q7_i32 q7_dot_quads(q7_i32 sum, const int8_t *p, q7_i32 quad) {
    return _mm256_dpbusd_avx_epi32(sum, quad, _mm256_loadu_si256((const __m256i *)(const void *)p));
}
Q7_INLINE q7_i32 q7_dot_unsigned(q7_i32 sum, q7_i32 w, q7_i32 quad) {
    return _mm256_dpbusd_avx_epi32(sum, w, quad);
}
#else
Q7_INLINE q7_i32 q7_load_chunks(const uint8_t *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}
#endif
Q7_INLINE q7_i32 q7_load_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
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

Q7_INLINE q7_f32 q7_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
#define Q7_HAS_STORE_F16
Q7_INLINE void q7_store_f16(uint16_t *p, q7_f32 v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
Q7_INLINE q7_f32 q7_load_bf16(const uint16_t *p) {
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
