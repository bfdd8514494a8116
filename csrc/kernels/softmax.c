/* softmax.c: three passes over data that stays in cache: max, exp and sum, scale. Read softmax.h
 * first. */
#include "softmax.h"

#include <math.h>

#include "math.h"

/* Largest of a row. NaN may be lost here: the sum brings it back. */
Q7_INLINE float row_max(int64_t n, const float *x) {
    q7_f32 top[4] = {q7_set1(-INFINITY), q7_set1(-INFINITY), q7_set1(-INFINITY),
                     q7_set1(-INFINITY)};
    int64_t i = 0;
    for (; i + 4 * Q7_W <= n; i += 4 * Q7_W)
        for (int k = 0; k < 4; k++) top[k] = q7_vmax(q7_load(x + i + k * Q7_W), top[k]);
    for (; i + Q7_W <= n; i += Q7_W) top[0] = q7_vmax(q7_load(x + i), top[0]);
    if (i < n && n >= Q7_W) i = n, top[1] = q7_vmax(q7_load(x + n - Q7_W), top[1]);
    float max = q7_hmax(q7_vmax(q7_vmax(top[0], top[1]), q7_vmax(top[2], top[3])));
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

/* The sum of exp(x - max), which are kept in y or not. */
Q7_INLINE float row_exp(int64_t n, const float *x, float max, float *y, const bool keeps) {
    const q7_f32 top = q7_set1(max);
    q7_f32 sum[4] = {q7_set1(0.0f), q7_set1(0.0f), q7_set1(0.0f), q7_set1(0.0f)};
    int64_t i = 0;
    for (; i + 4 * Q7_W <= n; i += 4 * Q7_W)
        for (int k = 0; k < 4; k++) {
            const q7_f32 e = q7_exp_nonpositive(q7_sub(q7_load(x + i + k * Q7_W), top));
            if (keeps) q7_store(y + i + k * Q7_W, e);
            sum[k] = q7_add(sum[k], e);
        }
    for (; i + Q7_W <= n; i += Q7_W) {
        const q7_f32 e = q7_exp_nonpositive(q7_sub(q7_load(x + i), top));
        if (keeps) q7_store(y + i, e);
        sum[0] = q7_add(sum[0], e);
    }
    if (i < n) {
        q7_f32 e = q7_exp_nonpositive(q7_sub(q7_load_tail(x + i, n - i), top));
        float lanes[Q7_W] = {0}; /* lanes past the end hold exp(0 - max) */
        q7_store_tail(lanes, e, n - i);
        e = q7_load(lanes);
        if (keeps) q7_store_tail(y + i, e, n - i);
        sum[0] = q7_add(sum[0], e);
    }
    return q7_hsum(q7_add(q7_add(sum[0], sum[1]), q7_add(sum[2], sum[3])));
}

/* y = x * scale - shift */
Q7_INLINE void row_scale(int64_t n, const float *x, float scale, float shift, float *y) {
    const q7_f32 by = q7_set1(scale), less = q7_set1(-shift);
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) q7_store(y + i, q7_fma(q7_load(x + i), by, less));
    if (i < n) q7_store_tail(y + i, q7_fma(q7_load_tail(x + i, n - i), by, less), n - i);
}

/* Rows that L1 holds go through a pass together, so that none waits for the end of the one before it. */
enum { TOGETHER = 8, IN_L1 = 1 << 12 /* floats */ };

static void rows(int64_t count, int64_t n, const float *x, float *y, bool log) {
    const int64_t most = q7_max(1, q7_min(TOGETHER, IN_L1 / n));
    for (int64_t some; count > 0; count -= some, x += some * n, y += some * n) {
        float max[TOGETHER], sum[TOGETHER];
        some = q7_min(most, count);
        for (int64_t r = 0; r < some; r++) max[r] = row_max(n, x + r * n);
        if (log) {
            for (int64_t r = 0; r < some; r++) sum[r] = row_exp(n, x + r * n, max[r], NULL, false);
            for (int64_t r = 0; r < some; r++) {
                const float log_sum = logf(sum[r]); /* max + log_sum would round */
                for (int64_t i = r * n; i < (r + 1) * n; i++) y[i] = x[i] - max[r] - log_sum;
            }
        } else {
            for (int64_t r = 0; r < some; r++)
                sum[r] = row_exp(n, x + r * n, max[r], y + r * n, true);
            for (int64_t r = 0; r < some; r++)
                row_scale(n, y + r * n, 1.0f / sum[r], 0.0f, y + r * n);
        }
    }
}

/* Q7_W columns at once, or the last `left` of them. */
Q7_INLINE void columns(int64_t n, int64_t stride, const float *x, float *y, int64_t left,
                       bool log) {
    q7_f32 max = q7_set1(-INFINITY), even = q7_set1(0.0f), odd = even; /* sums by turns err less */
    for (int64_t j = 0; j < n; j++) max = q7_vmax(q7_load_part(x + j * stride, left), max);
    for (int64_t j = 0; j < n; j++) {
        const q7_f32 e = q7_exp_nonpositive(q7_sub(q7_load_part(x + j * stride, left), max));
        if (!log) q7_store_part(y + j * stride, e, left);
        const q7_f32 more = q7_add(even, e);
        even = odd, odd = more;
    }
    const q7_f32 sum = q7_add(even, odd);
    const q7_f32 scale = q7_div(q7_set1(1.0f), sum), log_sum = q7_log(sum);
    for (int64_t j = 0; j < n; j++) {
        const q7_f32 v = log ? q7_sub(q7_sub(q7_load_part(x + j * stride, left), max), log_sum)
                             : q7_mul(q7_load_part(y + j * stride, left), scale);
        q7_store_part(y + j * stride, v, left);
    }
}

/* Rows shorter than a vector, a lane for each: turned, they are columns. */
static void short_rows(int64_t count, int64_t n, const float *x, float *y, bool log) {
    float turned[Q7_W * Q7_W] = {0}; /* (n, Q7_W) */
    for (int64_t first = 0; first < count; first += Q7_W, x += Q7_W * n, y += Q7_W * n) {
        const int64_t some = q7_min(count - first, Q7_W);
        for (int64_t r = 0; r < some; r++)
            for (int64_t j = 0; j < n; j++) turned[j * Q7_W + r] = x[r * n + j];
        columns(n, Q7_W, turned, turned, Q7_W, log);
        for (int64_t r = 0; r < some; r++)
            for (int64_t j = 0; j < n; j++) y[r * n + j] = turned[j * Q7_W + r];
    }
}

void Q7_KERNEL(softmax_f32)(int64_t count, int64_t n, int64_t stride, const float *x, float *y,
                            bool log) {
    if (stride == 1 && n < Q7_W) {
        short_rows(count, n, x, y, log);
        return;
    }
    if (stride == 1) {
        rows(count, n, x, y, log);
        return;
    }
    int64_t c = 0;
    for (; c + Q7_W <= count; c += Q7_W) columns(n, stride, x + c, y + c, Q7_W, log);
    if (c < count) columns(n, stride, x + c, y + c, count - c, log);
}
