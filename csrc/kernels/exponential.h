/* exponential.h: exp and tanh of doubles, without branches or calls, so that loops over them vectorise
 * for any instruction set. Errors: see unary.c. */
#ifndef Q7_KERNELS_EXPONENTIAL_H
#define Q7_KERNELS_EXPONENTIAL_H
#include <stdint.h>
#include <string.h>

#define Q7_WHOLE 0x1.8p52 /* added, the low bits are those of a whole number */

/* 2^n, n whole in [-1022, 1023], given as n + Q7_WHOLE. */
static inline double q7_power_of_2(double n) {
    uint64_t bits;
    memcpy(&bits, &n, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&n, &bits, sizeof n);
    return n;
}

/* x = *n ln 2 + what is returned, *n whole, the rest in [-0.35, 0.35]. |x| < 2^20 */
static inline double q7_without_powers(double x, double *n) {
    *n = (x * 0x1.71547652b82fep+0 + Q7_WHOLE) - Q7_WHOLE;
    return (x - *n * 0x1.62e42feep-1) - *n * 0x1.a39ef35793c76p-33;
}

/* e^r - 1, |r| <= 0.35, by 1 / k!: r^14 / 14! is 2^-57 of e^r. */
static inline double q7_exponential_less_1(double r) {
    const double s = r * r;
    const double even =
        1.0 / 2 +
        s * (1.0 / 24 +
             s * (1.0 / 720 + s * (1.0 / 40320 + s * (1.0 / 3628800 + s * (1.0 / 479001600)))));
    const double odd =
        1.0 / 6 +
        s * (1.0 / 120 +
             s * (1.0 / 5040 + s * (1.0 / 362880 + s * (1.0 / 39916800 + s * (1.0 / 6227020800)))));
    return r + s * (even + r * odd);
}

static inline double q7_exp_f64(double x) {
    x = x < -746 ? -746 : x; /* 0 and infinity from there on; NaN stays */
    x = x > 710 ? 710 : x;
    double n;
    const double r = q7_without_powers(x, &n);
    const double half = n * 0.5 + Q7_WHOLE, other = n - (half - Q7_WHOLE) + Q7_WHOLE;
    return (1 + q7_exponential_less_1(r)) * q7_power_of_2(half) * q7_power_of_2(other);
}

/* With e = e^2x - 1: e / (e + 2), or 1 - 2 / (e + 2), which rounds less where it is above a half. */
static inline double q7_tanh_f64(double x) {
    double twice = 2 * (x < 0 ? -x : x), n;
    twice = twice > 40 ? 40 : twice; /* 1 from there on; NaN stays */
    const double r = q7_without_powers(twice, &n), scale = q7_power_of_2(n + Q7_WHOLE);
    const double e = scale * q7_exponential_less_1(r) + (scale - 1);
    const double y = (e < 2 ? 0.0 : 1.0) + (e < 2 ? e : -2) / (e + 2);
    return x < 0 ? -y : x == 0 ? x : y;
}
#endif
