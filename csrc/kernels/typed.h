/* typed.h: what unary.c, binary.c and reduce.c leave to sources of their own: every dtype but f32, in
 * loops that compilers vectorise for each instruction set. */
#ifndef Q7_KERNELS_TYPED_H
#define Q7_KERNELS_TYPED_H
#include "../abi.h"
#include "../simd/simd.h"

void Q7_KERNEL(unary_typed)(int64_t dtype, int64_t op, int64_t n, const void *x, void *y,
                            double alpha, double beta);
void Q7_KERNEL(binary_typed)(int64_t dtype, int64_t op, int64_t n, const void *a, int64_t a_stride,
                             const void *b, int64_t b_stride, void *y);
void Q7_KERNEL(reduce_typed)(int64_t dtype, int64_t op, int64_t count, int64_t n, int64_t stride,
                             const void *x, void *y);
#endif
