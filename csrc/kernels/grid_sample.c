/* grid_sample.c: the places of a vector of points at a time, and their weights. Read grid_sample.h first. */
#include "grid_sample.h"

#include <math.h>

#include "../simd/simd.h"

enum { AXES = 3, TAPS = 4, ALL_TAPS = TAPS * TAPS };

/* One axis of x. A place is ((grid + 1) * scale - shift) / 2; low and high are where mirrors stand. */
typedef struct line {
    float size, scale, shift, low, high, last;
    int32_t stride;
} line;

/* The pixels of an axis that make up a vector of points: elements of x, and their weights. */
typedef struct line_taps {
    q7_i32 at[TAPS];
    q7_f32 weight[TAPS];
    q7_mask inside[TAPS];
} line_taps;

/* Of a vector of points: elements of x, below 0 for what lies outside, and their weights. */
typedef struct spots {
    q7_i32 at[ALL_TAPS];
    q7_f32 weight[ALL_TAPS];
} spots;

static line line_of(const q7_grid_part *t, int axis) {
    const int64_t n = t->size[axis];
    const float size = (float)n, last = (float)(n - 1), low = t->align_corners ? 0 : -0.5f;
    return (line){.size = size,
                  .scale = t->align_corners ? last : size,
                  .shift = t->align_corners ? 0 : 1,
                  .low = low,
                  .high = last - low,
                  .last = (int64_t)last < n ? last : nextafterf(last, 0), /* rounded up to n */
                  .stride = (int32_t)t->stride[axis]};
}

/* x mirrored at low and high until it lies between them. Few vectors need it. */
static __attribute__((noinline)) q7_f32 reflect(q7_f32 x, float low, float high) {
    const float range = high - low, period = 2 * range;
    if (!(range > 0)) return q7_set1(low);
    q7_f32 distance = q7_abs(q7_sub(x, q7_set1(low)));
    if (q7_any(q7_lt(q7_set1(0x1p22f), distance))) { /* else turns * period is exact */
        float lanes[Q7_W];
        q7_store(lanes, distance);
        for (int i = 0; i < Q7_W; i++) lanes[i] = fmodf(lanes[i], period);
        distance = q7_load(lanes);
    }
    const q7_f32 turns = q7_round_even(q7_div(distance, q7_set1(period)));
    const q7_f32 from_low = q7_abs(q7_fnma(turns, q7_set1(period), distance));
    return q7_add(q7_set1(low), q7_vmin(q7_set1(range), from_low));
}

Q7_INLINE q7_mask within(q7_f32 x, float low, float high) {
    return q7_mask_and(q7_le(q7_set1(low), x), q7_le(x, q7_set1(high)));
}

Q7_INLINE q7_f32 clamp(q7_f32 x, float low, float high) {
    return q7_vmin(q7_set1(high), q7_vmax(q7_set1(low), x));
}

/* Keys' cubic at a distance of 0 to 1, and of 1 to 2. */
Q7_INLINE q7_f32 inner_weight(q7_f32 x) {
    const q7_f32 slope = q7_fma(q7_set1(1.25f), x, q7_set1(-2.25f));
    return q7_fma(q7_mul(slope, x), x, q7_set1(1.0f));
}
Q7_INLINE q7_f32 outer_weight(q7_f32 x) {
    const q7_f32 slope = q7_fma(q7_set1(-0.75f), x, q7_set1(3.75f));
    return q7_fma(q7_fma(slope, x, q7_set1(-6.0f)), x, q7_set1(3.0f));
}

Q7_INLINE void line_taps_of(const line *l, int64_t border, q7_f32 grid, const int taps,
                            line_taps *found) {
    const q7_f32 one = q7_set1(1.0f);
    /* two roundings, as frameworks have them: which pixel is nearest depends on it */
    const q7_f32 scaled = q7_keep(q7_mul(q7_add(grid, one), q7_set1(l->scale)));
    q7_f32 x = q7_mul(q7_sub(scaled, q7_set1(l->shift)), q7_set1(0.5f));
    if (taps == 1) x = q7_round_even(x);
    if (border == Q7_border_edge) { /* from 2 pixels outside on, all taps are the edge */
        x = clamp(x, -2, l->size + 1);
    } else if (border == Q7_border_reflect) {
        const q7_mask out = q7_mask_or(q7_lt(x, q7_set1(l->low)), q7_lt(q7_set1(l->high), x));
        if (q7_any(out)) x = q7_select(out, reflect(x, l->low, l->high), x);
    }
    x = q7_select(q7_lt(q7_abs(x), q7_set1(1e9f)), x, q7_set1(-1e9f)); /* for integers; NaN too */
    const q7_f32 whole = q7_floor(x), part = q7_sub(x, whole), rest = q7_sub(one, part);
    if (taps == 1) {
        found->weight[0] = one;
    } else if (taps == 2) {
        found->weight[0] = rest;
        found->weight[1] = part;
    } else {
        found->weight[0] = outer_weight(q7_add(part, one));
        found->weight[1] = inner_weight(part);
        found->weight[2] = inner_weight(rest);
        found->weight[3] = outer_weight(q7_add(rest, one));
    }
    Q7_UNROLL
    for (int k = 0; k < taps; k++) {
        q7_f32 i = q7_add(whole, q7_set1((float)(taps == 4 ? k - 1 : k)));
        if (border == Q7_border_edge) i = clamp(i, 0, l->last);
        if (border == Q7_border_reflect) {
            const q7_mask inside = within(i, 0, l->last);
            if (q7_any(q7_mask_not(inside)))
                i = q7_select(inside, i, clamp(q7_floor(reflect(i, l->low, l->high)), 0, l->last));
        }
        found->inside[k] = within(i, 0, l->last);
        found->at[k] = q7_i32_mul(q7_int(i), q7_i32_set1(l->stride));
    }
}

/* A coordinate of some points. */
Q7_INLINE q7_f32 coordinates(const float *grid, int64_t points, const int axes, int which) {
    if (axes == 2) {
        q7_f32 low = q7_load_part(grid, 2 * points);
        q7_f32 high = q7_load_part(grid + Q7_W, q7_max(0, 2 * points - Q7_W));
        if (which == 1) low = q7_swap_pairs(low), high = q7_swap_pairs(high);
        return q7_evens(low, high);
    }
    float lanes[Q7_W] = {0};
    for (int64_t i = 0; i < points; i++) lanes[i] = grid[i * axes + which];
    return q7_load(lanes);
}

/* from: where the image of each point begins. */
Q7_INLINE void spots_of(const q7_grid_part *t, const line lines[AXES], const float *grid,
                        q7_i32 from, int64_t points, const int taps, const int axes, spots *found) {
    line_taps by_axis[AXES];
    Q7_UNROLL
    for (int i = 0; i < axes; i++)
        line_taps_of(&lines[AXES - 1 - i], t->border, coordinates(grid, points, axes, i), taps,
                     &by_axis[AXES - 1 - i]);
    const line_taps *z = &by_axis[0], *y = &by_axis[1];
    line_taps *x = &by_axis[2];
    Q7_UNROLL
    for (int k = 0; k < taps; k++) x->at[k] = q7_i32_add(x->at[k], from);
    const int all = axes == 3 ? taps * taps * taps : taps * taps;
    Q7_UNROLL
    for (int k = 0; k < all; k++) {
        const int column = k % taps, row = k / taps % taps, plane = k / (taps * taps);
        q7_mask inside = q7_mask_and(y->inside[row], x->inside[column]);
        q7_i32 at = q7_i32_add(y->at[row], x->at[column]);
        q7_f32 weight = q7_mul(y->weight[row], x->weight[column]);
        if (axes == 3) {
            inside = q7_mask_and(inside, z->inside[plane]);
            at = q7_i32_add(at, z->at[plane]);
            weight = q7_mul(weight, z->weight[plane]);
        }
        found->at[k] = q7_i32_select(inside, at, q7_i32_set1(-1));
        found->weight[k] = weight;
    }
}

/* Points side by side, channel by channel. */
Q7_INLINE void planes(const q7_grid_part *t, const spots *s, const float *x, float *y,
                      int64_t points, const int all) {
    for (int64_t c = 0; c < t->channels; c++, x += t->x_c_stride, y += t->y_c_stride) {
        q7_f32 sum = q7_mul(s->weight[0], q7_gather(x, s->at[0]));
        Q7_UNROLL
        for (int k = 1; k < all; k++) sum = q7_fma(s->weight[k], q7_gather(x, s->at[k]), sum);
        if (t->y_stride == 1) {
            q7_store_part(y, sum, points);
            continue;
        }
        float lanes[Q7_W];
        q7_store(lanes, sum);
        for (int64_t i = 0; i < points; i++) y[i * t->y_stride] = lanes[i];
    }
}

/* Channels side by side, point by point. */
Q7_INLINE void pixels(const q7_grid_part *t, const spots *s, const float *x, float *y,
                      int64_t points, const int all) {
    int32_t at[ALL_TAPS][Q7_W];
    float weight[ALL_TAPS][Q7_W];
    for (int k = 0; k < all; k++) {
        q7_i32_store(at[k], s->at[k]);
        q7_store(weight[k], s->weight[k]);
    }
    for (int64_t c = 0; c < t->channels; c += Q7_W) {
        const int64_t lanes = q7_min(t->channels - c, Q7_W);
        q7_f32 sum[Q7_W];
        for (int64_t i = 0; i < points; i++) {
            sum[i] = q7_set1(0.0f);
            for (int k = 0; k < all; k++)
                if (at[k][i] >= 0)
                    sum[i] = q7_fma(q7_set1(weight[k][i]), q7_load_part(x + at[k][i] + c, lanes),
                                    sum[i]);
            if (t->y_c_stride == 1) q7_store_part(y + i * t->y_stride + c, sum[i], lanes);
        }
        if (t->y_c_stride == 1) continue;
        for (int64_t i = points; i < Q7_W; i++) sum[i] = q7_set1(0.0f);
        q7_transpose(sum);
        for (int64_t i = 0; i < lanes; i++)
            q7_store_part(y + (c + i) * t->y_c_stride, sum[i], points);
    }
}

/* Where the images of some points begin: that of the first, one of `first` on, at 0. */
Q7_INLINE q7_i32 begins(const q7_grid_part *t, int64_t first, int64_t points) {
    int32_t lanes[Q7_W] = {0}, at = 0;
    for (int64_t i = 0; i < points; i++, first++) {
        if (first == t->points) first = 0, at += (int32_t)t->x_n_stride;
        lanes[i] = at;
    }
    return q7_i32_load(lanes);
}

Q7_INLINE void sample(const q7_grid_part *t, const int taps, const int axes) {
    line lines[AXES];
    for (int i = 0; i < AXES; i++) lines[i] = line_of(t, i);
    const int all = axes == 3 ? taps * taps * taps : taps * taps;
    const bool by_pixel = t->x_c_stride == 1 && t->channels > 1;
    /* Images of one channel go on in the vector where one ends. */
    const bool joined = t->channels == 1 && t->x_n_stride >= 0 && t->origin == 0 &&
                        t->x_n_stride <= INT32_MAX / (Q7_W + 1) &&
                        t->y_n_stride == t->points * t->y_stride;
    const int64_t images = joined ? 1 : t->images, each = joined ? t->images : 1;
    for (int64_t n = 0; n < images; n++) {
        const float *x = t->x + n * t->x_n_stride, *grid = t->grid + n * t->points * axes;
        float *y = t->y + n * t->y_n_stride;
        int64_t in_image = 0; /* of the points of the image at x */
        for (int64_t p = 0; p < each * t->points; p += Q7_W) {
            const int64_t points = q7_min(each * t->points - p, Q7_W);
            const bool is_one = in_image + points <= t->points;
            spots s;
            spots_of(t, lines, grid + p * axes,
                     is_one ? q7_i32_set1((int32_t)t->origin) : begins(t, in_image, points), points,
                     taps, axes, &s);
            if (by_pixel)
                pixels(t, &s, x, y + p * t->y_stride, points, all);
            else
                planes(t, &s, x, y + p * t->y_stride, points, all);
            for (in_image += Q7_W; in_image >= t->points; in_image -= t->points) x += t->x_n_stride;
        }
    }
}

void Q7_KERNEL(grid_sample_f32)(const q7_grid_part *t) {
    const bool is_volume = t->axes == 3;
    switch (t->interpolation) {
        case Q7_interpolation_nearest: is_volume ? sample(t, 1, 3) : sample(t, 1, 2); break;
        case Q7_interpolation_linear: is_volume ? sample(t, 2, 3) : sample(t, 2, 2); break;
        default: sample(t, TAPS, 2); break;
    }
}
