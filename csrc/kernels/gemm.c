/* gemm.c: the kernel of gemm.h for every ISA; its tile is that of tile.h.
 *
 * The whole tile stays in registers while k runs: MR * VECTORS accumulators, VECTORS of b and a
 * broadcast element of a (28 + 2 + 1 of 32 registers on avx512, 12 + 2 + 1 of 16 on avx2). */
#include "gemm.h"

#include <math.h>

#include "math.h"
#include "tile.h"

#if MR > 6 /* long enough as it is, and compilers would hoist so many loads that they spill */
#define UNROLL_K
#else
#define UNROLL_K Q7_UNROLL_BY_4
#endif
#define LINE 16 /* floats of a cache line */

/* Where sums go: straight to c, or to a buffer for finish(). */
typedef struct target {
    float *p; /* (m, panels * NR) */
    int64_t stride;
    bool add;
    const q7_gemm_epilogue *epilogue; /* of c, where it is_simple(), or NULL */
    int64_t first;                    /* column */
} target;

/* How b is read. */
enum access {
    PACKED, /* and a_k_stride is 1: constant strides and an unrolled loop, 7 % faster on avx2 */
    STREAM, /* PACKED, from memory and once: several panels, or of one every line is prefetched */
    STRIDED,
    TAIL /* STRIDED, and only t->n columns exist */
};

/* x, unknown to the optimiser: keeps it from specialising loops for strides of 1 once more. */
Q7_INLINE int64_t opaque(int64_t x) {
    __asm__("" : "+r"(x));
    return x;
}

/* Epilogues that are computed while the tile is in registers: it saves 45 ns of a tile, which takes
 * 240 for k = 64. Bits are those of finish(). */
Q7_INLINE bool is_simple(const q7_gemm_epilogue *e) {
    const bool clamps = e->act == Q7_act_none || e->act == Q7_act_relu || e->act == Q7_act_clip;
    return clamps && !e->row_bias && !e->gated;
}

Q7_INLINE void finish_simple(target out, const q7_f32 *sum, const int m, const int vectors) {
    const q7_gemm_epilogue *e = out.epilogue;
    const bool clips = e->act == Q7_act_clip;
    const q7_f32 alpha = q7_set1(e->alpha);
    const q7_f32 low = q7_set1(clips ? e->act_alpha : e->act ? 0.0f : -INFINITY);
    const q7_f32 high = q7_set1(clips ? e->act_beta : INFINITY);
    const float *residual = e->residual ? e->residual + out.first : NULL;
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) {
            q7_f32 x = sum[i * vectors + j];
            if (out.add) x = q7_add(q7_load(out.p + j * Q7_W), x);
            const float *bias = e->bias ? e->bias + out.first + j * Q7_W : NULL;
            x = q7_fma(alpha, x, bias ? q7_load(bias) : q7_set1(0.0f));
            if (residual && e->residual_first) x = q7_add(x, q7_load(residual + j * Q7_W));
            x = q7_vmin(high, q7_vmax(low, x));
            if (residual && !e->residual_first) x = q7_add(x, q7_load(residual + j * Q7_W));
            q7_store(out.p + j * Q7_W, x);
        }
        out.p += out.stride;
        if (residual) residual += e->residual_stride;
    }
}

/* out = or += a @ b for m rows and `panels` panels of b; m, panels and access are constants where
 * this is inlined. */
Q7_INLINE void multiply(const q7_gemm_tile *t, const float *b, target out, const int m,
                        const int panels, const enum access access) {
    const int vectors = panels * VECTORS;
    q7_f32 sum[MR * VECTORS], v[4 * VECTORS]; /* [m][vectors], [vectors]; panels * m <= MR */
    Q7_UNROLL
    for (int i = 0; i < m * vectors; i++) sum[i] = q7_set1(0.0f);

    /* Row i is at origin[i / 5] + i % 5 * row_bytes: any stride, with few address registers. */
    const int64_t row_bytes = opaque(t->a_row_stride * 4);
    const int64_t k_bytes = access <= STREAM ? 4 : opaque(t->a_k_stride * 4);
    const int64_t b_stride = access <= STREAM ? NR : t->b_stride;
    const char *origin[3];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = (const char *)t->a + 5 * i * row_bytes;
    const float *prefetch = t->prefetch;
    const int64_t prefetch_gap = t->prefetch_gap;
    Q7_UNROLL
    for (int i = 0; i < m; i++) { /* gains 2 to 5 %, bench/kernels.py gemm */
        q7_prefetch_write(out.p + i * out.stride);
        q7_prefetch_write(out.p + i * out.stride + panels * NR - 1);
    }
    if (out.epilogue && out.epilogue->residual) {
        const float *residual = out.epilogue->residual + out.first;
        Q7_UNROLL
        for (int i = 0; i < m; i++, residual += out.epilogue->residual_stride) {
            q7_prefetch(residual);
            q7_prefetch(residual + panels * NR - 1);
        }
    }

    UNROLL_K
    for (int64_t k = t->k; k > 0; k--) {
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) {
            const float *p = b + j / VECTORS * t->b_panel_stride + j % VECTORS * Q7_W;
            const int64_t left = access == TAIL ? t->n - j * Q7_W : Q7_W;
            v[j] = left >= Q7_W ? q7_load(p) : left > 0 ? q7_load_tail(p, left) : q7_set1(0.0f);
        }
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            const q7_f32 x =
                q7_set1(*(const float *)(const void *)(origin[i / 5] + i % 5 * row_bytes));
            Q7_UNROLL
            for (int j = 0; j < vectors; j++)
                sum[i * vectors + j] = q7_fma(x, v[j], sum[i * vectors + j]);
        }
        Q7_UNROLL
        for (int j = 0; j < panels && panels > 1; j++)
            q7_prefetch(b + j * t->b_panel_stride + Q7_GEMM_PANELS_AHEAD);
        if (panels == 1) q7_prefetch(prefetch);
        if (panels == 1 && access == PACKED) q7_prefetch(prefetch + prefetch_gap);
        if (panels == 1 && access == STREAM) {
            if (NR > LINE) q7_prefetch(prefetch + LINE);
            q7_prefetch_near(b + Q7_GEMM_NEAR);
            if (NR > LINE) q7_prefetch_near(b + Q7_GEMM_NEAR + LINE);
        }
        prefetch += t->prefetch_stride;
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += k_bytes;
        b += b_stride;
    }
    if (out.epilogue) {
        finish_simple(out, sum, m, vectors);
        return;
    }
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) {
            const q7_f32 x = sum[i * vectors + j];
            q7_store(out.p + j * Q7_W, out.add ? q7_add(q7_load(out.p + j * Q7_W), x) : x);
        }
        out.p += out.stride;
    }
}

typedef void multiply_rows(const q7_gemm_tile *t, const float *b, target out);

/* One function per number of rows, so that each has all address registers to itself. */
/* clang-format off */
#define WIDE(m) ((m) == 1 ? 4 : 2 * (m) + 2 <= MR ? 2 : 1) /* q7_gemm_panels() as a constant */
#define ROWS(m)                                                                  \
    static void packed_##m(const q7_gemm_tile *t, const float *b, target out) {  \
        multiply(t, b, out, m, 1, PACKED);                                       \
    }                                                                            \
    static void stream_##m(const q7_gemm_tile *t, const float *b, target out) {  \
        multiply(t, b, out, m, WIDE(m), STREAM);                                 \
    }                                                                            \
    static void strided_##m(const q7_gemm_tile *t, const float *b, target out) { \
        multiply(t, b, out, m, 1, STRIDED);                                      \
    }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) {packed_##m, stream_##m, strided_##m},
static multiply_rows *const by_rows[MR][3] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

/* The right edge of an unpacked b: rare, so four rows or one at a time will do. */
static void four_rows_tail(const q7_gemm_tile *t, const float *b, target out) {
    multiply(t, b, out, 4, 1, TAIL);
}

static void one_row_tail(const q7_gemm_tile *t, const float *b, target out) {
    multiply(t, b, out, 1, 1, TAIL);
}

static void tail(const q7_gemm_tile *t, target out) {
    q7_gemm_tile rest = *t;
    for (int64_t step; rest.m > 0; rest.m -= step) {
        step = rest.m >= 4 ? 4 : 1;
        (step == 4 ? four_rows_tail : one_row_tail)(&rest, rest.b, out);
        rest.a += step * rest.a_row_stride;
        out.p += step * out.stride;
    }
}

/* c = act(alpha * (sums + what c held if accumulating) + biases) + residual, for n columns from the
 * given first one. */
Q7_INLINE void finish_as(const q7_gemm_tile *t, const float *sums, int64_t sums_stride,
                         int64_t first, int64_t n, const int64_t act) {
    static const q7_gemm_epilogue none = {.alpha = 1.0f};
    const q7_gemm_epilogue *e = t->epilogue ? t->epilogue : &none;
    const q7_f32 alpha = q7_set1(e->alpha);
    const q7_f32 act_alpha = q7_set1(e->act_alpha), act_beta = q7_set1(e->act_beta);
    for (int64_t i = 0; i < t->m; i++) {
        float *c = t->c + i * t->c_stride + first;
        const float *residual = e->residual ? e->residual + i * e->residual_stride + first : NULL;
        const q7_f32 row_bias = q7_set1(e->row_bias ? e->row_bias[i] : 0.0f);
        for (int64_t j = 0; j < n; j += Q7_W) {
            const int64_t lanes = q7_min(n - j, Q7_W);
            q7_f32 x = q7_load(sums + i * sums_stride + j), bias = row_bias;
            if (t->accumulate) x = q7_add(q7_load_part(c + j, lanes), x);
            if (e->bias) bias = q7_add(bias, q7_load_part(e->bias + first + j, lanes));
            x = q7_fma(alpha, x, bias);
            if (residual && e->residual_first) x = q7_add(x, q7_load_part(residual + j, lanes));
            x = q7_act(act, x, act_alpha, act_beta);
            if (residual && !e->residual_first) x = q7_add(x, q7_load_part(residual + j, lanes));
            q7_store_part(c + j, x, lanes);
        }
    }
}

/* gated = act(gate + bias) * (up + up_bias) for the panels in columns [first, first + n). */
Q7_INLINE void finish_gated_as(const q7_gemm_tile *t, const float *sums, int64_t sums_stride,
                               int64_t first, int64_t n, const int64_t act) {
    enum { HALF = NR / 2 };
    const q7_gemm_epilogue *e = t->epilogue;
    const q7_f32 act_alpha = q7_set1(e->act_alpha), act_beta = q7_set1(e->act_beta);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t p = 0; p < n; p += NR) {
            const int64_t column = (first + p) / 2, columns = q7_min(e->gated_n - column, HALF);
            const float *s = sums + i * sums_stride + p, *c = t->c + i * t->c_stride + first + p;
            float *y = e->gated + i * e->gated_stride + column;
            for (int64_t j = 0; j < columns; j += Q7_W) {
                const int64_t lanes = q7_min(columns - j, Q7_W);
                q7_f32 gate = q7_load_part(s + j, lanes), up = q7_load_part(s + HALF + j, lanes);
                if (t->accumulate) {
                    gate = q7_add(q7_load_part(c + j, lanes), gate);
                    up = q7_add(q7_load_part(c + HALF + j, lanes), up);
                }
                if (e->bias) gate = q7_add(gate, q7_load_part(e->bias + column + j, lanes));
                if (e->up_bias) up = q7_add(up, q7_load_part(e->up_bias + column + j, lanes));
                q7_store_part(y + j, q7_mul(q7_act(act, gate, act_alpha, act_beta), up), lanes);
            }
        }
}

static void finish(const q7_gemm_tile *t, const float *sums, int64_t sums_stride, int64_t first,
                   int64_t n) {
    switch (t->epilogue ? t->epilogue->act : Q7_act_none) { /* a loop for each */
#define ACT(act)                                                           \
    case Q7_act_##act:                                                     \
        if (t->epilogue && t->epilogue->gated)                             \
            finish_gated_as(t, sums, sums_stride, first, n, Q7_act_##act); \
        else                                                               \
            finish_as(t, sums, sums_stride, first, n, Q7_act_##act);       \
        return;
#include "../ops.def"
#undef ACT
    }
}

void Q7_KERNEL(gemm_f32)(const q7_gemm_tile *t) {
    _Alignas(64) float sums[MR * NR];
    const int64_t wide = q7_gemm_panels(t->m, MR) * NR;
    for (int64_t first = 0, n; first < t->n; first += n) {
        const bool packed = t->b_packed && t->a_k_stride == 1;
        const bool stream =
            packed && t->n - first >= wide && (wide > NR || t->prefetch_stride == NR);
        const int64_t columns = stream ? wide : NR;
        n = q7_min(t->n - first, columns); /* how many of them exist */
        const float *b = t->b + first / NR * t->b_panel_stride;
        const bool direct = n == columns && (!t->epilogue || is_simple(t->epilogue));
        const target out =
            direct ? (target){t->c + first, t->c_stride, t->accumulate, t->epilogue, first}
                   : (target){.p = sums, .stride = columns};

        if (n < NR && !t->b_packed)
            tail(t, out);
        else
            by_rows[t->m - 1][stream ? STREAM : packed ? PACKED : STRIDED](t, b, out);
        if (!direct) finish(t, sums, columns, first, n);
    }
}
