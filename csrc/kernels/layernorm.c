/* layernorm.c: passes over a row that stays in L1: add and sum, variance, normalise; rmsnorm: add
 * and sum of squares, normalise. Read layernorm.h first. */
#include "layernorm.h"

#include <math.h>

#include "../simd/simd.h"

/* Independent partial sums: they hide the latency of the addition, and each rounds less. */
enum { SUMS = 4 };

Q7_INLINE float total(const q7_f32 sum[SUMS]) {
    return q7_hsum(q7_add(q7_add(sum[0], sum[1]), q7_add(sum[2], sum[3])));
}

/* x + skip + skip_bias for `left` lanes at i, stored in s if there is one. */
Q7_INLINE q7_f32 add_part(int64_t i, int64_t left, const float *x, const float *skip,
                          const float *skip_bias, float *s) {
    q7_f32 v = q7_load_part(x + i, left);
    if (skip) v = q7_add(v, q7_load_part(skip + i, left));
    if (skip_bias) v = q7_add(v, q7_load_part(skip_bias + i, left));
    if (s && left >= Q7_W) q7_store(s + i, v);
    if (s && left < Q7_W) q7_store_tail(s + i, v, left);
    return v;
}

/* The sum over a row of s - mean, or of its square, where s = x + skip + skip_bias. */
Q7_INLINE float sum_row(int64_t n, const float *x, const float *skip, const float *skip_bias,
                        float *s, float mean, bool squared) {
    const q7_f32 center = q7_set1(mean);
    float centers[Q7_W];
    q7_store(centers, center);
    q7_f32 sum[SUMS] = {q7_set1(0.0f), q7_set1(0.0f), q7_set1(0.0f), q7_set1(0.0f)};
    int64_t i = 0;
    for (; i + SUMS * Q7_W <= n; i += SUMS * Q7_W)
        for (int k = 0; k < SUMS; k++) {
            const q7_f32 d = q7_sub(add_part(i + k * Q7_W, Q7_W, x, skip, skip_bias, s), center);
            sum[k] = squared ? q7_fma(d, d, sum[k]) : q7_add(d, sum[k]);
        }
    for (; i < n; i += Q7_W) { /* lanes past the end: 0 - 0 */
        const q7_f32 d =
            q7_sub(add_part(i, n - i, x, skip, skip_bias, s), q7_load_part(centers, n - i));
        sum[0] = squared ? q7_fma(d, d, sum[0]) : q7_add(d, sum[0]);
    }
    return total(sum);
}

Q7_INLINE void normalise_row(const q7_layernorm_tile *t, const float *s, float mean, float scale,
                             float *y) {
    const int64_t n = t->cols;
    const q7_f32 center = q7_set1(mean), by = q7_set1(scale), zero = q7_set1(0.0f);
    const q7_f32 one = q7_set1(1.0f);
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) {
        const q7_f32 v = q7_mul(q7_sub(q7_load(s + i), center), by);
        const q7_f32 weight = t->weight ? q7_load(t->weight + i) : one;
        q7_store(y + i, q7_fma(v, weight, t->bias ? q7_load(t->bias + i) : zero));
    }
    if (i < n) {
        const int64_t left = n - i;
        const q7_f32 v = q7_mul(q7_sub(q7_load_tail(s + i, left), center), by);
        const q7_f32 weight = t->weight ? q7_load_tail(t->weight + i, left) : one;
        const q7_f32 bias = t->bias ? q7_load_tail(t->bias + i, left) : zero;
        q7_store_tail(y + i, q7_fma(v, weight, bias), left);
    }
}

Q7_INLINE void rows(const q7_layernorm_tile *t, bool centred) {
    const int64_t n = t->cols;
    for (int64_t r = t->first_row; r < t->first_row + t->rows; r++) {
        const float *x =
            t->x + r / t->inner_rows * t->x_outer_stride + r % t->inner_rows * t->x_row_stride;
        const float *skip = t->skip ? t->skip + r % t->skip_rows * n : NULL;
        float *y = t->y + r * t->y_stride, *sum = t->sum ? t->sum + r * n : NULL;
        const bool adds = skip || t->skip_bias;
        float *stored = sum ? sum : adds ? y : NULL;
        const float *s = stored ? stored : x;
        float mean = 0.0f, power;
        if (centred) {
            mean = sum_row(n, x, skip, t->skip_bias, stored, 0.0f, false) / (float)n;
            power = sum_row(n, s, NULL, NULL, NULL, mean, true);
        } else {
            power = sum_row(n, x, skip, t->skip_bias, stored, 0.0f, true);
        }
        normalise_row(t, s, mean, 1.0f / sqrtf(power / (float)n + t->eps), y);
    }
}

void Q7_KERNEL(layernorm_f32)(const q7_layernorm_tile *t) { rows(t, true); }

void Q7_KERNEL(rmsnorm_f32)(const q7_layernorm_tile *t) { rows(t, false); }
