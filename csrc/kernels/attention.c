/* attention.c: one block of queries of one head, as attention.h describes. Read attention.h first,
 * then blocked() and direct() here. */
#include "attention.h"

#include <math.h>

#include "../simd/transpose.h"
#include "gemm.h"
#include "math.h"
#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_tile *tile);

enum {
    KEYS = Q7_ATTENTION_KEYS,
    DIRECT = 4 /* up to so many queries by dot products: the GEMM tile would be mostly padding */
};

/* What a block of queries keeps between blocks of keys. */
typedef struct workspace {
    float *qt;                       /* (panels, D, NR): scaled queries, transposed */
    float *st;                       /* (block, NR): scores of a panel, then their exponentials */
    float *mt, *bt;                  /* (block, NR): its mask and bias */
    float *vp;                       /* (panels of Dv, block, NR): packed values */
    float max[Q7_ATTENTION_QUERIES]; /* the largest score so far */
    float sum[Q7_ATTENTION_QUERIES]; /* of exp(score - max) */
} workspace;

/* Query i sees keys [first_key, end_key). */
static inline int64_t first_key(const q7_attention_tile *t, int64_t i) {
    return q7_max(0, q7_min(t->keys, t->begin + i));
}

static inline int64_t end_key(const q7_attention_tile *t, int64_t i) {
    return q7_max(0, q7_min(t->keys, t->end + i));
}

/* What products are scaled by: tanh takes scores / softcap. */
static inline float query_scale(const q7_attention_tile *t) {
    return t->softcap != 0.0f ? t->scale / t->softcap : t->scale;
}

/* Even parts of at most MR rows: 32 rows are 11 + 11 + 10, not 14 + 14 + 4. */
static inline int64_t rows_per_tile(int64_t rows) {
    return q7_ceil_div(rows, q7_ceil_div(rows, MR));
}

/* qt (D, NR) = query_scale * the transpose of n queries, with zeros in columns [n, NR). */
static void pack_queries(const q7_attention_tile *t, int64_t first, int64_t n, float *qt) {
    const float *q = t->q + first * t->q_stride;
    const q7_f32 scale = q7_set1(query_scale(t));
    const int64_t n4 = n / 4 * 4, d4 = t->D / 4 * 4;
    for (int64_t i = 0; i < n4; i += 4)
        for (int64_t d = 0; d < d4; d += 4)
            q7_transpose_4x4(q + i * t->q_stride + d, t->q_stride, qt + d * NR + i, NR);
    for (int64_t d = 0; d < t->D; d++) /* what the 4 x 4 blocks left */
        for (int64_t i = d < d4 ? n4 : 0; i < NR; i++)
            qt[d * NR + i] = i < n ? q[i * t->q_stride + d] : 0.0f;
    for (int64_t i = 0; i < t->D * NR; i += Q7_W) q7_store(qt + i, q7_mul(q7_load(qt + i), scale));
}

/* vp (panels, block, NR) = values of keys [first, first + n), with zeros from column Dv on. Read in
 * place, rows a multiple of 1 KB apart fall on few cache sets, and P V took 1.3 times as long
 * (heads of 64 in rows of 2304, 512 keys, avx512). */
static void pack_values(const q7_attention_tile *t, int64_t first, int64_t n, float *vp) {
    const int64_t Dv = t->Dv, stride = t->v_stride;
    for (int64_t d = 0; d < Dv; d += NR, vp += q7_attention_keys(t->keys) * NR) {
        const float *v = t->v + first * stride + d;
        const int64_t columns = q7_min(NR, Dv - d);
        if (columns == NR) {
            for (int64_t j = 0; j < n; j++)
                for (int64_t c = 0; c < NR; c += Q7_W)
                    q7_store(vp + j * NR + c, q7_load(v + j * stride + c));
            continue;
        }
        for (int64_t j = 0; j < n; j++)
            for (int64_t c = 0; c < NR; c += Q7_W) {
                const int64_t left = q7_max(0, q7_min(Q7_W, columns - c));
                q7_store(vp + j * NR + c, q7_load_tail(v + j * stride + c, left));
            }
    }
}

/* st (n, NR) = scaled scores of keys [first, first + n). */
static void score_keys(const q7_attention_tile *t, int64_t first, int64_t n, const float *qt,
                       float *st) {
    const int64_t rows = rows_per_tile(n);
    for (int64_t j = 0; j < n; j += rows) {
        const q7_gemm_tile tile = {
            .m = q7_min(rows, n - j),
            .n = NR,
            .k = t->D,
            .a = t->k + (first + j) * t->k_stride,
            .a_row_stride = t->k_stride,
            .a_k_stride = 1,
            .b = qt,
            .b_stride = NR,
            .b_packed = true,
            .c = st + j * NR,
            .c_stride = NR,
            .prefetch = qt,
        };
        Q7_KERNEL(gemm_f32)(&tile);
    }
}

/* st (n, NR) = softcap * tanh(st). */
static void cap_scores(const q7_attention_tile *t, int64_t n, float *st) {
    const q7_f32 cap = q7_set1(t->softcap);
    for (int64_t i = 0; i < n * NR; i += Q7_W)
        q7_store(st + i, q7_mul(cap, q7_tanh(q7_load(st + i))));
}

/* m = the mask of query i for keys [first, first + n): as it is if float, else 0 or 1. */
static void mask_row(const q7_attention_mask *mask, int64_t i, int64_t first, int64_t n, float *m) {
    const int64_t at = i * mask->q_stride + first * mask->k_stride, stride = mask->k_stride;
    if (mask->dtype == Q7_F32) {
        const float *added = (const float *)mask->at + at;
        if (stride == 1)
            memcpy(m, added, (size_t)n * sizeof *m);
        else
            for (int64_t j = 0; j < n; j++) m[j] = added[j * stride];
    } else {
        const uint8_t *kept = (const uint8_t *)mask->at + at;
        if (stride == 1)
            for (int64_t j = 0; j < n; j++) m[j] = kept[j] != 0;
        else
            for (int64_t j = 0; j < n; j++) m[j] = kept[j * stride] != 0;
    }
}

/* Masks st (n, NR) where all queries share a mask, as for the padding of a batch: one value a key.
 */
static void mask_keys(const q7_attention_mask *mask, float fill, int64_t first, int64_t n,
                      float *st) {
    const bool adds = mask->dtype == Q7_F32;
    float row[KEYS];
    mask_row(mask, 0, first, n, row);
    for (int64_t j = 0; j < n; j++) {
        if (row[j] == (adds ? 0.0f : 1.0f)) continue; /* most keys are not padding */
        const q7_f32 v = q7_set1(adds ? row[j] : fill);
        for (int64_t c = j * NR; c < (j + 1) * NR; c += Q7_W)
            q7_store(st + c, adds ? q7_add(q7_load(st + c), v) : v);
    }
}

/* mt (n, NR) = the masks of `queries` queries from `query`, transposed like the scores. */
static void mask_tile(const q7_attention_mask *mask, int64_t query, int64_t queries, int64_t first,
                      int64_t n, float *mt) {
    float rows[4][KEYS] = {{0}};
    for (int64_t i = 0; i < NR; i += 4) { /* columns of padding repeat the last query */
        for (int64_t r = 0; r < 4; r++)
            mask_row(mask, query + q7_min(i + r, queries - 1), first, n, rows[r]);
        for (int64_t j = 0; j < n; j += 4) q7_transpose_4x4(rows[0] + j, KEYS, mt + j * NR + i, NR);
    }
}

/* Whether mt (n, NR) hides all of these keys from every query of the panel, each of which has seen
 * other keys: then they would add exp(-1e30 or less) = 0. It is how a causal mask looks that is fed
 * as data. */
static bool hides_block(const q7_attention_tile *t, int64_t queries, int64_t n, const float *mt,
                        const float *max) {
    const float low = -1e30f;
    if (t->mask.dtype != Q7_F32 && !(t->fill <= low)) return false;
    const q7_f32 limit = q7_set1(t->mask.dtype == Q7_F32 ? low : 0.0f);
    for (int64_t i = 0; i < n * NR; i += Q7_W)
        if (q7_any(q7_mask_not(q7_le(q7_load(mt + i), limit)))) return false; /* NaN counts */
    for (int64_t i = 0; i < queries; i++)
        if (!(max[i] > low / 10)) return false;
    return true;
}

/* st (n, NR) masked by mt (n, NR). */
static void apply_mask(const q7_attention_mask *mask, float fill, int64_t n, const float *mt,
                       float *st) {
    const q7_f32 filled = q7_set1(fill), zero = q7_set1(0.0f);
    if (mask->dtype == Q7_F32)
        for (int64_t i = 0; i < n * NR; i += Q7_W)
            q7_store(st + i, q7_add(q7_load(st + i), q7_load(mt + i)));
    else
        for (int64_t i = 0; i < n * NR; i += Q7_W)
            q7_store(st + i, q7_select(q7_eq(q7_load(mt + i), zero), filled, q7_load(st + i)));
}

/* -inf in st (n, NR) where query `query` + i does not see one of the keys [first, first + n). */
static void hide_unseen(const q7_attention_tile *t, int64_t query, int64_t first, int64_t n,
                        float *st) {
    const int64_t begin = t->begin + query, end = t->end + query; /* of the panel's first query */
    for (int64_t j = q7_max(0, end - first); j < n; j++) {        /* too far ahead of some */
        const int64_t hidden = q7_min(NR, first + j - end + 1);
        for (int64_t i = 0; i < hidden; i++) st[j * NR + i] = -INFINITY;
    }
    const int64_t behind = q7_min(n, begin + NR - 1 - first); /* keys too far behind some */
    for (int64_t j = 0; j < behind; j++)
        for (int64_t i = q7_max(0, first + j - begin + 1); i < NR; i++) st[j * NR + i] = -INFINITY;
}

/* top (NR) = the maxima down the columns of st (n, NR) and of top itself. Two rows at a time: the
 * latency of max, not its throughput, is what counts here. */
static void max_over_keys(int64_t n, const float *st, float *top) {
    q7_f32 even[VECTORS], odd[VECTORS];
    for (int c = 0; c < VECTORS; c++) even[c] = odd[c] = q7_load(top + c * Q7_W);
    for (int64_t j = 0; j + 2 <= n; j += 2)
        for (int c = 0; c < VECTORS; c++) {
            even[c] = q7_vmax(q7_load(st + j * NR + c * Q7_W), even[c]);
            odd[c] = q7_vmax(q7_load(st + (j + 1) * NR + c * Q7_W), odd[c]);
        }
    for (int c = 0; c < VECTORS; c++) {
        if (n % 2) even[c] = q7_vmax(q7_load(st + (n - 1) * NR + c * Q7_W), even[c]);
        q7_store(top + c * Q7_W, q7_vmax(even[c], odd[c]));
    }
}

/* st = exp(st - the new max); max and sum (NR) are brought up to date, rescale (NR) is the factor
 * by which that changes the scale of what was summed before. */
static void softmax_block(int64_t n, float *st, float *max, float *sum, float *rescale) {
    float old[NR];
    memcpy(old, max, sizeof old);
    max_over_keys(n, st, max);
    for (int64_t c = 0; c < NR; c += Q7_W) {
        /* while all scores are -inf: exp(-inf - 0) = 0, where -inf - -inf would be NaN for good */
        const q7_f32 top = q7_load(max + c);
        const q7_f32 base = q7_select(q7_eq(top, q7_set1(-INFINITY)), q7_set1(0.0f), top);
        q7_f32 total = q7_set1(0.0f);
        for (int64_t j = 0; j < n; j++) {
            const q7_f32 p = q7_exp_nonpositive(q7_sub(q7_load(st + j * NR + c), base));
            q7_store(st + j * NR + c, p);
            total = q7_add(total, p);
        }
        const q7_f32 factor = q7_exp_nonpositive(q7_sub(q7_load(old + c), base));
        q7_store(rescale + c, factor);
        q7_store(sum + c, q7_fma(q7_load(sum + c), factor, total));
    }
}

/* o[0 .. Dv) *= by */
static void scale_row(const q7_attention_tile *t, float *o, float by) {
    const q7_f32 factor = q7_set1(by);
    int64_t d = 0;
    for (; d + Q7_W <= t->Dv; d += Q7_W) q7_store(o + d, q7_mul(q7_load(o + d), factor));
    if (d < t->Dv) q7_store_tail(o + d, q7_mul(q7_load_tail(o + d, t->Dv - d), factor), t->Dv - d);
}

static void zero_row(const q7_attention_tile *t, float *o) {
    for (int64_t d = 0; d < t->Dv; d++) o[d] = 0.0f;
}

/* The last step of a row: divide by the sum, which is 0 when every key was masked by -inf, and NaN
 * when a score was, or was +inf. */
static void finish_row(const q7_attention_tile *t, float *o, float sum) {
    const bool masked = sum == 0.0f && t->zero_masked_rows,
               unordered = sum != sum && t->zero_nan_rows;
    if (masked || unordered)
        zero_row(t, o);
    else
        scale_row(t, o, 1.0f / sum);
}

/* o (queries, Dv) = or += P @ V over a block of n keys, P^T = st (n, NR). */
static void add_values(const q7_attention_tile *t, int64_t queries, int64_t n, const float *st,
                       const float *vp, bool accumulate, float *o) {
    const int64_t rows = rows_per_tile(queries);
    for (int64_t i = 0; i < queries; i += rows) {
        const q7_gemm_tile tile = {
            .m = q7_min(rows, queries - i),
            .n = t->Dv,
            .k = n,
            .a = st + i,
            .a_row_stride = 1,
            .a_k_stride = NR,
            .b = vp,
            .b_stride = NR,
            .b_packed = true,
            .b_panel_stride = q7_attention_keys(t->keys) * NR,
            .c = o + i * t->o_stride,
            .c_stride = t->o_stride,
            .accumulate = accumulate,
            .prefetch = vp,
        };
        Q7_KERNEL(gemm_f32)(&tile);
    }
}

/* One block of keys, from `first`, for the panel of queries from `query`. */
static void panel_step(const q7_attention_tile *t, workspace *w, int64_t query, int64_t first) {
    const int64_t queries = q7_min(NR, t->queries - query), start = first_key(t, query);
    const int64_t keys = q7_min(KEYS, end_key(t, query + queries - 1) - first);
    if (keys <= 0 || first + keys <= start) return;
    const bool accumulate = first > start;
    const q7_attention_mask *mask = &t->mask, *bias = &t->bias;
    const bool full_mask = mask->at && mask->q_stride != 0;
    const bool full_bias = bias->at && bias->q_stride != 0;
    float *o = t->o + query * t->o_stride; /* (queries, Dv) */
    float rescale[NR];
    if (full_mask) mask_tile(mask, query, queries, first, keys, w->mt);
    if (full_mask && accumulate && hides_block(t, queries, keys, w->mt, w->max + query)) return;
    if (full_bias) mask_tile(bias, query, queries, first, keys, w->bt);
    score_keys(t, first, keys, w->qt + query * t->D, w->st);
    if (t->softcap != 0.0f) cap_scores(t, keys, w->st);
    if (full_bias) apply_mask(bias, 0.0f, keys, w->bt, w->st);
    if (bias->at && !full_bias) mask_keys(bias, 0.0f, first, keys, w->st);
    if (full_mask) apply_mask(mask, t->fill, keys, w->mt, w->st);
    if (mask->at && !full_mask) mask_keys(mask, t->fill, first, keys, w->st);
    hide_unseen(t, query, first, keys, w->st);
    softmax_block(keys, w->st, w->max + query, w->sum + query, rescale);
    for (int64_t i = 0; i < queries && accumulate; i++)
        if (rescale[i] != 1.0f) scale_row(t, o + i * t->o_stride, rescale[i]);
    add_values(t, queries, keys, w->st, w->vp, accumulate, o);
}

/* All queries of the tile, the transposed, blocked way. */
static void blocked(const q7_attention_tile *t) {
    const int64_t keys = q7_attention_keys(t->keys);
    workspace w;
    w.qt = t->work;
    w.st = w.qt + q7_ceil_div(t->queries, NR) * NR * t->D;
    w.mt = w.st + keys * NR;
    w.bt = w.mt + keys * NR;
    w.vp = w.bt + keys * NR;
    for (int i = 0; i < Q7_ATTENTION_QUERIES; i++)
        w.max[i] = t->sink, w.sum[i] = t->sink == -INFINITY ? 0.0f : 1.0f;
    for (int64_t i = 0; i < t->queries; i += NR)
        pack_queries(t, i, q7_min(NR, t->queries - i), w.qt + i * t->D);
    const int64_t limit = end_key(t, t->queries - 1);
    for (int64_t first = first_key(t, 0); first < limit; first += KEYS) {
        pack_values(t, first, q7_min(KEYS, limit - first), w.vp);
        for (int64_t i = 0; i < t->queries; i += NR) panel_step(t, &w, i, first);
    }
    for (int64_t i = 0; i < t->queries; i++) {
        float *o = t->o + i * t->o_stride; /* (Dv) */
        if (first_key(t, i) >= end_key(t, i)) zero_row(t, o);
        finish_row(t, o, w.sum[i]);
    }
}

Q7_INLINE float dot(int64_t n, const float *a, const float *b) {
    q7_f32 sum = q7_set1(0.0f);
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) sum = q7_fma(q7_load(a + i), q7_load(b + i), sum);
    if (i < n) sum = q7_fma(q7_load_tail(a + i, n - i), q7_load_tail(b + i, n - i), sum);
    return q7_hsum(sum);
}

/* s (n) masked for query i. */
static void mask_scores(const q7_attention_mask *mask, float fill, int64_t i, int64_t first,
                        int64_t n, float *s) {
    if (!mask->at) return;
    float m[KEYS];
    mask_row(mask, i, first, n, m);
    if (mask->dtype == Q7_F32)
        for (int64_t j = 0; j < n; j++) s[j] += m[j];
    else
        for (int64_t j = 0; j < n; j++) s[j] = m[j] != 0.0f ? s[j] : fill;
}

/* s (keys) = masked scores of query i for keys [first, first + n), padded with -inf to whole
 * vectors. */
static void score_row(const q7_attention_tile *t, int64_t i, int64_t first, int64_t n, float *s) {
    const float scale = query_scale(t);
    for (int64_t j = 0; j < n; j++)
        s[j] = scale * dot(t->D, t->q + i * t->q_stride, t->k + (first + j) * t->k_stride);
    for (int64_t j = n; j % Q7_W; j++) s[j] = 0.0f;
    for (int64_t j = 0; j < n && t->softcap != 0.0f; j += Q7_W)
        q7_store(s + j, q7_mul(q7_set1(t->softcap), q7_tanh(q7_load(s + j))));
    mask_scores(&t->bias, 0.0f, i, first, n, s);
    mask_scores(&t->mask, t->fill, i, first, n, s);
    for (int64_t j = n; j % Q7_W; j++) s[j] = -INFINITY;
}

/* o (Dv) = rescale * o + sum of p[j] v[j,:] over keys [first, first + n). */
static void add_values_row(const q7_attention_tile *t, int64_t first, int64_t n, const float *p,
                           float rescale, float *o) {
    enum { SUMS = 4 };
    const float *v = t->v + first * t->v_stride;
    const q7_f32 by = q7_set1(rescale);
    int64_t d = 0;
    for (; d + SUMS * Q7_W <= t->Dv; d += SUMS * Q7_W) {
        q7_f32 sum[SUMS];
        for (int k = 0; k < SUMS; k++) sum[k] = q7_mul(by, q7_load(o + d + k * Q7_W));
        for (int64_t j = 0; j < n; j++) {
            const q7_f32 weight = q7_set1(p[j]);
            for (int k = 0; k < SUMS; k++)
                sum[k] = q7_fma(weight, q7_load(v + j * t->v_stride + d + k * Q7_W), sum[k]);
        }
        for (int k = 0; k < SUMS; k++) q7_store(o + d + k * Q7_W, sum[k]);
    }
    for (; d < t->Dv; d += Q7_W) {
        const int64_t left = q7_min(Q7_W, t->Dv - d);
        q7_f32 sum = q7_mul(by, q7_load_tail(o + d, left));
        for (int64_t j = 0; j < n; j++)
            sum = q7_fma(q7_set1(p[j]), q7_load_tail(v + j * t->v_stride + d, left), sum);
        q7_store_tail(o + d, sum, left);
    }
}

/* One query, scores in a row: the same steps as panel_step(), along keys instead of across queries.
 */
static void direct(const q7_attention_tile *t, int64_t i) {
    float *o = t->o + i * t->o_stride; /* (Dv) */
    const int64_t limit = end_key(t, i);
    float s[KEYS], max = t->sink, sum = max == -INFINITY ? 0.0f : 1.0f;
    zero_row(t, o);
    for (int64_t first = first_key(t, i); first < limit; first += KEYS) {
        const int64_t n = q7_min(KEYS, limit - first);
        score_row(t, i, first, n, s);
        q7_f32 top = q7_set1(max), total = q7_set1(0.0f);
        for (int64_t j = 0; j < n; j += Q7_W) top = q7_vmax(q7_load(s + j), top);
        const float old = max;
        max = q7_hmax(top);
        const float base = max == -INFINITY ? 0.0f : max;
        for (int64_t j = 0; j < n; j += Q7_W) {
            const q7_f32 p = q7_exp_nonpositive(q7_sub(q7_load(s + j), q7_set1(base)));
            q7_store(s + j, p);
            total = q7_add(total, p);
        }
        const float rescale = q7_hmax(q7_exp_nonpositive(q7_set1(old - base)));
        sum = sum * rescale + q7_hsum(total);
        add_values_row(t, first, n, s, rescale, o);
    }
    finish_row(t, o, sum);
}

void Q7_KERNEL(attention_f32)(const q7_attention_tile *t) {
    if (t->queries <= DIRECT)
        for (int64_t i = 0; i < t->queries; i++) direct(t, i);
    else
        blocked(t);
}
