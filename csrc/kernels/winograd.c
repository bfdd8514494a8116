/* winograd.c: the kernel of winograd.h for every ISA, on that of gemm.h. Read both first. */
#include "winograd.h"

#include "gemm.h"
#include "math.h"
#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *t);

/* One tile of y: its first pixel and image. */
typedef struct place {
    int64_t n, oh, ow;
} place;

Q7_INLINE place place_of(const q7_winograd_args *x, int64_t tile) {
    const int64_t columns = q7_ceil_div(x->OW, 2), lines = q7_ceil_div(x->OH, 2);
    return (place){tile / columns / lines, tile / columns % lines * 2, tile % columns * 2};
}

/* v = B^T v, of every stride-th of 4 vectors. */
Q7_INLINE void turn_in(q7_f32 *v, const int stride) {
    const q7_f32 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
    v[0] = q7_sub(a, c);
    v[stride] = q7_add(b, c);
    v[2 * stride] = q7_sub(c, b);
    v[3 * stride] = q7_sub(b, d);
}

/* One tile of x, B^T d B, to 16 rows that are `step` floats apart. */
static void transform_in(const q7_winograd_args *x, place at, const float *zeros, float *rows,
                         int64_t step) {
    const float *from[16];
    for (int64_t i = 0; i < 16; i++) {
        const int64_t h = at.oh - x->pad_top + i / 4, w = at.ow - x->pad_left + i % 4;
        const bool inside = h >= 0 && h < x->H && w >= 0 && w < x->W;
        const int64_t offset = at.n * x->x_n_stride + h * x->x_h_stride + w * x->x_w_stride;
        from[i] = inside ? (const float *)x->x + offset : zeros;
    }
    for (int64_t c = 0; c < x->C; c += Q7_W) {
        const int64_t lanes = x->C - c;
        q7_f32 v[16];
        Q7_UNROLL
        for (int i = 0; i < 16; i++) v[i] = q7_load_part(from[i] + c, lanes);
        Q7_UNROLL
        for (int i = 0; i < 4; i++) turn_in(v + i, 4);
        Q7_UNROLL
        for (int i = 0; i < 4; i++) turn_in(v + 4 * i, 1);
        Q7_UNROLL
        for (int i = 0; i < 16; i++) q7_store_part(rows + i * step + c, v[i], lanes);
    }
}

/* A^T v, of every stride-th of 4 vectors. */
Q7_INLINE void turn_out(q7_f32 *v, const int stride) {
    const q7_f32 b = v[stride], c = v[2 * stride];
    v[0] = q7_add(q7_add(v[0], b), c);
    v[stride] = q7_sub(q7_sub(b, c), v[3 * stride]);
}

/* The pixels of one tile of y from the products, which are `step` floats apart, for some channels. */
Q7_INLINE void transform_out_as(const q7_winograd_args *x, place at, const float *products,
                                int64_t step, int64_t channel, int64_t channels,
                                const int64_t act) {
    const q7_f32 alpha = q7_set1((float)x->act_alpha), beta = q7_set1((float)x->act_beta);
    const int64_t pixel = (at.n * x->OH + at.oh) * x->OW + at.ow;
    for (int64_t c = 0; c < channels; c += Q7_W) {
        const int64_t lanes = channels - c, m = channel + c;
        q7_f32 v[16];
        Q7_UNROLL
        for (int i = 0; i < 16; i++) v[i] = q7_load(products + i * step + c);
        Q7_UNROLL
        for (int i = 0; i < 4; i++) turn_out(v + i, 4);
        turn_out(v, 1);
        turn_out(v + 4, 1);
        const q7_f32 bias =
            x->bias ? q7_load_part((const float *)x->bias + m, lanes) : q7_set1(0.0f);
        for (int64_t i = 0; i < 4; i++) {
            if (at.oh + i / 2 >= x->OH || at.ow + i % 2 >= x->OW) continue;
            const int64_t p = pixel + i / 2 * x->OW + i % 2;
            q7_f32 y = q7_add(v[i / 2 * 4 + i % 2], bias), term = q7_set1(0.0f);
            if (x->residual)
                term = q7_load_part((const float *)x->residual + p * x->residual_stride + m, lanes);
            if (x->residual && x->residual_first) y = q7_add(y, term);
            y = q7_act(act, y, alpha, beta);
            if (x->residual && !x->residual_first) y = q7_add(y, term);
            q7_store_part((float *)x->y + p * x->y_stride + m, y, lanes);
        }
    }
}

static void transform_out(const q7_winograd_args *x, place at, const float *products, int64_t step,
                          int64_t channel, int64_t channels) {
    switch (x->act) { /* a loop for each */
#define ACT(act)                                                                  \
    case Q7_act_##act:                                                            \
        transform_out_as(x, at, products, step, channel, channels, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
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
        transform_in(x, place_of(x, block->first + i), zeros, rows + i * row, tiles * row);
    for (int64_t p = block->first_panel; p < block->panel; p++) {
        multiply(x, rows, row, tiles, (const float *)x->w + p * x->C * NR, panels * x->C * NR,
                 products);
        for (int64_t i = 0; i < tiles; i++)
            transform_out(x, place_of(x, block->first + i), products + i * NR, tiles * NR, p * NR,
                          q7_min(NR, x->M - p * NR));
    }
}
