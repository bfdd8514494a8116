/* copy.c: the kernel of copy.h for every ISA. Vectors of half a block are no faster than 4 x 4. */
#include "copy.h"

#include <string.h>

#include "../simd/simd.h"
#include "../simd/transpose.h"

/* Rows that are a power of two apart share cache sets, so that each is best read, and written, at once: as
 * one vector, or by way of a buffer. */
Q7_INLINE void transpose_block(const uint32_t *x, int64_t x_stride, uint32_t *y, int64_t y_stride) {
#ifdef Q7_ISA_avx512
    q7_f32 v[Q7_COPY_BLOCK];
    Q7_UNROLL
    for (int i = 0; i < Q7_COPY_BLOCK; i++)
        v[i] = q7_load((const float *)(const void *)(x + i * x_stride));
    q7_transpose(v);
    Q7_UNROLL
    for (int i = 0; i < Q7_COPY_BLOCK; i++) q7_store((float *)(void *)(y + i * y_stride), v[i]);
#else
    uint32_t block[Q7_COPY_BLOCK][Q7_COPY_BLOCK];
    for (int q = 0; q < Q7_COPY_BLOCK; q += 4)
        for (int p = 0; p < Q7_COPY_BLOCK; p += 4)
            q7_transpose_4x4(x + q * x_stride + p, x_stride, &block[p][q], Q7_COPY_BLOCK);
    for (int p = 0; p < Q7_COPY_BLOCK; p++) memcpy(y + p * y_stride, block[p], sizeof block[p]);
#endif
}

void Q7_KERNEL(copy_u32)(const uint32_t *x, int64_t x_stride, uint32_t *y, int64_t y_stride,
                         int64_t blocks) {
    for (; blocks > 0; blocks--, x += Q7_COPY_BLOCK * x_stride, y += Q7_COPY_BLOCK) {
        for (int i = 0; i < Q7_COPY_BLOCK && blocks > 1; i++)
            q7_prefetch(x + (Q7_COPY_BLOCK + i) * x_stride);
        transpose_block(x, x_stride, y, y_stride);
    }
}
