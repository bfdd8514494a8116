/* unary_int.h: the loops of unary.c for integers of type T. Included once per integer dtype. */

/* The nearest number that T has; 0 for NaN. */
static inline W NAMED(saturated)(double x) {
    return x >= (double)HIGHEST ? HIGHEST : x > (double)LOWEST ? (W)x : x == x ? LOWEST : 0;
}

static inline W NAMED(shrunk)(T x, double threshold, double bias) {
    const double v = (double)x;
    return NAMED(saturated)(v < -threshold ? v + bias : v > threshold ? v - bias : 0);
}

/* y[i] = e for every i, with V the element there, widened: narrowing the result wraps it. */
#define EACH(e) \
    for (int64_t i = 0; i < n; i++) y[i] = (T)(e)
#define V ((W)x[i])
static void NAMED(unary)(int64_t op, int64_t n, const void *from, void *to, double alpha,
                         double beta) {
    const T *x = from;
    T *y = to;
    switch (op) {
        case Q7_unary_abs: EACH(IS_NEGATIVE(V) ? 0 - (uint64_t)V : (uint64_t)V); break;
        case Q7_unary_neg: EACH(0 - (uint64_t)V); break;
        case Q7_unary_sign: EACH((V > 0) - IS_NEGATIVE(V)); break;
        case Q7_unary_relu: EACH(V > 0 ? V : 0); break;
        case Q7_unary_bitwise_not: EACH(~V); break;
        case Q7_unary_shrink: EACH(NAMED(shrunk)(x[i], alpha, beta)); break;
        default: { /* clip */
            const W low = NAMED(saturated)(alpha), high = NAMED(saturated)(beta);
            EACH(V < low ? (low < high ? low : high) : V > high ? high : V);
            break;
        }
    }
}
#undef EACH
#undef V
#include "typed_end.h"
