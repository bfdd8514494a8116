/* unary.h: y[i] = op(x[i]) for one run of n elements, in f32 and f64; abs, neg, sign, relu, clip, shrink
 * and bitwise_not in every integer dtype; not on bool. Integers wrap: abs and neg of the lowest value are
 * that value; the bounds of clip are cut to integers.
 *
 * Any alignment; y may be x (not for isnan and isinf, which give bool bytes). alpha and beta:
 *
 *     clip          min(max(x, alpha), beta), NaN stays
 *     leaky_relu    x < 0 ? alpha * x : x
 *     elu           x < 0 ? alpha * (exp(x) - 1) : x
 *     hard_sigmoid  max(0, min(1, alpha * x + beta))
 *     swish         x * sigmoid(alpha * x)
 *     softcap       alpha * tanh(x / alpha)
 *     affine        alpha * x + beta
 *     scaled_tanh   alpha * tanh(beta * x)
 *     affine_hard_swish  alpha * x * max(0, min(1, x / 6 + 1/2)) + beta
 *     selu          beta * (x < 0 ? alpha * (exp(x) - 1) : x)
 *     celu          x < 0 ? alpha * (exp(x / alpha) - 1) : x
 *     thresholded_relu  x > alpha ? x : 0, NaN too
 *     shrink        x < -alpha ? x + beta : x > alpha ? x - beta : 0, NaN too
 *
 * NaN gives NaN everywhere else. round is to nearest even. Accuracy of the functions: math.h, and
 * unary_typed.c for f64.
 * Members of op: UNARY in ops.def. */
#ifndef Q7_KERNELS_UNARY_H
#define Q7_KERNELS_UNARY_H
#include "../abi.h"

typedef void (*q7_unary_kernel)(int64_t dtype, int64_t op, int64_t n, const void *x, void *y,
                                double alpha, double beta);
#endif
