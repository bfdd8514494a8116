/* winograd.c: the kernel of winograd.h for every ISA; its tile is that of tile.h. Read winograd.h first. */
#include "winograd_tile.h"

/* One tile of x, B^T d B, to 16 rows that are `step` floats apart. */
static void transform_in(const q7_winograd_args *x, int64_t tile, const float *zeros, float *rows,
                         int64_t step) {
    const float *from[16];
    q7_pixels_under(x, q7_place_of(x, tile), zeros, from);
    for (int64_t c = 0; c < x->C; c += Q7_W) q7_transform_in(from, c, x->C - c, rows + c, step);
}

/* Rows and a panel of k rows to products (m, NR); meanwhile `soon` floats of what comes next for each k. */
typedef struct product {
    const float *rows, *panel, *next;
    float *to;
    int64_t row_stride, k, soon;
} product;

/* Blocks of k are summed while a tile is in L1: as calls of gemm products took 1.0 to 1.4 of the time
 * (docs/decisions.md 72). m is a constant where this is inlined. */
Q7_INLINE void multiply(const product *p, const int m) {
    /* Row i is at origin[i / 5] + i % 5 * row_bytes: any stride, with few address registers. */
    const int64_t row_bytes = p->row_stride * 4;
    const float *b = p->panel, *next = p->next;
    const char *origin[3];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = (const char *)p->rows + 5 * i * row_bytes;
    for (int64_t k0 = 0; k0 < p->k; k0 += Q7_WINOGRAD_K_BLOCK) {
        q7_f32 sum[MR * VECTORS], v[VECTORS];
        Q7_UNROLL
        for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_set1(0.0f);
        for (int64_t k = q7_min(p->k - k0, Q7_WINOGRAD_K_BLOCK); k > 0; k--) {
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++) v[j] = q7_load(b + j * Q7_W);
            Q7_UNROLL
            for (int i = 0; i < m; i++) {
                const q7_f32 x =
                    q7_set1(*(const float *)(const void *)(origin[i / 5] + i % 5 * row_bytes));
                Q7_UNROLL
                for (int j = 0; j < VECTORS; j++)
                    sum[i * VECTORS + j] = q7_fma(x, v[j], sum[i * VECTORS + j]);
            }
            q7_prefetch(next); /* up to two lines */
            q7_prefetch(next + p->soon / 2);
            next += p->soon;
            Q7_UNROLL
            for (int i = 0; i < 3; i++) origin[i] += 4;
            b += NR;
        }
        Q7_UNROLL
        for (int i = 0; i < m * VECTORS; i++) {
            float *to = p->to + i * Q7_W;
            q7_store(to, k0 > 0 ? q7_add(q7_load(to), sum[i]) : sum[i]);
        }
    }
}

/* One function per number of rows. */
/* clang-format off */
#define ROWS(m) static void rows_##m(const product *p) { multiply(p, m); }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m,
static void (*const by_rows[MR])(const product *) = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

/* products (16, tiles, NR) = rows (16, tiles, C) @ one panel of each matrix of w, which prefetches the
 * next matrix, or the next panel. */
static void multiply_panel(const q7_winograd_args *x, const float *rows, int64_t row_stride,
                           int64_t tiles, const float *panel, int64_t matrix, float *products) {
    const int64_t size = x->C * NR, parts = q7_ceil_div(tiles, MR);
    for (int64_t i = 0; i < 16; i++, panel += matrix, rows += tiles * row_stride) {
        const float *next = panel + (i < 15 ? matrix : size - 15 * matrix);
        for (int64_t part = 0; part < parts; part++) {
            const int64_t first = tiles * part / parts, m = tiles * (part + 1) / parts - first;
            const product p = {.rows = rows + first * row_stride,
                               .panel = panel,
                               .next = next + size * part / parts,
                               .to = products + (i * tiles + first) * NR,
                               .row_stride = row_stride,
                               .k = x->C,
                               .soon = q7_ceil_div(NR, parts)};
            by_rows[m - 1](&p);
        }
    }
}

void Q7_KERNEL(winograd_f32)(const q7_winograd_args *x, const q7_winograd_block *block) {
    const int64_t row = x->C + Q7_WINOGRAD_GAP, tiles = block->end - block->first;
    const int64_t panels = q7_ceil_div(x->M, NR);
    float *zeros = block->room, *rows = zeros + row, *products = rows + 16 * tiles * row;
    memset(zeros, 0, (size_t)x->C * sizeof(float));
    for (int64_t i = 0; i < tiles; i++)
        transform_in(x, block->first + i, zeros, rows + i * row, tiles * row);
    for (int64_t p = block->first_panel; p < block->panel; p++) {
        multiply_panel(x, rows, row, tiles, (const float *)x->w + p * x->C * NR, panels * x->C * NR,
                       products);
        for (int64_t i = 0; i < tiles; i++)
            q7_transform_out(x, q7_place_of(x, block->first + i), products + i * NR, tiles * NR,
                             p * NR, q7_min(NR, x->M - p * NR));
    }
}
