/* attention_soft.h: from the scores of a panel of queries for a block of keys to their powers of two,
 * in parts: the second stage of amx/attention.c. Needs attention_cut.h. */
#ifndef Q7_KERNELS_AMX_ATTENTION_SOFT_H
#define Q7_KERNELS_AMX_ATTENTION_SOFT_H
#include <math.h>

#include "../attention_mask.h"
#include "../math.h"
#include "attention_cut.h"

/* A panel of queries and a block of keys on their way. */
typedef struct stage {
    float (*s)[ROWS][STEP]; /* of STEPS: scores; their powers of two, if values do not fit */
    q7_bf16 *p;             /* parts of these, by steps */
    float shift[ROWS], offset[ROWS], rescale[ROWS];
    float unit;
    int64_t panel, rows;
    int64_t key, first, last; /* of the block; its steps from there that a query sees */
    const block_header *block;
} stage;

static _Thread_local struct {
    _Alignas(64) float s[2][STEPS][ROWS][STEP];
    _Alignas(64) q7_bf16 p[2][STEPS * Q7_PARTS_SIZE];
    stage stages[3];
    _Alignas(64) float sums[ROWS * STEP];
    _Alignas(64) float unused[256];
    _Alignas(64) float sum[Q7_ATTENTION_QUERIES][Q7_W]; /* of 2^(score - max), in parts */
    float max[Q7_ATTENTION_QUERIES]; /* an integer, less than 1 below the largest score so far */
} room;

/* The score of a query of the panel for a key. */
Q7_INLINE float *score_at(stage *x, int64_t i, int64_t key) {
    return x->s[(key - x->key) / STEP][i] + (key - x->key) % STEP;
}

/* s of a row in units of the softmax, as tanh, bias and mask make them. */
static void mask_scores_of(const q7_attention_tile *t, stage *x, effect masked) {
    const int64_t begin = x->first * STEP, key = x->key + begin;
    const int64_t n = q7_min(x->key + x->last * STEP, t->keys) - key;
    float mask[KEYS], bias[KEYS];
    for (int64_t i = 0; i < x->rows; i++) {
        const int64_t query = x->panel * ROWS + i;
        if (t->bias.at && (i == 0 || t->bias.q_stride)) mask_row(&t->bias, query, key, n, bias);
        if (masked != NOTHING && (i == 0 || t->mask.q_stride))
            mask_row(&t->mask, query, key, n, mask);
        for (int64_t j = 0; j < n; j += STEP) {
            const int64_t size = q7_min(STEP, q7_ceil_div(n - j, Q7_W) * Q7_W);
            float *s = x->s[x->first + j / STEP][i];
            scale_scores(t, size, s);
            if (t->bias.at) mask_scores(&t->bias, 0.0f, size, bias + j, s);
            if (masked != NOTHING) mask_scores(&t->mask, bounded_fill(t->fill), size, mask + j, s);
        }
    }
}

/* -inf where a query does not see a key. */
static void hide_unseen(const q7_attention_tile *t, stage *x) {
    const int64_t top = x->panel * ROWS, from = x->key + x->first * STEP;
    if (first_key(t, top + x->rows - 1) <= from && end_key(t, top) >= x->key + x->last * STEP)
        return;
    for (int64_t i = 0; i < x->rows; i++) {
        const int64_t query = x->panel * ROWS + i;
        const int64_t begin = first_key(t, query) - x->key, end = end_key(t, query) - x->key;
        for (int64_t j = x->first * STEP; j < q7_min(begin, x->last * STEP); j++)
            *score_at(x, i, x->key + j) = -INFINITY;
        for (int64_t j = q7_max(end, x->first * STEP); j < x->last * STEP; j++)
            *score_at(x, i, x->key + j) = -INFINITY;
    }
}

/* From scores to what soften_row() needs: max is brought up to date, rescale is the power of two by
 * which that changes the scale of what was summed before. */
static void level(stage *x, const bool plain) {
    _Alignas(64) float largest[ROWS] = {0};
    for (int64_t i = 0; i < x->rows; i++) {
        q7_f32 top = q7_set1(-INFINITY);
        for (int64_t step = x->first; step < x->last; step++)
            top = q7_vmax(q7_load(x->s[step][i]), q7_vmax(q7_load(x->s[step][i] + 16), top));
        largest[i] = q7_hmax(top);
    }
    const q7_f32 none = q7_set1(-INFINITY), zero = q7_set1(0.0f), unit = q7_set1(x->unit);
    for (int64_t i = 0; i < ROWS; i += Q7_W) {
        float *max = room.max + x->panel * ROWS + i;
        const q7_f32 most = q7_load(largest + i), old = q7_load(max);
        const q7_f32 own = q7_floor(q7_mul(most, unit)), top = q7_vmax(own, old);
        /* while all scores are -inf: 2^(-inf - 0) = 0, where -inf - -inf would be NaN for good */
        const q7_f32 base = q7_select(q7_eq(top, none), zero, top);
        const q7_f32 near = q7_set1(plain ? FAR : -1.0f);
        const q7_mask far = q7_lt(near, q7_abs(own)), unseen = q7_eq(most, none);
        const q7_mask shifts = q7_mask_and(far, q7_mask_not(unseen));
        const q7_f32 shift = q7_select(shifts, most, zero);
        const q7_f32 power = lift_of(shift, unit, q7_select(shifts, own, base), base);
        const q7_f32 offset = q7_select(shifts, power, q7_neg(base));
        q7_store(max, top);
        q7_store(x->shift + i, shift);
        q7_store(x->offset + i, offset);
        q7_store(x->rescale + i, q7_exp2(q7_sub(old, base)));
    }
}

/* Rows of a stage that become powers of two now and then. */
typedef struct softening {
    stage *x;
    int64_t row, rows, count;
} softening;

/* p = s = 2^(unit * (s - shift) + offset). */
Q7_INLINE void soften_row(stage *x, int64_t i) {
    const q7_f32 shift = q7_set1(x->shift[i]), offset = q7_set1(x->offset[i]);
    const q7_f32 unit = q7_set1(x->unit);
    float *sum = room.sum[x->panel * ROWS + i];
    q7_f32 total = q7_mul(q7_load(sum), q7_set1(x->rescale[i]));
    for (int64_t step = x->first; step < x->last; step++) {
        float *s = x->s[step][i];
        const q7_f32 low = q7_exp2(q7_fma(q7_sub(q7_load(s), shift), unit, offset));
        const q7_f32 high = q7_exp2(q7_fma(q7_sub(q7_load(s + 16), shift), unit, offset));
        q7_f32 largest = low;
        if (!x->block->fits) {
            q7_store(s, low);
            q7_store(s + 16, high);
        }
        q7_store_parts(low, high, false, x->p + step * Q7_PARTS_SIZE + i * STEP, 2 * Q7_PARTS_TILE,
                       &largest);
        total = q7_add(total, q7_add(low, high));
    }
    q7_store(sum, total);
}

Q7_INLINE void soften(softening *e) {
    const int64_t end = q7_min(e->row + e->count, e->rows);
    for (; e->row < end; e->row++) soften_row(e->x, e->row);
}
#endif
