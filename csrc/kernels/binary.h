/* binary.h: y[i] = op(a[i * a_stride], b[i * b_stride]) for one run of n elements of any dtype but halves.
 *
 * Strides are 0 or 1: a vector or one repeated element. Any alignment; y may be a or b when that
 * one has stride 1. Comparisons give bool bytes (0 or 1), the others the dtype of a and b. min and
 * max give NaN when either side is NaN. mod has the sign of b (a rest of 0 too), fmod that of a.
 * prelu is a < 0 ? a * b : a. f32 results are bit-identical across ISAs, but for pow where the C
 * library differs. Integers wrap; integers.h says what their quotients, powers and shifts are. and,
 * or, xor are bitwise, which is logical on bools. Members of op: BINARY in ops.def. */
#ifndef Q7_KERNELS_BINARY_H
#define Q7_KERNELS_BINARY_H
#include "../abi.h"

typedef void (*q7_binary_kernel)(int64_t dtype, int64_t op, int64_t n, const void *a,
                                 int64_t a_stride, const void *b, int64_t b_stride, void *y);

/* y[i] = second(first(a[i], b[i * b_stride]), c[i * c_stride]) of floats, or `low` where that is less; each
 * of the two is add, sub or mul. Bits are those of one after the other. y may be a, and b or c of stride 1. */
typedef void (*q7_binary_pair_kernel)(int64_t first, int64_t second, int64_t n, const float *a,
                                      const float *b, int64_t b_stride, const float *c,
                                      int64_t c_stride, float low, float *y);

static inline bool q7_binary_pairs(int64_t op) {
    return op == Q7_binary_add || op == Q7_binary_sub || op == Q7_binary_mul;
}

/* Of an element of y. */
static inline int64_t q7_binary_bytes(int64_t op, int64_t dtype) {
    const bool compares = op >= Q7_binary_equal && op <= Q7_binary_greater_equal;
    return compares ? 1 : q7_dtype_bytes(dtype);
}
#endif
