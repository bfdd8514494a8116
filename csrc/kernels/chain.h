/* chain.h: one f32 instruction of a chain: y[i] = op(a[i * a_stride], b[i * b_stride]).
 *
 * op is a member of UNARY, or of BINARY counted on from there (abi.h, Q7_chain_binary); strides are
 * 0 or 1, a unary op wants 1 (or n = 1). These are the loops of unary.h and binary.h of the same
 * instruction set and nothing else, so that a chain has the bits of its ops run one by one. */
#ifndef Q7_KERNELS_CHAIN_H
#define Q7_KERNELS_CHAIN_H
#include "../abi.h"

typedef void (*q7_chain_kernel)(int64_t op, int64_t n, const void *a, int64_t a_stride,
                                const void *b, int64_t b_stride, void *y, double alpha,
                                double beta);
#endif
