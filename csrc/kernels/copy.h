/* copy.h: blocks of a transposition of 4-byte elements: y[p * y_stride + q] = x[q * x_stride + p] for
 * p < Q7_COPY_BLOCK, q < blocks * Q7_COPY_BLOCK. They are moved as they are: NaN payloads survive. */
#ifndef Q7_KERNELS_COPY_H
#define Q7_KERNELS_COPY_H
#include "../abi.h"

enum { Q7_COPY_BLOCK = 16 }; /* elements: a cache line of x, and of y */

typedef void (*q7_copy_kernel)(const uint32_t *x, int64_t x_stride, uint32_t *y, int64_t y_stride,
                               int64_t blocks);
#endif
