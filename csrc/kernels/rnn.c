/* rnn.c: the products of a step, by the GEMM kernel of the ISA or, where they are short, here; then its
 * gates, a vector of units at a time. Read rnn.h first. */
#define Q7_GEMM_TILE
#include "rnn.h"

#include "gemm.h"
#include "math.h"
#include "tile.h"

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *block);

enum {
    FEW = 4,            /* rows that are multiplied here at once */
    RESIDENT = 1 << 16, /* weights that stay in L2 while other rows are */
    WIDE = 4 * NR       /* columns at a time of a single tile of gemm: what one row takes at once */
};

/* Panels for so many rows: sums that hide the latency of each other's multiply-adds, as far as registers
 * reach. */
#define AT_ONCE(rows) ((rows) == 1 ? 4 : (rows) == 2 || MR == 14 ? 2 : 1)

/* sums = a @ r for `panels` panels of H k, of each of which `vectors` vectors are n columns, a and sums
 * (rows, H): the bits of the GEMM kernel, without what that asks and fetches for larger products. */
Q7_INLINE void multiply_panels(const float *a, int64_t H, const float *const *r, float *const *sums,
                               int64_t n, const int rows, const int panels, const int vectors) {
    const int width = panels * vectors;
    q7_f32 sum[2 * FEW * VECTORS];
    Q7_UNROLL
    for (int i = 0; i < rows * width; i++) sum[i] = q7_set1(0.0f);
    for (int64_t k = 0; k < H; k++) {
        q7_f32 b[4 * VECTORS];
        Q7_UNROLL
        for (int j = 0; j < width; j++)
            b[j] = q7_load(r[j / vectors] + k * NR + j % vectors * Q7_W);
        Q7_UNROLL
        for (int i = 0; i < rows * width; i++)
            sum[i] = q7_fma(q7_set1(a[i / width * H + k]), b[i % width], sum[i]);
    }
    Q7_UNROLL
    for (int i = 0; i < rows * width; i++) {
        const int j = i % width, column = j % vectors * Q7_W;
        q7_store_part(sums[j / vectors] + i / width * H + column, sum[i], n - column);
    }
}

typedef void multiply_some(const float *a, int64_t H, const float *const *r, float *const *sums,
                           int64_t n);

/* clang-format off */
#if MR == 14
#define SIZES(f) f(1, 1) f(1, 2) f(1, 3) f(1, 4) f(2, 1) f(2, 2) f(3, 1) f(3, 2) f(4, 1) f(4, 2)
#else
#define SIZES(f) f(1, 1) f(1, 2) f(1, 3) f(1, 4) f(2, 1) f(2, 2) f(3, 1) f(4, 1) /* rows, panels */
#endif
#if VECTORS == 3
#define EACH_WIDTH(f, rows, panels) f(rows, panels, 1) f(rows, panels, 2) f(rows, panels, 3)
#else
#define EACH_WIDTH(f, rows, panels) f(rows, panels, 1) f(rows, panels, 2)
#endif
#define FUNCTION(rows, panels, vectors)                                                      \
    static void multiply_##rows##_##panels##_##vectors(                                      \
        const float *a, int64_t H, const float *const *r, float *const *sums, int64_t n) {   \
        multiply_panels(a, H, r, sums, n, rows, panels, vectors);                            \
    }
#define NAME(rows, panels, vectors) \
    [rows - 1][panels - 1][vectors - 1] = multiply_##rows##_##panels##_##vectors,
#define FUNCTIONS(rows, panels) EACH_WIDTH(FUNCTION, rows, panels)
#define NAMES(rows, panels) EACH_WIDTH(NAME, rows, panels)
SIZES(FUNCTIONS)
static multiply_some *const of_size[FEW][AT_ONCE(1)][VECTORS] = {SIZES(NAMES)};
/* clang-format on */

/* multiply() for rows [row, row + rows), few: the panels of all gates side by side; the last ones of
 * each, which may have fewer columns, behind all others. */
static void multiply_few(const q7_rnn_step *s, const float *a, int64_t from, int64_t to,
                         int64_t row, int64_t rows) {
    const int64_t gates = to - from, of_gate = q7_ceil_div(s->H, NR) * NR * s->H;
    const int64_t whole = s->n / NR * gates, all = q7_ceil_div(s->n, NR) * gates;
    const int64_t at_once = AT_ONCE(rows), of_whole = q7_ceil_div(whole, at_once);
    const int64_t groups = of_whole + q7_ceil_div(all - whole, at_once);
    for (int64_t i = 0; i < groups; i++) {
        const int64_t at = s->t % 2 ? groups - 1 - i : i;
        const bool is_whole = at < of_whole;
        const int64_t n = is_whole ? NR : s->n % NR;
        const int64_t panel = is_whole ? at * at_once : whole + (at - of_whole) * at_once;
        const int64_t panels = q7_min(at_once, (is_whole ? whole : all) - panel);
        const float *r[AT_ONCE(1)];
        float *sums[AT_ONCE(1)];
        for (int64_t j = 0; j < panels; j++) {
            const int64_t gate = from + (panel + j) % gates;
            const int64_t column = s->first + (panel + j) / gates * NR;
            r[j] = s->r + gate * of_gate + column * s->H;
            sums[j] = s->sums + gate * s->sums_stride + row * s->H + column;
        }
        multiply_some *some = of_size[rows - 1][panels - 1][q7_ceil_div(n, Q7_W) - 1];
        some(a + row * s->H, s->H, r, sums, n);
    }
}

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
 * may be too large for it. Where products are short, what the GEMM kernel asks of each is as long. */
static void multiply(const q7_rnn_step *s, const float *a, int64_t from, int64_t to) {
    const bool is_few = s->rows <= FEW && s->H <= Q7_GEMM_K_BLOCK;
    if (is_few || s->gates * s->H * s->H <= RESIDENT) {
        int64_t tiles = q7_ceil_div(s->rows, FEW);
        for (int64_t row = 0, rows; row < s->rows; row += rows, tiles--) {
            rows = q7_ceil_div(s->rows - row, tiles);
            multiply_few(s, a, from, to, row, rows);
        }
        return;
    }
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
