/* winograd_tile.h: one tile of winograd.h in and out, for the kernels of every ISA. Read that first. */
#ifndef Q7_WINOGRAD_TILE_H
#define Q7_WINOGRAD_TILE_H
#include "math.h"
#include "tile.h"
#include "winograd.h"

/* One tile of y: its first pixel, plane and volume. */
typedef struct q7_place {
    int64_t n, od, oh, ow;
} q7_place;

/* Tiles follow one another as their pixels do in memory. */
Q7_INLINE q7_place q7_place_of(const q7_winograd_args *x, int64_t tile) {
    const int64_t columns = q7_winograd_lines(x->OW, x->dilation_w);
    const int64_t lines = q7_winograd_tile_lines(x), in_volume = tile % (x->OD * lines * columns);
    const bool is_turned = x->y_w_pixels != 1;
    const int64_t column = is_turned ? in_volume / lines / x->OD : in_volume % columns;
    const int64_t line = is_turned ? in_volume % lines : in_volume / columns % lines;
    return (q7_place){tile / columns / lines / x->OD,
                      is_turned ? in_volume / lines % x->OD : in_volume / columns / lines,
                      x->kh == 1 ? line : q7_winograd_line(line, x->dilation_h),
                      q7_winograd_line(column, x->dilation_w)};
}

/* The tile that follows: divisions for each would take as long as the products of a short line. */
Q7_INLINE q7_place q7_place_after(const q7_winograd_args *x, q7_place at) {
    const int64_t column = q7_winograd_line_after(at.ow, x->dilation_w);
    const int64_t line = x->kh == 1 ? at.oh + 1 : q7_winograd_line_after(at.oh, x->dilation_h);
    if (x->y_w_pixels == 1 && column < x->OW) return (q7_place){at.n, at.od, at.oh, column};
    if (x->y_w_pixels == 1) at.ow = 0;
    if (line < x->OH) return (q7_place){at.n, at.od, line, at.ow};
    if (at.od + 1 < x->OD) return (q7_place){at.n, at.od + 1, 0, at.ow};
    if (x->y_w_pixels != 1 && column < x->OW) return (q7_place){at.n, 0, 0, column};
    return (q7_place){at.n + 1, 0, 0, 0};
}

/* v = B^T v, of every stride-th of 4 vectors. */
Q7_INLINE void q7_turn_in(q7_f32 *v, const int stride) {
    const q7_f32 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
    v[0] = q7_sub(a, c);
    v[stride] = q7_add(b, c);
    v[2 * stride] = q7_sub(c, b);
    v[3 * stride] = q7_sub(b, d);
}

/* The `lines` x `side` pixels of x under a tile in one plane of its kernels, or zeros around x. */
Q7_INLINE void q7_pixels_under(const q7_winograd_args *x, q7_place at, int64_t plane,
                               const float *zeros, const float **from, const int lines,
                               const int side) {
    const int64_t d = at.od * x->stride_d - x->pad_front + plane * x->dilation_d;
    for (int64_t i = 0; i < lines * side; i++) {
        const int64_t h = at.oh * x->stride - x->pad_top + i / side * x->dilation_h;
        const int64_t w = at.ow * x->stride - x->pad_left + i % side * x->dilation_w;
        const bool inside = d >= 0 && d < x->D && h >= 0 && h < x->H && w >= 0 && w < x->W;
        const int64_t offset =
            at.n * x->x_n_stride + d * x->x_d_stride + h * x->x_h_stride + w * x->x_w_stride;
        from[i] = inside ? (const float *)x->x + offset : zeros;
    }
}

/* What is multiplied of a line of 5 pixels, in their order: of v, every stride-th of 5 vectors. */
Q7_INLINE void q7_turn_in_by_2(q7_f32 *v, const int stride) {
    v[0] = q7_sub(v[0], v[2 * stride]);
    v[4 * stride] = q7_sub(v[4 * stride], v[2 * stride]);
}

/* v (lines, side) = what is multiplied of up to Q7_W channels of those pixels, from c on: B^T d B of
 * 4 x 4 or a line of 4, and for stride 2 of 5 x 5. */
Q7_INLINE void q7_turn_pixels(const float *const *from, int64_t c, int64_t lanes, q7_f32 *v,
                              const int lines, const int side) {
    Q7_UNROLL
    for (int i = 0; i < lines * side; i++) v[i] = q7_load_part(from[i] + c, lanes);
    Q7_UNROLL
    for (int i = 0; i < side && lines > 1; i++)
        side == 4 ? q7_turn_in(v + i, side) : q7_turn_in_by_2(v + i, side);
    Q7_UNROLL
    for (int i = 0; i < lines; i++)
        side == 4 ? q7_turn_in(v + side * i, 1) : q7_turn_in_by_2(v + side * i, 1);
}

/* Where the rows of a tile are in the first of its matrices, which are `step` floats apart: [last of
 * columns?][of lines?]. */
typedef struct q7_rows {
    float *at[2][2];
    int64_t step;
} q7_rows;

/* That of matrix i, of `side` in a line. */
Q7_INLINE float *q7_row_of(const q7_rows *rows, const int i, const int side) {
    const int last = side == 5 ? 3 : side - 1; /* of 5 pixels the last sum has two of its own */
    return rows->at[i / side >= last][i % side >= last] + i * rows->step;
}

/* All of them, to whole vectors. */
Q7_INLINE void q7_transform_in(const float *const *from, int64_t c, int64_t lanes,
                               const q7_rows *to, const int lines, const int side) {
    q7_f32 v[25];
    q7_turn_pixels(from, c, lanes, v, lines, side);
    Q7_UNROLL
    for (int i = 0; i < lines * side; i++) q7_store(q7_row_of(to, i, side) + c, v[i]);
}

/* A^T v, of every stride-th of 4 vectors. */
Q7_INLINE void q7_turn_out(q7_f32 *v, const int stride) {
    const q7_f32 b = v[stride], c = v[2 * stride];
    v[0] = q7_add(q7_add(v[0], b), c);
    v[stride] = q7_sub(q7_sub(b, c), v[3 * stride]);
}

typedef enum q7_winograd_kind { Q7_SQUARE, Q7_SQUARE_BY_2, Q7_LINE } q7_winograd_kind;

/* The sums of 2 x 2 pixels, or of 2 in a line, from products: 16 or 4 for stride 1, 9 for stride 2. */
Q7_INLINE void q7_sums_of(const q7_rows *from, int64_t c, const q7_winograd_kind kind, q7_f32 *y) {
    q7_f32 v[16];
    if (kind == Q7_LINE) {
        Q7_UNROLL
        for (int i = 0; i < 4; i++) v[i] = q7_load(q7_row_of(from, i, 4) + c);
        q7_turn_out(v, 1);
        y[0] = v[0], y[1] = v[1];
        return;
    }
    if (kind == Q7_SQUARE_BY_2) {
        Q7_UNROLL
        for (int i = 0; i < 9; i++) v[i] = q7_load(q7_row_of(from, i, 3) + c);
        Q7_UNROLL
        for (int i = 0; i < 6; i++) v[i] = q7_add(v[i], v[i + 3]);
        Q7_UNROLL
        for (int i = 0; i < 4; i++) y[i] = q7_add(v[i / 2 * 3 + i % 2], v[i / 2 * 3 + i % 2 + 1]);
        return;
    }
    Q7_UNROLL
    for (int i = 0; i < 16; i++) v[i] = q7_load(q7_row_of(from, i, 4) + c);
    Q7_UNROLL
    for (int i = 0; i < 4; i++) q7_turn_out(v + i, 4);
    q7_turn_out(v, 1);
    q7_turn_out(v + 4, 1);
    Q7_UNROLL
    for (int i = 0; i < 4; i++) y[i] = v[i / 2 * 4 + i % 2];
}

/* The pixels of one tile of y from the products, for some channels. */
Q7_INLINE void q7_transform_out_as(const q7_winograd_args *x, q7_place at, const q7_rows *from,
                                   int64_t channel, int64_t channels, const int64_t act,
                                   const q7_winograd_kind kind) {
    const q7_f32 alpha = q7_set1((float)x->act_alpha), beta = q7_set1((float)x->act_beta);
    const int64_t pixel = at.n * x->OD * x->OH * x->OW + at.od * x->y_d_pixels +
                          at.oh * x->y_h_pixels + at.ow * x->y_w_pixels;
    for (int64_t c = 0; c < channels; c += Q7_W) {
        const int64_t lanes = channels - c, m = channel + c;
        q7_f32 v[4];
        q7_sums_of(from, c, kind, v);
        const q7_f32 bias =
            x->bias ? q7_load_part((const float *)x->bias + m, lanes) : q7_set1(0.0f);
        const q7_f32 scale = x->scale ? q7_load_part((const float *)x->scale + m, lanes) : bias;
        const q7_f32 shift = x->scale ? q7_load_part((const float *)x->shift + m, lanes) : bias;
        for (int64_t i = 0; i < (kind == Q7_LINE ? 2 : 4); i++) {
            const int64_t down = i / 2 * x->dilation_h, across = i % 2 * x->dilation_w;
            if (at.oh + down >= x->OH || at.ow + across >= x->OW) continue;
            const int64_t p = pixel + down * x->y_h_pixels + across * x->y_w_pixels;
            q7_f32 y = q7_add(v[i], bias), term = q7_set1(0.0f);
            if (x->residual)
                term = q7_load_part((const float *)x->residual + p * x->residual_stride + m, lanes);
            if (x->residual && x->residual_first) y = q7_add(y, term);
            y = q7_act(act, y, alpha, beta);
            if (x->scale) y = q7_fma(scale, y, shift);
            if (x->residual && !x->residual_first) y = q7_add(y, term);
            q7_store_part((float *)x->y + p * x->y_stride + m, y, lanes);
        }
    }
}

static inline void q7_transform_out(const q7_winograd_args *x, q7_place at, const q7_rows *from,
                                    int64_t channel, int64_t channels) {
    switch (x->act) { /* loops for each */
#define ACT(act)                                                                               \
    case Q7_act_##act:                                                                         \
        if (x->kh == 1)                                                                        \
            q7_transform_out_as(x, at, from, channel, channels, Q7_act_##act, Q7_LINE);        \
        else if (x->stride == 1)                                                               \
            q7_transform_out_as(x, at, from, channel, channels, Q7_act_##act, Q7_SQUARE);      \
        else                                                                                   \
            q7_transform_out_as(x, at, from, channel, channels, Q7_act_##act, Q7_SQUARE_BY_2); \
        return;
#include "../ops.def"
#undef ACT
    }
}
#endif
