/* dft.c: lines in lanes: load, passes, store. Read dft.h first.
 *
 * Where lines are, a number is two vectors, of its real and its imaginary part. The inverse exchanges them
 * before and after the passes: F(i conj(z)) = i conj(n F^-1(z)). */
#include "dft.h"

#include "../simd/simd.h"

enum { NUMBER = 2 * Q7_W }; /* floats of one number of all lines */

typedef struct number {
    q7_f32 re, im;
} number;

/* Numbers of all lines; im: what imaginary parts are from real ones, -Q7_W where they are exchanged. */
typedef struct numbers {
    float *re;
    int64_t im;
} numbers;

Q7_INLINE number get(numbers from, int64_t i) {
    const float *p = from.re + i * NUMBER;
    return (number){q7_load(p), q7_load(p + from.im)};
}
Q7_INLINE void put(numbers to, int64_t i, number v) {
    float *p = to.re + i * NUMBER;
    q7_store(p, v.re);
    q7_store(p + to.im, v.im);
}
Q7_INLINE number add(number a, number b) {
    return (number){q7_add(a.re, b.re), q7_add(a.im, b.im)};
}
Q7_INLINE number sub(number a, number b) {
    return (number){q7_sub(a.re, b.re), q7_sub(a.im, b.im)};
}
Q7_INLINE number conjugate(number a) { return (number){a.re, q7_neg(a.im)}; }
Q7_INLINE number add_i(number a, number b) { /* a + i b */
    return (number){q7_sub(a.re, b.im), q7_add(a.im, b.re)};
}
Q7_INLINE number sub_i(number a, number b) {
    return (number){q7_add(a.re, b.im), q7_sub(a.im, b.re)};
}
Q7_INLINE number scaled(number a, float by) {
    return (number){q7_mul(a.re, q7_set1(by)), q7_mul(a.im, q7_set1(by))};
}
Q7_INLINE number plus_scaled(number sum, number a, float by) {
    return (number){q7_fma(a.re, q7_set1(by), sum.re), q7_fma(a.im, q7_set1(by), sum.im)};
}
Q7_INLINE number turn(number a, number w) {
    return (number){q7_fnma(a.im, w.im, q7_mul(a.re, w.re)),
                    q7_fma(a.im, w.re, q7_mul(a.re, w.im))};
}
Q7_INLINE number turn_of(const float *turns, int64_t i) {
    return (number){q7_set1(turns[2 * i]), q7_set1(turns[2 * i + 1])};
}

/* The transform of r numbers, in place. */
Q7_INLINE void transform_2(number v[2]) {
    const number a = v[0];
    v[0] = add(a, v[1]);
    v[1] = sub(a, v[1]);
}
Q7_INLINE void transform_3(number v[3]) {
    const number sum = add(v[1], v[2]), difference = sub(v[1], v[2]);
    const number a = plus_scaled(v[0], sum, -0.5f), b = scaled(difference, 0x1.bb67aep-1f);
    v[0] = add(v[0], sum);
    v[1] = sub_i(a, b);
    v[2] = add_i(a, b);
}
Q7_INLINE void transform_4(number v[4]) {
    const number a = add(v[0], v[2]), b = sub(v[0], v[2]);
    const number c = add(v[1], v[3]), d = sub(v[1], v[3]);
    v[0] = add(a, c);
    v[1] = sub_i(b, d);
    v[2] = sub(a, c);
    v[3] = add_i(b, d);
}
Q7_INLINE void transform_5(number v[5]) {
    const float cos1 = 0x1.3c6ef4p-2f, cos2 = -0x1.9e377ap-1f; /* of 2 pi / 5 and 4 pi / 5 */
    const float sin1 = 0x1.e6f0e2p-1f, sin2 = 0x1.2cf230p-1f;
    const number sum1 = add(v[1], v[4]), sum2 = add(v[2], v[3]);
    const number difference1 = sub(v[1], v[4]), difference2 = sub(v[2], v[3]);
    const number a1 = plus_scaled(plus_scaled(v[0], sum1, cos1), sum2, cos2);
    const number a2 = plus_scaled(plus_scaled(v[0], sum1, cos2), sum2, cos1);
    const number b1 = plus_scaled(scaled(difference1, sin1), difference2, sin2);
    const number b2 = plus_scaled(scaled(difference1, sin2), difference2, -sin1);
    v[0] = add(v[0], add(sum1, sum2));
    v[1] = sub_i(a1, b1);
    v[2] = sub_i(a2, b2);
    v[3] = add_i(a2, b2);
    v[4] = add_i(a1, b1);
}

/* A pass by r: each of `stride` transforms, of r m numbers, becomes r of m numbers. */
typedef struct pass {
    const float *turns;
    int64_t n;         /* of turns */
    int64_t m, stride; /* numbers of each transform after the pass; transforms before it */
    int64_t unit;      /* the turn of a transform's first number */
    numbers from, to;
} pass;

/* The numbers at p of all transforms; those at 0 are not turned. */
Q7_INLINE void step(const pass *t, int64_t p, const int r, const bool turned) {
    number w[5], v[5];
    Q7_UNROLL
    for (int k = 1; k < r; k++)
        if (turned) w[k] = turn_of(t->turns, t->unit * p * k);
    for (int64_t q = 0; q < t->stride; q++) {
        Q7_UNROLL
        for (int k = 0; k < r; k++) v[k] = get(t->from, q + t->stride * (p + t->m * k));
        switch (r) {
            case 2: transform_2(v); break;
            case 3: transform_3(v); break;
            case 4: transform_4(v); break;
            default: transform_5(v); break;
        }
        Q7_UNROLL
        for (int k = 0; k < r; k++)
            put(t->to, q + t->stride * (r * p + k), k && turned ? turn(v[k], w[k]) : v[k]);
    }
}

Q7_INLINE void run(const pass *t, const int r) {
    step(t, 0, r, false);
    for (int64_t p = 1; p < t->m; p++) step(t, p, r, true);
}

static void run_2(const pass *t) { run(t, 2); }
static void run_3(const pass *t) { run(t, 3); }
static void run_4(const pass *t) { run(t, 4); }
static void run_5(const pass *t) { run(t, 5); }

/* Any odd r, by sums of r / 2 products for each pair of results. */
static void run_any(const pass *t, int64_t r, numbers room) {
    const int64_t half = r / 2;
    const numbers sums = room, differences = {room.re + half * NUMBER, room.im};
    for (int64_t p = 0; p < t->m; p++)
        for (int64_t q = 0; q < t->stride; q++) {
            const number first = get(t->from, q + t->stride * p);
            number all = first;
            for (int64_t j = 1; j <= half; j++) {
                const number a = get(t->from, q + t->stride * (p + t->m * j)),
                             b = get(t->from, q + t->stride * (p + t->m * (r - j)));
                put(sums, j - 1, add(a, b));
                put(differences, j - 1, sub(a, b));
                all = add(all, add(a, b));
            }
            put(t->to, q + t->stride * r * p, all);
            for (int64_t k = 1; k <= half; k++) {
                number a = first, b = {q7_set1(0.0f), q7_set1(0.0f)};
                for (int64_t j = 0, turns = k; j < half; j++) {
                    const float *w = t->turns + 2 * (t->n / r) * turns;
                    a = plus_scaled(a, get(sums, j), w[0]);
                    b = plus_scaled(b, get(differences, j), -w[1]);
                    turns += turns + k < r ? k : k - r;
                }
                put(t->to, q + t->stride * (r * p + k),
                    turn(sub_i(a, b), turn_of(t->turns, t->unit * p * k)));
                put(t->to, q + t->stride * (r * p + r - k),
                    turn(add_i(a, b), turn_of(t->turns, t->unit * p * (r - k))));
            }
        }
}

/* The transform of `count` numbers in a, by way of b: returns which of the two has it. */
static float *transform(const q7_dft_group *g, int64_t count, float *a, float *b, float *room) {
    pass t = {.turns = g->turns, .n = g->n, .m = count, .stride = 1, .unit = g->n / count};
    const int64_t im = g->inverse ? -Q7_W : Q7_W, first = g->inverse ? Q7_W : 0;
    for (const int64_t *r = g->factors; *r; r++) {
        t.m /= *r;
        t.from = (numbers){a + first, im};
        t.to = (numbers){b + first, im};
        switch (*r) {
            case 2: run_2(&t); break;
            case 3: run_3(&t); break;
            case 4: run_4(&t); break;
            case 5: run_5(&t); break;
            default: run_any(&t, *r, (numbers){room, Q7_W}); break;
        }
        t.stride *= *r;
        t.unit *= *r;
        float *other = a;
        a = b;
        b = other;
    }
    return a;
}

/* Factors of floats [i, i + Q7_W) of a line. */
Q7_INLINE q7_f32 window_of(const q7_dft_group *g, int64_t i, int64_t left) {
    if (g->x_parts == 1) return q7_load_part(g->window + i, left);
    float twice[Q7_W];
    for (int64_t k = 0; k < Q7_W; k++) twice[k] = k < left ? g->window[(i + k) / 2] : 0;
    return q7_load(twice);
}

/* Lines, whose elements are side by side, as numbers; `to_part`: vectors from a float to the next. */
static void load_lines(const q7_dft_group *g, int64_t to_part, float *to) {
    const int64_t floats = g->x_count * g->x_parts;
    for (int64_t i = 0; i < floats; i += Q7_W) {
        const int64_t left = q7_min(Q7_W, floats - i);
        const q7_f32 window = g->window ? window_of(g, i, left) : q7_set1(1.0f);
        q7_f32 v[Q7_W];
        for (int64_t l = 0; l < Q7_W; l++) {
            v[l] = l < g->lines ? q7_load_part(g->x + l * g->x_line + i, left) : q7_set1(0.0f);
            if (g->window) v[l] = q7_mul(v[l], window);
        }
        q7_transpose(v);
        for (int64_t l = 0; l < left; l++) q7_store(to + (i + l) * to_part * Q7_W, v[l]);
    }
}

/* Lines side by side. */
static void load_columns(const q7_dft_group *g, int64_t to_part, float *to) {
    for (int64_t j = 0; j < g->x_count; j++) {
        const float *x = g->x + j * g->x_stride;
        if (g->x_parts == 1) {
            q7_store(to + j * to_part * Q7_W, q7_load_part(x, g->lines));
            continue;
        }
        const q7_f32 low = q7_load_part(x, 2 * g->lines);
        const q7_f32 high = q7_load_part(x + Q7_W, q7_max(0, 2 * g->lines - Q7_W));
        q7_store(to + j * NUMBER, q7_evens(low, high));
        q7_store(to + j * NUMBER + Q7_W, q7_evens(q7_swap_pairs(low), q7_swap_pairs(high)));
    }
}

static void load(const q7_dft_group *g, float *to) {
    const bool whole = g->x_parts == 1 && !g->pairs; /* imaginary parts are 0 */
    const int64_t to_part = whole ? 2 : 1, given = g->x_count * g->x_parts * to_part;
    const int64_t all = g->n * (g->x_parts == 1 && g->pairs ? 1 : 2);
    if (whole) memset(to, 0, (size_t)(g->n * NUMBER) * sizeof(float));
    if (g->x_stride == g->x_parts)
        load_lines(g, to_part, to);
    else
        load_columns(g, to_part, to);
    if (!whole) memset(to + given * Q7_W, 0, (size_t)((all - given) * Q7_W) * sizeof(float));
}

/* from_part: vectors from a float of a line to the next. */
static void store_lines(const q7_dft_group *g, int64_t from_part, const float *from) {
    const int64_t floats = g->y_count * g->y_parts;
    const q7_f32 scale = q7_set1(g->inverse ? 1.0f / (float)g->n : 1.0f);
    for (int64_t i = 0; i < floats; i += Q7_W) {
        const int64_t left = q7_min(Q7_W, floats - i);
        q7_f32 v[Q7_W];
        for (int64_t l = 0; l < Q7_W; l++) {
            v[l] = l < left ? q7_load(from + (i + l) * from_part * Q7_W) : q7_set1(0.0f);
            if (g->inverse) v[l] = q7_mul(v[l], scale);
        }
        q7_transpose(v);
        for (int64_t l = 0; l < g->lines; l++) q7_store_part(g->y + l * g->y_line + i, v[l], left);
    }
}

static void store_columns(const q7_dft_group *g, int64_t from_part, const float *from) {
    const q7_f32 scale = q7_set1(g->inverse ? 1.0f / (float)g->n : 1.0f);
    for (int64_t j = 0; j < g->y_count; j++) {
        float *y = g->y + j * g->y_stride, parts[2][Q7_W];
        for (int64_t part = 0; part < g->y_parts; part++) {
            const q7_f32 v = q7_load(from + (j * g->y_parts + part) * from_part * Q7_W);
            q7_store(parts[part], g->inverse ? q7_mul(v, scale) : v);
        }
        if (g->y_parts == 1)
            q7_store_part(y, q7_load(parts[0]), g->lines);
        else
            for (int64_t l = 0; l < g->lines; l++)
                y[2 * l] = parts[0][l], y[2 * l + 1] = parts[1][l];
    }
}

static void store(const q7_dft_group *g, const float *from) {
    const int64_t from_part = g->y_parts == 1 && !g->pairs ? 2 : 1;
    if (g->y_stride == g->y_parts)
        store_lines(g, from_part, from);
    else
        store_columns(g, from_part, from);
}

/* From the transform z of pairs to that of their elements: with e and o those of even and odd ones, z = e +
 * i o, and y[k] = e[k] + w^k o[k]. */
static void split_pairs(const q7_dft_group *g, numbers z, numbers y) {
    const int64_t half = g->n / 2;
    const bool all = g->y_count > half + 1;
    const number first = get(z, 0);
    const q7_f32 none = q7_set1(0.0f);
    put(y, 0, (number){q7_add(first.re, first.im), none});
    put(y, half, (number){q7_sub(first.re, first.im), none});
    for (int64_t k = 1; 2 * k <= half; k++) {
        const number a = get(z, k), b = conjugate(get(z, half - k));
        const number even = scaled(add(a, b), 0.5f), odd = scaled(sub(a, b), 0.5f); /* i o */
        const number turned = turn(odd, turn_of(g->turns, k));
        const number low = sub_i(even, turned), high = conjugate(add_i(even, turned));
        put(y, k, low);
        put(y, half - k, high);
        if (all) {
            put(y, g->n - k, conjugate(low));
            put(y, half + k, conjugate(high));
        }
    }
}

/* Back, times two. */
static void join_pairs(const q7_dft_group *g, numbers y, numbers z) {
    const int64_t half = g->n / 2;
    const q7_f32 first = get(y, 0).re, last = get(y, half).re;
    put(z, 0, (number){q7_add(first, last), q7_sub(first, last)});
    for (int64_t k = 1; 2 * k <= half; k++) {
        const number a = get(y, k), b = conjugate(get(y, half - k));
        const number even = add(a, b);
        const number odd = turn(sub(a, b), conjugate(turn_of(g->turns, k)));
        put(z, k, add_i(even, odd));
        put(z, half - k, add_i(conjugate(even), conjugate(odd)));
    }
}

/* What the first half of x says of the second. */
static void mirror(const q7_dft_group *g, numbers x) {
    put(x, 0, (number){get(x, 0).re, q7_set1(0.0f)});
    for (int64_t k = 1; 2 * k < g->n; k++) put(x, g->n - k, conjugate(get(x, k)));
}

void Q7_KERNEL(dft_f32)(const q7_dft_group *g);

void Q7_KERNEL(dft_f32)(const q7_dft_group *g) {
    float *a = g->work, *b = a + g->n * NUMBER, *room = b + g->n * NUMBER;
    load(g, a);
    if (g->pairs && g->inverse) {
        join_pairs(g, (numbers){a, Q7_W}, (numbers){b, Q7_W});
        store(g, transform(g, g->n / 2, b, a, room));
    } else if (g->pairs) {
        float *z = transform(g, g->n / 2, a, b, room), *y = z == a ? b : a;
        split_pairs(g, (numbers){z, Q7_W}, (numbers){y, Q7_W});
        store(g, y);
    } else {
        if (g->y_parts == 1) mirror(g, (numbers){a, Q7_W});
        store(g, transform(g, g->n, a, b, room));
    }
}
