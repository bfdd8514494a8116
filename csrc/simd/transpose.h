/* transpose.h: what every transposition is made of: blocks of 4 x 4 elements of 4 bytes, and pairs, and
 * of 8 x 8 of 1 or 2 bytes.
 *
 * In the vector extensions of GCC and Clang, so that drivers, which are compiled once for the
 * baseline of the CPU, share it with kernels. Elements are moved as integers: NaN payloads survive.
 */
#ifndef Q7_TRANSPOSE_H
#define Q7_TRANSPOSE_H
#include <stdint.h>
#include <string.h>

typedef uint32_t q7_u32x4 __attribute__((vector_size(16)));

typedef uint8_t q7_u8x16 __attribute__((vector_size(16)));
typedef uint16_t q7_u16x8 __attribute__((vector_size(16)));

#if defined(__clang__)
#define Q7_SHUFFLE_AS(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define Q7_SHUFFLE_AS(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif
#define Q7_SHUFFLE(a, b, i, j, k, l) Q7_SHUFFLE_AS(q7_u32x4, a, b, i, j, k, l)

/* y[j * y_stride + i] = x[i * x_stride + j] for i, j in [0, 4), of 4 bytes each, which may lie anywhere;
 * strides in elements. */
static inline void q7_transpose_4x4(const void *x, int64_t x_stride, void *y, int64_t y_stride) {
    q7_u32x4 row[4], column[4];
    for (int i = 0; i < 4; i++) memcpy(&row[i], (const char *)x + 4 * i * x_stride, sizeof row[i]);
    const q7_u32x4 low01 = Q7_SHUFFLE(row[0], row[1], 0, 4, 1, 5);
    const q7_u32x4 low23 = Q7_SHUFFLE(row[2], row[3], 0, 4, 1, 5);
    const q7_u32x4 high01 = Q7_SHUFFLE(row[0], row[1], 2, 6, 3, 7);
    const q7_u32x4 high23 = Q7_SHUFFLE(row[2], row[3], 2, 6, 3, 7);
    column[0] = Q7_SHUFFLE(low01, low23, 0, 1, 4, 5);
    column[1] = Q7_SHUFFLE(low01, low23, 2, 3, 6, 7);
    column[2] = Q7_SHUFFLE(high01, high23, 0, 1, 4, 5);
    column[3] = Q7_SHUFFLE(high01, high23, 2, 3, 6, 7);
    for (int j = 0; j < 4; j++) memcpy((char *)y + 4 * j * y_stride, &column[j], sizeof column[j]);
}

/* v, n vectors, becomes the elements of its first and its second half by turns: of 8 x 8 elements, three
 * times make a transposition. */
#define Q7_TURNS(type, v, n, low, high)                       \
    for (int turn = 0; turn < 3; turn++) {                    \
        type by_turns[n];                                     \
        for (int i = 0; i < (n) / 2; i++) {                   \
            by_turns[2 * i] = low(v[i], v[i + (n) / 2]);      \
            by_turns[2 * i + 1] = high(v[i], v[i + (n) / 2]); \
        }                                                     \
        memcpy(v, by_turns, sizeof by_turns);                 \
    }
#define Q7_LOW_8(a, b) \
    Q7_SHUFFLE_AS(q7_u8x16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define Q7_HIGH_8(a, b) \
    Q7_SHUFFLE_AS(q7_u8x16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define Q7_LOW_16(a, b) Q7_SHUFFLE_AS(q7_u16x8, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define Q7_HIGH_16(a, b) Q7_SHUFFLE_AS(q7_u16x8, a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* y[j * y_stride + i] = x[i * x_stride + j] for i, j in [0, 8); strides in bytes. */
static inline void q7_transpose_8x8_u8(const char *x, int64_t x_stride, char *y, int64_t y_stride) {
    q7_u8x16 v[4];
    char *rows = (char *)v;
    for (int i = 0; i < 8; i++) memcpy(rows + 8 * i, x + i * x_stride, 8);
    Q7_TURNS(q7_u8x16, v, 4, Q7_LOW_8, Q7_HIGH_8)
    for (int i = 0; i < 8; i++) memcpy(y + i * y_stride, rows + 8 * i, 8);
}

/* The same for elements of two bytes. */
static inline void q7_transpose_8x8_u16(const char *x, int64_t x_stride, char *y,
                                        int64_t y_stride) {
    q7_u16x8 v[8];
    for (int i = 0; i < 8; i++) memcpy(&v[i], x + i * x_stride, sizeof v[i]);
    Q7_TURNS(q7_u16x8, v, 8, Q7_LOW_16, Q7_HIGH_16)
    for (int i = 0; i < 8; i++) memcpy(y + i * y_stride, &v[i], sizeof v[i]);
}

/* y[j * y_stride + i] = x[3 i + j] for i in [0, n), n at least the lanes of a vector; y_stride in bytes. Each
 * turn makes of three vectors the elements of their first and their second half by turns, so that element e is
 * at 2 e modulo 3 lanes - 1, and after all turns at e times the lanes. */
#define Q7_UNZIP_THREES(name, type, lanes, turns, low, other)                                     \
    static inline void name(const char *x, char *y, int64_t y_stride, int64_t n) {                \
        enum { BYTES = sizeof(type) / (lanes) };                                                  \
        for (int64_t q = 0; q < n; q += (lanes)) {                                                \
            const int64_t i = q < n - (lanes) ? q : n - (lanes);                                  \
            type v[3];                                                                            \
            memcpy(v, x + 3 * i * BYTES, sizeof v);                                               \
            for (int turn = 0; turn < (turns); turn++) {                                          \
                const type by_turns[3] = {low(v[0], other(v[1])), low(other(v[0]), v[2]),         \
                                          low(v[1], other(v[2]))};                                \
                memcpy(v, by_turns, sizeof v);                                                    \
            }                                                                                     \
            for (int j = 0; j < 3; j++) memcpy(y + j * y_stride + i * BYTES, &v[j], sizeof v[j]); \
        }                                                                                         \
    }
#define Q7_LOW_32(a, b) Q7_SHUFFLE(a, b, 0, 4, 1, 5)
#define Q7_OTHER_8(a) \
    Q7_SHUFFLE_AS(q7_u8x16, a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define Q7_OTHER_16(a) Q7_SHUFFLE_AS(q7_u16x8, a, a, 4, 5, 6, 7, 0, 1, 2, 3)
#define Q7_OTHER_32(a) Q7_SHUFFLE(a, a, 2, 3, 0, 1)
Q7_UNZIP_THREES(q7_unzip_threes_u8, q7_u8x16, 16, 4, Q7_LOW_8, Q7_OTHER_8)
Q7_UNZIP_THREES(q7_unzip_threes_u16, q7_u16x8, 8, 3, Q7_LOW_16, Q7_OTHER_16)
Q7_UNZIP_THREES(q7_unzip_threes_u32, q7_u32x4, 4, 2, Q7_LOW_32, Q7_OTHER_32)

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
#undef Q7_UNZIP_THREES
#undef Q7_LOW_32
#undef Q7_OTHER_8
#undef Q7_OTHER_16
#undef Q7_OTHER_32
#undef Q7_TURNS
#undef Q7_LOW_8
#undef Q7_HIGH_8
#undef Q7_LOW_16
#undef Q7_HIGH_16
#undef Q7_SHUFFLE
#undef Q7_SHUFFLE_AS
#endif
