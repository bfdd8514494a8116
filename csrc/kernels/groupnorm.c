/* groupnorm.c: some vectors of channels at a time, down all pixels. Read groupnorm.h first. */
#include "groupnorm.h"

#include "../simd/simd.h"

enum { VECTORS = 4 }; /* independent sums, which hide the latency of the addition */

/* The statistics of up to `vectors` vectors of channels from `first` on, `lanes` in the last. */
Q7_INLINE void statistics(const q7_groupnorm_part *t, int64_t first, int64_t lanes,
                          const int vectors) {
    q7_f32 sum[VECTORS], squares[VECTORS];
    const q7_f32 per_pixel = q7_set1(1.0f / (float)t->pixels);
    for (int j = 0; j < vectors; j++) sum[j] = squares[j] = q7_set1(0.0f);
    const float *x = t->x + first;
    for (int64_t p = 0; p < t->pixels; p++, x += t->x_stride)
        for (int j = 0; j < vectors; j++)
            sum[j] = q7_add(sum[j], q7_load_part(x + j * Q7_W, j + 1 < vectors ? Q7_W : lanes));
    for (int j = 0; j < vectors; j++) sum[j] = q7_mul(sum[j], per_pixel);
    x = t->x + first;
    for (int64_t p = 0; p < t->pixels; p++, x += t->x_stride)
        for (int j = 0; j < vectors; j++) {
            const q7_f32 v = q7_load_part(x + j * Q7_W, j + 1 < vectors ? Q7_W : lanes);
            const q7_f32 rest = q7_sub(v, sum[j]);
            squares[j] = q7_fma(rest, rest, squares[j]);
        }
    for (int j = 0; j < vectors; j++) {
        const int64_t at = first + j * Q7_W, left = j + 1 < vectors ? Q7_W : lanes;
        q7_store_part(t->mean + at, sum[j], left);
        q7_store_part(t->squares + at, squares[j], left);
    }
}

/* Pixel by pixel, as they lie: what is a power of two apart would compete for a set of L1. */
Q7_INLINE void normalise(const q7_groupnorm_part *t) {
    const float *x = t->x;
    float *y = t->y;
    for (int64_t p = 0; p < t->pixels; p++, x += t->x_stride, y += t->y_stride)
        for (int64_t c = 0; c < t->channels; c += Q7_W) {
            const int64_t lanes = q7_min(t->channels - c, Q7_W);
            const q7_f32 rest =
                q7_sub(q7_load_part(x + c, lanes), q7_load_part(t->mean + c, lanes));
            const q7_f32 bias = t->bias ? q7_load_part(t->bias + c, lanes) : q7_set1(0.0f);
            q7_store_part(y + c, q7_fma(rest, q7_load_part(t->factor + c, lanes), bias), lanes);
        }
}

void Q7_KERNEL(groupnorm_f32)(const q7_groupnorm_part *t) {
    if (t->y) {
        normalise(t);
        return;
    }
    int64_t c = 0;
    for (; c + VECTORS * Q7_W <= t->channels; c += VECTORS * Q7_W) statistics(t, c, Q7_W, VECTORS);
    for (; c < t->channels; c += Q7_W) statistics(t, c, q7_min(t->channels - c, Q7_W), 1);
}
