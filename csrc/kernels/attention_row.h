/* attention_row.h: a query by itself: its scores by dot products, and what it adds of values. Read
 * attention.h first. */
#ifndef Q7_ATTENTION_ROW_H
#define Q7_ATTENTION_ROW_H
#include "attention_mask.h"

enum { SHARED = 4 /* rows that a vector of k or v is loaded once for */ };

typedef struct row {
    const float *q;     /* (D) */
    float *o;           /* (Dv) */
    int64_t begin, end; /* the keys that it sees */
    q7_attention_mask mask, bias;
    float max, sum, rescale;
    float s[KEYS]; /* scores of the block, then their exponentials */
} row;

/* s = scores of `count` rows for keys [first, first + n), without mask, and what follows up to the next
 * multiple of 4 anything. fetch: their values are prefetched meanwhile. */
Q7_INLINE void score_rows(const q7_attention_tile *t, row *r, const int count, int64_t first,
                          int64_t n, bool fetch) {
    const int64_t soon = fetch ? t->Dv : 0;
    for (int64_t j = 0; j < n; j += 4) {
        q7_f32 sum[SHARED][4];
        Q7_UNROLL
        for (int c = 0; c < 4; c++) { /* in the order of memory, which hardware can follow */
            const int64_t key = first + q7_min(j + c, n - 1);
            const float *k = t->k + key * t->k_stride, *v = t->v + key * t->v_stride;
            for (int64_t d = 0; d < soon; d += 16) q7_prefetch_near(v + d);
            Q7_UNROLL
            for (int i = 0; i < count; i++) sum[i][c] = q7_set1(0.0f);
            int64_t d = 0;
            for (; d + Q7_W <= t->D; d += Q7_W) {
                const q7_f32 x = q7_load(k + d);
                Q7_UNROLL
                for (int i = 0; i < count; i++)
                    sum[i][c] = q7_fma(q7_load(r[i].q + d), x, sum[i][c]);
            }
            if (d < t->D) {
                const q7_f32 x = q7_load_tail(k + d, t->D - d);
                Q7_UNROLL
                for (int i = 0; i < count; i++)
                    sum[i][c] = q7_fma(q7_load_tail(r[i].q + d, t->D - d), x, sum[i][c]);
            }
        }
        Q7_UNROLL
        for (int i = 0; i < count; i++) q7_hsum_4(sum[i], r[i].s + j);
    }
    const float sign = sign_of(t->scale);
    if (sign != 1.0f)
        for (int64_t i = 0; i < count * n; i++) r[i / n].s[i % n] *= sign;
}

/* o = rescale * o + sum of s[j] v[j,:] over keys [first, first + n), channels [d, d + vectors W).
 * `soon` floats of each of the keys that follow are prefetched meanwhile. */
Q7_INLINE void add_channels(const q7_attention_tile *t, row *r, const int count, int64_t first,
                            int64_t n, int64_t soon, int64_t d, const int vectors) {
    const int64_t left = t->Dv - d; /* whole vectors but for a single one */
    const float *v = t->v + first * t->v_stride + d, *next = t->k + (first + n) * t->k_stride;
    q7_f32 sum[SHARED * 4]; /* [count][vectors] */
    Q7_UNROLL
    for (int i = 0; i < count * vectors; i++)
        sum[i] = q7_mul(q7_set1(r[i / vectors].rescale),
                        vectors > 1 ? q7_load(r[i / vectors].o + d + i % vectors * Q7_W)
                                    : q7_load_part(r[i].o + d, left));
    for (int64_t j = 0; j < n; j++, v += t->v_stride, next += t->k_stride) {
        for (int64_t c = 0; c < soon; c += 16) q7_prefetch_near(next + c);
        Q7_UNROLL
        for (int c = 0; c < vectors; c++) {
            const q7_f32 x = vectors > 1 ? q7_load(v + c * Q7_W) : q7_load_part(v, left);
            Q7_UNROLL
            for (int i = 0; i < count; i++)
                sum[i * vectors + c] = q7_fma(q7_set1(r[i].s[j]), x, sum[i * vectors + c]);
        }
    }
    Q7_UNROLL
    for (int i = 0; i < count * vectors; i++)
        if (vectors > 1)
            q7_store(r[i / vectors].o + d + i % vectors * Q7_W, sum[i]);
        else
            q7_store_part(r[i].o + d, sum[i], left);
}

Q7_INLINE void add_values(const q7_attention_tile *t, row *r, const int count, int64_t first,
                          int64_t n, bool fetch) {
    int64_t d = 0, soon = fetch ? t->D : 0;
    for (; d + 4 * Q7_W <= t->Dv; d += 4 * Q7_W, soon = 0)
        add_channels(t, r, count, first, n, soon, d, 4);
    for (; d < t->Dv; d += Q7_W, soon = 0) add_channels(t, r, count, first, n, soon, d, 1);
}

#endif
