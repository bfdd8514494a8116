/* attention_rows.c: few queries, as attention.h describes: a decoder's step. K and V are read once,
 * in order, for all rows: heads that share them, and queries of each. The steps are those of
 * attention.c, along keys instead of across queries. Read attention.h first, then the end here. */
#include <math.h>

#include "attention.h"
#include "attention_mask.h"
#include "attention_row.h"
#include "math.h"

enum {
    MOST = Q7_ATTENTION_ROWS,
    FEW_KEYS = 64 /* of a block: each of its two halves prefetches for the other */
};

/* What is left of a row by a part of the keys. */
static float *partial_of(const q7_attention_tile *t, int64_t i, int64_t part) {
    return t->partial + (i * t->n_parts + part) * (t->Dv + 2);
}

static float *output_of(const q7_attention_tile *t, int64_t i) {
    return t->o + i / t->queries * t->o_h_stride + i % t->queries * t->o_stride;
}

/* Everything but the scores. */
static void start_row(const q7_attention_tile *t, int64_t i, row *r) {
    const int64_t head = i / t->queries, query = i % t->queries;
    const int64_t low = t->part * Q7_ATTENTION_PART, high = low + Q7_ATTENTION_PART;
    const float sink = t->sinks && t->part == 0 ? t->sinks[head] * LOG2_E : -INFINITY;
    const float max = floorf(sink);
    r->q = t->q + head * t->q_h_stride + query * t->q_stride;
    r->o = t->n_parts > 1 ? partial_of(t, i, t->part) : output_of(t, i);
    r->begin = q7_max(low, q7_min(t->keys, t->begin + query));
    r->end = q7_max(low, q7_min(q7_min(t->keys, high), t->end + query));
    r->mask = q7_attention_mask_of(&t->mask, head, query);
    r->bias = q7_attention_mask_of(&t->bias, head, query);
    r->max = max;
    r->sum = sink == -INFINITY ? 0.0f : exp2f(sink - max);
    memset(r->o, 0, (size_t)t->Dv * sizeof *r->o);
}

/* s (KEYS) masked by m, of mask_row(). */
static void mask_line(const q7_attention_mask *mask, float fill, int64_t first, int64_t n,
                      float *s) {
    float m[KEYS];
    if (!mask->at) return;
    mask_row(mask, 0, first, n, m);
    mask_scores(mask, bounded_fill(fill), q7_ceil_div(n, Q7_W) * Q7_W, m, s);
}

/* s[n] and what follows in its vector: x. In one store, as what is loaded next is all of it. */
static void fill(float *s, int64_t n, float x) {
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t part = n % Q7_W;
    if (part == 0) return;
    const q7_mask is_score = q7_lt(q7_load(lane), q7_set1((float)part));
    q7_store(s + n - part, q7_select(is_score, q7_load(s + n - part), q7_set1(x)));
}

/* s = masked scores, then their exponentials; max, sum and rescale follow. */
static void softmax_row(const q7_attention_tile *t, row *r, int64_t first, int64_t n) {
    const bool plain = t->softcap == 0.0f && !t->bias.at && !t->mask.at;
    const float unit = plain ? unit_of(t->scale) : LOG2_E;
    if (!plain) fill(r->s, n, 0.0f), scale_scores(t, q7_ceil_div(n, Q7_W) * Q7_W, r->s);
    mask_line(&r->bias, 0.0f, first, n, r->s);
    mask_line(&r->mask, t->fill, first, n, r->s);
    for (int64_t j = 0; j < q7_min(n, r->begin - first); j++) r->s[j] = -INFINITY;
    for (int64_t j = q7_max(0, q7_min(n, r->end - first)); j < n; j++) r->s[j] = -INFINITY;
    fill(r->s, n, -INFINITY);
    q7_f32 top = q7_set1(-INFINITY), total = q7_set1(0.0f);
    for (int64_t j = 0; j < n; j += Q7_W) top = q7_vmax(q7_load(r->s + j), top);
    const float most = q7_hmax(top), own = floorf(most * unit);
    const float max = own > r->max ? own : r->max, base = max == -INFINITY ? 0.0f : max;
    const bool shifts = most != -INFINITY && (!plain || fabsf(own) > FAR);
    const q7_f32 shift = q7_set1(shifts ? most : 0.0f), by = q7_set1(unit);
    const q7_f32 offset = shifts ? lift_of(shift, by, q7_set1(own), q7_set1(base)) : q7_set1(-base);
    for (int64_t j = 0; j < n; j += Q7_W) {
        const q7_f32 p = q7_exp2(q7_fma(q7_sub(q7_load(r->s + j), shift), by, offset));
        q7_store(r->s + j, p);
        total = q7_add(total, p);
    }
    r->rescale = q7_hmax(q7_exp2(q7_set1(r->max - base)));
    r->sum = r->sum * r->rescale + q7_hsum(total);
    r->max = max;
}

/* The keys [first, first + n) for some rows, a constant, of which the first ones prefetch. */
Q7_INLINE void step(const q7_attention_tile *t, row *r, const int count, int64_t first, int64_t n,
                    bool fetch) {
    score_rows(t, r, count, first, n, fetch);
    for (int i = 0; i < count; i++) softmax_row(t, r + i, first, n);
    add_values(t, r, count, first, n, fetch);
}

#define STEP const q7_attention_tile *t, row *r, int64_t first, int64_t n, bool fetch
static void step_1(STEP) { step(t, r, 1, first, n, fetch); }
static void step_2(STEP) { step(t, r, 2, first, n, fetch); }
static void step_4(STEP) { step(t, r, SHARED, first, n, fetch); }
#undef STEP

/* For all rows. */
static void block_step(const q7_attention_tile *t, row *rows, int64_t count, int64_t first,
                       int64_t n) {
    for (int64_t i = 0, some; i < count; i += some) {
        some = count - i >= SHARED ? SHARED : count - i >= 2 ? 2 : 1;
        (some == SHARED ? step_4 : some == 2 ? step_2 : step_1)(t, rows + i, first, n, i == 0);
    }
}

/* Whether the mask hides the block from every row. */
static bool is_hidden(const q7_attention_tile *t, const row *rows, int64_t count, int64_t first,
                      int64_t n) {
    for (int64_t i = 0; i < count; i++)
        if (effect_of(&rows[i].mask, t->fill, 0, 1, first, n) != HIDES) return false;
    return true;
}

/* All blocks of keys but those that the mask hides, or these as well `again`. Returns whether there are any
 * that were left out. */
static bool each_block(const q7_attention_tile *t, row *rows, int64_t count, bool again) {
    int64_t begin = t->keys, end = 0;
    bool passed = false;
    for (int64_t i = 0; i < count; i++)
        begin = q7_min(begin, rows[i].begin), end = q7_max(end, rows[i].end);
    for (int64_t first = begin, n; first < end; first += n) {
        n = q7_min(end, (first / FEW_KEYS + 1) * FEW_KEYS) - first;
        if (again || !is_hidden(t, rows, count, first, n))
            block_step(t, rows, count, first, n);
        else
            passed = true;
    }
    return passed;
}

/* o = sums / sum (Dv). */
static void finish_row(const q7_attention_tile *t, const float *sums, float sum, float *o,
                       float *watched) {
    const bool masked = sum == 0.0f && t->zero_masked_rows,
               unordered = sum != sum && t->zero_nan_rows;
    const q7_f32 by = q7_set1(1.0f / sum);
    for (int64_t d = 0; d < t->Dv; d += Q7_W) {
        const q7_f32 x = q7_mul(q7_load_part(sums + d, t->Dv - d), by);
        watch(watched, x);
        q7_store_part(o + d, masked || unordered ? q7_set1(0.0f) : x, t->Dv - d);
    }
}

/* The parts of row i become one: maxima are integers, so that each is scaled exactly. */
static void join_row(const q7_attention_tile *t, int64_t i, float *watched) {
    const int64_t Dv = t->Dv;
    float max = -INFINITY, sum = 0.0f, *first = partial_of(t, i, 0);
    for (int64_t j = 0; j < t->n_parts; j++) max = fmaxf(max, partial_of(t, i, j)[Dv]);
    const float base = max == -INFINITY ? 0.0f : max;
    for (int64_t j = 0; j < t->n_parts; j++) {
        float *part = partial_of(t, i, j);
        const float by = q7_hmax(q7_exp2(q7_set1(part[Dv] - base)));
        sum += by * part[Dv + 1];
        for (int64_t d = 0; d < Dv; d += Q7_W) {
            const q7_f32 x = q7_mul(q7_set1(by), q7_load_part(part + d, Dv - d));
            const q7_f32 so_far = j ? q7_load_part(first + d, Dv - d) : q7_set1(0.0f);
            q7_store_part(first + d, q7_add(so_far, x), Dv - d);
        }
    }
    finish_row(t, first, sum, output_of(t, i), watched);
}

bool Q7_KERNEL(attention_rows)(const q7_attention_tile *t) {
    const int64_t count = t->heads * t->queries;
    float watched[Q7_W] = {0};
    if (t->part == t->n_parts) {
        for (int64_t i = 0; i < count; i++) join_row(t, i, watched);
        return saw_finite(watched);
    }
    row rows[MOST];
    for (int64_t i = 0; i < count; i++) start_row(t, i, rows + i);
    bool saw = true;
    const bool passed = each_block(t, rows, count, false);
    for (int64_t i = 0; i < count; i++) saw = saw && rows[i].max > LOW / 10;
    if (passed && !saw) { /* in order, as in attention.c */
        for (int64_t i = 0; i < count; i++) start_row(t, i, rows + i);
        each_block(t, rows, count, true);
    }
    for (int64_t i = 0; i < count; i++) {
        row *r = rows + i;
        if (t->n_parts == 1) {
            finish_row(t, r->o, r->sum, r->o, watched);
            continue;
        }
        r->o[t->Dv] = r->max, r->o[t->Dv + 1] = r->sum;
        for (int64_t d = 0; d < t->Dv; d += Q7_W) watch(watched, q7_load_part(r->o + d, t->Dv - d));
    }
    return saw_finite(watched);
}
