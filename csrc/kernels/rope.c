/* rope.c: two loops per row, over halves or over interleaved pairs. Read rope.h first. */
#include "rope.h"

#include "../simd/simd.h"

/* Channels i and h + i for i < h = R / 2. Both are read before either is written. */
Q7_INLINE void rotate_halves(int64_t h, const float *x, const float *cos, const float *sin,
                             int64_t second, float *y) {
    int64_t i = 0;
    for (; i + Q7_W <= h; i += Q7_W) {
        const q7_f32 a = q7_load(x + i), b = q7_load(x + h + i);
        const q7_f32 ac = q7_mul(a, q7_load(cos + i)), bc = q7_mul(b, q7_load(cos + second + i));
        q7_store(y + i, q7_fnma(b, q7_load(sin + i), ac));
        q7_store(y + h + i, q7_fma(a, q7_load(sin + second + i), bc));
    }
    if (i < h) {
        const int64_t n = h - i;
        const q7_f32 a = q7_load_tail(x + i, n), b = q7_load_tail(x + h + i, n);
        const q7_f32 ac = q7_mul(a, q7_load_tail(cos + i, n));
        const q7_f32 bc = q7_mul(b, q7_load_tail(cos + second + i, n));
        q7_store_tail(y + i, q7_fnma(b, q7_load_tail(sin + i, n), ac), n);
        q7_store_tail(y + h + i, q7_fma(a, q7_load_tail(sin + second + i, n), bc), n);
    }
}

/* Channels 2 i and 2 i + 1. step is 2 where the tables have an entry per channel, 1 per pair. */
Q7_INLINE void rotate_pairs(int64_t R, const float *x, const float *cos, const float *sin,
                            int64_t step, float *y) {
    float alternating[Q7_W];
    for (int64_t i = 0; i < Q7_W; i++) alternating[i] = i % 2 ? 1.0f : -1.0f;
    const q7_f32 sign = q7_load(alternating);
    int64_t i = 0;
    for (; i + Q7_W <= R; i += Q7_W) {
        const q7_f32 v = q7_load(x + i), turned = q7_mul(q7_swap_pairs(v), sign);
        const q7_f32 c = step == 2 ? q7_load(cos + i) : q7_load_twice(cos + i / 2);
        const q7_f32 s = step == 2 ? q7_load(sin + i) : q7_load_twice(sin + i / 2);
        q7_store(y + i, q7_fma(turned, s, q7_mul(v, c)));
    }
    for (; i < R; i += 2) {
        const float a = x[i], b = x[i + 1];
        const int64_t j = i / 2 * step, k = j + step - 1;
        y[i] = a * cos[j] - b * sin[j];
        y[i + 1] = b * cos[k] + a * sin[k];
    }
}

void Q7_KERNEL(rope_f32)(const q7_rope_tile *t) {
    const int64_t R = t->R, h = R / 2;
    for (int64_t head = 0; head < t->heads; head++) {
        const float *x = t->x + head * t->x_stride;
        float *y = t->y + head * t->y_stride;
        if (!t->interleaved)
            rotate_halves(h, x, t->cos, t->sin, t->half ? 0 : h, y);
        else if (t->half)
            rotate_pairs(R, x, t->cos, t->sin, 1, y);
        else
            rotate_pairs(R, x, t->cos, t->sin, 2, y);
        if (x != y) memcpy(y + R, x + R, (size_t)(t->D - R) * sizeof *y);
    }
}
