/* conv_planes.c: the kernel of conv_planes.h for every ISA, in tiles of some filters by some vectors
 * of pixels. Read conv_planes.h first. */
#include "conv_planes.h"

#include "math.h"

enum { SUMS = 8 }; /* of a tile, at most: they hide how long a multiply-add takes */

_Static_assert(SUMS *Q7_W <= Q7_PLANE_SLACK, "a tile of one filter reads further");

/* y = act(y + residual) or act(y) + residual, for pixels [p, p + n) of one filter. */
Q7_INLINE void finish_as(const q7_plane_line *t, float *y, const float *residual, int64_t n,
                         const int64_t act) {
    const q7_f32 alpha = q7_set1(t->act_alpha), beta = q7_set1(t->act_beta);
    const bool before = residual && t->residual_first, behind = residual && !before;
    for (int64_t p = 0; p < n; p += Q7_W) {
        q7_f32 v = q7_load_part(y + p, n - p);
        if (before) v = q7_add(v, q7_load_part(residual + p, n - p));
        v = q7_act(act, v, alpha, beta);
        if (behind) v = q7_add(v, q7_load_part(residual + p, n - p));
        q7_store_part(y + p, v, n - p);
    }
}

static void finish(const q7_plane_line *t) {
    if (t->act == Q7_act_none && !t->residual) return;
    for (int64_t f = 0; f < t->filters; f++) {
        float *y = t->y + f * t->plane;
        const float *residual = t->residual ? t->residual + f * t->plane : NULL;
        switch (t->act) { /* a loop for each */
#define ACT(act)                                       \
    case Q7_act_##act:                                 \
        finish_as(t, y, residual, t->n, Q7_act_##act); \
        break;
#include "../ops.def"
#undef ACT
        }
    }
}

/* Sums of pixels from p on. */
Q7_INLINE void multiply(const q7_plane_line *t, int64_t p, const int filters, const int vectors) {
    q7_f32 sum[SUMS];
    float total[SUMS * Q7_W];
    const float *x = t->x + p;
    for (int64_t k0 = 0;; k0 += t->k_block) { /* sums of blocks, one after the other */
        const int64_t end = q7_min(t->k, k0 + t->k_block);
        Q7_UNROLL
        for (int i = 0; i < filters * vectors; i++) sum[i] = q7_set1(0.0f);
        for (int64_t k = k0; k < end; k++) {
            const float *from = x + t->offset[k];
            q7_f32 w[Q7_PLANE_FILTERS];
            Q7_UNROLL
            for (int f = 0; f < filters; f++) w[f] = q7_set1(t->w[f * t->k + k]);
            Q7_UNROLL
            for (int v = 0; v < vectors; v++) {
                const q7_f32 pixels = q7_load(from + v * Q7_W);
                Q7_UNROLL
                for (int f = 0; f < filters; f++)
                    sum[f * vectors + v] = q7_fma(w[f], pixels, sum[f * vectors + v]);
            }
        }
        if (k0 > 0) {
            Q7_UNROLL
            for (int i = 0; i < filters * vectors; i++)
                sum[i] = q7_add(q7_load(total + i * Q7_W), sum[i]);
        }
        if (end == t->k) break;
        Q7_UNROLL
        for (int i = 0; i < filters * vectors; i++) q7_store(total + i * Q7_W, sum[i]);
    }
    Q7_UNROLL
    for (int f = 0; f < filters; f++) {
        const q7_f32 bias = q7_set1(t->bias ? t->bias[f] : 0.0f);
        float *y = t->y + f * t->plane + p;
        Q7_UNROLL
        for (int v = 0; v < vectors; v++)
            q7_store_part(y + v * Q7_W, q7_add(bias, sum[f * vectors + v]),
                          q7_max(0, t->n - p - v * Q7_W));
    }
}

/* The last two tiles are as narrow as what is left. */
Q7_INLINE void multiply_all(const q7_plane_line *t, const int filters) {
    const int most = SUMS / filters;
    int64_t p = 0;
    for (int64_t left = q7_ceil_div(t->n, Q7_W), vectors; left > 0; left -= vectors) {
        vectors = left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
        switch (vectors) {
#define TILE(v)                                    \
    case v:                                        \
        if (v <= most) multiply(t, p, filters, v); \
        break;
            TILE(1)
            TILE(2)
            TILE(3)
            TILE(4)
            TILE(5)
            TILE(6)
            TILE(7)
            TILE(8)
#undef TILE
        }
        p += vectors * Q7_W;
    }
}

void Q7_KERNEL(conv_planes_f32)(const q7_plane_line *t) {
    switch (t->filters) {
        case 1: multiply_all(t, 1); break;
        case 2: multiply_all(t, 2); break;
        case 3: multiply_all(t, 3); break;
        default: multiply_all(t, 4); break;
    }
    finish(t);
}
