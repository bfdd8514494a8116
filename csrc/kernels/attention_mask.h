/* attention_mask.h: from the product of query and key to its score, masked. The softmax is one of
 * powers of two, 2^(unit * x - max). Where nothing is done to products, x is the product, so that
 * its scale takes no rounding; else x is score - largest, since unit * (-1e30) is far from an
 * integer. Read attention.h first. */
#ifndef Q7_ATTENTION_MASK_H
#define Q7_ATTENTION_MASK_H
#include <math.h>

#include "attention.h"
#include "math.h"

enum {
    KEYS = Q7_ATTENTION_KEYS,
    FAR = 1 << 18 /* exponents beyond have no bits left for sixteenths */
};

#define LOG2_E 0x1.715476p+0f
#define FAR_OFF 2e38f
#define LOW (-1e30f) /* scores are far above: a mask of as much swallows them, and e^ it is 0 */

/* Query i sees keys [first_key, end_key). */
static inline int64_t first_key(const q7_attention_tile *t, int64_t i) {
    return q7_max(0, q7_min(t->keys, t->begin + i));
}

static inline int64_t end_key(const q7_attention_tile *t, int64_t i) {
    return q7_max(0, q7_min(t->keys, t->end + i));
}

/* Products by 0 of what is written are added up here (a vector): 0, unless one was not finite. */
Q7_INLINE void watch(float *watched, q7_f32 x) {
    q7_store(watched, q7_fma(x, q7_set1(0.0f), q7_load(watched)));
}

static inline bool saw_finite(const float *watched) {
    return !q7_any(q7_unordered(q7_load(watched)));
}

/* Queries are multiplied by the sign of the scale, so that the largest product is the largest score. */
static inline float sign_of(float scale) {
    return scale > 0.0f ? 1.0f : scale < 0.0f ? -1.0f : 0.0f;
}

/* Of such products; where the scale is 0 they are 0 or -inf. */
static inline float unit_of(float scale) {
    return scale == 0.0f ? 1.0f : (float)(fabs((double)scale) * 1.4426950408889634);
}

/* st (size, whole vectors) = such products as scores: softcap * tanh(.. / softcap) where there is a
 * softcap. */
static inline void scale_scores(const q7_attention_tile *t, int64_t size, float *st) {
    const bool caps = t->softcap != 0.0f;
    const q7_f32 by = q7_set1(caps ? fabsf(t->scale) / t->softcap : fabsf(t->scale));
    const q7_f32 cap = q7_set1(t->softcap);
    for (int64_t i = 0; i < size; i += Q7_W) {
        const q7_f32 x = q7_mul(q7_load(st + i), by);
        q7_store(st + i, caps ? q7_mul(cap, q7_tanh(x)) : x);
    }
}

/* What is finite stays so in units of log2(e): rows of nothing else weigh all keys equally. */
Q7_INLINE q7_f32 bounded(q7_f32 x) {
    const q7_f32 y = q7_clip(x, q7_set1(-FAR_OFF), q7_set1(FAR_OFF));
    return q7_select(q7_lt(q7_abs(x), q7_set1(INFINITY)), y, x);
}

/* log2 of what 2^(by * (x - largest)) takes to become 2^(by * x - base); own: by * largest, rounded
 * down. Beyond 2^24 the product is rounded by more than 1, and by how much is no power that floats
 * have; but scores that differ there differ by as much: what is bounded is the same for equal ones,
 * and 2^64 or more apart for others. */
Q7_INLINE q7_f32 lift_of(q7_f32 largest, q7_f32 by, q7_f32 own, q7_f32 base) {
    const q7_f32 rounded = q7_fma(largest, by, q7_neg(own));
    return q7_add(q7_clip(rounded, q7_set1(-64.0f), q7_set1(64.0f)), q7_sub(own, base));
}

/* x / total, where by = 1 / total: like a division. */
Q7_INLINE q7_f32 quotient(q7_f32 x, q7_f32 total, q7_f32 by) {
    const q7_f32 y = q7_mul(x, by), exact = q7_fma(q7_fnma(y, total, x), by, y);
    return q7_select(q7_unordered(exact), y, exact);
}

static inline float bounded_fill(float fill) {
    return fill == -INFINITY ? fill : fmaxf(-FAR_OFF, fminf(FAR_OFF, fill));
}

/* The mask of query i for up to Q7_W keys from `first`: bounded if float, else 0 or 1; 0 from n on. */
Q7_INLINE q7_f32 mask_vector(const q7_attention_mask *mask, int64_t i, int64_t first, int64_t n,
                             const bool adds, const bool dense) {
    const int64_t at = i * mask->q_stride + first * mask->k_stride, stride = mask->k_stride;
    const float *added = (const float *)mask->at + at;
    const uint8_t *kept = (const uint8_t *)mask->at + at;
    if (dense && adds) return bounded(q7_load_part(added, n));
    if (dense) {
        const q7_mask keeps = n >= Q7_W ? q7_load_bool(kept) : q7_load_bool_tail(kept, n);
        return q7_select(keeps, q7_set1(1.0f), q7_set1(0.0f));
    }
    float m[Q7_W] = {0};
    for (int64_t j = 0; j < q7_min(n, Q7_W); j++)
        m[j] = adds ? added[j * stride] : kept[j * stride] != 0;
    return adds ? bounded(q7_load(m)) : q7_load(m);
}

/* m (KEYS) = those of n keys. */
static inline void mask_row(const q7_attention_mask *mask, int64_t i, int64_t first, int64_t n,
                            float *m) {
    const bool adds = mask->dtype == Q7_F32, dense = mask->k_stride == 1;
    for (int64_t j = 0; j < n; j += Q7_W)
        q7_store(m + j, mask_vector(mask, i, first + j, n - j, adds, dense));
}

/* Scores under a mask, of mask_vector. */
Q7_INLINE q7_f32 under_mask(const q7_attention_mask *mask, q7_f32 filled, q7_f32 score, q7_f32 m) {
    if (mask->dtype == Q7_F32) return q7_add(score, m);
    return q7_select(q7_eq(m, q7_set1(0.0f)), filled, score);
}

/* No prefetcher follows rows of masks, of which a tile reads a vector each. */
Q7_INLINE void prefetch_mask(const q7_attention_mask *mask, int64_t i, int64_t key) {
    const int64_t at = i * mask->q_stride + key * mask->k_stride;
    q7_prefetch((const char *)mask->at + (mask->dtype == Q7_F32 ? 4 * at : at));
}

/* st (n, width), transposed scores, under the masks of `queries` queries from `query`. */
Q7_INLINE void mask_tile_of(const q7_attention_mask *mask, float fill, int64_t query,
                            int64_t queries, int64_t first, int64_t n, int64_t width, float *st,
                            const bool adds, const bool dense) {
    const q7_f32 filled = q7_set1(fill);
    for (int64_t i = 0; i < width; i += Q7_W)
        for (int64_t j = 0; j < n; j += Q7_W) {
            float *s = st + j * width + i;
            q7_f32 m[Q7_W];
            Q7_UNROLL
            for (int r = 0; r < Q7_W; r++) { /* columns of padding repeat the last query */
                const int64_t at = query + q7_min(i + r, queries - 1);
                m[r] = mask_vector(mask, at, first + j, n - j, adds, dense);
                prefetch_mask(mask, query + i + Q7_W + r, first + j);
            }
            q7_transpose(m);
            for (int64_t c = 0; c < q7_min(n - j, Q7_W); c++, s += width)
                q7_store(s, under_mask(mask, filled, q7_load(s), m[c]));
        }
}

/* A loop for each kind. */
static inline void mask_tile(const q7_attention_mask *mask, float fill, int64_t query,
                             int64_t queries, int64_t first, int64_t n, int64_t width, float *st) {
    const bool adds = mask->dtype == Q7_F32;
    if (mask->k_stride != 1)
        mask_tile_of(mask, fill, query, queries, first, n, width, st, adds, false);
    else if (adds)
        mask_tile_of(mask, fill, query, queries, first, n, width, st, true, true);
    else
        mask_tile_of(mask, fill, query, queries, first, n, width, st, false, true);
}

typedef enum effect { NOTHING, SOMETHING, HIDES } effect;

/* What a mask does to the scores of `queries` queries for keys [first, first + n): HIDES them all if
 * it is LOW or less. NaN does something. */
static inline effect effect_of(const q7_attention_mask *mask, float fill, int64_t query,
                               int64_t queries, int64_t first, int64_t n) {
    const bool adds = mask->dtype == Q7_F32;
    bool idle = true, hides = adds || fill <= LOW;
    if (!mask->at) return NOTHING;
    if (mask->k_stride != 1) return SOMETHING;
    for (int64_t i = 0; i < (mask->q_stride ? queries : 1) && (idle || hides); i++) {
        const int64_t at = (query + i) * mask->q_stride + first;
        const float *added = (const float *)mask->at + at;
        const uint8_t *kept = (const uint8_t *)mask->at + at;
        int64_t j = 0;
        for (; j + Q7_W <= n; j += Q7_W) {
            q7_mask zero, low;
            if (adds) {
                zero = q7_eq(q7_load(added + j), q7_set1(0.0f));
                low = q7_le(q7_load(added + j), q7_set1(LOW));
            } else {
                zero = q7_load_bool(kept + j);
                low = q7_mask_not(zero);
            }
            idle = idle && !q7_any(q7_mask_not(zero));
            hides = hides && !q7_any(q7_mask_not(low));
        }
        for (; j < n; j++) {
            idle = idle && (adds ? added[j] == 0.0f : kept[j] != 0);
            hides = hides && (adds ? added[j] <= LOW : kept[j] == 0);
        }
    }
    return idle ? NOTHING : hides ? HIDES : SOMETHING;
}

/* st (n, width) masked by m (n): a mask that all queries share, as for the padding of a batch. */
static inline void mask_keys(const q7_attention_mask *mask, float fill, int64_t n, int64_t width,
                             const float *m, float *st) {
    const bool adds = mask->dtype == Q7_F32;
    for (int64_t j = 0; j < n; j++) {
        if (m[j] == (adds ? 0.0f : 1.0f)) continue; /* most keys are not padding */
        const q7_f32 v = q7_set1(adds ? m[j] : fill);
        for (int64_t c = j * width; c < (j + 1) * width; c += Q7_W)
            q7_store(st + c, adds ? q7_add(q7_load(st + c), v) : v);
    }
}

/* st (size) masked by m (size). */
static inline void mask_scores(const q7_attention_mask *mask, float fill, int64_t size,
                               const float *m, float *st) {
    const q7_f32 filled = q7_set1(fill);
    for (int64_t i = 0; i < size; i += Q7_W)
        q7_store(st + i, under_mask(mask, filled, q7_load(st + i), q7_load(m + i)));
}
#endif
