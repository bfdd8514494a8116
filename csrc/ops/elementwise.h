/* elementwise.h: the loops of unary.c, binary.c, where.c and cast.c over one run of n elements, for
 * their own drivers and for chain.c. Strides are 0 or 1. y must not overlap what where reads; see
 * the contracts of the others in kernels/unary.h, kernels/binary.h and cast.c. */
#ifndef Q7_OPS_ELEMENTWISE_H
#define Q7_OPS_ELEMENTWISE_H
#include "../kernels/binary.h"
#include "../kernels/unary.h"

/* The loops for a dtype; f32: what serves float32. */
q7_unary_kernel q7_unary_loop(int64_t dtype, q7_unary_kernel f32);
q7_binary_kernel q7_binary_loop(int64_t dtype, q7_binary_kernel f32);

void q7_where_loop(int64_t elem_bytes, int64_t n, const void *c, int64_t c_stride, const void *a,
                   int64_t a_stride, const void *b, int64_t b_stride, void *y);

/* dtypes as in q7_cast_args; y may be x where both are of one size. */
void q7_cast_loop(int64_t from, int64_t to, int64_t n, const void *x, void *y);
#endif
