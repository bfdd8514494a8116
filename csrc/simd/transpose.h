/* transpose.h: what every transposition of 4-byte elements is made of: blocks of 4 x 4, and pairs.
 *
 * In the vector extensions of GCC and Clang, so that drivers, which are compiled once for the
 * baseline of the CPU, share it with kernels. Elements are moved as integers: NaN payloads survive.
 */
#ifndef Q7_TRANSPOSE_H
#define Q7_TRANSPOSE_H
#include <stdint.h>
#include <string.h>

typedef uint32_t q7_u32x4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define Q7_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define Q7_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (q7_u32x4){i, j, k, l})
#endif

/* y[j * y_stride + i] = x[i * x_stride + j] for i, j in [0, 4); strides in elements of 4 bytes. */
static inline void q7_transpose_4x4(const void *from, int64_t x_stride, void *to,
                                    int64_t y_stride) {
    const uint32_t *x = from;
    uint32_t *y = to;
    q7_u32x4 row[4], column[4];
    for (int i = 0; i < 4; i++) memcpy(&row[i], x + i * x_stride, sizeof row[i]);
    const q7_u32x4 low01 = Q7_SHUFFLE(row[0], row[1], 0, 4, 1, 5);
    const q7_u32x4 low23 = Q7_SHUFFLE(row[2], row[3], 0, 4, 1, 5);
    const q7_u32x4 high01 = Q7_SHUFFLE(row[0], row[1], 2, 6, 3, 7);
    const q7_u32x4 high23 = Q7_SHUFFLE(row[2], row[3], 2, 6, 3, 7);
    column[0] = Q7_SHUFFLE(low01, low23, 0, 1, 4, 5);
    column[1] = Q7_SHUFFLE(low01, low23, 2, 3, 6, 7);
    column[2] = Q7_SHUFFLE(high01, high23, 0, 1, 4, 5);
    column[3] = Q7_SHUFFLE(high01, high23, 2, 3, 6, 7);
    for (int j = 0; j < 4; j++) memcpy(y + j * y_stride, &column[j], sizeof column[j]);
}

/* Two rows of n elements of 4 bytes as one of pairs. */
static inline void q7_zip(const void *first, const void *second, void *to, int64_t n) {
    const char *a = first, *b = second;
    char *y = to;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        q7_u32x4 low, high;
        memcpy(&low, a + 4 * i, sizeof low);
        memcpy(&high, b + 4 * i, sizeof high);
        const q7_u32x4 pairs[2] = {Q7_SHUFFLE(low, high, 0, 4, 1, 5),
                                   Q7_SHUFFLE(low, high, 2, 6, 3, 7)};
        memcpy(y + 8 * i, pairs, sizeof pairs);
    }
    for (; i < n; i++) {
        memcpy(y + 8 * i, a + 4 * i, 4);
        memcpy(y + 8 * i + 4, b + 4 * i, 4);
    }
}

/* A row of n pairs as two. */
static inline void q7_unzip(const void *from, void *first, void *second, int64_t n) {
    const char *x = from;
    char *a = first, *b = second;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        q7_u32x4 pairs[2];
        memcpy(pairs, x + 8 * i, sizeof pairs);
        const q7_u32x4 even = Q7_SHUFFLE(pairs[0], pairs[1], 0, 2, 4, 6);
        const q7_u32x4 odd = Q7_SHUFFLE(pairs[0], pairs[1], 1, 3, 5, 7);
        memcpy(a + 4 * i, &even, sizeof even);
        memcpy(b + 4 * i, &odd, sizeof odd);
    }
    for (; i < n; i++) {
        memcpy(a + 4 * i, x + 8 * i, 4);
        memcpy(b + 4 * i, x + 8 * i + 4, 4);
    }
}
#undef Q7_SHUFFLE
#endif
