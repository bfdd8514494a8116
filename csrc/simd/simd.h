/* simd.h: the vector verbs that kernels are written in; one header per ISA implements them.
 *
 * A kernel source is compiled once per ISA with -DQ7_ISA=<isa> -DQ7_ISA_<isa>=1. q7_f32 holds Q7_W
 * floats. The verbs, with v, a, b, c vectors and p a pointer of any alignment:
 *
 *   q7_set1(x)  q7_load(p)  q7_store(p, v)
 *   q7_keep(v) = v                                as it is: gcc would load it for every use, or
 *                                                 fuse it into an fma
 *   q7_load_tail(p, n)  q7_store_tail(p, v, n)    touch n <= Q7_W floats; loads fill with zeros
 *   q7_add q7_sub q7_mul q7_div
 *   q7_fma(a, b, c) = a * b + c                   one rounding, but two on scalar
 *   q7_fnma(a, b, c) = c - a * b
 *   q7_vmax(a, b) = a > b ? a : b, q7_vmin likewise: a NaN in b always gives NaN, one in a need not
 *   q7_sqrt q7_neg q7_abs q7_copysign(magnitude, sign)  q7_floor  q7_round_even
 *   q7_repeat_pair(p) = p[0] p[1] p[0] p[1] ..
 *   q7_load_twice(p) = p[0] p[0] p[1] p[1] ..     reads Q7_W / 2 floats
 *   q7_swap_pairs(v) = v[1] v[0] v[3] v[2] ..
 *   q7_permute(v, which) = v[which[i]]            q7_i32 which, in [0, Q7_W)
 *   q7_transpose(v)                               Q7_W vectors: v[i][j] becomes v[j][i]
 *   q7_load_transposed(p, stride, v)              v[j][i] = p[i * stride + j]
 *   q7_evens(a, b) = a[0] a[2] .. b[0] b[2] ..
 *   q7_hsum q7_hmax                               over the lanes, in a fixed tree order per ISA
 *   q7_hsum_4(v, p)                               p[i] = the sum of v[i]'s lanes, i < 4
 *   q7_exp2i(t) = 2^(t - Q7_EXP2I_ORIGIN)         t integral; 0 where the exponent is -127; beyond [-127, 128]
 *                                                 anything, as where t is NaN
 *   q7_ldexp(v, n) = v * 2^n                      n integral in [-252, 254], gradual underflow
 *   q7_fraction(v, &whole) = v - floor(v)         v <= 127, -inf too; whole is for q7_scale:
 *   q7_scale(v, whole) = v * 2^floor              0 below 2^-126; NaN where v or whole is
 *   q7_power(t) = 2^(t - 3 2^22 / Q7_W)           t a multiple of 1 / Q7_W, in [-126, 127] without what is
 *                                                 taken off; avx512 and avx2: Q7_HAS_POWER
 *   q7_choice(p, bits)                            p[i] of 16, by the low four bits of each lane; avx512:
 *                                                 Q7_HAS_CHOICE
 *   q7_frexp(v, &e)                               v = m * 2^e, m in [1, 2); v positive and normal
 *   q7_lt q7_le q7_eq (a, b), q7_unordered(a)     masks; unordered: a is NaN
 *   q7_select(m, a, b) = m ? a : b  q7_any(m)  q7_mask_and q7_mask_or (m, m)  q7_mask_not(m)
 *   q7_load_bool(p)  q7_load_bool_tail(p, n)      bytes that are 0 or not, as a mask
 *   q7_load_f16(p)  q7_load_bf16(p)               bit patterns as floats; float16 only finite
 *   q7_store_f16(p, v)                            to nearest even, NaN too; Q7_HAS_STORE_F16
 *
 * q7_i32 holds Q7_W sums: q7_i32_set1(x)  q7_i32_load(p)  q7_i32_store(p, v)
 *   q7_madd_pairs(sum, p, pair)                   sum[i] + p[2 i] * low + p[2 i + 1] * high of int16
 *                                                 pairs; wraps
 *   q7_i32_add(a, b)  q7_i32_mul(a, b)            wrap
 *   q7_i32_up(v, bits) = v << bits                a constant
 *   q7_float(v)                                   as floats, rounded
 *   q7_int(v)                                     floats as integers, cut off; |v| < 2^31
 *   q7_i32_select(m, a, b) = m ? a : b
 *   q7_gather(p, at)                              floats p[at[i]], 0 where at[i] < 0, which is not read
 *   q7_dot_quads(sum, p, quad)                    sum[i] + the products of quad's 4 bytes and int8 p[4 i]
 *                                                 to p[4 i + 3]; wraps. Where Q7_QUAD_FLIP is 0 (VNNI) bytes of
 *                                                 quad are unsigned, where it is 128 (NEON) signed
 *   q7_dot_unsigned(sum, w, quad)                 sum[i] + the products of the 4 bytes of w[i], unsigned
 *                                                 where Q7_QUAD_FLIP is 0, else signed, and quad's, int8
 *   where Q7_QUADS_SATURATE is defined (AVX2 and AVX-512 without VNNI) sums of two products in
 *   q7_dot_quads and q7_dot_unsigned saturate in int16, and q7_dot_quads has these parts:
 *   q7_pairs_of(p, quad)                          sums of products 2 i and 2 i + 1 as int16
 *   q7_pairs_add(a, b)                            wraps
 *   q7_add_pairs(sum, pairs)                      sum[i] + int16 2 i and 2 i + 1
 *   q7_load_chunks(p)  q7_choose_bytes(chunks, which)    16 bytes in every 16; and of each 16 those at
 *                                                 which[i] of theirs, 0 where that is negative
 *   where Q7_HAS_SQUARES is defined (NEON's smmla) the four sums of two rows of a and two columns of b lie
 *   together as a square, {0 0, 0 1, 1 0, 1 1}:
 *   q7_dot_square(sum, rows, columns)             sum + the products of 8 signed bytes of each; wraps
 *   q7_two_rows(row, next, n)                     n bytes of each, 4 or 8, with zeros up to 8
 *   q7_two_columns(p, next, columns)              columns of quads p and of those that follow in k, two by two
 *   q7_turn_square(a, b)                          four sums of each of two rows become two squares, or back
 *   q7_load_bytes(p)                              Q7_W bytes as integers
 *   q7_bits(v, shift, mask) = v >> shift & mask   as floats
 *   q7_centred_bits(v, shift, bits)               as floats, less 2^(bits - 1)
 *
 * q7_block holds 4 Q7_W bytes: q7_block_set1(x)  q7_block_load(p)  q7_block_store(p, v)
 *   q7_block_load_tail(p, n)  q7_block_store_tail(p, v, n)    0 < n <= 4 Q7_W bytes; loads fill with zeros
 *   q7_block_store_halves(p, q, v, n)             n <= 2 Q7_W bytes of each half
 *   q7_block_xor(a, b)  q7_block_max(a, b)        max of unsigned bytes
 *   q7_zip_quads(x, quads)                        bytes i of the four x side by side, in q7_dot_quads' form
 *   q7_zip_pairs(x, pairs)                        of two x, as int16, in q7_madd_pairs' form
 *   q7_block_of(v, zero, is_signed)               saturate(round(v) + zero) of four vectors v, to even, as int8 or
 *                                                 uint8, NaN the lowest; in the order that zipping makes:
 *     lane l of 16 bytes has bytes 4 i to 4 i + 3 of its own in lane l of vector i
 *   q7_block_in_order(v)                          what q7_block_of makes, in the order of its vectors
 */
#ifndef Q7_SIMD_H
#define Q7_SIMD_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "transpose.h"

#define Q7_CAT_(a, b) a##b
#define Q7_CAT(a, b) Q7_CAT_(a, b)
/* The symbol of a kernel for the ISA being compiled: Q7_KERNEL(gemm_f32) is q7_gemm_f32_avx2. */
#define Q7_KERNEL(family_dtypes) Q7_CAT(q7_##family_dtypes##_, Q7_ISA)
#define Q7_INLINE static inline __attribute__((always_inline))

/* Before a loop of constant length whose arrays are to live in registers. */
#ifdef __clang__
#define Q7_UNROLL _Pragma("clang loop unroll(full)")
#define Q7_UNROLL_BY_4 _Pragma("clang loop unroll_count(4)")
#define Q7_UNROLL_BY_8 _Pragma("clang loop unroll_count(8)")
#else
#define Q7_UNROLL _Pragma("GCC unroll 64")
#define Q7_UNROLL_BY_4 _Pragma("GCC unroll 4")
#define Q7_UNROLL_BY_8 _Pragma("GCC unroll 8")
#endif

#if defined(Q7_ISA_avx512)
#include "avx512.h"
#elif defined(Q7_ISA_avx2)
#include "avx2.h"
#elif defined(Q7_ISA_neon)
#include "neon.h"
#elif defined(Q7_ISA_scalar)
#include "scalar.h"
#else
#error "compile kernels with -DQ7_ISA=<isa> -DQ7_ISA_<isa>=1"
#endif

#define Q7_EXP2I_ORIGIN 0x1.8000fep+23f /* its low bits are the exponent of 1 */

#ifndef Q7_ISA_avx512
Q7_INLINE q7_f32 q7_ldexp(q7_f32 v, q7_f32 n) {
    const q7_f32 origin = q7_set1(Q7_EXP2I_ORIGIN), half = q7_fma(n, q7_set1(0.5f), origin);
    const q7_f32 rest = q7_sub(n, q7_sub(half, origin));
    return q7_mul(q7_mul(v, q7_exp2i(half)), q7_exp2i(q7_add(rest, origin)));
}
Q7_INLINE q7_f32 q7_fraction(q7_f32 v, q7_f32 *whole) {
    v = q7_vmax(q7_set1(-127.0f), v); /* 2^-127 is 0 to q7_exp2i() */
    *whole = q7_floor(v);
    return q7_sub(v, *whole);
}
Q7_INLINE q7_f32 q7_scale(q7_f32 v, q7_f32 whole) {
    return q7_mul(v, q7_exp2i(q7_add(whole, q7_set1(Q7_EXP2I_ORIGIN))));
}
#endif

#if !defined(Q7_ISA_avx512) && !defined(Q7_ISA_avx2) /* blocks of 16 bytes */
Q7_INLINE void q7_block_store_halves(uint8_t *p, uint8_t *q, q7_block v, int64_t n) {
    uint8_t bytes[16];
    q7_block_store(bytes, v);
    memcpy(p, bytes, (size_t)n);
    memcpy(q, bytes + 8, (size_t)n);
}
#endif

#ifndef Q7_HAS_CENTRED_BITS
Q7_INLINE q7_f32 q7_centred_bits(q7_i32 v, int shift, int bits) {
    return q7_sub(q7_bits(v, shift, (1 << bits) - 1), q7_set1((float)(1 << (bits - 1))));
}
#endif

#ifndef Q7_HAS_TRANSPOSE /* four lanes */
Q7_INLINE void q7_transpose(q7_f32 v[Q7_W]) {
    float x[Q7_W][Q7_W], y[Q7_W][Q7_W];
    for (int i = 0; i < Q7_W; i++) q7_store(x[i], v[i]);
    q7_transpose_4x4(x, Q7_W, y, Q7_W);
    for (int i = 0; i < Q7_W; i++) v[i] = q7_load(y[i]);
}
#endif

#ifndef Q7_HAS_LOAD_TRANSPOSED
Q7_INLINE void q7_load_transposed(const float *p, int64_t stride, q7_f32 v[Q7_W]) {
    Q7_UNROLL
    for (int i = 0; i < Q7_W; i++) v[i] = q7_load(p + i * stride);
    q7_transpose(v);
}
#endif

/* Of `left` floats, which may be more than a vector holds. */
Q7_INLINE q7_f32 q7_load_part(const float *p, int64_t left) {
    return left >= Q7_W ? q7_load(p) : q7_load_tail(p, left);
}

Q7_INLINE void q7_store_part(float *p, q7_f32 v, int64_t left) {
    if (left >= Q7_W)
        q7_store(p, v);
    else
        q7_store_tail(p, v, left);
}

/* q7_load_transposed of what there is of so many rows and columns, and zeros. */
Q7_INLINE void q7_load_transposed_part(const float *p, int64_t stride, int64_t rows,
                                       int64_t columns, q7_f32 v[Q7_W]) {
    if (rows >= Q7_W && columns >= Q7_W) {
        q7_load_transposed(p, stride, v);
        return;
    }
    Q7_UNROLL
    for (int i = 0; i < Q7_W; i++)
        v[i] = i < rows ? q7_load_part(p + i * stride, columns) : q7_set1(0.0f);
    q7_transpose(v);
}

/* part(i, vectors, last) for n floats, four vectors at a time: so many vectors, a constant, from i on,
 * of the last one `last` floats. */
#define Q7_BY_4_VECTORS(n, part)                                     \
    {                                                                \
        int64_t i = 0;                                               \
        for (; i + 4 * Q7_W <= (n); i += 4 * Q7_W) part(i, 4, Q7_W); \
        const int64_t left = (n)-i;                                  \
        switch ((left + Q7_W - 1) / Q7_W) {                          \
            case 0: break;                                           \
            case 1: part(i, 1, left); break;                         \
            case 2: part(i, 2, left - Q7_W); break;                  \
            case 3: part(i, 3, left - 2 * Q7_W); break;              \
            default: part(i, 4, left - 3 * Q7_W); break;             \
        }                                                            \
    }

/* Hints only: any address is allowed. */
Q7_INLINE void q7_prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }
Q7_INLINE void q7_prefetch_near(const void *p) { __builtin_prefetch(p, 0, 3); }
Q7_INLINE void q7_prefetch_write(const void *p) { __builtin_prefetch(p, 1, 3); }

enum { Q7_LINE_FLOATS = 16 }; /* of a line of a cache */

/* Loops over so many floats and more find them beyond L1. Where vectors are lines they prefetch what
 * they write, Q7_AHEAD floats from there, as hardware that sees every line touched once does not: Relu in
 * L2 takes 0.95 of the time, and 0.76 where vectors are parts of two lines. */
enum { Q7_LONG = 4096, Q7_AHEAD = 128, Q7_VECTORS_ARE_LINES = Q7_W == Q7_LINE_FLOATS };
#endif
