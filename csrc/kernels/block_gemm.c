/* block_gemm.c: the kernel of block_gemm.h for every ISA; its tile is that of tile.h. */
#include "block_gemm.h"

#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_tile *tile);

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Rows [first, first + k) of the panel; bits is a constant where this is inlined. */
Q7_INLINE void make(const q7_block_tile *t, const int bits) {
    const int per = 8 / bits, mask = (1 << bits) - 1;
    const int64_t end = t->first + t->gemm.k;
    float *room = t->room;
    for (int64_t i = t->first, stop; i < end; i = stop) {
        const int64_t b = i / t->block;
        stop = least(end, (b + 1) * t->block);
        q7_f32 scale[VECTORS], zero[VECTORS]; /* in registers: stores to room might change them */
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            scale[j] = q7_load(t->scale + b * NR + j * Q7_W);
            zero[j] = q7_load(t->zero + b * NR + j * Q7_W);
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

void Q7_KERNEL(block_gemm_f32)(const q7_block_tile *tile) {
    switch (tile->bits) {
        case 2: make(tile, 2); break;
        case 4: make(tile, 4); break;
        default: make(tile, 8); break;
    }
    q7_gemm_tile t = tile->gemm;
    t.b = tile->room;
    t.b_stride = NR;
    t.b_packed = true;
    for (int64_t row = 0; row < tile->gemm.m; row += MR) {
        t.m = least(MR, tile->gemm.m - row);
        t.a = tile->gemm.a + row * t.a_row_stride;
        t.c = tile->gemm.c + row * t.c_stride;
        Q7_KERNEL(gemm_f32)(&t);
    }
}
