/* chain.c: the loops of unary.c and binary.c behind one address. Read chain.h first. */
#include "chain.h"

#include "../simd/simd.h"

void Q7_KERNEL(unary_f32)(int64_t op, int64_t n, const void *x, void *y, double alpha, double beta);
void Q7_KERNEL(binary_f32)(int64_t op, int64_t n, const void *a, int64_t a_stride, const void *b,
                           int64_t b_stride, void *y);

void Q7_KERNEL(chain_f32)(int64_t op, int64_t n, const void *a, int64_t a_stride, const void *b,
                          int64_t b_stride, void *y, double alpha, double beta) {
    if (op < Q7_chain_binary)
        Q7_KERNEL(unary_f32)(op, n, a, y, alpha, beta);
    else
        Q7_KERNEL(binary_f32)(op - Q7_chain_binary, n, a, a_stride, b, b_stride, y);
}
