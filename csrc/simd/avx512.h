/* avx512.h: the verbs of simd.h for x86-64 with AVX-512 F, DQ, BW and VL. */
#include <immintrin.h>
#define Q7_W 16

typedef __m512i q7_i32;
typedef __m512 q7_f32;
typedef __mmask16 q7_mask;

#define MM(verb) _mm512_##verb
#define SI(verb) _mm512_##verb##_si512
#include "x86.h"

/* lanes [0, n) */
Q7_INLINE __mmask16 q7_lanes(int64_t n) { return (__mmask16)((UINT32_C(1) << n) - 1); }
Q7_INLINE q7_f32 q7_keep(q7_f32 v) {
    __asm__("" : "+v"(v));
    return v;
}
Q7_INLINE q7_f32 q7_load_tail(const float *p, int64_t n) {
    return _mm512_maskz_loadu_ps(q7_lanes(n), p);
}
Q7_INLINE void q7_store_tail(float *p, q7_f32 v, int64_t n) {
    _mm512_mask_storeu_ps(p, q7_lanes(n), v);
}

Q7_INLINE q7_f32 q7_load_twice(const float *p) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                 _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
Q7_INLINE q7_f32 q7_evens(q7_f32 a, q7_f32 b) {
    const __m512i which =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, which, b);
}

Q7_INLINE q7_f32 q7_permute(q7_f32 v, q7_i32 which) { return _mm512_permutexvar_ps(which, v); }

#define Q7_HAS_TRANSPOSE
Q7_INLINE void q7_transpose(q7_f32 v[Q7_W]) {
    q7_f32 t[Q7_W];
    q7_transpose_fours(v, t);
    Q7_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512 even0 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x88),
                     even8 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x88);
        const __m512 odd0 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xdd),
                     odd8 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xdd);
        v[j] = _mm512_shuffle_f32x4(even0, even8, 0x88);
        v[4 + j] = _mm512_shuffle_f32x4(odd0, odd8, 0x88);
        v[8 + j] = _mm512_shuffle_f32x4(even0, even8, 0xdd);
        v[12 + j] = _mm512_shuffle_f32x4(odd0, odd8, 0xdd);
    }
}

Q7_INLINE q7_mask q7_lt(q7_f32 a, q7_f32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
Q7_INLINE q7_mask q7_le(q7_f32 a, q7_f32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
Q7_INLINE q7_mask q7_eq(q7_f32 a, q7_f32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
Q7_INLINE q7_mask q7_unordered(q7_f32 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
Q7_INLINE q7_mask q7_mask_and(q7_mask a, q7_mask b) { return (q7_mask)(a & b); }
Q7_INLINE q7_mask q7_mask_or(q7_mask a, q7_mask b) { return (q7_mask)(a | b); }
Q7_INLINE q7_mask q7_mask_not(q7_mask a) { return (q7_mask)~a; }
Q7_INLINE q7_f32 q7_select(q7_mask m, q7_f32 a, q7_f32 b) { return _mm512_mask_blend_ps(m, b, a); }
Q7_INLINE bool q7_any(q7_mask m) { return m != 0; }
Q7_INLINE q7_mask q7_load_bool(const uint8_t *p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm_test_epi8_mask(x, x);
}
Q7_INLINE q7_mask q7_load_bool_tail(const uint8_t *p, int64_t n) {
    const __m128i x = _mm_maskz_loadu_epi8(q7_lanes(n), p);
    return _mm_test_epi8_mask(x, x);
}

Q7_INLINE q7_f32 q7_round_even(q7_f32 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Q7_INLINE q7_f32 q7_floor(q7_f32 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
Q7_INLINE float q7_hsum(q7_f32 a) {
    return q7_hsum_of_8(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
Q7_INLINE void q7_hsum_4(const q7_f32 v[4], float *p) {
    const q7_f32 a = q7_sums_in_fours(v);
    q7_store_fours(p, _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
Q7_INLINE float q7_hmax(q7_f32 a) {
    return q7_hmax_of_8(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
Q7_INLINE q7_f32 q7_exp2i(q7_f32 t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
}
Q7_INLINE q7_f32 q7_ldexp(q7_f32 a, q7_f32 n) { return _mm512_scalef_ps(a, n); }
Q7_INLINE q7_f32 q7_fraction(q7_f32 a, q7_f32 *whole) {
    *whole = a; /* q7_scale() takes its floor */
    return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
Q7_INLINE q7_f32 q7_scale(q7_f32 a, q7_f32 whole) {
    const __mmask16 normal = _mm512_cmp_ps_mask(whole, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, a, whole);
}
#define Q7_HAS_POWER
Q7_INLINE q7_f32 q7_power(q7_f32 t) { /* bits of 2^(i / 16), less i << 19 */
    const __m512i powers =
        _mm512_setr_epi32(0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532,
                          0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                          0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d);
    const __m512i bits = _mm512_castps_si512(t), chosen = _mm512_permutexvar_epi32(bits, powers);
    return _mm512_castsi512_ps(_mm512_add_epi32(chosen, _mm512_slli_epi32(bits, 19)));
}
#define Q7_HAS_CHOICE
Q7_INLINE q7_f32 q7_choice(const float *table, q7_f32 bits) {
    return _mm512_permutexvar_ps(_mm512_castps_si512(bits), _mm512_loadu_ps(table));
}
Q7_INLINE q7_f32 q7_frexp(q7_f32 a, q7_f32 *e) {
    *e = _mm512_getexp_ps(a);
    return _mm512_getmant_ps(a, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
}

Q7_INLINE q7_i32 q7_i32_select(q7_mask m, q7_i32 a, q7_i32 b) {
    return _mm512_mask_blend_epi32(m, b, a);
}
Q7_INLINE q7_f32 q7_gather(const float *p, q7_i32 at) {
    const __mmask16 inside = _knot_mask16(_mm512_movepi32_mask(at));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), inside, at, p, 4);
}

#ifdef Q7_EXTENSION /* VNNI */
#define Q7_QUAD_FLIP 0
Q7_INLINE q7_i32 q7_dot_quads(q7_i32 sum, const int8_t *p, q7_i32 quad) {
    return _mm512_dpbusd_epi32(sum, quad, _mm512_loadu_si512(p));
}
Q7_INLINE q7_i32 q7_dot_unsigned(q7_i32 sum, q7_i32 w, q7_i32 quad) {
    return _mm512_dpbusd_epi32(sum, w, quad);
}
#else
Q7_INLINE q7_i32 q7_load_chunks(const uint8_t *p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
}
#endif
Q7_INLINE q7_i32 q7_load_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/* Four bits choose of a table: one instruction for mask, conversion and subtraction. */
#define Q7_HAS_CENTRED_BITS
Q7_INLINE q7_f32 q7_centred_bits(q7_i32 v, int shift, int bits) {
    if (bits != 4)
        return _mm512_sub_ps(q7_bits(v, shift, (1 << bits) - 1), q7_set1((float)(1 << (bits - 1))));
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(shift ? _mm512_srli_epi32(v, (unsigned)shift) : v, table);
}

Q7_INLINE __mmask64 q7_block_lanes(int64_t n) { return UINT64_MAX >> (64 - n); }
Q7_INLINE q7_block q7_block_load_tail(const uint8_t *p, int64_t n) {
    return _mm512_maskz_loadu_epi8(q7_block_lanes(n), p);
}
Q7_INLINE void q7_block_store_tail(uint8_t *p, q7_block v, int64_t n) {
    _mm512_mask_storeu_epi8(p, q7_block_lanes(n), v);
}
Q7_INLINE q7_block q7_block_in_order(q7_block v) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
}
Q7_INLINE void q7_block_store_halves(uint8_t *p, uint8_t *q, q7_block v, int64_t n) {
    const __mmask32 lanes = UINT32_MAX >> (32 - n);
    _mm256_mask_storeu_epi8(p, lanes, _mm512_castsi512_si256(v));
    _mm256_mask_storeu_epi8(q, lanes, _mm512_extracti64x4_epi64(v, 1));
}

Q7_INLINE q7_f32 q7_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
#define Q7_HAS_STORE_F16
Q7_INLINE void q7_store_f16(uint16_t *p, q7_f32 v) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
Q7_INLINE q7_f32 q7_load_bf16(const uint16_t *p) {
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* y[i] = table[x[i]] of n bytes, for CPUs with VBMI, which is no set of its own. */
#define Q7_HAS_LOOKUP
Q7_INLINE bool q7_may_look_up(void) { return __builtin_cpu_supports("avx512vbmi"); }
__attribute__((target("avx512vbmi"))) static inline void q7_look_up(int64_t n, const uint8_t *x,
                                                                    const uint8_t *table,
                                                                    uint8_t *y) {
    __m512i part[4];
    for (int i = 0; i < 4; i++) part[i] = _mm512_loadu_si512(table + 64 * i);
    for (int64_t i = 0; i < n; i += 64) {
        const __mmask64 lanes = n - i < 64 ? ~(~UINT64_C(0) << (n - i)) : ~UINT64_C(0);
        const __m512i at = _mm512_maskz_loadu_epi8(lanes, x + i);
        const __m512i low = _mm512_permutex2var_epi8(part[0], at, part[1]);
        const __m512i high = _mm512_permutex2var_epi8(part[2], at, part[3]);
        const __m512i found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high);
        _mm512_mask_storeu_epi8(y + i, lanes, found);
    }
}
