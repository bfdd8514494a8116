/* neon.h: the verbs of simd.h for aarch64. */
#include <arm_neon.h>
#define Q7_W 4

typedef int32x4_t q7_i32;
typedef float32x4_t q7_f32;
typedef uint32x4_t q7_mask; /* all bits of a lane equal */

Q7_INLINE q7_f32 q7_set1(float x) { return vdupq_n_f32(x); }
Q7_INLINE q7_f32 q7_keep(q7_f32 v) {
    __asm__("" : "+w"(v));
    return v;
}
Q7_INLINE q7_f32 q7_load(const float *p) { return vld1q_f32(p); }
Q7_INLINE void q7_store(float *p, q7_f32 v) { vst1q_f32(p, v); }
Q7_INLINE q7_f32 q7_load_tail(const float *p, int64_t n) {
    float lanes[Q7_W] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return vld1q_f32(lanes);
}
Q7_INLINE void q7_store_tail(float *p, q7_f32 v, int64_t n) {
    float lanes[Q7_W];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}

Q7_INLINE q7_f32 q7_repeat_pair(const float *p) {
    uint64_t both;
    memcpy(&both, p, sizeof both);
    return vreinterpretq_f32_u64(vdupq_n_u64(both));
}
Q7_INLINE q7_f32 q7_load_twice(const float *p) {
    const float32x2_t v = vld1_f32(p);
    return vcombine_f32(vdup_lane_f32(v, 0), vdup_lane_f32(v, 1));
}
Q7_INLINE q7_f32 q7_swap_pairs(q7_f32 v) { return vrev64q_f32(v); }
Q7_INLINE q7_f32 q7_evens(q7_f32 a, q7_f32 b) { return vuzp1q_f32(a, b); }

Q7_INLINE q7_f32 q7_add(q7_f32 a, q7_f32 b) { return vaddq_f32(a, b); }
Q7_INLINE q7_f32 q7_sub(q7_f32 a, q7_f32 b) { return vsubq_f32(a, b); }
Q7_INLINE q7_f32 q7_mul(q7_f32 a, q7_f32 b) { return vmulq_f32(a, b); }
Q7_INLINE q7_f32 q7_div(q7_f32 a, q7_f32 b) { return vdivq_f32(a, b); }
Q7_INLINE q7_f32 q7_fma(q7_f32 a, q7_f32 b, q7_f32 c) { return vfmaq_f32(c, a, b); }
Q7_INLINE q7_f32 q7_fnma(q7_f32 a, q7_f32 b, q7_f32 c) { return vfmsq_f32(c, a, b); }

Q7_INLINE q7_mask q7_lt(q7_f32 a, q7_f32 b) { return vcltq_f32(a, b); }
Q7_INLINE q7_mask q7_le(q7_f32 a, q7_f32 b) { return vcleq_f32(a, b); }
Q7_INLINE q7_mask q7_eq(q7_f32 a, q7_f32 b) { return vceqq_f32(a, b); }
Q7_INLINE q7_mask q7_unordered(q7_f32 a) { return vmvnq_u32(vceqq_f32(a, a)); }
Q7_INLINE q7_mask q7_mask_and(q7_mask a, q7_mask b) { return vandq_u32(a, b); }
Q7_INLINE q7_mask q7_mask_or(q7_mask a, q7_mask b) { return vorrq_u32(a, b); }
Q7_INLINE q7_mask q7_mask_not(q7_mask a) { return vmvnq_u32(a); }
Q7_INLINE q7_f32 q7_select(q7_mask m, q7_f32 a, q7_f32 b) { return vbslq_f32(m, a, b); }
Q7_INLINE bool q7_any(q7_mask m) { return vmaxvq_u32(m) != 0; }
Q7_INLINE q7_mask q7_load_bool_tail(const uint8_t *p, int64_t n) {
    uint32_t lanes[Q7_W] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    const uint32x4_t x = vld1q_u32(lanes);
    return vtstq_u32(x, x);
}
Q7_INLINE q7_mask q7_load_bool(const uint8_t *p) { return q7_load_bool_tail(p, Q7_W); }

/* not vmaxq and vminq, which order zeros by their signs */
Q7_INLINE q7_f32 q7_vmax(q7_f32 a, q7_f32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
Q7_INLINE q7_f32 q7_vmin(q7_f32 a, q7_f32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
Q7_INLINE q7_f32 q7_neg(q7_f32 a) { return vnegq_f32(a); }
Q7_INLINE q7_f32 q7_abs(q7_f32 a) { return vabsq_f32(a); }
Q7_INLINE q7_f32 q7_copysign(q7_f32 magnitude, q7_f32 sign) {
    return vbslq_f32(vdupq_n_u32(UINT32_C(1) << 31), sign, magnitude);
}
Q7_INLINE q7_f32 q7_sqrt(q7_f32 a) { return vsqrtq_f32(a); }
Q7_INLINE q7_f32 q7_round_even(q7_f32 a) { return vrndnq_f32(a); }
Q7_INLINE q7_f32 q7_floor(q7_f32 a) { return vrndmq_f32(a); }
Q7_INLINE float q7_hsum(q7_f32 a) { return vaddvq_f32(a); }
Q7_INLINE void q7_hsum_4(const q7_f32 v[4], float *p) {
    vst1q_f32(p, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}
Q7_INLINE float q7_hmax(q7_f32 a) { return vmaxvq_f32(a); }
Q7_INLINE q7_f32 q7_exp2i(q7_f32 t) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23));
}
Q7_INLINE q7_f32 q7_frexp(q7_f32 a, q7_f32 *e) {
    const int32x4_t bits = vreinterpretq_s32_f32(a);
    *e = vcvtq_f32_s32(vsubq_s32(vshrq_n_s32(bits, 23), vdupq_n_s32(127)));
    return vreinterpretq_f32_s32(
        vorrq_s32(vandq_s32(bits, vdupq_n_s32(0x007fffff)), vdupq_n_s32(0x3f800000)));
}

Q7_INLINE q7_i32 q7_i32_set1(int32_t x) { return vdupq_n_s32(x); }
Q7_INLINE q7_i32 q7_i32_load(const int32_t *p) { return vld1q_s32(p); }
Q7_INLINE void q7_i32_store(int32_t *p, q7_i32 v) { vst1q_s32(p, v); }
Q7_INLINE q7_i32 q7_i32_add(q7_i32 a, q7_i32 b) { return vaddq_s32(a, b); }
Q7_INLINE q7_i32 q7_i32_mul(q7_i32 a, q7_i32 b) { return vmulq_s32(a, b); }
Q7_INLINE q7_i32 q7_i32_up(q7_i32 a, const int bits) { return vshlq_s32(a, vdupq_n_s32(bits)); }
Q7_INLINE q7_f32 q7_permute(q7_f32 v, q7_i32 which) {
    const q7_i32 bytes = vmlaq_n_s32(vdupq_n_s32(0x03020100), which, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vreinterpretq_u8_s32(bytes)));
}
Q7_INLINE q7_f32 q7_float(q7_i32 v) { return vcvtq_f32_s32(v); }
Q7_INLINE q7_i32 q7_int(q7_f32 v) { return vcvtq_s32_f32(v); }
Q7_INLINE q7_i32 q7_i32_select(q7_mask m, q7_i32 a, q7_i32 b) { return vbslq_s32(m, a, b); }
Q7_INLINE q7_f32 q7_gather(const float *p, q7_i32 at) {
    int32_t place[Q7_W];
    float lanes[Q7_W];
    vst1q_s32(place, at);
    for (int i = 0; i < Q7_W; i++) lanes[i] = place[i] < 0 ? 0 : p[place[i]];
    return vld1q_f32(lanes);
}
#ifdef __ARM_FEATURE_DOTPROD
#define Q7_QUAD_FLIP 128
Q7_INLINE q7_i32 q7_dot_quads(q7_i32 sum, const int8_t *p, q7_i32 quad) {
    return vdotq_s32(sum, vld1q_s8(p), vreinterpretq_s8_s32(quad));
}
Q7_INLINE q7_i32 q7_dot_unsigned(q7_i32 sum, q7_i32 w, q7_i32 quad) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(quad));
}
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
#define Q7_HAS_SQUARES
Q7_INLINE q7_i32 q7_dot_square(q7_i32 sum, q7_i32 rows, q7_i32 columns) {
    return vmmlaq_s32(sum, vreinterpretq_s8_s32(rows), vreinterpretq_s8_s32(columns));
}
Q7_INLINE q7_i32 q7_two_rows(const char *row, const char *next, const int n) {
    uint32_t four[2];
    memcpy(four, row, 4), memcpy(four + 1, next, 4);
    const int8x16_t rows =
        n == 4 ? vcombine_s8(vcreate_s8(four[0]), vcreate_s8(four[1]))
               : vcombine_s8(vld1_s8((const int8_t *)row), vld1_s8((const int8_t *)next));
    return vreinterpretq_s32_s8(rows);
}
Q7_INLINE void q7_two_columns(const int8_t *p, const int8_t *next, q7_i32 columns[2]) {
    const int32x4_t a = vreinterpretq_s32_s8(vld1q_s8(p)), b = vreinterpretq_s32_s8(vld1q_s8(next));
    columns[0] = vzip1q_s32(a, b), columns[1] = vzip2q_s32(a, b);
}
Q7_INLINE void q7_turn_square(q7_i32 *a, q7_i32 *b) {
    const int64x2_t x = vreinterpretq_s64_s32(*a), y = vreinterpretq_s64_s32(*b);
    *a = vreinterpretq_s32_s64(vzip1q_s64(x, y)), *b = vreinterpretq_s32_s64(vzip2q_s64(x, y));
}
#endif
Q7_INLINE q7_i32 q7_load_bytes(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
Q7_INLINE q7_f32 q7_bits(q7_i32 v, int shift, int mask) {
    return vcvtq_f32_s32(vandq_s32(vshlq_s32(v, vdupq_n_s32(-shift)), vdupq_n_s32(mask)));
}
Q7_INLINE q7_i32 q7_madd_pairs(q7_i32 sum, const int16_t *p, q7_i32 pair) {
    const int16x8_t a = vreinterpretq_s16_s32(pair), b = vld1q_s16(p);
    const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(a, b)));
}

typedef uint8x16_t q7_block;

Q7_INLINE q7_block q7_block_set1(uint8_t x) { return vdupq_n_u8(x); }
Q7_INLINE q7_block q7_block_load(const uint8_t *p) { return vld1q_u8(p); }
Q7_INLINE void q7_block_store(uint8_t *p, q7_block v) { vst1q_u8(p, v); }
Q7_INLINE q7_block q7_block_load_tail(const uint8_t *p, int64_t n) {
    uint8_t bytes[16] = {0};
    memcpy(bytes, p, (size_t)n);
    return vld1q_u8(bytes);
}
Q7_INLINE void q7_block_store_tail(uint8_t *p, q7_block v, int64_t n) {
    uint8_t bytes[16];
    vst1q_u8(bytes, v);
    memcpy(p, bytes, (size_t)n);
}
Q7_INLINE q7_block q7_block_xor(q7_block a, q7_block b) { return veorq_u8(a, b); }
Q7_INLINE q7_block q7_block_max(q7_block a, q7_block b) { return vmaxq_u8(a, b); }
Q7_INLINE void q7_zip_pairs(const q7_block x[2], q7_i32 pairs[4]) {
    const uint8x16x2_t both = vzipq_u8(x[0], x[1]);
    for (int i = 0; i < 2; i++) {
        pairs[2 * i] = vreinterpretq_s32_u16(vmovl_u8(vget_low_u8(both.val[i])));
        pairs[2 * i + 1] = vreinterpretq_s32_u16(vmovl_high_u8(both.val[i]));
    }
}
Q7_INLINE void q7_zip_quads(const q7_block x[4], q7_i32 quads[4]) {
    const uint8x16x2_t first = vzipq_u8(x[0], x[1]), second = vzipq_u8(x[2], x[3]);
    for (int i = 0; i < 2; i++) {
        const uint16x8x2_t all =
            vzipq_u16(vreinterpretq_u16_u8(first.val[i]), vreinterpretq_u16_u8(second.val[i]));
        quads[2 * i] = vreinterpretq_s32_u16(all.val[0]);
        quads[2 * i + 1] = vreinterpretq_s32_u16(all.val[1]);
    }
}
Q7_INLINE q7_block q7_block_of(const q7_f32 x[4], int32_t zero, bool is_signed) {
    const int16x8_t offset = vdupq_n_s16((int16_t)zero);
    int16x4_t quarter[4];
    for (int i = 0; i < 4; i++) /* NaN: the lowest */
        quarter[i] = vqmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(x[i], vdupq_n_f32(-0x1p30f))));
    const int16x8_t first = vqaddq_s16(vcombine_s16(quarter[0], quarter[1]), offset);
    const int16x8_t second = vqaddq_s16(vcombine_s16(quarter[2], quarter[3]), offset);
    if (is_signed) return vreinterpretq_u8_s8(vcombine_s8(vqmovn_s16(first), vqmovn_s16(second)));
    return vcombine_u8(vqmovun_s16(first), vqmovun_s16(second));
}
Q7_INLINE q7_block q7_block_in_order(q7_block v) { return v; }

Q7_INLINE q7_f32 q7_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
#define Q7_HAS_STORE_F16
Q7_INLINE void q7_store_f16(uint16_t *p, q7_f32 v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
Q7_INLINE q7_f32 q7_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
