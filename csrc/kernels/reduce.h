/* reduce.h: y[c] = op over j of vector c, for `count` vectors of n elements of any dtype.
 *
 * stride == 1: the vectors are rows of n elements, one after the other; stride > 1: they are adjacent
 * columns of an (n, stride) slab, as in softmax.h. y is dense and does not overlap x.
 * mean divides by n; sumsq, l1, l2 are sums of squares, of absolute values, and the root of sumsq.
 * max and min give NaN when any element is. n == 0: sum, mean's 0 / 0, -inf for max, inf for min, 1
 * for prod. Sums of floats run over blocks of 64 vectors, whose sums are added up: the error grows with
 * 64 + n / 64 (rows: over the lanes of several vectors each) instead of n. */
#ifndef Q7_KERNELS_REDUCE_H
#define Q7_KERNELS_REDUCE_H
#include "../abi.h"

typedef void (*q7_reduce_kernel)(int64_t dtype, int64_t op, int64_t count, int64_t n,
                                 int64_t stride, const void *x, void *y);
#endif
