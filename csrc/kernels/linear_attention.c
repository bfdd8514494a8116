/* linear_attention.c: four vectors of columns at a time, then one. Read linear_attention.h first. */
#include "linear_attention.h"

#include "../simd/simd.h"

enum { WIDE = 4 };

/* n columns of a row, n vectors of them or, in one vector, `tail` columns. */
Q7_INLINE void load_columns(const float *p, const int n, int64_t tail, q7_f32 *x) {
    Q7_UNROLL
    for (int c = 0; c < n; c++) x[c] = tail ? q7_load_tail(p, tail) : q7_load(p + c * Q7_W);
}

Q7_INLINE void store_columns(float *p, const int n, int64_t tail, const q7_f32 *x) {
    Q7_UNROLL
    for (int c = 0; c < n; c++) {
        if (tail)
            q7_store_tail(p, x[c], tail);
        else
            q7_store(p + c * Q7_W, x[c]);
    }
}

/* x += weight * row i of s, over all rows. */
Q7_INLINE void add_rows(const q7_linear_attention_tile *t, const float *s, const float *weight,
                        const int n, int64_t tail, q7_f32 *x) {
    q7_f32 row[WIDE];
    for (int64_t i = 0; i < t->Dk; i++) {
        load_columns(s + i * t->Dv, n, tail, row);
        Q7_UNROLL
        for (int c = 0; c < n; c++) x[c] = q7_fma(q7_set1(weight[i]), row[c], x[c]);
    }
}

/* The first half of a step for the columns at s: decay, and d. */
Q7_INLINE void decay_and_differ(const q7_linear_attention_tile *t, int64_t step, int64_t column,
                                float *s, const int n, int64_t tail, q7_f32 *d) {
    q7_f32 row[WIDE], seen[WIDE];
    const float *decay = t->decay + (t->decay ? step * t->decay_stride : 0);
    for (int64_t i = 0; i < t->Dk && t->decay; i++) {
        const q7_f32 factor = q7_set1(decay[t->decays == 1 ? 0 : i]);
        load_columns(s + i * t->Dv, n, tail, row);
        Q7_UNROLL
        for (int c = 0; c < n; c++) row[c] = q7_mul(row[c], factor);
        store_columns(s + i * t->Dv, n, tail, row);
    }
    load_columns(t->v + step * t->v_stride + column, n, tail, d);
    if (!t->beta) return;
    const q7_f32 beta = q7_set1(t->beta[step * t->beta_stride]);
    Q7_UNROLL
    for (int c = 0; c < n; c++) seen[c] = q7_set1(0.0f);
    add_rows(t, s, t->k + step * t->k_stride, n, tail, seen);
    Q7_UNROLL
    for (int c = 0; c < n; c++) d[c] = q7_mul(beta, q7_sub(d[c], seen[c]));
}

/* All steps of n vectors of columns, or of one with a tail. */
Q7_INLINE void columns(const q7_linear_attention_tile *t, int64_t column, const int n,
                       int64_t tail) {
    float *s = t->state + column;
    q7_f32 d[WIDE], row[WIDE], sum[WIDE];
    for (int64_t step = 0; step < t->T; step++) {
        const float *k = t->k + step * t->k_stride, *q = t->q + step * t->q_stride;
        float *o = t->o + step * t->o_stride + column;
        decay_and_differ(t, step, column, s, n, tail, d);
        for (int64_t i = 0; i < t->Dk; i++) {
            load_columns(s + i * t->Dv, n, tail, row);
            Q7_UNROLL
            for (int c = 0; c < n; c++) row[c] = q7_fma(q7_set1(k[i]), d[c], row[c]);
            store_columns(s + i * t->Dv, n, tail, row);
        }
        for (int64_t head = 0; head < t->heads; head++) {
            Q7_UNROLL
            for (int c = 0; c < n; c++) sum[c] = q7_set1(0.0f);
            add_rows(t, s, q + head * t->q_head_stride, n, tail, sum);
            Q7_UNROLL
            for (int c = 0; c < n; c++) sum[c] = q7_mul(sum[c], q7_set1(t->scale));
            store_columns(o + head * t->Dv, n, tail, sum);
        }
    }
}

void Q7_KERNEL(linear_attention_f32)(const q7_linear_attention_tile *t) {
    int64_t column = 0;
    for (; column + WIDE * Q7_W <= t->Dv; column += WIDE * Q7_W) columns(t, column, WIDE, 0);
    for (; column + Q7_W <= t->Dv; column += Q7_W) columns(t, column, 1, 0);
    if (column < t->Dv) columns(t, column, 1, t->Dv - column);
}
