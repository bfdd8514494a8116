/* block_qgemm.c: the kernel of ../block_qgemm.h, for ISAs that multiply and add four bytes at a time.
 *
 * A piece of k of the panel becomes quads of int8, less their zeros, in L1, and every tile of rows is
 * multiplied by it. Where q7_dot_quads takes unsigned bytes, those of rows are 128 more, and sums begin
 * with -128 * the sum of the block's weights. Rows that stream are signed, their weights unsigned and
 * with their zeros, which come in by the sum of the row. */
#include "../block_qgemm.h"

#include <float.h>
#include <math.h>

#include "../add_quads.h"

#ifdef Q7_QUADS_SATURATE
#define NAME(symbol) Q7_CAT(symbol##u8x2_, Q7_ISA)
#else
#define NAME(symbol) Q7_CAT(symbol##u8_, Q7_ISA)
#endif
_Static_assert(NR == NAME(nr_block_qgemm_), "the tile in kernels.def is another");
enum {
    GROUP = 4 * Q7_W,              /* bytes of a q7_block */
    FLIP = 128 ^ Q7_QUAD_FLIP,     /* of the bytes of rows */
    SHIFTS = Q7_BLOCK_QGEMM_K / 16 /* blocks of a piece, at most */
};

/* Scales, and their reciprocals, of the blocks of a row. */
static void scale_row(const float *a, int64_t k, int64_t block, float *scale, float *inverse) {
    for (int64_t first = 0; first < k; first += block, scale++, inverse++) {
        const int64_t end = q7_min(k, first + block);
        q7_f32 most = q7_set1(0.0f), odd = most; /* odd: NaN where one of x is NaN or infinite */
        for (int64_t i = first; i < end; i += Q7_W) {
            const q7_f32 x = q7_load_part(a + i, end - i);
            most = q7_vmax(q7_abs(x), most);
            odd = q7_fma(x, q7_set1(0.0f), odd);
        }
        const float least = q7_any(q7_unordered(odd)) ? NAN : FLT_MIN; /* 1 / scale is finite */
        const float s = q7_hmax(most) / 127.0f;
        *scale = s > least ? s : least;
        *inverse = 1.0f / *scale;
    }
}

/* Bytes of a row in the order of the quads of q; bits is a constant where this is inlined. */
Q7_INLINE void arrange(uint8_t *row, int64_t k, const int bits) {
    const int per = 8 / bits;
    for (int64_t i = 0; i < k; i += Q7_BLOCK_GROUP, row += Q7_BLOCK_GROUP) {
        uint8_t from[Q7_BLOCK_GROUP];
        memcpy(from, row, Q7_BLOCK_GROUP);
        Q7_UNROLL
        for (int p = 0; p < Q7_BLOCK_GROUP / 4; p++) {
            Q7_UNROLL
            for (int b = 0; b < 4; b++)
                row[4 * p + b] = from[p / per * 4 * per + b * per + p % per];
        }
    }
}

static void round_rows(const q7_block_qtile *t) {
    const int64_t k = t->k, lines = q7_lines(k), blocks = q7_ceil_div(k, t->block);
    const uint8_t flip = t->streams ? 0 : FLIP;
    for (int64_t r = 0; r < t->m; r++) {
        const float *a = t->a + r * t->a_stride;
        char *row = t->rows + r * q7_block_row_bytes(k, t->block);
        float *scale = (float *)(void *)(row + lines), *inverse = scale + q7_lines(blocks * 4) / 4;
        int32_t *sums = (int32_t *)(inverse + q7_lines(blocks * 4) / 4);
        scale_row(a, k, t->block, scale, inverse);
        for (int64_t i = 0, left = t->block; i < k; i += GROUP) {
            q7_f32 x[4];
            Q7_UNROLL
            for (int v = 0; v < 4; v++) {
                const int64_t at = i + v * Q7_W;
                if (left == 0) inverse++, left = t->block;
                left -= Q7_W;
                x[v] = q7_set1(0.0f);
                if (at < k) x[v] = q7_mul(q7_load_part(a + at, k - at), q7_set1(*inverse));
            }
            const q7_block bytes = q7_block_in_order(q7_block_of(x, 0, true));
            q7_block_store((uint8_t *)row + i, q7_block_xor(bytes, q7_block_set1(flip)));
        }
        for (int64_t b = 0; b < blocks && t->streams; b++) {
            const int8_t *bytes = (const int8_t *)row + b * t->block;
            sums[b] = 0;
            for (int64_t i = 0; i < q7_min(t->block, k - b * t->block); i++) sums[b] += bytes[i];
        }
        if (t->bits == 4) arrange((uint8_t *)row, k, 4);
        if (t->bits == 2) arrange((uint8_t *)row, k, 2);
    }
}

typedef uint32_t lanes __attribute__((vector_size(4 * Q7_W)));

/* Quads of a word: as many as its bytes hold weights; bits is a constant where this is inlined, here and
 * below. */
#define QUADS(bits) (8 / (bits))

Q7_INLINE lanes words_at(const uint8_t *q, int word, int j) {
    lanes w;
    memcpy(&w, q + 4 * (word * NR + j * Q7_W), sizeof w);
    return w;
}

Q7_INLINE lanes quad_of(lanes w, int place, const int bits) {
    return w >> place * bits & ((1u << bits) - 1) * 0x01010101u;
}

/* Weights under row i, a multiple of Q7_BLOCK_GROUP. */
Q7_INLINE const uint8_t *words_under(const q7_block_qtile *t, int64_t i, const int bits) {
    enum { LINE = 64, AHEAD = 2048 };
    const int bytes = Q7_BLOCK_GROUP * bits / 8 * NR;
    const uint8_t *q = t->q + i / Q7_BLOCK_GROUP * bytes;
    for (int l = 0; l < bytes; l += LINE) q7_prefetch(q + l + AHEAD);
    return q;
}

/* The zeros of the columns from j on for row i of w; bits is a constant where this is inlined. */
Q7_INLINE q7_i32 zeros_of(const q7_block_qtile *t, int64_t i, int64_t j, const int bits) {
    if (!t->zero) return q7_i32_set1(1 << (bits - 1));
    return q7_load_bytes(t->zero + i / t->block * NR + j);
}

/* Rows [first, first + k) of the panel as quads, and what the sums of their blocks begin with. */
Q7_INLINE void make(const q7_block_qtile *t, const int bits, int64_t first, int64_t k,
                    int8_t *quads, int32_t *shifts) {
    const uint32_t high = 0x80808080u;
    const int64_t end = first + k;
    for (int64_t i = first; i < end; shifts += NR) {
        const int64_t stop = q7_min(end, i + t->block);
        lanes zeros[VECTORS];
        q7_i32 sum[VECTORS];
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            zeros[j] = (lanes)zeros_of(t, i, j * Q7_W, bits) * 0x01010101u;
            sum[j] = q7_i32_set1(0);
        }
        for (; i < stop; i += Q7_BLOCK_GROUP) {
            const uint8_t *q = words_under(t, i, bits);
            Q7_UNROLL
            for (int p = 0; p < Q7_BLOCK_GROUP / 4; p++, quads += 4 * NR) {
                Q7_UNROLL
                for (int j = 0; j < VECTORS; j++) {
                    int8_t *to = quads + 4 * Q7_W * j;
                    lanes w = quad_of(words_at(q, p / QUADS(bits), j), p % QUADS(bits), bits);
                    w = bits == 8 ? w ^ high : ((w | high) - zeros[j]) ^ high; /* byte by byte */
                    memcpy(to, &w, sizeof w);
                    sum[j] = q7_dot_quads(sum[j], to, q7_i32_set1(0x01010101));
                }
            }
        }
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++)
            q7_i32_store(shifts + j * Q7_W, q7_i32_mul(sum[j], q7_i32_set1(-FLIP)));
    }
}

typedef struct piece {
    int64_t first, k, block, row_bytes, scales; /* of a row: where its scales begin */
    const int8_t *quads;
    const int32_t *shifts;
    const float *scale;
} piece;

/* A block of k of some rows. */
typedef struct rows_block {
    const char *bytes, *scale;
    int64_t stride, quads;
    const int8_t *w;
    const int32_t *shift;
    const float *w_scale;
} rows_block;

/* total (m, NR) += m rows times a block; m is a constant where this is inlined. */
Q7_INLINE void multiply(const rows_block *x, const int m, float *total) {
    q7_i32 sum[MR * VECTORS];
    const int sums = Q7_SUM_ROWS(m) * VECTORS;
    Q7_UNROLL
    for (int i = 0; i < sums; i++)
        sum[i] = i < m * VECTORS ? q7_i32_load(x->shift + i % VECTORS * Q7_W) : q7_i32_set1(0);
    int64_t stride = x->stride;
    __asm__("" : "+r"(stride)); /* in a register */
    const char *origin[3];
    const int8_t *w = x->w;
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = x->bytes + 5 * i * stride;
    int64_t quads = x->quads;
#ifdef Q7_QUADS_SATURATE /* weights are 15 at most: 4 * 2 * 255 * 15 is an int16 */
    for (; quads >= 4; quads -= 4) {
        q7_add_quads_in_pairs(sum, origin, stride, w, m, VECTORS, 4);
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += 16;
        w += 16 * NR;
    }
#endif
    q7_turn_sums(sum, m, VECTORS);
    for (; quads >= Q7_STEP; quads -= Q7_STEP) {
        q7_add_quads(sum, origin, stride, 0, w, m, VECTORS, Q7_STEP);
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += 4 * Q7_STEP;
        w += 4 * Q7_STEP * NR;
    }
    q7_turn_sums(sum, m, VECTORS);
    Q7_UNROLL /* without this gcc stores sums in the loop */
        for (int i = 0; i < m * VECTORS; i++) sum[i] = (q7_i32)q7_keep((q7_f32)sum[i]);
    const char *scale = x->scale;
    q7_f32 w_scale[VECTORS];
    Q7_UNROLL
    for (int j = 0; j < VECTORS; j++) w_scale[j] = q7_load(x->w_scale + j * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < m; i++, scale += stride) {
        float one;
        memcpy(&one, scale, sizeof one);
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            float *to = total + i * NR + j * Q7_W;
            const q7_f32 by = q7_mul(q7_set1(one), w_scale[j]);
            q7_store(to, q7_fma(q7_float(sum[i * VECTORS + j]), by, q7_load(to)));
        }
    }
}

typedef void rows_of(const rows_block *x, float *total);
/* clang-format off */
#define ROWS(m) \
    static void rows_##m(const rows_block *x, float *total) { multiply(x, m, total); }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m,
static rows_of *const by_rows[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

/* total (m, NR) += m rows times a piece, block by block: gcc keeps sums in registers in a function of a
 * block, not within a loop over them. */
static void add_blocks(const piece *p, const char *rows, int64_t m, float *total) {
    rows_block x = {.bytes = rows + p->first,
                    .scale = rows + p->scales + p->first / p->block * 4,
                    .stride = p->row_bytes,
                    .w = p->quads,
                    .shift = p->shifts,
                    .w_scale = p->scale};
    rows_of *const multiply_rows = by_rows[m - 1];
    for (int64_t left = p->k; left > 0; left -= p->block) {
        x.quads = q7_ceil_div(q7_min(p->block, left), Q7_BLOCK_GROUP) * (Q7_BLOCK_GROUP / 4);
        multiply_rows(&x, total);
        x.bytes += p->block;
        x.scale += 4;
        x.w += p->block * NR;
        x.shift += NR;
        x.w_scale += NR;
    }
}

static void finish(const q7_block_qtile *t, int64_t i, int64_t j, q7_f32 x) {
    if (j >= t->n) return;
    if (t->bias) x = q7_add(x, q7_load_part(t->bias + j, t->n - j));
    q7_store_part(t->c + i * t->c_stride + j, x, t->n - j);
}

/* Of few rows, all k; m and bits are constants where this is inlined. */
Q7_INLINE void stream(const q7_block_qtile *t, const int m, const int bits) {
    const int64_t lines = q7_lines(t->k), scales = q7_lines(q7_ceil_div(t->k, t->block) * 4);
    const int64_t stride = q7_block_row_bytes(t->k, t->block);
    /* Where both are signed, as in NEON. */
    const int32_t centre = Q7_QUAD_FLIP && bits == 8 ? 128 : 0;
    const int chains = m <= 2 ? 2 : 1; /* few sums would wait for one another */
    q7_f32 total[Q7_BLOCK_STREAMED * VECTORS];
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) total[i] = q7_set1(0.0f);
    for (int64_t first = 0, b = 0; first < t->k; first += t->block, b++) {
        const int64_t stop = q7_min(t->k, first + t->block);
        q7_i32 sum[Q7_BLOCK_STREAMED * VECTORS];
        Q7_UNROLL
        for (int i = 0; i < chains * m * VECTORS; i++) sum[i] = q7_i32_set1(0);
        for (int64_t i = first; i < stop; i += Q7_BLOCK_GROUP) {
            const uint8_t *q = words_under(t, i, bits);
            const char *row = t->rows + i;
            Q7_UNROLL
            for (int p = 0; p < Q7_BLOCK_GROUP / 4; p++) {
                q7_i32 *to = sum + p % chains * m * VECTORS;
                Q7_UNROLL
                for (int j = 0; j < VECTORS; j++) {
                    const lanes w = words_at(q, p / QUADS(bits), j);
                    const q7_i32 quad = (q7_i32)(quad_of(w, p % QUADS(bits), bits) ^
                                                 (uint32_t)centre * 0x01010101u);
                    Q7_UNROLL
                    for (int r = 0; r < m; r++) {
                        int32_t four;
                        memcpy(&four, row + r * stride + 4 * p, sizeof four);
                        to[r * VECTORS + j] =
                            q7_dot_unsigned(to[r * VECTORS + j], quad, q7_i32_set1(four));
                    }
                }
            }
        }
        Q7_UNROLL
        for (int i = 0; i < (chains - 1) * m * VECTORS; i++)
            sum[i] = q7_i32_add(sum[i], sum[m * VECTORS + i]);
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            const q7_i32 zero =
                q7_i32_add(zeros_of(t, first, j * Q7_W, bits), q7_i32_set1(-centre));
            const q7_f32 scale = q7_load(t->scale + b * NR + j * Q7_W);
            Q7_UNROLL
            for (int i = 0; i < m; i++) {
                const char *row = t->rows + i * stride + lines + b * 4;
                float row_scale;
                int32_t row_sum;
                memcpy(&row_scale, row, sizeof row_scale);
                memcpy(&row_sum, row + 2 * scales, sizeof row_sum);
                const int at = i * VECTORS + j;
                sum[at] = q7_i32_add(sum[at], q7_i32_mul(zero, q7_i32_set1(-row_sum)));
                total[at] = q7_fma(q7_float(sum[at]), q7_mul(q7_set1(row_scale), scale), total[at]);
            }
        }
    }
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) finish(t, i / VECTORS, i % VECTORS * Q7_W, total[i]);
}

/* clang-format off */
#define STREAM(m, bits) \
    static void stream_##m##_##bits(const q7_block_qtile *t) { stream(t, m, bits); }
STREAM(1, 2) STREAM(1, 4) STREAM(1, 8)
STREAM(2, 2) STREAM(2, 4) STREAM(2, 8)
STREAM(3, 2) STREAM(3, 4) STREAM(3, 8)
STREAM(4, 2) STREAM(4, 4) STREAM(4, 8)
static void (*const streams[Q7_BLOCK_STREAMED][3])(const q7_block_qtile *t) = {
    {stream_1_2, stream_1_4, stream_1_8},
    {stream_2_2, stream_2_4, stream_2_8},
    {stream_3_2, stream_3_4, stream_3_8},
    {stream_4_2, stream_4_4, stream_4_8}};
/* clang-format on */

void NAME(q7_block_qgemm_)(const q7_block_qtile *t) {
    if (!t->q) {
        round_rows(t);
        return;
    }
    if (t->streams) {
        streams[t->m - 1][t->bits / 4](t);
        return;
    }
    const int64_t k = t->k, m = t->m, most = Q7_BLOCK_QGEMM_K / t->block * t->block;
    float *total = t->room;
    int32_t *shifts = (int32_t *)(void *)(total + Q7_GEMM_ROWS * NR);
    int8_t *quads = (int8_t *)(shifts + SHIFTS * NR);
    memset(total, 0, (size_t)(m * NR) * sizeof *total);
    for (int64_t first = 0; first < k; first += most) {
        const piece p = {.first = first,
                         .k = q7_min(most, k - first),
                         .block = t->block,
                         .row_bytes = q7_block_row_bytes(k, t->block),
                         .scales = q7_lines(k),
                         .quads = quads,
                         .shifts = shifts,
                         .scale = t->scale + first / t->block * NR};
        switch (t->bits) {
            case 2: make(t, 2, first, p.k, quads, shifts); break;
            case 4: make(t, 4, first, p.k, quads, shifts); break;
            default: make(t, 8, first, p.k, quads, shifts); break;
        }
        const int64_t tiles = q7_ceil_div(m, MR); /* as even as can be: short ones wait for sums */
        for (int64_t i = 0, row = 0, next; i < tiles; i++, row = next) {
            next = m * (i + 1) / tiles;
            add_blocks(&p, t->rows + row * p.row_bytes, next - row, total + row * NR);
        }
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < NR; j += Q7_W) finish(t, i, j, q7_load(total + i * NR + j));
}
