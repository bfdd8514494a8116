/* math.h: elementary functions on q7_f32, and the activations of a fused epilogue.
 *
 * Polynomials are minimax fits by bench/fit_math.py. `Bound: name [in [low, high]] number unit` is
 * the largest error on 300,000 finite floats (not a proof), over all ISAs and rounded up: in units
 * of the last place of the float32 result (ulp), or absolute; scalar, without fma, is the worst.
 * tests/kernels/test_ulp.py reads these lines and holds them. NaN gives NaN everywhere. Read
 * simd/simd.h first. */
#ifndef Q7_MATH_H
#define Q7_MATH_H
#include <math.h>

#include "../abi.h"
#include "../simd/simd.h"
#include "gelu_pieces.h"

Q7_INLINE q7_f32 q7_clip(q7_f32 x, q7_f32 low, q7_f32 high) {
    return q7_vmin(high, q7_vmax(low, x));
}

/* n = x / ln(2), rounded; power = q7_exp2i(n + shift and its origin). */
Q7_INLINE q7_f32 q7_halvings(q7_f32 x, float shift, q7_f32 *power) {
    const q7_f32 origin = q7_set1(Q7_EXP2I_ORIGIN + shift);
    const q7_f32 t = q7_fma(x, q7_set1(0x1.715476p+0f), origin);
    *power = q7_exp2i(t);
    return q7_sub(t, origin);
}

/* p with 1 + p r = e^r and e^x = e^r * 2^n, |r| <= ln(2) / 2: ln(2) in two parts, of which n times
 * the first is exact. */
Q7_INLINE q7_f32 q7_exp_polynomial(q7_f32 x, q7_f32 n, q7_f32 *reduced) {
    q7_f32 r = q7_fnma(n, q7_set1(0.693359375f), x);
    r = *reduced = q7_fnma(n, q7_set1(-2.12194440e-4f), r);
    q7_f32 p = q7_set1(0x1.6a5134p-10f);
    p = q7_fma(p, r, q7_set1(0x1.12397cp-7f));
    p = q7_fma(p, r, q7_set1(0x1.5558acp-5f));
    p = q7_fma(p, r, q7_set1(0x1.555492p-3f));
    p = q7_fma(p, r, q7_set1(0x1.fffffcp-2f));
    return q7_fma(p, r, q7_set1(1.0f));
}

/* e^r, with which e^x = e^r * 2^n */
Q7_INLINE q7_f32 q7_exp_reduced(q7_f32 x, q7_f32 n) {
    q7_f32 r;
    const q7_f32 p = q7_exp_polynomial(x, n, &r);
    return q7_fma(p, r, q7_set1(1.0f));
}

/* e^x; inf from 88.73, 0 below -104, denormals before that. Bound: exp 1.2 ulp */
Q7_INLINE q7_f32 q7_exp(q7_f32 x) {
    q7_f32 power;
    x = q7_clip(x, q7_set1(-104.0f), q7_set1(89.0f));
    const q7_f32 n = q7_halvings(x, 0, &power);
    return q7_ldexp(q7_exp_reduced(x, n), n);
}

/* 1 + e^x, as twice e^x / 2, which does not overflow before it; denormals, for which CPUs take a hundred
 * cycles, are never formed. */
Q7_INLINE q7_f32 q7_exp_plus_one(q7_f32 x) {
    q7_f32 half;
    x = q7_clip(x, q7_set1(-87.0f), q7_set1(89.0f));
    const q7_f32 p = q7_exp_reduced(x, q7_halvings(x, -1, &half));
    return q7_fma(q7_mul(p, half), q7_set1(2.0f), q7_set1(1.0f));
}

/* e^x for x <= 0 (or a little above); 0 below 2^-125, without forming denormals.
 * Bound: exp_nonpositive in [-86.64, 0] 1.2 ulp
 * Bound: exp_nonpositive in [-inf, -86.64] 0x1p-124 absolute */
Q7_INLINE q7_f32 q7_exp_nonpositive(q7_f32 x) {
    const q7_f32 low = q7_set1(-0x1.5a92d6p+6f), from_low = q7_vmax(low, x);
    q7_f32 power;
    const q7_f32 p = q7_exp_reduced(from_low, q7_halvings(from_low, 0, &power));
    return q7_select(q7_lt(x, low), q7_set1(0.0f), q7_mul(p, power));
}

/* 2^x for x < 128; 0 below 2^-126, without forming denormals. Powers of two are exact.
 * Bound: exp2 in [-126, 0] 1.2 ulp
 * Bound: exp2 in [-inf, -126] 0x1p-125 absolute */
Q7_INLINE q7_f32 q7_exp2(q7_f32 x) {
    q7_f32 whole;
    const q7_f32 f = q7_fraction(x, &whole);
    q7_f32 p = q7_set1(0x1.c4456ep-13f);
    p = q7_fma(p, f, q7_set1(0x1.47373ap-10f));
    p = q7_fma(p, f, q7_set1(0x1.3cfd82p-7f));
    p = q7_fma(p, f, q7_set1(0x1.c68af6p-5f));
    p = q7_fma(p, f, q7_set1(0x1.ebfd3ap-3f));
    p = q7_fma(p, f, q7_set1(0x1.62e42cp-1f));
    p = q7_fma(p, f, q7_set1(1.0f));
    return q7_scale(p, whole);
}

/* 2^(x by + n) for x by + n in [-126, 128), where start = n + Q7_POWER_ORIGIN and n is an integer of
 * less than 2^19. The exponent takes no rounding where it is cut into sixteenths or eighths, whose powers
 * are in a table. */
#ifdef Q7_HAS_POWER
#define Q7_POWER_ORIGIN (0x1.8p+23f / Q7_W)
Q7_INLINE q7_f32 q7_normal_power_of(q7_f32 x, q7_f32 by, q7_f32 start) {
    const q7_f32 t = q7_fma(x, by, start), f = q7_fma(x, by, q7_sub(start, t));
    const q7_f32 power = q7_power(t);
    q7_f32 p = q7_set1(Q7_W == 16 ? 0x1.c6b46ap-5f : 0x1.c6c000p-5f);
    p = q7_fma(p, f, q7_set1(Q7_W == 16 ? 0x1.ebfff4p-3f : 0x1.ec0c32p-3f));
    p = q7_fma(p, f, q7_set1(0x1.62e430p-1f));
    return q7_fma(q7_mul(p, f), power, power);
}
#else
#define Q7_POWER_ORIGIN 0.0f
Q7_INLINE q7_f32 q7_normal_power_of(q7_f32 x, q7_f32 by, q7_f32 start) {
    return q7_exp2(q7_fma(x, by, start));
}
#endif

/* The same, 0 below 2^-126. Bound: power in [-126, 0] 1.4 ulp
 * Bound: power in [-inf, -126] 0x1p-125 absolute */
Q7_INLINE q7_f32 q7_power_of(q7_f32 x, q7_f32 by, q7_f32 start) {
    const q7_mask tiny = q7_lt(q7_fma(x, by, start), q7_set1(Q7_POWER_ORIGIN - 126.0f));
    return q7_select(tiny, q7_set1(0.0f), q7_normal_power_of(x, by, start));
}

/* (e^x - 1) / 2, as p r 2^(n-1) + (2^(n-1) - 1/2): no cancellation near 0. Right up to 88.73. */
Q7_INLINE q7_f32 q7_half_expm1(q7_f32 x) {
    q7_f32 half, r;
    x = q7_clip(x, q7_set1(-20.0f), q7_set1(89.0f));
    const q7_f32 p = q7_exp_polynomial(x, q7_halvings(x, -1, &half), &r);
    return q7_fma(q7_mul(p, r), half, q7_sub(half, q7_set1(0.5f)));
}

/* e^x - 1; inf from 88.73.
 * Bound: elu 2.1 ulp
 * Bound: selu 2.3 ulp
 * Bound: celu 2.5 ulp */
Q7_INLINE q7_f32 q7_expm1(q7_f32 x) {
    const q7_f32 y = q7_half_expm1(x);
    return q7_add(y, y);
}

/* ln x, denormals included; -inf at 0, NaN below. Bound: log 0.9 ulp */
Q7_INLINE q7_f32 q7_log(q7_f32 x) {
    const q7_mask denormal = q7_lt(x, q7_set1(0x1p-126f));
    q7_f32 e, m = q7_frexp(q7_select(denormal, q7_mul(x, q7_set1(0x1p+24f)), x), &e);
    e = q7_sub(e, q7_select(denormal, q7_set1(24.0f), q7_set1(0.0f)));
    const q7_mask high =
        q7_lt(q7_set1(0x1.6a09e6p+0f), m); /* keep m - 1 in [sqrt(1/2), sqrt(2)] - 1 */
    m = q7_sub(q7_select(high, q7_mul(m, q7_set1(0.5f)), m), q7_set1(1.0f));
    e = q7_add(e, q7_select(high, q7_set1(1.0f), q7_set1(0.0f)));
    q7_f32 p = q7_set1(-0x1.4205b8p-4f);
    p = q7_fma(p, m, q7_set1(0x1.07d89cp-3f));
    p = q7_fma(p, m, q7_set1(-0x1.0cdf1p-3f));
    p = q7_fma(p, m, q7_set1(0x1.226cd8p-3f));
    p = q7_fma(p, m, q7_set1(-0x1.54789p-3f));
    p = q7_fma(p, m, q7_set1(0x1.99a5acp-3f));
    p = q7_fma(p, m, q7_set1(-0x1.00022p-2f));
    p = q7_fma(p, m, q7_set1(0x1.55554ap-2f));
    const q7_f32 square = q7_mul(m, m);
    p = q7_mul(q7_mul(p, m), square);
    p = q7_fma(e, q7_set1(-2.12194440e-4f), p);
    p = q7_fma(square, q7_set1(-0.5f), p);
    q7_f32 y = q7_fma(e, q7_set1(0.693359375f), q7_add(m, p));
    y = q7_select(q7_lt(x, q7_set1(INFINITY)), y, x); /* inf and NaN */
    y = q7_select(q7_eq(x, q7_set1(0.0f)), q7_set1(-INFINITY), y);
    return q7_select(q7_lt(x, q7_set1(0.0f)), q7_set1(NAN), y);
}

/* erf(x): x + x p(x^2) up to 1, then 1 - 2^q(|x|), which is 1 from 4 on. Bound: erf 1.3 ulp */
Q7_INLINE q7_f32 q7_erf(q7_f32 x) {
    const q7_f32 one = q7_set1(1.0f), t = q7_vmin(q7_set1(4.0f), q7_abs(x)), s = q7_mul(x, x);
    q7_f32 p = q7_set1(0x1.4771fcp-14f);
    p = q7_fma(p, s, q7_set1(-0x1.a3515ep-11f));
    p = q7_fma(p, s, q7_set1(0x1.53f224p-8f));
    p = q7_fma(p, s, q7_set1(-0x1.b7f71ap-6f));
    p = q7_fma(p, s, q7_set1(0x1.ce2ce6p-4f));
    p = q7_fma(p, s, q7_set1(-0x1.81273ep-2f));
    p = q7_fma(p, s, q7_set1(0x1.06eba8p-3f));
    q7_f32 q = q7_set1(-0x1.b5a79ep-10f);
    q = q7_fma(q, t, q7_set1(0x1.5e9518p-6f));
    q = q7_fma(q, t, q7_set1(-0x1.065f0cp-3f));
    q = q7_fma(q, t, q7_set1(-0x1.e342c6p-1f));
    q = q7_fma(q, t, q7_set1(-0x1.9cc56p+0f));
    q = q7_fma(q, t, q7_set1(-0x1.ef46bap-9f));
    const q7_f32 power = q7_normal_power_of(q, one, q7_set1(Q7_POWER_ORIGIN));
    return q7_select(q7_lt(one, t), q7_copysign(q7_sub(one, power), x), q7_fma(p, x, x));
}

/* tanh(x): x p(x^2) / q(x^2), at most 1, which it is from 9.2 on. Bound: tanh 6.2 ulp */
Q7_INLINE q7_f32 q7_tanh(q7_f32 x) {
    const q7_f32 one = q7_set1(1.0f), t = q7_vmin(q7_set1(9.2f), q7_abs(x)), s = q7_mul(t, t);
    q7_f32 p = q7_set1(0x1.e01d3cp-27f), q = q7_set1(0x1.aef6acp-21f);
    p = q7_fma(p, s, q7_set1(0x1.611ffep-16f));
    q = q7_fma(q, s, q7_set1(0x1.5d1224p-12f));
    p = q7_fma(p, s, q7_set1(0x1.cda302p-9f));
    q = q7_fma(q, s, q7_set1(0x1.a99cbep-6f));
    p = q7_fma(p, s, q7_set1(0x1.127f76p-3f));
    q = q7_fma(q, s, q7_set1(0x1.de950ap-2f));
    p = q7_fma(p, q7_mul(t, s), t);
    q = q7_fma(q, s, one);
    return q7_copysign(q7_vmin(one, q7_div(p, q)), x);
}

/* 1 / (1 + e^-x); 0 below -88.73.
 * Bound: sigmoid in [-88.72, inf] 2.2 ulp
 * Bound: sigmoid in [-inf, -88.72] 0x1p-127 absolute */
Q7_INLINE q7_f32 q7_sigmoid(q7_f32 x) { return q7_div(q7_set1(1.0f), q7_exp_plus_one(q7_neg(x))); }

/* x sigmoid(x); -0 below -88.73, NaN at -inf.
 * Bound: silu in [-88.72, inf] 2.5 ulp
 * Bound: silu in [-inf, -88.72] 0x1p-121 absolute */
Q7_INLINE q7_f32 q7_silu(q7_f32 x) { return q7_div(x, q7_exp_plus_one(q7_neg(x))); }

#ifdef Q7_HAS_CHOICE
/* max(x, 0) - t h(t) with t = |x|: h is a polynomial in the distance to the nearest multiple of
 * 1 / per, whose coefficients are chosen from tables; 0 from 15 / per on. */
Q7_INLINE q7_f32 q7_in_pieces(q7_f32 x, float per, const float h[Q7_PIECE_TERMS][Q7_PIECES]) {
    const q7_f32 t = q7_vmin(q7_set1((Q7_PIECES - 1) / per), q7_abs(x));
    const q7_f32 origin = q7_set1(0x1.8p+23f), i = q7_fma(t, q7_set1(per), origin);
    const q7_f32 u = q7_fma(t, q7_set1(per), q7_sub(origin, i));
    q7_f32 p = q7_choice(h[Q7_PIECE_TERMS - 1], i);
    Q7_UNROLL
    for (int k = Q7_PIECE_TERMS - 2; k >= 0; k--) p = q7_fma(p, u, q7_choice(h[k], i));
    return q7_fnma(t, p, q7_vmax(q7_set1(-0.0f), x));
}
#endif

/* x Phi(x) = x (1 + erf(x / sqrt(2))) / 2, as max(x, 0) - t Phi(-t) with t = |x|: no cancellation.
 * Without tables 2 Phi(-t) = 2^p(t), p of odd and even powers apart. Left of -1 an ulp of p counts;
 * below -10, where it is -9e-24, it stays so.
 * Bound: gelu in [-1, inf] 4 ulp
 * Bound: gelu in [-5, -1] 47 ulp
 * Bound: gelu in [-inf, -5] 0x1p-30 absolute */
Q7_INLINE q7_f32 q7_gelu(q7_f32 x) {
#ifdef Q7_HAS_CHOICE
    return q7_in_pieces(x, 1 / 0.4375f, q7_gelu_pieces);
#else
    const q7_f32 t = q7_vmin(q7_set1(10.0f), q7_abs(x)), square = q7_mul(t, t);
    q7_f32 odd = q7_set1(-0x1.3d45bap-26f), even = q7_set1(0x1.3f19d6p-21f);
    odd = q7_fma(odd, square, q7_set1(-0x1.1185bcp-17f));
    even = q7_fma(even, square, q7_set1(0x1.f9593ep-15f));
    odd = q7_fma(odd, square, q7_set1(-0x1.d7afa6p-13f));
    even = q7_fma(even, square, q7_set1(-0x1.cd1774p-14f));
    odd = q7_fma(odd, square, q7_set1(0x1.cf9fd6p-8f));
    even = q7_fma(even, square, q7_set1(-0x1.ae3f1ap-5f));
    odd = q7_fma(odd, square, q7_set1(-0x1.d63816p-2f));
    even = q7_fma(even, square, q7_set1(-0x1.26aee6p+0f));
    const q7_f32 from = q7_set1(Q7_POWER_ORIGIN - 1);
    const q7_f32 half = q7_normal_power_of(q7_fma(odd, t, even), t, from);
    return q7_fnma(t, half, q7_vmax(q7_set1(0.0f), x));
#endif
}

/* x (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3); -0 far left,
 * where u = -inf. Left of -1 an ulp of u counts.
 * Bound: gelu_tanh in [-1, inf] 2.7 ulp
 * Bound: gelu_tanh in [-5, -1] 90 ulp
 * Bound: gelu_tanh in [-inf, -5] 0x1p-30 absolute */
Q7_INLINE q7_f32 q7_gelu_tanh(q7_f32 x) {
#ifdef Q7_HAS_CHOICE
    return q7_in_pieces(x, 1 / 0.4f, q7_gelu_tanh_pieces);
#else
    const q7_f32 s = q7_fma(q7_mul(x, x), q7_set1(-0x1.2444f2p-4f), q7_set1(-0x1.988454p+0f));
    return q7_div(x, q7_exp_plus_one(q7_mul(x, s)));
#endif
}

/* sin(x + quarters * pi / 2) for |x| <= 8192 */
Q7_INLINE q7_f32 q7_sin_shifted(q7_f32 x, float quarters) {
    const q7_f32 n = q7_round_even(q7_mul(x, q7_set1(0x1.45f306p-1f)));
    q7_f32 r =
        q7_fnma(n, q7_set1(1.5703125f), x); /* pi / 2 in parts; n times one of three is exact */
    r = q7_fnma(n, q7_set1(4.837512969970703125e-4f), r);
    r = q7_fnma(n, q7_set1(0x1.444p-24f), r);
    r = q7_fnma(n, q7_set1(0x1.68c234p-39f), r);
    const q7_f32 s = q7_mul(r, r);
    q7_f32 sine = q7_set1(-0x1.9955aep-13f);
    sine = q7_fma(sine, s, q7_set1(0x1.11077cp-7f));
    sine = q7_fma(sine, s, q7_set1(-0x1.555546p-3f));
    sine = q7_fma(q7_mul(sine, s), r, r);
    q7_f32 cosine = q7_set1(0x1.99e0ecp-16f);
    cosine = q7_fma(cosine, s, q7_set1(-0x1.6c0c1ap-10f));
    cosine = q7_fma(cosine, s, q7_set1(0x1.55554ap-5f));
    cosine = q7_fma(q7_mul(cosine, s), s, q7_fma(s, q7_set1(-0.5f), q7_set1(1.0f)));
    const q7_f32 half = q7_mul(q7_add(n, q7_set1(quarters)), q7_set1(0.5f)), turns = q7_floor(half);
    const q7_f32 quarter = q7_mul(turns, q7_set1(0.5f));
    const q7_f32 y = q7_select(q7_eq(half, turns), sine, cosine);
    return q7_select(q7_eq(quarter, q7_floor(quarter)), y, q7_neg(y));
}

/* libm takes over beyond 8192.
 * Bound: sin 1.6 ulp
 * Bound: cos 1.7 ulp */
Q7_INLINE q7_f32 q7_sin_or_cos(q7_f32 x, bool cosine) {
    const q7_f32 y = q7_sin_shifted(x, cosine ? 1.0f : 0.0f);
    const q7_mask small = q7_le(q7_abs(x), q7_set1(8192.0f));
    if (!q7_any(q7_mask_not(small))) return y;
    float lanes[Q7_W];
    q7_store(lanes, x);
    for (int i = 0; i < Q7_W; i++) lanes[i] = cosine ? cosf(lanes[i]) : sinf(lanes[i]);
    return q7_select(small, y, q7_load(lanes));
}
Q7_INLINE q7_f32 q7_sin(q7_f32 x) { /* reduction loses the sign of zero */
    return q7_select(q7_eq(x, q7_set1(0.0f)), x, q7_sin_or_cos(x, false));
}
Q7_INLINE q7_f32 q7_cos(q7_f32 x) { return q7_sin_or_cos(x, true); }

/* asin(x) - x for |x| <= 1/2, s = x^2 */
Q7_INLINE q7_f32 q7_asin_rest(q7_f32 x, q7_f32 s) {
    q7_f32 p = q7_set1(0x1.59cc8ep-5f);
    p = q7_fma(p, s, q7_set1(0x1.8bb538p-6f));
    p = q7_fma(p, s, q7_set1(0x1.748a2cp-5f));
    p = q7_fma(p, s, q7_set1(0x1.33016ap-4f));
    p = q7_fma(p, s, q7_set1(0x1.5555cap-3f));
    return q7_mul(q7_mul(p, s), x);
}

/* Beyond 1/2 asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2)); NaN beyond 1. pi / 2 is a float and a rest.
 * Bound: asin 1.8 ulp
 * Bound: acos 1.1 ulp */
#define Q7_HALF_PI 0x1.921fb6p+0f
#define Q7_HALF_PI_REST -0x1.777a5cp-25f
Q7_INLINE q7_f32 q7_asin(q7_f32 x) {
    const q7_f32 half = q7_set1(0.5f), t = q7_abs(x);
    const q7_mask small = q7_le(t, half);
    const q7_f32 s = q7_select(small, q7_mul(x, x), q7_fnma(t, half, half));
    const q7_f32 z = q7_select(small, t, q7_sqrt(s)), rest = q7_asin_rest(z, s);
    const q7_f32 twice = q7_fma(q7_set1(2.0f), rest, q7_set1(-Q7_HALF_PI_REST));
    const q7_f32 far = q7_sub(q7_fnma(q7_set1(2.0f), z, q7_set1(Q7_HALF_PI)), twice);
    return q7_copysign(q7_select(small, q7_add(z, rest), far), x);
}
Q7_INLINE q7_f32 q7_acos(q7_f32 x) {
    const q7_f32 half = q7_set1(0.5f), two = q7_set1(2.0f), t = q7_abs(x);
    const q7_mask small = q7_le(t, half), left = q7_lt(x, q7_set1(0.0f));
    const q7_f32 s = q7_select(small, q7_mul(x, x), q7_fnma(t, half, half));
    const q7_f32 z = q7_select(small, x, q7_sqrt(s)), rest = q7_asin_rest(z, s);
    const q7_f32 high = q7_set1(Q7_HALF_PI), low = q7_set1(Q7_HALF_PI_REST);
    const q7_f32 near = q7_sub(high, q7_sub(z, q7_sub(low, rest)));
    const q7_f32 right = q7_mul(two, q7_add(z, rest));
    const q7_f32 far = q7_mul(two, q7_sub(high, q7_sub(z, q7_sub(low, rest))));
    return q7_select(small, near, q7_select(left, far, right));
}

/* atan of |x|, or of -1 / |x| or (|x| - 1) / (|x| + 1) where that is small, and pi / 2 or pi / 4.
 * Bound: atan 1.8 ulp */
Q7_INLINE q7_f32 q7_atan(q7_f32 x) {
    const q7_f32 t = q7_abs(x), one = q7_set1(1.0f), zero = q7_set1(0.0f);
    const q7_mask far = q7_lt(q7_set1(0x1.3504f4p+1f), t),
                  middle = q7_lt(q7_set1(0x1.a8279ap-2f), t);
    const q7_f32 top = q7_select(far, q7_set1(-1.0f), q7_select(middle, q7_sub(t, one), t));
    const q7_f32 bottom = q7_select(far, t, q7_select(middle, q7_add(t, one), one));
    const q7_f32 share = q7_select(far, one, q7_select(middle, q7_set1(0.5f), zero));
    const q7_f32 z = q7_div(top, bottom), s = q7_mul(z, z);
    q7_f32 p = q7_set1(-0x1.f31f26p-5f);
    p = q7_fma(p, s, q7_set1(0x1.b22f08p-4f));
    p = q7_fma(p, s, q7_set1(-0x1.23ba44p-3f));
    p = q7_fma(p, s, q7_set1(0x1.9991e8p-3f));
    p = q7_fma(p, s, q7_set1(-0x1.55554ap-2f));
    const q7_f32 rest = q7_fma(share, q7_set1(Q7_HALF_PI_REST), q7_mul(q7_mul(p, s), z));
    return q7_copysign(q7_fma(share, q7_set1(Q7_HALF_PI), q7_add(z, rest)), x);
}

/* log(1 + u) for u in [0, 1]: the rounding error of w = 1 + u cancels in log(w) * u / (w - 1).
 * Bound: softplus 2.8 ulp */
Q7_INLINE q7_f32 q7_log1p_unit(q7_f32 u) {
    const q7_f32 one = q7_set1(1.0f), w = q7_add(one, u), d = q7_sub(w, one);
    return q7_select(q7_eq(d, q7_set1(0.0f)), u, q7_mul(q7_log(w), q7_div(u, d)));
}

/* x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2), as (1 + e^x)^2 = n + 1; past 30 the
 * quotient is 1. NaN at -inf, as the formula has it.
 * Bound: mish in [-87, inf] 4 ulp
 * Bound: mish in [-inf, -87] 0x1p-142 absolute */
Q7_INLINE q7_f32 q7_mish(q7_f32 x) {
    const q7_f32 two = q7_set1(2.0f), e = q7_exp(q7_vmin(q7_set1(30.0f), x));
    const q7_f32 n = q7_mul(e, q7_add(e, two));
    return q7_mul(x, q7_div(n, q7_add(n, two)));
}

/* A member of the closed set ACT, Q7_act_*; unary.h says what alpha and beta are. The bounds, with
 * alpha = 1.5 and beta = 0.75 (swish: half an ulp of alpha x counts |alpha x| times):
 * Bound: softcap 7 ulp
 * Bound: scaled_tanh 7 ulp
 * Bound: softsign 1.6 ulp
 * Bound: swish in [-4, inf] 6 ulp
 * Bound: swish in [-40, -4] 40 ulp
 * Bound: swish in [-inf, -40] 0x1p-80 absolute */
Q7_INLINE q7_f32 q7_act(int64_t act, q7_f32 x, q7_f32 alpha, q7_f32 beta) {
    const q7_f32 zero = q7_set1(0.0f), one = q7_set1(1.0f);
    q7_f32 y;
    switch (act) {
        case Q7_act_relu: return q7_vmax(zero, x);
        case Q7_act_gelu: return q7_gelu(x);
        case Q7_act_gelu_tanh: return q7_gelu_tanh(x);
        case Q7_act_silu: return q7_silu(x);
        case Q7_act_swish: return q7_div(x, q7_exp_plus_one(q7_neg(q7_mul(alpha, x))));
        case Q7_act_tanh: return q7_tanh(x);
        case Q7_act_sigmoid: return q7_sigmoid(x);
        case Q7_act_softplus:
            return q7_add(q7_vmax(zero, x), q7_log1p_unit(q7_exp(q7_neg(q7_abs(x)))));
        case Q7_act_mish: return q7_mish(x);
        case Q7_act_hard_sigmoid: return q7_clip(q7_fma(alpha, x, beta), zero, one);
        case Q7_act_hard_swish:
        case Q7_act_affine_hard_swish: /* x + 3 is exact where the result is about to vanish */
            y = q7_clip(q7_add(x, q7_set1(3.0f)), zero, q7_set1(6.0f));
            y = q7_mul(x, q7_mul(y, q7_set1(1.0f / 6)));
            return act == Q7_act_hard_swish ? y : q7_fma(alpha, y, beta);
        case Q7_act_clip: return q7_clip(x, alpha, beta);
        case Q7_act_leaky_relu: return q7_select(q7_lt(x, zero), q7_mul(alpha, x), x);
        case Q7_act_elu: return q7_select(q7_lt(x, zero), q7_mul(alpha, q7_expm1(x)), x);
        case Q7_act_softcap: return q7_mul(alpha, q7_tanh(q7_div(x, alpha)));
        case Q7_act_squared_relu: x = q7_vmax(zero, x); return q7_mul(x, x);
        case Q7_act_affine: return q7_fma(alpha, x, beta);
        case Q7_act_scaled_tanh: return q7_mul(alpha, q7_tanh(q7_mul(beta, x)));
        case Q7_act_thresholded_relu: return q7_select(q7_lt(alpha, x), x, zero);
        case Q7_act_softsign: return q7_div(x, q7_add(one, q7_abs(x)));
        default: return x;
    }
}
#endif
