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
    if (s) q7_store_part(s + i, v, left);
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

/* The first sum of a row: a loop that asks nothing for what there mostly is. */
Q7_INLINE float first_sum(int64_t n, const float *x, const float *skip, const float *skip_bias,
                          float *s, bool squared) {
    if (!skip && !skip_bias && !s) return sum_row(n, x, NULL, NULL, NULL, 0.0f, squared);
    if (skip && !skip_bias && s) return sum_row(n, x, skip, NULL, s, 0.0f, squared);
    return sum_row(n, x, skip, skip_bias, s, 0.0f, squared);
}

Q7_INLINE void normalise_part(int64_t i, int64_t left, const float *s, q7_f32 center, q7_f32 by,
                              const float *weight, const float *bias, float *y) {
    const q7_f32 v = q7_mul(q7_sub(q7_load_part(s + i, left), center), by);
    const q7_f32 factor = weight ? q7_load_part(weight + i, left) : q7_set1(1.0f);
    const q7_f32 term = bias ? q7_load_part(bias + i, left) : q7_set1(0.0f);
    q7_store_part(y + i, q7_fma(v, factor, term), left);
}

Q7_INLINE void normalise_with(int64_t n, const float *s, float mean, float scale,
                              const float *weight, const float *bias, float *y) {
    const q7_f32 center = q7_set1(mean), by = q7_set1(scale);
    int64_t i = 0;
    for (; i + SUMS * Q7_W <= n; i += SUMS * Q7_W)
        for (int k = 0; k < SUMS; k++)
            normalise_part(i + k * Q7_W, Q7_W, s, center, by, weight, bias, y);
    for (; i < n; i += Q7_W) normalise_part(i, n - i, s, center, by, weight, bias, y);
}

/* Columns that share a weight and a bias. */
Q7_INLINE void normalise_run(int64_t n, const float *s, float mean, float scale, float weight,
                             float bias, float *y) {
    const q7_f32 center = q7_set1(mean), by = q7_set1(scale);
    const q7_f32 factor = q7_set1(weight), term = q7_set1(bias);
    for (int64_t i = 0; i < n; i += Q7_W) {
        const q7_f32 v = q7_mul(q7_sub(q7_load_part(s + i, n - i), center), by);
        q7_store_part(y + i, q7_fma(v, factor, term), n - i);
    }
}

Q7_INLINE void normalise_row(const q7_layernorm_tile *t, int64_t r, const float *s, float mean,
                             float scale, float *y) {
    const int64_t runs = t->cols / t->run, first = r % t->weight_rows * runs;
    const float *weight = t->weight ? t->weight + first : NULL;
    const float *bias = t->bias ? t->bias + first : NULL;
    if (t->run > 1 && (weight || bias))
        for (int64_t i = 0; i < runs; i++)
            normalise_run(t->run, s + i * t->run, mean, scale, weight ? weight[i] : 1.0f,
                          bias ? bias[i] : 0.0f, y + i * t->run);
    else if (weight && bias)
        normalise_with(t->cols, s, mean, scale, weight, bias, y);
    else if (weight)
        normalise_with(t->cols, s, mean, scale, weight, NULL, y);
    else
        normalise_with(t->cols, s, mean, scale, NULL, bias, y);
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
            mean = first_sum(n, x, skip, t->skip_bias, stored, false) / (float)n;
            power = sum_row(n, s, NULL, NULL, NULL, mean, true);
        } else {
            power = first_sum(n, x, skip, t->skip_bias, stored, true);
        }
        normalise_row(t, r, s, mean, 1.0f / sqrtf(power / (float)n + t->eps), y);
    }
}

void Q7_KERNEL(layernorm_f32)(const q7_layernorm_tile *t) { rows(t, true); }

void Q7_KERNEL(rmsnorm_f32)(const q7_layernorm_tile *t) { rows(t, false); }
