/* winograd.c: the kernel of winograd.h for every ISA, on that of gemm.h. Read both first. */
#include "gemm.h"
#include "winograd_tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *t);

/* One tile of x, B^T d B, to 16 rows that are `step` floats apart. */
static void transform_in(const q7_winograd_args *x, int64_t tile, const float *zeros, float *rows,
                         int64_t step) {
    const float *from[16];
    q7_pixels_under(x, q7_place_of(x, tile), zeros, from);
    for (int64_t c = 0; c < x->C; c += Q7_W) q7_transform_in(from, c, x->C - c, rows + c, step);
}

/* products (16, tiles, NR) = rows (16, tiles, C) @ one panel of each matrix of w. */
static void multiply(const q7_winograd_args *x, const float *rows, int64_t row, int64_t tiles,
                     const float *panel, int64_t matrix, float *products) {
    for (int64_t i = 0; i < 16; i++) {
        const q7_gemm_block part = {.m = tiles,
                                    .n = NR,
                                    .k = x->C,
                                    .k_block = Q7_WINOGRAD_K_BLOCK,
                                    .a = rows + i * tiles * row,
                                    .a_row_stride = row,
                                    .a_k_stride = 1,
                                    .b = panel + i * matrix,
                                    .b_stride = NR,
                                    .b_packed = true,
                                    .b_panel_stride = matrix, /* what is next */
                                    .c = products + i * tiles * NR,
                                    .c_stride = NR};
        Q7_KERNEL(gemm_f32)(&part);
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
        multiply(x, rows, row, tiles, (const float *)x->w + p * x->C * NR, panels * x->C * NR,
                 products);
        for (int64_t i = 0; i < tiles; i++)
            q7_transform_out(x, q7_place_of(x, block->first + i), products + i * NR, tiles * NR,
                             p * NR, q7_min(NR, x->M - p * NR));
    }
}
