/* softmax.h: y = softmax(x) = e / sum(e), e = exp(x - max x), or its logarithm x - max x -
 * log(sum(e)), for `count` vectors of n elements.
 *
 * stride == 1: the vectors are rows, one after the other, n floats each.
 * stride > 1:  the vectors are adjacent columns of one (n, stride) slab:
 *
 *        count
 *      <------->
 *      x x x x x . . .  ^
 *      x x x x x . . .  | n     a row of the slab is `stride` floats
 *      x x x x x . . .  v
 *
 * Any alignment; y may be x. A vector that holds NaN or +inf, or only -inf, gives NaN (log: NaN
 * where the formula says so); n >= 1. Sums are f32, of long rows in 4 Q7_W partial sums; results
 * differ between ISAs by rounding, never by how rows are grouped. */
#ifndef Q7_KERNELS_SOFTMAX_H
#define Q7_KERNELS_SOFTMAX_H
#include "../abi.h"

typedef void (*q7_softmax_kernel)(int64_t count, int64_t n, int64_t stride, const float *x,
                                  float *y, bool log);
#endif
