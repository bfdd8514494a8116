/* winograd_tile.h: one tile of winograd.h in and out, for the kernels of every ISA. Read that first. */
#ifndef Q7_WINOGRAD_TILE_H
#define Q7_WINOGRAD_TILE_H
#include "math.h"
#include "tile.h"
#include "winograd.h"

/* One tile of y: its first pixel and image. */
typedef struct q7_place {
    int64_t n, oh, ow;
} q7_place;

Q7_INLINE q7_place q7_place_of(const q7_winograd_args *x, int64_t tile) {
    const int64_t columns = q7_ceil_div(x->OW, 2), lines = q7_ceil_div(x->OH, 2);
    return (q7_place){tile / columns / lines, tile / columns % lines * 2, tile % columns * 2};
}

/* v = B^T v, of every stride-th of 4 vectors. */
Q7_INLINE void q7_turn_in(q7_f32 *v, const int stride) {
    const q7_f32 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
    v[0] = q7_sub(a, c);
    v[stride] = q7_add(b, c);
    v[2 * stride] = q7_sub(c, b);
    v[3 * stride] = q7_sub(b, d);
}

/* The 16 pixels of x under a tile, or zeros around x. */
Q7_INLINE void q7_pixels_under(const q7_winograd_args *x, q7_place at, const float *zeros,
                               const float **from) {
    for (int64_t i = 0; i < 16; i++) {
        const int64_t h = at.oh - x->pad_top + i / 4, w = at.ow - x->pad_left + i % 4;
        const bool inside = h >= 0 && h < x->H && w >= 0 && w < x->W;
        const int64_t offset = at.n * x->x_n_stride + h * x->x_h_stride + w * x->x_w_stride;
        from[i] = inside ? (const float *)x->x + offset : zeros;
    }
}

/* B^T d B of up to Q7_W channels of those pixels, from c on, to 16 whole vectors that are
 * `step` floats apart. */
Q7_INLINE void q7_transform_in(const float *const *from, int64_t c, int64_t lanes, float *to,
                               int64_t step) {
    q7_f32 v[16];
    Q7_UNROLL
    for (int i = 0; i < 16; i++) v[i] = q7_load_part(from[i] + c, lanes);
    Q7_UNROLL
    for (int i = 0; i < 4; i++) q7_turn_in(v + i, 4);
    Q7_UNROLL
    for (int i = 0; i < 4; i++) q7_turn_in(v + 4 * i, 1);
    Q7_UNROLL
    for (int i = 0; i < 16; i++) q7_store(to + i * step, v[i]);
}

/* A^T v, of every stride-th of 4 vectors. */
Q7_INLINE void q7_turn_out(q7_f32 *v, const int stride) {
    const q7_f32 b = v[stride], c = v[2 * stride];
    v[0] = q7_add(q7_add(v[0], b), c);
    v[stride] = q7_sub(q7_sub(b, c), v[3 * stride]);
}

/* The pixels of one tile of y from the products, which are `step` floats apart, for some channels. */
Q7_INLINE void q7_transform_out_as(const q7_winograd_args *x, q7_place at, const float *products,
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
        for (int i = 0; i < 4; i++) q7_turn_out(v + i, 4);
        q7_turn_out(v, 1);
        q7_turn_out(v + 4, 1);
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

static inline void q7_transform_out(const q7_winograd_args *x, q7_place at, const float *products,
                                    int64_t step, int64_t channel, int64_t channels) {
    switch (x->act) { /* a loop for each */
#define ACT(act)                                                                     \
    case Q7_act_##act:                                                               \
        q7_transform_out_as(x, at, products, step, channel, channels, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}
#endif
