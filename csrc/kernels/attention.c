/* attention.c: one block of queries of one head, as attention.h describes. Read attention.h first,
 * then blocked() here. */
#include "attention.h"

#include <math.h>

#include "attention_mask.h"
#include "attention_product.h"
#include "math.h"

bool Q7_KERNEL(attention_rows)(const q7_attention_tile *t);

enum { PANELS = Q7_ATTENTION_QUERIES / Q7_W };

/* What a block of queries keeps between blocks of keys. */
typedef struct workspace {
    float *qt;          /* (panels, D, width): scaled queries, transposed */
    float *o;           /* (queries, whole vectors of Dv): sums so far */
    float *st;          /* (block, width): scores of a panel, then their exponentials */
    float *vp;          /* (kept, block, Dv): copies of values */
    const float *k, *v; /* (block, D), (block, Dv): of the block */
    int64_t k_stride, v_stride;
    float key_mask[KEYS], key_bias[KEYS];
    effect mask;                     /* of the block, where all queries share them */
    float max[Q7_ATTENTION_QUERIES]; /* an integer, less than 1 below the largest score so far */
    float sum[Q7_ATTENTION_QUERIES]; /* of 2^(score - max) */
    float watched[Q7_W];             /* outputs */
    bool begun[PANELS];              /* o holds something */
    bool passed[PANELS];             /* over a block that the mask hides */
    bool again[PANELS];              /* passes over none */
    bool complete[PANELS];           /* its queries are written */
    wanted soon[2]; /* values of the next block; queries of the next panel, or outputs */
} workspace;

/* Queries side by side in vectors. */
typedef struct panel {
    int64_t at, query, queries, vectors, width;
} panel;

static int64_t panel_count(const q7_attention_tile *t) {
    return q7_ceil_div(q7_ceil_div(t->queries, Q7_W), VECTORS);
}

/* Panels are even: 64 queries are 32 + 32, not 48 + 16. */
static panel panel_at(const q7_attention_tile *t, int64_t at) {
    const int64_t panels = panel_count(t), vectors = q7_ceil_div(t->queries, Q7_W);
    const int64_t first = vectors * at / panels, count = vectors * (at + 1) / panels - first;
    return (panel){at, first * Q7_W, q7_min(t->queries - first * Q7_W, count * Q7_W), count,
                   count * Q7_W};
}

/* A block of queries by channels, transposed: qt is at a stride of `width`. */
Q7_INLINE void pack_block(const float *q, int64_t stride, int64_t queries, int64_t channels,
                          float *qt, int64_t width, q7_f32 by, const bool whole) {
    q7_f32 v[Q7_W];
    q7_load_transposed_part(q, stride, queries, channels, v);
    Q7_UNROLL
    for (int d = 0; d < Q7_W; d++)
        if (whole || d < channels) q7_store(qt + d * width, q7_mul(v[d], by));
}

/* qt (D, width) = the transposed queries of a panel, with the sign of the scale; zeros in columns of
 * padding. */
static void pack_queries(const q7_attention_tile *t, panel p, float *qt) {
    const q7_f32 by = q7_set1(sign_of(t->scale));
    for (int64_t i = 0; i < p.width; i += Q7_W)
        for (int64_t d = 0; d < t->D; d += Q7_W) {
            const float *q = t->q + (p.query + i) * t->q_stride + d;
            const int64_t queries = p.queries - i, channels = t->D - d;
            float *to = qt + d * p.width + i;
            if (queries >= Q7_W && channels >= Q7_W)
                pack_block(q, t->q_stride, queries, channels, to, p.width, by, true);
            else
                pack_block(q, t->q_stride, queries, channels, to, p.width, by, false);
        }
}

/* -inf in st (n, width) where a query of the panel does not see one of the keys
 * [first, first + n). */
static void hide_unseen(const q7_attention_tile *t, panel p, int64_t first, int64_t n, float *st) {
    const int64_t begin = t->begin + p.query, end = t->end + p.query; /* of its first query */
    for (int64_t j = q7_max(0, end - first); j < n; j++) {            /* too far ahead of some */
        const int64_t hidden = q7_min(p.width, first + j - end + 1);
        for (int64_t i = 0; i < hidden; i++) st[j * p.width + i] = -INFINITY;
    }
    const int64_t behind = q7_min(n, begin + p.width - 1 - first); /* keys too far behind some */
    for (int64_t j = 0; j < behind; j++)
        for (int64_t i = q7_max(0, first + j - begin + 1); i < p.width; i++)
            st[j * p.width + i] = -INFINITY;
}

/* The maxima of columns of n vectors. Four rows at a time: the latency of max, not its throughput, is
 * what counts here. */
Q7_INLINE void column_max(int64_t n, const float *st, q7_f32 *most, const int vectors) {
    q7_f32 m[4 * VECTORS]; /* [4][vectors] */
    Q7_UNROLL
    for (int i = 0; i < 4 * vectors; i++) m[i] = q7_set1(-INFINITY);
    for (; n >= 4; n -= 4, st += 4 * vectors * Q7_W) {
        Q7_UNROLL
        for (int i = 0; i < 4 * vectors; i++) m[i] = q7_vmax(q7_load(st + i * Q7_W), m[i]);
    }
    for (; n > 0; n--, st += vectors * Q7_W) {
        Q7_UNROLL
        for (int c = 0; c < vectors; c++) m[c] = q7_vmax(q7_load(st + c * Q7_W), m[c]);
    }
    Q7_UNROLL
    for (int c = 0; c < vectors; c++)
        most[c] =
            q7_vmax(q7_vmax(m[c], m[vectors + c]), q7_vmax(m[2 * vectors + c], m[3 * vectors + c]));
}

/* st (n, width) = 2^(unit * st - the new max), with st - largest of the block in place of st where it
 * `shifts` or is too far off for powers; max and sum (width) are brought up to date, rescale (width) is
 * the power of two by which that changes the scale of what was summed before. */
Q7_INLINE void softmax_vectors(float unit, bool shifts, int64_t n, float *st, float *max,
                               float *sum, float *rescale, const int vectors) {
    const q7_f32 by = q7_set1(unit), zero = q7_set1(0.0f), none = q7_set1(-INFINITY);
    q7_f32 most[VECTORS], shift[VECTORS], lift[VECTORS], start[VECTORS], total[VECTORS];
    const q7_f32 near = q7_set1(shifts ? -1.0f : FAR);
    bool shifted = shifts;
    column_max(n, st, most, vectors);
    Q7_UNROLL
    for (int c = 0; c < vectors; c++) {
        const q7_f32 old = q7_load(max + c * Q7_W), own = q7_floor(q7_mul(most[c], by));
        const q7_f32 top = q7_vmax(own, old);
        /* while all scores are -inf: 2^(-inf - 0) = 0, where -inf - -inf would be NaN for good */
        const q7_f32 base = q7_select(q7_eq(top, none), zero, top);
        const q7_mask far = q7_lt(near, q7_abs(base)), unseen = q7_eq(most[c], none);
        shifted = shifted || q7_any(far);
        shift[c] = q7_select(far, q7_select(unseen, zero, most[c]), zero);
        const q7_f32 power = lift_of(shift[c], by, q7_select(unseen, base, own), base);
        lift[c] = q7_exp2(q7_select(far, power, zero));
        start[c] = q7_add(q7_set1(Q7_POWER_ORIGIN), q7_select(far, zero, q7_neg(base)));
        total[c] = zero;
        q7_store(rescale + c * Q7_W, q7_exp2(q7_sub(old, base)));
        q7_store(max + c * Q7_W, top);
    }
    for (int64_t j = 0; j < n && shifted; j++) {
        Q7_UNROLL
        for (int c = 0; c < vectors; c++) {
            float *x = st + (j * vectors + c) * Q7_W;
            const q7_f32 p = q7_power_of(q7_sub(q7_load(x), shift[c]), by, start[c]);
            const q7_f32 y = q7_mul(lift[c], p);
            q7_store(x, y);
            total[c] = q7_add(total[c], y);
        }
    }
    for (int64_t j = 0; j < n && !shifted; j++) {
        Q7_UNROLL
        for (int c = 0; c < vectors; c++) {
            float *x = st + (j * vectors + c) * Q7_W;
            const q7_f32 y = q7_power_of(q7_load(x), by, start[c]);
            q7_store(x, y);
            total[c] = q7_add(total[c], y);
        }
    }
    Q7_UNROLL
    for (int c = 0; c < vectors; c++)
        q7_store(sum + c * Q7_W,
                 q7_fma(q7_load(sum + c * Q7_W), q7_load(rescale + c * Q7_W), total[c]));
}

/* A function for each number of vectors, as for products. */
#define SOFTMAX(vectors)                                                                     \
    static void softmax_##vectors(float unit, bool shifts, int64_t n, float *st, float *max, \
                                  float *sum, float *rescale) {                              \
        softmax_vectors(unit, shifts, n, st, max, sum, rescale,                              \
                        vectors <= VECTORS ? vectors : VECTORS);                             \
    }
SOFTMAX(1)
SOFTMAX(2)
SOFTMAX(3)
#undef SOFTMAX

/* Whether all queries of the panel have seen a key that is not masked: to such, keys that the mask
 * hides add 2^(-1e30 or less) = 0. */
static bool all_saw(panel p, const float *max) {
    for (int64_t i = 0; i < p.queries; i++)
        if (!(max[i] > LOW / 10)) return false;
    return true;
}

/* Scores as tanh, biases and masks make them. Returns whether that is nothing: st are products. */
static bool mask_panel(const q7_attention_tile *t, workspace *w, panel p, int64_t first, int64_t n,
                       effect masked) {
    const q7_attention_mask *mask = &t->mask, *bias = &t->bias;
    const float fill = bounded_fill(t->fill);
    const int64_t size = n * p.width;
    /* the same for every panel with the query, since it makes a difference of a rounding */
    const bool is_plain = t->softcap == 0.0f && !bias->at && masked == NOTHING;
    if (is_plain && (!mask->at || !mask->q_stride)) return true;
    scale_scores(t, size, w->st);
    if (bias->at && bias->q_stride) {
        mask_tile(bias, 0.0f, p.query, p.queries, first, n, p.width, w->st);
    } else if (bias->at) {
        mask_keys(bias, 0.0f, n, p.width, w->key_bias + first % KEYS, w->st);
    }
    if (masked != NOTHING && mask->q_stride) {
        mask_tile(mask, fill, p.query, p.queries, first, n, p.width, w->st);
    } else if (masked != NOTHING) {
        mask_keys(mask, fill, n, p.width, w->key_mask + first % KEYS, w->st);
    }
    return false;
}

/* st (n, width) = the products of a panel with n keys from k. */
static void multiply_scores(const q7_attention_tile *t, workspace *w, panel p, const float *k,
                            int64_t n) {
    const product scores = {.a = k,
                            .a_stride = w->k_stride,
                            .b = w->qt + p.query * t->D,
                            .c = w->st,
                            .k = t->D,
                            .soon = w->soon};
    for (int64_t j = 0, rows; j < n; j += rows) {
        rows = rows_of_tile(n - j, ROWS);
        scores_tiles[p.vectors][rows](&scores, j);
    }
}

/* The sums of a panel's queries = [these * rescale +] st (n, width) by the values of keys
 * [first, first + n), at v; or, where they are `complete`, o = these / sum. Keys that none of a tile's
 * queries may see are left out. */
static void multiply_values(const q7_attention_tile *t, workspace *w, panel p, const float *v,
                            int64_t first, int64_t n, const float *rescale, bool complete) {
    const int64_t all = q7_ceil_div(t->Dv, Q7_W), groups = q7_ceil_div(all, WIDE);
    float by[VECTORS * Q7_W];
    for (int64_t i = 0; i < p.width && complete; i += Q7_W)
        q7_store(by + i, q7_div(q7_set1(1.0f), q7_load(w->sum + p.query + i)));
    for (int64_t g = 0; g < groups; g++) {
        const int64_t at = all * g / groups, vectors = all * (g + 1) / groups - at;
        product values = {.a = w->st,
                          .a_stride = p.width,
                          .b = v + at * Q7_W,
                          .b_stride = w->v_stride,
                          .c = w->o + (p.query * all + at) * Q7_W,
                          .c_stride = all * Q7_W,
                          .last = q7_min(Q7_W, t->Dv - (at + vectors - 1) * Q7_W),
                          .factor = rescale,
                          .y = complete ? t->o + p.query * t->o_stride + at * Q7_W : NULL,
                          .y_stride = t->o_stride,
                          .total = w->sum + p.query,
                          .by = by,
                          .watched = w->watched};
        for (int64_t i = 0, rows; i < p.queries; i += rows) {
            rows = rows_of_tile(p.queries - i, SUMS / vectors);
            values.k = q7_min(n, end_key(t, p.query + i + rows - 1) - first);
            values_tiles[vectors][rows](&values, i);
        }
    }
}

/* The keys of the block from `block` for one panel of queries. */
static void panel_step(const q7_attention_tile *t, workspace *w, panel p, int64_t block) {
    const int64_t first = q7_max(block, first_key(t, p.query));
    const int64_t end = end_key(t, p.query + p.queries - 1), n = q7_min(block + KEYS, end) - first;
    if (n <= 0) return;
    const effect masked =
        t->mask.q_stride ? effect_of(&t->mask, t->fill, p.query, p.queries, first, n) : w->mask;
    if (masked == HIDES && !w->again[p.at]) {
        w->passed[p.at] = true;
        return;
    }
    float rescale[VECTORS * Q7_W];
    multiply_scores(t, w, p, w->k + (first - block) * w->k_stride, n);
    const bool plain = mask_panel(t, w, p, first, n, masked);
    hide_unseen(t, p, first, n, w->st);
    (p.vectors == 1   ? softmax_1
     : p.vectors == 2 ? softmax_2
                      : softmax_3)(plain ? unit_of(t->scale) : LOG2_E, !plain, n, w->st,
                                   w->max + p.query, w->sum + p.query, rescale);
    w->complete[p.at] = block + KEYS >= end && !w->passed[p.at];
    multiply_values(t, w, p, w->v + (first - block) * w->v_stride, first, n,
                    w->begun[p.at] ? rescale : NULL, w->complete[p.at]);
    w->begun[p.at] = true;
}

/* The queries of a panel: o = sums / their sum, which is 0 when every key was masked by -inf, and NaN when
 * a score was, or was +inf. */
static void finish_panel(const q7_attention_tile *t, workspace *w, panel p) {
    float ones[VECTORS * Q7_W];
    for (int64_t i = 0; i < p.width; i++) ones[i] = 1.0f;
    if (!w->complete[p.at])
        multiply_values(t, w, p, w->v, 0, 0, w->begun[p.at] ? ones : NULL, true);
    for (int64_t i = p.query; i < p.query + p.queries; i++) {
        const bool masked = w->sum[i] == 0.0f && t->zero_masked_rows,
                   unordered = w->sum[i] != w->sum[i] && t->zero_nan_rows;
        if (masked || unordered) memset(t->o + i * t->o_stride, 0, (size_t)t->Dv * sizeof *t->o);
    }
}

static int64_t *kept_at(const q7_attention_tile *t, int64_t block) {
    return (int64_t *)(void *)t->work + q7_attention_place(t, block);
}

/* Keys and values of a block, these copied if any are, unless the thread has a copy. */
static void use_block(const q7_attention_tile *t, workspace *w, int64_t block) {
    const float *v = t->v + block * t->v_stride;
    w->k = t->k + block * t->k_stride, w->k_stride = t->k_stride;
    w->v = v, w->v_stride = t->v_stride;
    if (!t->kept) return;
    int64_t *kept = kept_at(t, block);
    float *vp = w->vp + q7_attention_place(t, block) * q7_attention_keys(t->all_keys) * t->Dv;
    w->v = vp, w->v_stride = t->Dv;
    if (*kept == q7_attention_tag(t, block)) return;
    for (int64_t j = 0; j < q7_min(KEYS, t->keys - block); j++)
        memcpy(vp + j * t->Dv, v + j * t->v_stride, (size_t)t->Dv * sizeof *v);
    *kept = q7_attention_tag(t, block);
}

/* A panel's share of the values that are to be copied next. */
static void want_block(const q7_attention_tile *t, workspace *w, int64_t block, int64_t at,
                       int64_t panels, int64_t limit) {
    const int64_t n = q7_min(KEYS, limit - block), first = block + n * at / panels,
                  rows = block + n * (at + 1) / panels - first;
    if (n <= 0 || !t->kept || *kept_at(t, block) == q7_attention_tag(t, block)) return;
    w->soon[0] = (wanted){t->v + first * t->v_stride, t->v_stride, rows, t->Dv, 0};
}

/* All blocks of keys, but those that the mask hides, for all panels, or these as well for those that
 * go `again`. */
static void each_block(const q7_attention_tile *t, workspace *w, bool again) {
    const int64_t panels = panel_count(t), limit = end_key(t, t->queries - 1);
    const int64_t begin = first_key(t, 0) / KEYS * KEYS;
    for (int64_t block = begin; block < limit; block += KEYS) {
        const int64_t n = q7_min(KEYS, t->keys - block);
        if (t->mask.at && !t->mask.q_stride) {
            w->mask = effect_of(&t->mask, t->fill, 0, 1, block, n);
            if (w->mask == SOMETHING || again) mask_row(&t->mask, 0, block, n, w->key_mask);
        }
        use_block(t, w, block);
        if (t->bias.at && !t->bias.q_stride) mask_row(&t->bias, 0, block, n, w->key_bias);
        for (int64_t i = 0; i < panels; i++) {
            const panel p = panel_at(t, i);
            want_block(t, w, block + KEYS, i, panels, limit);
            if (!again && block + KEYS >= limit)
                w->soon[1] =
                    (wanted){t->o + p.query * t->o_stride, t->o_stride, p.queries, t->Dv, 0};
            if (!again && block == begin) {
                const panel next = panel_at(t, i + 1);
                pack_queries(t, p, w->qt + p.query * t->D);
                if (i + 1 < panels)
                    w->soon[1] = (wanted){t->q + next.query * t->q_stride, t->q_stride,
                                          next.queries, t->D, 0};
            }
            if (!again || w->again[i]) panel_step(t, w, p, block);
        }
    }
}

/* Nothing seen yet. */
static void start_panel(const q7_attention_tile *t, workspace *w, panel p) {
    const float sink = t->sinks ? t->sinks[0] * LOG2_E : -INFINITY;
    for (int64_t i = p.query; i < p.query + p.width; i++) {
        w->max[i] = floorf(sink);
        w->sum[i] = sink == -INFINITY ? 0.0f : exp2f(sink - floorf(sink));
    }
    w->begun[p.at] = w->passed[p.at] = w->complete[p.at] = false;
}

/* Panels of which a query has seen nothing but what the mask hides take all keys in order, so that its
 * sums are those that it has beside any others: to these a hidden key adds 0. Returns whether there are any. */
static bool start_again(const q7_attention_tile *t, workspace *w) {
    bool any = false;
    for (int64_t i = 0; i < panel_count(t); i++) {
        const panel p = panel_at(t, i);
        w->again[i] = w->passed[i] && !all_saw(p, w->max + p.query);
        if (w->again[i]) start_panel(t, w, p), any = true;
    }
    return any;
}

/* All queries of the tile, the transposed, blocked way. */
static bool blocked(const q7_attention_tile *t) {
    const int64_t panels = panel_count(t), lanes = q7_ceil_div(t->queries, Q7_W) * Q7_W;
    const int64_t keys = q7_attention_keys(t->all_keys);
    workspace w; /* 6 KB, most of which only masks use */
    w.vp = t->work + 2 * Q7_ATTENTION_KEPT;
    w.qt = w.vp + t->kept * keys * t->Dv;
    w.o = w.qt + lanes * t->D;
    w.st = w.o + lanes * q7_ceil_div(t->Dv, Q7_W) * Q7_W;
    for (int64_t i = 0; i < panels; i++) start_panel(t, &w, panel_at(t, i));
    memset(w.again, 0, sizeof w.again);
    memset(w.watched, 0, sizeof w.watched);
    memset(w.soon, 0, sizeof w.soon);
    w.mask = NOTHING;
    each_block(t, &w, false);
    if (start_again(t, &w)) each_block(t, &w, true);
    for (int64_t i = 0; i < panels; i++) finish_panel(t, &w, panel_at(t, i));
    return saw_finite(w.watched);
}

bool Q7_KERNEL(attention_f32)(const q7_attention_tile *t) {
    const bool few = t->heads > 1 || t->all_queries <= Q7_ATTENTION_FEW;
    return few ? Q7_KERNEL(attention_rows)(t) : blocked(t);
}
