/* conv_direct.c: the kernel of conv_direct.h for every ISA; its tile is that of tile.h. Filters that
 * fill one vector only are a tile of half the width. Read conv_direct.h first. */
#include "conv_direct.h"

#include <math.h>

#include "math.h"
#include "tile.h"

/* y = act(y) + residual, or act(y + residual), where it was not done in registers. */
Q7_INLINE void finish_as(const q7_conv_tile *t, const int64_t act) {
    const q7_f32 alpha = q7_set1(t->act_alpha), beta = q7_set1(t->act_beta);
    for (int64_t i = 0; i < t->m; i++) {
        float *y = t->y + i * t->y_stride;
        const float *residual = t->residual ? t->residual + i * t->residual_stride : NULL;
        for (int64_t j = 0; j < t->n; j += Q7_W) {
            const q7_f32 term = residual ? q7_load_part(residual + j, t->n - j) : q7_set1(0.0f);
            q7_f32 v = q7_load_part(y + j, t->n - j);
            if (residual && t->residual_first) v = q7_add(v, term);
            v = q7_act(act, v, alpha, beta);
            if (residual && !t->residual_first) v = q7_add(v, term);
            q7_store_part(y + j, v, t->n - j);
        }
    }
}

static void finish(const q7_conv_tile *t) {
    switch (t->act) { /* a loop for each */
#define ACT(act)                    \
    case Q7_act_##act:              \
        finish_as(t, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}

/* What clamps are, for activations that the tile in registers has. */
Q7_INLINE bool clamps(const q7_conv_tile *t) {
    return t->act == Q7_act_none || t->act == Q7_act_relu || t->act == Q7_act_clip;
}

/* What becomes of sums, up to y; whether they fill their vectors is a constant, too. Each of its parts
 * is a loop over registers, so that what they ask is asked once. */
Q7_INLINE void put(const q7_conv_tile *t, q7_f32 *sum, const int m, const int vectors,
                   const bool whole) {
    const int64_t left = whole ? Q7_W : t->n - (vectors - 1) * Q7_W; /* in the last vector */
#define EACH(...)                                                               \
    Q7_UNROLL                                                                   \
    for (int i = 0; i < m; i++) {                                               \
        Q7_UNROLL                                                               \
        for (int j = 0; j < vectors; j++) {                                     \
            const int64_t lanes = j < vectors - 1 ? Q7_W : left, at = j * Q7_W; \
            q7_f32 *v = &sum[i * vectors + j];                                  \
            __VA_ARGS__;                                                        \
        }                                                                       \
    }
    if (!t->first) EACH(*v = q7_add(q7_load_part(t->y + i * t->y_stride + at, lanes), *v))
    const bool now = t->last && clamps(t); /* else finish() does the rest */
    const float *residual = now ? t->residual : NULL;
    if (t->last && t->bias) {
        q7_f32 bias[VECTORS];
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            bias[j] = q7_load_part(t->bias + j * Q7_W, j < vectors - 1 ? Q7_W : left);
        EACH((void)lanes, (void)at, *v = q7_add(*v, bias[j]))
    }
    const int64_t step = t->residual_stride;
    if (residual && t->residual_first)
        EACH(*v = q7_add(*v, q7_load_part(residual + i * step + at, lanes)))
    if (now && t->act != Q7_act_none) {
        const bool clip = t->act == Q7_act_clip;
        const q7_f32 low = q7_set1(clip ? t->act_alpha : 0.0f);
        const q7_f32 high = q7_set1(clip ? t->act_beta : INFINITY);
        EACH((void)lanes, (void)at, *v = q7_vmin(high, q7_vmax(low, *v)))
    }
    if (residual && !t->residual_first)
        EACH(*v = q7_add(*v, q7_load_part(residual + i * step + at, lanes)))
    float *y = t->y;
    const int64_t y_stride = t->y_stride;
    EACH(q7_store_part(y + i * y_stride + at, *v, lanes))
#undef EACH
    if (t->last && !now) finish(t);
}

/* m and vectors are constants where this is inlined. */
Q7_INLINE void multiply(const q7_conv_tile *t, const int m, const int vectors) {
    q7_f32 sum[MR * VECTORS], w[VECTORS]; /* [m][vectors] */
    Q7_UNROLL
    for (int i = 0; i < m * vectors; i++) sum[i] = q7_set1(0.0f);
    /* Window i is at origin[i / 5] + i % 5 * row_bytes: any stride, with few address registers. */
    int64_t row_bytes = t->x_stride * 4;
    __asm__("" : "+r"(row_bytes)); /* no version for a stride of 1 */
    const char *origin[3];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = (const char *)t->x + 5 * i * row_bytes;
    const float *panel = t->w;
    const int64_t ahead = t->ahead;
    for (int64_t k = 0; k < t->k; k++, panel += NR) {
        const int64_t at = t->offset[k] * 4;
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) w[j] = q7_load(panel + j * Q7_W);
        for (int j = 0; j < NR; j += 16) q7_prefetch(panel + ahead + j);
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            const q7_f32 x =
                q7_set1(*(const float *)(const void *)(origin[i / 5] + at + i % 5 * row_bytes));
            Q7_UNROLL
            for (int j = 0; j < vectors; j++)
                sum[i * vectors + j] = q7_fma(x, w[j], sum[i * vectors + j]);
        }
    }
    if (t->n == vectors * Q7_W)
        put(t, sum, m, vectors, true);
    else
        put(t, sum, m, vectors, false);
}

/* One function per number of windows and of vectors. */
/* clang-format off */
#define ROWS(m)                                                          \
    static void narrow_##m(const q7_conv_tile *t) { multiply(t, m, 1); } \
    static void wide_##m(const q7_conv_tile *t) { multiply(t, m, VECTORS); }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) {narrow_##m, wide_##m},
static void (*const by_rows[MR][2])(const q7_conv_tile *t) = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

void Q7_KERNEL(conv_direct_f32)(const q7_conv_tile *t) { by_rows[t->m - 1][t->n > Q7_W](t); }
