/* attention.c: one block of queries of one head, as attention.h describes. Read attention.h first, then
 * blocked() and direct() here. */
#include "attention.h"

#include <math.h>

#include "../simd/transpose.h"
#include "gemm.h"
#include "math.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_tile *tile);

/* The register tile of that kernel, from its row. */
enum {
#define KERNEL(family, dtypes, isa, mr, nr) \
    mr_##family##_##dtypes##_##isa = mr, nr_##family##_##dtypes##_##isa = nr,
#include "../kernels.def"
#undef KERNEL
    MR = Q7_CAT(mr_gemm_f32_, Q7_ISA),
    NR = Q7_CAT(nr_gemm_f32_, Q7_ISA),
    KEYS = Q7_ATTENTION_KEYS,
    DIRECT = 4 /* up to so many queries by dot products: the GEMM tile would be mostly padding */
};

/* Running softmax of NR queries: the largest score so far, the sum of exp(score - max), and the factor by
 * which the last block changed the scale of what was summed before. */
typedef struct running {
    float max[NR], sum[NR], rescale[NR];
} running;

/* How many keys query i sees. */
static inline int64_t keys_of(const q7_attention_tile *t, int64_t i) {
    return t->causal ? q7_max(0, q7_min(t->keys, t->visible + i)) : t->keys;
}

/* Even parts of at most MR rows: 32 rows are 11 + 11 + 10, not 14 + 14 + 4. */
static inline int64_t rows_per_tile(int64_t rows) { return q7_ceil_div(rows, q7_ceil_div(rows, MR)); }

/* qt (D, NR) = the transpose of n queries, with zeros in columns [n, NR). */
static void pack_queries(const q7_attention_tile *t, int64_t first, int64_t n, float *qt) {
    const float *q = t->q + first * t->q_stride;
    const int64_t n4 = n / 4 * 4, d4 = t->D / 4 * 4;
    for (int64_t i = 0; i < n4; i += 4)
        for (int64_t d = 0; d < d4; d += 4)
            q7_transpose_4x4(q + i * t->q_stride + d, t->q_stride, qt + d * NR + i, NR);
    for (int64_t d = 0; d < t->D; d++) /* what the 4 x 4 blocks left */
        for (int64_t i = d < d4 ? n4 : 0; i < NR; i++) qt[d * NR + i] = i < n ? q[i * t->q_stride + d] : 0.0f;
}

/* st (n, NR) = scores of keys [first, first + n) before scaling. */
static void score_keys(const q7_attention_tile *t, int64_t first, int64_t n, const float *qt, float *st) {
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
            .c = st + j * NR,
            .c_stride = NR,
        };
        Q7_KERNEL(gemm_f32)(&tile);
    }
}

/* m = the mask of query i for keys [first, first + n): as it is if float, else 0 or 1. */
static void mask_row(const q7_attention_tile *t, int64_t i, int64_t first, int64_t n, float *m) {
    const int64_t at = i * t->mask_q_stride + first * t->mask_k_stride, stride = t->mask_k_stride;
    if (t->mask_dtype == Q7_F32) {
        const float *mask = (const float *)t->mask + at;
        if (stride == 1)
            memcpy(m, mask, (size_t)n * sizeof *m);
        else
            for (int64_t j = 0; j < n; j++) m[j] = mask[j * stride];
    } else {
        const uint8_t *mask = (const uint8_t *)t->mask + at;
        if (stride == 1)
            for (int64_t j = 0; j < n; j++) m[j] = mask[j] != 0;
        else
            for (int64_t j = 0; j < n; j++) m[j] = mask[j * stride] != 0;
    }
}

/* mt (n, NR) = the masks of `queries` queries from `query`, transposed like the scores. */
static void mask_tile(const q7_attention_tile *t, int64_t query, int64_t queries, int64_t first, int64_t n,
                      float *mt) {
    float rows[4][KEYS] = {{0}};
    if (t->mask_q_stride == 0) {
        mask_row(t, query, first, n, rows[0]);
        for (int64_t j = 0; j < n; j++)
            for (int64_t c = 0; c < NR; c += Q7_W) q7_store(mt + j * NR + c, q7_set1(rows[0][j]));
        return;
    }
    for (int64_t i = 0; i < NR; i += 4) { /* columns of padding repeat the last query */
        for (int64_t r = 0; r < 4; r++) mask_row(t, query + q7_min(i + r, queries - 1), first, n, rows[r]);
        for (int64_t j = 0; j < n; j += 4) q7_transpose_4x4(rows[0] + j, KEYS, mt + j * NR + i, NR);
    }
}

/* st = scale * st, masked. mt may be NULL. */
static void scale_and_mask(const q7_attention_tile *t, int64_t n, const float *mt, float *st) {
    const q7_f32 scale = q7_set1(t->scale), fill = q7_set1(t->fill), zero = q7_set1(0.0f);
    if (!mt)
        for (int64_t i = 0; i < n * NR; i += Q7_W) q7_store(st + i, q7_mul(q7_load(st + i), scale));
    else if (t->mask_dtype == Q7_F32)
        for (int64_t i = 0; i < n * NR; i += Q7_W)
            q7_store(st + i, q7_fma(q7_load(st + i), scale, q7_load(mt + i)));
    else
        for (int64_t i = 0; i < n * NR; i += Q7_W) {
            const q7_mask masked = q7_eq(q7_load(mt + i), zero);
            q7_store(st + i, q7_select(masked, fill, q7_mul(q7_load(st + i), scale)));
        }
}

/* Query `query` + i sees keys below visible + query + i: -inf for the others among keys [first, first + n). */
static void hide_later_keys(const q7_attention_tile *t, int64_t query, int64_t first, int64_t n, float *st) {
    const int64_t all_see = t->visible + query; /* keys that every query of the panel sees */
    for (int64_t j = q7_max(0, all_see - first); j < n; j++) {
        const int64_t hidden = q7_min(NR, first + j - all_see + 1);
        for (int64_t i = 0; i < hidden; i++) st[j * NR + i] = -INFINITY;
    }
}

/* st = exp(st - the new max), with max, sum and rescale brought up to date. */
static void softmax_block(int64_t n, float *st, running *state) {
    for (int64_t c = 0; c < NR; c += Q7_W) {
        const q7_f32 old = q7_load(state->max + c);
        q7_f32 max = old, sum = q7_set1(0.0f);
        for (int64_t j = 0; j < n; j++) max = q7_vmax(q7_load(st + j * NR + c), max);
        /* while all scores are -inf: exp(-inf - 0) = 0, where -inf - -inf would be NaN for good */
        const q7_f32 base = q7_select(q7_eq(max, q7_set1(-INFINITY)), q7_set1(0.0f), max);
        for (int64_t j = 0; j < n; j++) {
            const q7_f32 p = q7_exp_nonpositive(q7_sub(q7_load(st + j * NR + c), base));
            q7_store(st + j * NR + c, p);
            sum = q7_add(sum, p);
        }
        const q7_f32 rescale = q7_exp_nonpositive(q7_sub(old, base));
        q7_store(state->max + c, max);
        q7_store(state->rescale + c, rescale);
        q7_store(state->sum + c, q7_fma(q7_load(state->sum + c), rescale, sum));
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

/* The last step of a row: divide by the sum, which is 0 when every key was masked by -inf. */
static void finish_row(const q7_attention_tile *t, float *o, float sum) {
    scale_row(t, o, sum == 0.0f && t->zero_masked_rows ? 0.0f : 1.0f / sum);
}

/* o (m, n) += p^T (m, keys) @ v (keys, n), or = when not accumulate. */
static void add_values_tile(const q7_attention_tile *t, q7_gemm_tile tile) {
    /* A row stride of NR would tell the kernel that v is padded to NR columns: take the last row, behind
     * which there may be nothing to read, by itself. */
    const bool apart = t->v_stride == NR && tile.n < NR;
    tile.k -= apart;
    Q7_KERNEL(gemm_f32)(&tile);
    if (!apart) return;
    tile.a += tile.k * tile.a_k_stride;
    tile.b += tile.k * tile.b_stride;
    tile.k = 1;
    tile.b_stride = 0;
    tile.accumulate = true;
    Q7_KERNEL(gemm_f32)(&tile);
}

/* o (queries, Dv) += P @ V over keys [first, first + n), P^T = st (n, NR). */
static void add_values(const q7_attention_tile *t, int64_t queries, int64_t first, int64_t n, const float *st,
                       float *o) {
    const int64_t rows = rows_per_tile(queries);
    for (int64_t d = 0; d < t->Dv; d += NR)
        for (int64_t i = 0; i < queries; i += rows)
            add_values_tile(t, (q7_gemm_tile){
                                   .m = q7_min(rows, queries - i),
                                   .n = q7_min(NR, t->Dv - d),
                                   .k = n,
                                   .a = st + i,
                                   .a_row_stride = 1,
                                   .a_k_stride = NR,
                                   .b = t->v + first * t->v_stride + d,
                                   .b_stride = t->v_stride,
                                   .c = o + i * t->o_stride + d,
                                   .c_stride = t->o_stride,
                                   .accumulate = first > 0,
                               });
}

/* n <= NR queries from `query`: the transposed, blocked way. */
static void blocked(const q7_attention_tile *t, int64_t query, int64_t n) {
    float *qt = t->work;                                 /* (D, NR) */
    float *st = qt + Q7_ATTENTION_QUERIES * t->D;        /* (KEYS, NR) */
    float *mt = st + Q7_ATTENTION_QUERIES * KEYS;        /* (KEYS, NR) */
    float *o = t->o + query * t->o_stride;               /* (n, Dv) */
    const int64_t limit = keys_of(t, query + n - 1);
    running state;
    for (int i = 0; i < NR; i++) state.max[i] = -INFINITY, state.sum[i] = 0.0f;
    for (int64_t i = 0; i < n && limit == 0; i++) zero_row(t, o + i * t->o_stride);
    pack_queries(t, query, n, qt);
    for (int64_t j = 0; j < limit; j += KEYS) {
        const int64_t keys = q7_min(KEYS, limit - j);
        score_keys(t, j, keys, qt, st);
        if (t->mask) mask_tile(t, query, n, j, keys, mt);
        scale_and_mask(t, keys, t->mask ? mt : NULL, st);
        if (t->causal) hide_later_keys(t, query, j, keys, st);
        softmax_block(keys, st, &state);
        for (int64_t i = 0; i < n && j > 0; i++)
            if (state.rescale[i] != 1.0f) scale_row(t, o + i * t->o_stride, state.rescale[i]);
        add_values(t, n, j, keys, st, o);
    }
    for (int64_t i = 0; i < n; i++) finish_row(t, o + i * t->o_stride, state.sum[i]);
}

Q7_INLINE float dot(int64_t n, const float *a, const float *b) {
    q7_f32 sum = q7_set1(0.0f);
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) sum = q7_fma(q7_load(a + i), q7_load(b + i), sum);
    if (i < n) sum = q7_fma(q7_load_tail(a + i, n - i), q7_load_tail(b + i, n - i), sum);
    return q7_hsum(sum);
}

/* s (keys) = masked scores of query i for keys [first, first + n), padded with -inf to whole vectors. */
static void score_row(const q7_attention_tile *t, int64_t i, int64_t first, int64_t n, float *s) {
    for (int64_t j = 0; j < n; j++)
        s[j] = t->scale * dot(t->D, t->q + i * t->q_stride, t->k + (first + j) * t->k_stride);
    if (t->mask) {
        float m[KEYS];
        mask_row(t, i, first, n, m);
        if (t->mask_dtype == Q7_F32)
            for (int64_t j = 0; j < n; j++) s[j] += m[j];
        else
            for (int64_t j = 0; j < n; j++) s[j] = m[j] != 0.0f ? s[j] : t->fill;
    }
    for (int64_t j = n; j % Q7_W; j++) s[j] = -INFINITY;
}

/* o (Dv) = rescale * o + sum of p[j] v[j,:] over keys [first, first + n). */
static void add_values_row(const q7_attention_tile *t, int64_t first, int64_t n, const float *p, float rescale,
                           float *o) {
    enum { VECTORS = 4 };
    const float *v = t->v + first * t->v_stride;
    const q7_f32 by = q7_set1(rescale);
    int64_t d = 0;
    for (; d + VECTORS * Q7_W <= t->Dv; d += VECTORS * Q7_W) {
        q7_f32 sum[VECTORS];
        for (int k = 0; k < VECTORS; k++) sum[k] = q7_mul(by, q7_load(o + d + k * Q7_W));
        for (int64_t j = 0; j < n; j++) {
            const q7_f32 weight = q7_set1(p[j]);
            for (int k = 0; k < VECTORS; k++)
                sum[k] = q7_fma(weight, q7_load(v + j * t->v_stride + d + k * Q7_W), sum[k]);
        }
        for (int k = 0; k < VECTORS; k++) q7_store(o + d + k * Q7_W, sum[k]);
    }
    for (; d < t->Dv; d += Q7_W) {
        const int64_t left = q7_min(Q7_W, t->Dv - d);
        q7_f32 sum = q7_mul(by, q7_load_tail(o + d, left));
        for (int64_t j = 0; j < n; j++)
            sum = q7_fma(q7_set1(p[j]), q7_load_tail(v + j * t->v_stride + d, left), sum);
        q7_store_tail(o + d, sum, left);
    }
}

/* One query, scores in a row: the same steps as blocked(), along keys instead of across queries. */
static void direct(const q7_attention_tile *t, int64_t i) {
    float *o = t->o + i * t->o_stride; /* (Dv) */
    const int64_t limit = keys_of(t, i);
    float s[KEYS], max = -INFINITY, sum = 0.0f;
    zero_row(t, o);
    for (int64_t first = 0; first < limit; first += KEYS) {
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
    if (t->keys == 0) { /* an empty sum */
        for (int64_t i = 0; i < t->queries; i++) zero_row(t, t->o + i * t->o_stride);
        return;
    }
    if (t->queries <= DIRECT)
        for (int64_t i = 0; i < t->queries; i++) direct(t, i);
    else
        for (int64_t i = 0; i < t->queries; i += NR) blocked(t, i, q7_min(NR, t->queries - i));
}
