/* block_gemm.c: the kernel of block_gemm.h for every ISA; its tile is that of tile.h for gemm. */
#define Q7_GEMM_TILE
#include "block_gemm.h"

#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *tile);

/* The zeros of block b, columns from j on; bits is a constant where this is inlined. */
Q7_INLINE q7_f32 zeros_of(const q7_block_tile *t, int64_t b, int64_t j, const int bits) {
    if (!t->zero) return q7_set1((float)(1 << (bits - 1)));
    if (t->byte_zeros) return q7_float(q7_load_bytes((const uint8_t *)t->zero + b * NR + j));
    return q7_load((const float *)t->zero + b * NR + j);
}

/* Rows [first, first + k) of the panel; bits is a constant where this is inlined. */
Q7_INLINE void make(const q7_block_tile *t, const int bits) {
    const int per = 8 / bits, mask = (1 << bits) - 1;
    const int64_t end = t->first + t->gemm.k;
    float *room = t->room;
    for (int64_t i = t->first, stop; i < end; i = stop) {
        const int64_t b = i / t->block;
        stop = q7_min(end, (b + 1) * t->block);
        q7_f32 scale[VECTORS], zero[VECTORS]; /* in registers: stores to room might change them */
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            scale[j] = q7_load(t->scale + b * NR + j * Q7_W);
            zero[j] = zeros_of(t, b, j * Q7_W, bits);
        }
        for (int64_t byte = i / per; byte * per < stop; byte++, room += per * NR) {
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++) {
                const q7_i32 v = q7_load_bytes(t->q + byte * NR + j * Q7_W);
                Q7_UNROLL
                for (int e = 0; e < per; e++)
                    q7_store(room + e * NR + j * Q7_W,
                             q7_mul(q7_sub(q7_bits(v, e * bits, mask), zero[j]), scale[j]));
            }
        }
    }
}

/* Sums of each element that take turns, as far as registers reach: they hide the latency of fma. */
Q7_INLINE int turns_of(int m) { return 2 * m <= MR ? 2 : 1; }

/* part += rows of q under one byte, of which `count` exist; m, bits and count are constants where
 * this is inlined. part: [turns_of(m)][m][VECTORS]. */
Q7_INLINE void add_byte(const q7_block_tile *t, int64_t byte, const int m, const int bits,
                        const int count, const q7_f32 *shift, q7_f32 *part) {
    const int per = 8 / bits;
    Q7_UNROLL
    for (int j = 0; j < VECTORS; j++) {
        const q7_i32 v = q7_load_bytes(t->q + byte * NR + j * Q7_W);
        Q7_UNROLL
        for (int e = 0; e < count; e++) {
            q7_f32 w = q7_centred_bits(v, e * bits, bits);
            if (shift) w = q7_sub(w, shift[j]);
            Q7_UNROLL
            for (int i = 0; i < m; i++) {
                q7_f32 *p = &part[(e % turns_of(m) * m + i) * VECTORS + j];
                *p = q7_fma(q7_set1(t->gemm.a[i * t->gemm.a_row_stride + byte * per + e]), w, *p);
            }
        }
    }
}

/* c = or += a @ w for all k of a panel; m, bits and shifts are constants where this is inlined. */
Q7_INLINE void stream(const q7_block_tile *t, const int m, const int bits, const bool shifts) {
    const int per = 8 / bits, turns = turns_of(m);
    const int64_t k = t->gemm.k, blocks = q7_ceil_div(k, t->block);
    const float *bias = t->gemm.epilogue ? t->gemm.epilogue->bias : NULL;
    q7_f32 sum[Q7_BLOCK_FEW * VECTORS], part[2 * Q7_BLOCK_FEW * VECTORS], zero[VECTORS];
    const q7_f32 centre = q7_set1((float)(1 << (bits - 1))), *shift = shifts ? zero : NULL;
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_set1(0.0f);
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t end = q7_min(k, (b + 1) * t->block);
        Q7_UNROLL
        for (int i = 0; i < turns * m * VECTORS; i++) part[i] = q7_set1(0.0f);
        Q7_UNROLL
        for (int j = 0; j < VECTORS && shifts; j++)
            zero[j] = q7_sub(zeros_of(t, b, j * Q7_W, bits), centre);
        int64_t byte = b * t->block / per;
        for (; (byte + 1) * per <= end; byte++) {
            q7_prefetch(t->q + byte * NR + 2048);
            add_byte(t, byte, m, bits, per, shift, part);
        }
        for (int64_t rest = end - byte * per; rest > 0; rest = 0) { /* the last byte of all */
            if (rest == 1) add_byte(t, byte, m, bits, 1, shift, part);
            if (rest == 2) add_byte(t, byte, m, bits, per < 2 ? per : 2, shift, part);
            if (rest == 3) add_byte(t, byte, m, bits, per < 3 ? per : 3, shift, part);
        }
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++) {
                q7_f32 x = part[i * VECTORS + j];
                if (turns > 1) x = q7_add(x, part[(m + i) * VECTORS + j]);
                const q7_f32 scale = q7_load(t->scale + b * NR + j * Q7_W);
                sum[i * VECTORS + j] = q7_fma(x, scale, sum[i * VECTORS + j]);
            }
        }
    }
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            const int64_t left = t->gemm.n - j * Q7_W, at = j * Q7_W;
            if (left <= 0) continue;
            q7_f32 x = sum[i * VECTORS + j];
            if (t->gemm.accumulate)
                x = q7_add(q7_load_part(t->gemm.c + i * t->gemm.c_stride + at, left), x);
            if (bias) x = q7_add(x, q7_load_part(bias + at, left));
            q7_store_part(t->gemm.c + i * t->gemm.c_stride + at, x, left);
        }
    }
}

/* clang-format off */
#define STREAM(m, bits)                                       \
    static void stream_##m##_##bits(const q7_block_tile *t) { \
        if (t->zero)                                          \
            stream(t, m, bits, true);                         \
        else                                                  \
            stream(t, m, bits, false);                        \
    }
STREAM(1, 2) STREAM(1, 4) STREAM(1, 8)
STREAM(2, 2) STREAM(2, 4) STREAM(2, 8)
STREAM(3, 2) STREAM(3, 4) STREAM(3, 8)
static void (*const streams[Q7_BLOCK_FEW][3])(const q7_block_tile *t) = {
    {stream_1_2, stream_1_4, stream_1_8},
    {stream_2_2, stream_2_4, stream_2_8},
    {stream_3_2, stream_3_4, stream_3_8}};
/* clang-format on */

void Q7_KERNEL(block_gemm_f32)(const q7_block_tile *tile) {
    if (tile->gemm.m <= Q7_BLOCK_FEW) {
        streams[tile->gemm.m - 1][tile->bits / 4](tile);
        return;
    }
    switch (tile->bits) {
        case 2: make(tile, 2); break;
        case 4: make(tile, 4); break;
        default: make(tile, 8); break;
    }
    q7_gemm_block t = tile->gemm;
    t.b = tile->room;
    t.b_stride = NR;
    t.b_packed = true;
    Q7_KERNEL(gemm_f32)(&t);
}
