/* rnn.c: the products of a step by the GEMM kernel of the ISA, then its gates, a vector of units at
 * a time. Read rnn.h first. */
#define Q7_GEMM_TILE
#include "rnn.h"

#include "gemm.h"
#include "math.h"
#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *block);

enum {
    WIDE = 4 * NR /* columns at a time of a single tile: what one row takes at once */
};

/* sums[:, column ..) = a @ R for up to `columns` columns of a gate; a (rows, H). */
static void multiply_block(const q7_rnn_step *s, const float *a, int64_t gate, int64_t column,
                           int64_t columns) {
    const int64_t panel = s->H * NR, packed = gate * q7_ceil_div(s->H, NR) + column / NR;
    const q7_gemm_block part = {
        .m = s->rows,
        .n = q7_min(columns, s->first + s->n - column),
        .k = s->H,
        .k_block = Q7_GEMM_K_BLOCK,
        .a = a,
        .a_row_stride = s->H,
        .a_k_stride = 1,
        .b = s->r + packed * panel,
        .b_stride = NR,
        .b_packed = true,
        .b_panel_stride = panel,
        .c = s->sums + gate * s->sums_stride + column,
        .c_stride = s->H,
    };
    Q7_KERNEL(gemm_f32)(&part);
}

/* sums[g] = a @ R[g] in the columns of the step, for gates [from, to). Every other step goes from
 * the last column to the first: what a step read last is still in the cache, though R as a whole
 * may be too large for it. */
static void multiply(const q7_rnn_step *s, const float *a, int64_t from, int64_t to) {
    const int64_t columns = s->rows <= MR ? WIDE : NR; /* more rows: a panel stays in L1 for all */
    const int64_t groups = q7_ceil_div(s->n, columns), blocks = (to - from) * groups;
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t at = s->t % 2 ? blocks - 1 - i : i;
        multiply_block(s, a, from + at / groups, s->first + at % groups * columns, columns);
    }
}

/* Units [j, j + lanes) of a row. */
typedef struct place {
    int64_t row, j, lanes;
} place;

Q7_INLINE q7_f32 load(const float *p, place at) { return q7_load_part(p + at.j, at.lanes); }

Q7_INLINE void store(float *p, q7_f32 x, place at) { q7_store_part(p + at.j, x, at.lanes); }

/* x[g] + bias[0, g] */
Q7_INLINE q7_f32 of_input(const q7_rnn_step *s, int64_t g, place at) {
    const q7_f32 x = load(s->x + at.row * s->x_stride + g * s->H, at);
    return s->bias ? q7_add(x, load(s->bias + g * s->H, at)) : x;
}

/* h @ R[g] + bias[1, g] */
Q7_INLINE q7_f32 of_state(const q7_rnn_step *s, int64_t g, place at) {
    const q7_f32 sum = load(s->sums + g * s->sums_stride + at.row * s->H, at);
    return s->bias ? q7_add(sum, load(s->bias + (s->gates + g) * s->H, at)) : sum;
}

Q7_INLINE q7_f32 gate(const q7_rnn_step *s, int64_t g, place at) {
    return q7_add(of_input(s, g, at), of_state(s, g, at));
}

static __attribute__((noinline)) q7_f32 any_function(const q7_rnn_function *f, q7_f32 x) {
    return q7_act(f->act, x, q7_set1(f->alpha), q7_set1(f->beta));
}

/* Function i of x; `usual`: a sigmoid, then tanh twice, inlined. */
Q7_INLINE q7_f32 call(const q7_rnn_step *s, const int i, q7_f32 x, const bool usual) {
    if (usual) return i == 0 ? q7_sigmoid(x) : q7_tanh(x);
    return any_function(&s->function[i], x);
}

Q7_INLINE q7_f32 clipped(const q7_rnn_step *s, const int i, q7_f32 x, const bool usual) {
    return call(s, i, q7_clip(x, q7_set1(-s->clip), q7_set1(s->clip)), usual);
}

Q7_INLINE void finish(const q7_rnn_step *s, q7_f32 h, place at) {
    store(s->h_next + at.row * s->H, h, at);
    if (s->y) store(s->y + at.row * s->y_stride, h, at);
}

Q7_INLINE void lstm(const q7_rnn_step *s, place at, const bool usual) {
    const float *p = s->peephole;
    float *cell = s->c + at.row * s->H;
    q7_f32 c = load(cell, at), i = gate(s, 0, at), o = gate(s, 1, at), f = gate(s, 2, at);
    if (p) i = q7_fma(load(p, at), c, i);
    if (p) f = q7_fma(load(p + 2 * s->H, at), c, f);
    i = clipped(s, 0, i, usual);
    f = s->input_forget ? q7_sub(q7_set1(1.0f), i) : clipped(s, 0, f, usual);
    c = q7_fma(f, c, q7_mul(i, clipped(s, 1, gate(s, 3, at), usual)));
    if (p) o = q7_fma(load(p + s->H, at), c, o);
    store(cell, c, at);
    finish(s, q7_mul(clipped(s, 0, o, usual), call(s, 2, c, usual)), at);
}

/* z, kept in its sums, and the h that is left after the reset. */
Q7_INLINE void gru_reset(const q7_rnn_step *s, place at, const bool usual) {
    const int64_t row = at.row * s->H;
    const q7_f32 r = clipped(s, 0, gate(s, 1, at), usual);
    store(s->c + row, q7_mul(r, load(s->h + row, at)), at);
    store(s->sums + row, clipped(s, 0, gate(s, 0, at), usual), at);
}

Q7_INLINE void gru(const q7_rnn_step *s, place at, const bool usual) {
    q7_f32 z, a;
    if (s->linear_before_reset) {
        z = clipped(s, 0, gate(s, 0, at), usual);
        a = q7_fma(clipped(s, 0, gate(s, 1, at), usual), of_state(s, 2, at), of_input(s, 2, at));
    } else {
        z = load(s->sums + at.row * s->H, at);
        a = gate(s, 2, at);
    }
    const q7_f32 fresh = q7_mul(q7_sub(q7_set1(1.0f), z), clipped(s, 1, a, usual));
    finish(s, q7_fma(z, load(s->h + at.row * s->H, at), fresh), at);
}

/* h as it was, y = 0. */
Q7_INLINE void keep(const q7_rnn_step *s, place at) {
    store(s->h_next + at.row * s->H, load(s->h + at.row * s->H, at), at);
    if (s->y) store(s->y + at.row * s->y_stride, q7_set1(0.0f), at);
}

Q7_INLINE void units(const q7_rnn_step *s, int64_t part, const bool usual) {
    const bool is_reset = part + 1 < q7_rnn_parts(s->gates, s->linear_before_reset);
    for (int64_t row = 0; row < s->rows; row++) {
        const bool is_over = s->lengths && s->lengths[row] <= s->t;
        for (int64_t j = s->first; j < s->first + s->n; j += Q7_W) {
            const place at = {row, j, q7_min(s->first + s->n - j, Q7_W)};
            if (is_reset)
                gru_reset(s, at, usual);
            else if (is_over)
                keep(s, at);
            else if (s->gates == Q7_LSTM)
                lstm(s, at, usual);
            else if (s->gates == Q7_GRU)
                gru(s, at, usual);
            else
                finish(s, clipped(s, 0, gate(s, 0, at), usual), at);
        }
    }
}

void Q7_KERNEL(rnn_f32)(const q7_rnn_step *s, int64_t part) {
    const bool split = q7_rnn_parts(s->gates, s->linear_before_reset) == 2;
    if (part == 0)
        multiply(s, s->h, 0, split ? 2 : s->gates);
    else
        multiply(s, s->c, 2, 3);
    const q7_rnn_function *f = s->function;
    if (s->gates > 1 && f[0].act == Q7_act_sigmoid && f[1].act == Q7_act_tanh &&
        (s->gates != Q7_LSTM || f[2].act == Q7_act_tanh))
        units(s, part, true);
    else
        units(s, part, false);
}
