/* gemm.c: the kernel of gemm.h for every ISA; its tile is that of tile.h for gemm.
 *
 * The whole tile stays in registers while k runs: MR * VECTORS accumulators, VECTORS of b and a
 * broadcast element of a (28 + 2 + 1 of 32 registers on avx512, 12 + 3 + 1 of 16 on avx2). */
#define Q7_GEMM_TILE
#include "gemm.h"

#include <math.h>

#include "gemm_finish.h"

/* Some rows of a, and where their sums go: straight to c, or to a buffer for finish(). */
typedef struct target {
    const float *a;
    int64_t rows;
    float *p; /* (rows, panels * NR) */
    int64_t stride;
    const float *c; /* where they end up, which is prefetched */
    int64_t c_stride;
    bool add;
    const q7_gemm_epilogue *epilogue; /* of c, where it is_simple(), or NULL */
    int64_t first;                    /* column */
    const float *residual;            /* of p, or NULL */
    int64_t fetched;                  /* floats of what is wanted soon, by tiles before */
} target;

/* What is wanted soon: `stride` floats for every k, from p and, but for short tiles that share a panel, from
 * `gap` behind it. Panels that are multiplied several at once are prefetched in any case. And where a panel of
 * half floats is left as floats, or nowhere, with a stride of 0. */
typedef struct ahead {
    const float *p;
    int64_t stride, gap;
    bool once; /* b is read by one tile of rows alone */
    float *room;
    int64_t room_stride;
} ahead;

/* Floats from where b is read to where it is prefetched if it is read once: by short tiles in a single
 * panel, with NEAR for L2 to L1, and in each of several. The products of BERT-base from memory, one core,
 * avx512, GB/s: m = 1 in four panels 18.1, 17.5 with 512; m = 4 in two panels 16.7, in one 14.6. Short
 * tiles on Zen 3, m = 1: 0.86 of the time of 256. */
enum { AHEAD = 2048, NEAR = 256, PANELS_AHEAD = SHORT_TILES ? 128 : 256 };

/* The same for two panels of half floats: BERT-base of 4 rows 6.0 ms, 7.2 with 256. */
enum { HALVES_AHEAD = 768 };

/* A tall tile that has one panel at once fetches what follows a block of k if there are more panels than
 * this, as nobody fetches the first one of a task. */
enum { SHARED = 8 };

/* Whether a block of k of a panel leaves less than half of an L1 of 32 KB to rows: every tile reads some of
 * it from L2 then, and fetches it SOON floats ahead (docs/decisions.md 204). */
#define BEYOND_L1 (Q7_GEMM_K_BLOCK * NR > (1 << 12))
enum { SOON = 8 * NR };

/* Short tiles that share a panel fetch at every k where each has so many floats of it to fetch for every k:
 * lines that are fetched at once wait for each other. Where many tiles share it, that costs more than it
 * saves. */
enum { OFTEN = 3 };

/* Floats of a that stay in L2, 512 KB, while panels go by. */
enum { RESIDENT = 1 << 17 };

/* How many packed panels are multiplied at once where there are few rows: independent sums to hide
 * the latency of fma, and streams of b to keep the memory busy, as far as registers reach. */
#if MR == 14
#define FEW 4
#define FEW_ROWS(f) f(1) f(2) f(3) f(4)
#elif MR == 8
#define FEW 3
#define FEW_ROWS(f) f(1) f(2) f(3)
#elif VECTORS == 3
#define FEW 2
#define FEW_ROWS(f) f(1) f(2)
#else
#define FEW 1
#define FEW_ROWS(f) f(1)
#endif
#define PANELS_AT_ONCE(m) ((m) == 1 ? 4 : (m) <= FEW ? 2 : 1)
#define WIDE(m) (PANELS_AT_ONCE(m) * VECTORS)
static int64_t panels_at_once(int64_t m) { return PANELS_AT_ONCE(m); }

/* Rows of b that one_row() reads at once; rows of a that by_column() does, and of a piece of it. */
enum { ALONG = 8, DOTS = 4, PIECE = 32 };

/* How b is read. */
enum access {
    PACKED, /* and a_k_stride is 1: constant strides and an unrolled loop, 7 % faster on avx2 */
    STREAM, /* PACKED, from memory and once: several panels, or of one every line is prefetched */
    F16,
    BF16, /* PACKED, or STREAM from several panels */
    STRIDED,
    TAIL /* STRIDED, and only t->n columns exist */
};
Q7_INLINE bool is_half(enum access access) { return access == F16 || access == BF16; }

/* x, unknown to the optimiser: keeps it from specialising loops for strides of 1 once more. */
Q7_INLINE int64_t opaque(int64_t x) {
    __asm__("" : "+r"(x));
    return x;
}

/* Epilogues that are computed while the tile is in registers: it saves 45 ns of a tile, which takes
 * 240 for k = 64. Bits are those of finish(). */
Q7_INLINE bool is_simple(const q7_gemm_epilogue *e) {
    return q7_clamps(e->act) && !e->row_bias && !e->gated;
}

/* What becomes of sums, each part a loop over registers, so that what they ask is asked once. */
Q7_INLINE void put(target out, q7_f32 *sum, const int m, const int vectors) {
    const q7_gemm_epilogue *e = out.epilogue;
    if (out.add) Q7_EACH_VECTOR(out.p, out.stride, *x = q7_add(q7_load(row + j * Q7_W), *x));
    if (e) {
        const q7_f32 alpha = q7_set1(e->alpha);
        q7_f32 bias[4 * VECTORS];
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            bias[j] = e->bias ? q7_load(e->bias + out.first + j * Q7_W) : q7_set1(0.0f);
        if (e->alpha == 1.0f)
            Q7_EACH_VECTOR(out.p, 0, *x = q7_add(*x, bias[j]));
        else
            Q7_EACH_VECTOR(out.p, 0, *x = q7_fma(alpha, *x, bias[j]));
        if (out.residual && e->residual_first)
            Q7_EACH_VECTOR(out.residual, e->residual_stride,
                           *x = q7_add(*x, q7_load(row + j * Q7_W)));
        if (e->act != Q7_act_none) {
            const bool clips = e->act == Q7_act_clip;
            const q7_f32 low = q7_set1(clips ? e->act_alpha : 0.0f);
            const q7_f32 high = q7_set1(clips ? e->act_beta : INFINITY);
            Q7_EACH_VECTOR(out.p, 0, *x = q7_vmin(high, q7_vmax(low, *x)));
        }
        if (e->scale) {
            const float *scale = e->scale + out.first, *shift = e->shift + out.first;
            Q7_EACH_VECTOR(out.p, 0,
                           *x = q7_fma(q7_load(scale + j * Q7_W), *x, q7_load(shift + j * Q7_W)));
        }
        if (out.residual && !e->residual_first)
            Q7_EACH_VECTOR(out.residual, e->residual_stride,
                           *x = q7_add(*x, q7_load(row + j * Q7_W)));
    }
    Q7_EACH_VECTOR(out.p, out.stride, q7_store(row + j * Q7_W, *x));
}

/* A vector of a row of b, from its element `at` on, of which `left` exist. */
Q7_INLINE q7_f32 load_b(const float *row, int64_t at, int64_t left, const enum access access) {
    if (access == F16) return q7_load_f16((const uint16_t *)(const void *)row + at);
    if (access == BF16) return q7_load_bf16((const uint16_t *)(const void *)row + at);
    if (access != TAIL || left >= Q7_W) return q7_load(row + at);
    return left > 0 ? q7_load_tail(row + at, left) : q7_set1(0.0f);
}

/* Where a tile is in its k: origins of its rows, as in tile.h, which are k_bytes from one k to the next, a
 * row of b, and where that is left. */
typedef struct cursor {
    const char *origin[Q7_ORIGINS(TALL)];
    int64_t k_bytes;
    const float *from;
    float *room;
} cursor;

Q7_INLINE void fetch_near(const float *row, const int columns) {
    Q7_UNROLL
    for (int j = 0; j < columns; j += Q7_LINE_FLOATS) q7_prefetch_near(row + j);
}

/* Adds the products of one k. m, vectors and access are constants where this is inlined, here and below. */
Q7_INLINE void multiply_step(const q7_gemm_block *t, cursor *at, int64_t row_bytes,
                             int64_t room_stride, q7_f32 *sum, const int m, const int vectors,
                             const enum access access) {
    const int panels = (vectors + VECTORS - 1) / VECTORS;
    const int64_t b_stride = is_half(access) ? NR / 2 : access < STRIDED ? NR : t->b_stride;
    const int64_t soon = is_half(access) && m > 1 ? HALVES_AHEAD : PANELS_AHEAD;
    const float *from = at->from;
    q7_f32 v[4 * VECTORS]; /* panels * m <= MR */
    Q7_UNROLL
    for (int j = 0; j < vectors; j++) {
        const float *p = from + j / VECTORS * t->b_panel_stride;
        v[j] = load_b(p, j % VECTORS * Q7_W, t->n - j * Q7_W, access);
    }
    if (is_half(access) && panels == 1) {
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) q7_store(at->room + j * Q7_W, v[j]);
        at->room += room_stride;
    }
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        const q7_f32 x =
            q7_set1(*(const float *)(const void *)(at->origin[i / 5] + i % 5 * row_bytes));
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] = q7_fma(x, v[j], sum[i * vectors + j]);
    }
    Q7_UNROLL
    for (int j = 0; j < panels && panels > 1; j++) {
        q7_prefetch(from + j * t->b_panel_stride + soon);
        if (SHORT_TILES && b_stride > Q7_LINE_FLOATS) /* each line of them */
            q7_prefetch(from + j * t->b_panel_stride + soon + Q7_LINE_FLOATS);
    }
    if (panels == 1 && access == STREAM) fetch_near(from + NEAR, NR);
    if (SHORT_TILES && BEYOND_L1 && access == PACKED) fetch_near(from + SOON, vectors * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < Q7_ORIGINS(m); i++) at->origin[i] += at->k_bytes;
    at->from += b_stride;
}

Q7_INLINE void fetch_row(const float *row, const int columns) {
    Q7_UNROLL
    for (int j = 0; j < columns; j += Q7_LINE_FLOATS) q7_prefetch_write(row + j);
    q7_prefetch_write(row + columns - 1); /* where rows are not aligned */
}

Q7_INLINE void fetch_next(ahead *next, int64_t k, const bool both) {
    q7_prefetch(next->p);
    if (both) q7_prefetch(next->p + next->gap);
    next->p += k * next->stride;
}

/* Adds the products of all k of a tile that is short or has several panels at once. It fetches a row of c
 * and of the residual after the other: all at once would keep every miss buffer for as long as memory
 * takes. */
Q7_INLINE void multiply_k(const q7_gemm_block *t, target out, cursor *at, ahead *next,
                          int64_t row_bytes, q7_f32 *sum, const int m, const int vectors,
                          const enum access access) {
    const bool single = vectors <= VECTORS;
    const int64_t pause = q7_max(UNROLLED_K, t->k / (m + 1) / UNROLLED_K * UNROLLED_K);
    for (int64_t left = t->k, some; left > 0; left -= some) {
        some = q7_min(left, pause);
        fetch_row(out.c, vectors * Q7_W);
        out.c += out.c_stride;
        if (out.residual) {
            fetch_row(out.residual, vectors * Q7_W);
            out.residual += out.epilogue->residual_stride;
        }
        if (single && (access == STREAM || next->stride >= OFTEN)) {
            UNROLL_K
            for (int64_t k = some; k > 0; k--) {
                fetch_next(next, 1, access == STREAM);
                multiply_step(t, at, row_bytes, next->room_stride, sum, m, vectors, access);
            }
            continue;
        }
        const int64_t wanted = single ? some * next->stride : 0;
        for (int64_t j = 0; j < wanted; j += Q7_LINE_FLOATS) q7_prefetch(next->p + j);
        next->p += wanted;
        UNROLL_K
        for (int64_t k = some; k > 0; k--)
            multiply_step(t, at, row_bytes, next->room_stride, sum, m, vectors, access);
    }
}

/* Two k of a tall tile, to which whatever is issued beside products costs some of them: where b is read
 * again it fetches once for both. */
Q7_INLINE void multiply_pair(const q7_gemm_block *t, cursor *at, ahead *next, int64_t row_bytes,
                             q7_f32 *sum, const int m, const int vectors,
                             const enum access access) {
    Q7_UNROLL
    for (int i = 0; i < 2; i++) {
        if (access == STREAM || i == 0) fetch_next(next, access == STREAM ? 1 : 2, true);
        multiply_step(t, at, row_bytes, next->room_stride, sum, m, vectors, access);
    }
}

/* Adds the products of all k of a tall tile: it fetches first rows of c, then those of the residual, and then
 * b, if that is BEYOND_L1; a stream, which does that at every k, the first row of c again. A loop for each is
 * all there is (docs/decisions.md 150). */
Q7_INLINE void multiply_pairs(const q7_gemm_block *t, target out, cursor *at, ahead *next,
                              int64_t row_bytes, q7_f32 *sum, const int m, const int vectors,
                              const enum access access) {
    const float *row = out.c;
    int64_t row_stride = out.c_stride;
    for (int64_t left = t->k, some; left > 1; left -= some) {
        const bool is_last = row_stride == 0;
        some = (is_last ? left : q7_min(left, 2 * m)) / 2 * 2;
        if (BEYOND_L1 && access == PACKED && is_last) {
            for (int64_t k = some; k > 0; k -= 2) {
                fetch_near(at->from + SOON, vectors * Q7_W);
                fetch_near(at->from + SOON + NR, vectors * Q7_W);
                multiply_pair(t, at, next, row_bytes, sum, m, vectors, access);
            }
        } else {
            for (int64_t k = some; k > 0; k -= 2) {
                fetch_row(row, vectors * Q7_W);
                row += row_stride;
                multiply_pair(t, at, next, row_bytes, sum, m, vectors, access);
            }
        }
        row = out.residual ? out.residual : out.c;
        row_stride = out.residual ? out.epilogue->residual_stride : 0;
        out.residual = NULL;
    }
    if (t->k % 2) multiply_step(t, at, row_bytes, next->room_stride, sum, m, vectors, access);
}

/* out = or += a @ b for tiles of m rows, as many as there are, and so many vectors of b, whole panels or a
 * part of one. */
Q7_INLINE void multiply(const q7_gemm_block *t, const float *b, const target *to, const ahead *soon,
                        const int m, const int vectors, const enum access access) {
    target out = *to;
    ahead next = *soon;
    next.p += out.fetched;
    q7_f32 sum[MR * VECTORS]; /* [m][vectors] */
    const int64_t row_bytes = opaque(t->a_row_stride * 4);
    const int64_t k_bytes = access < STRIDED ? 4 : opaque(t->a_k_stride * 4);
    const char *a = (const char *)out.a;
    for (int64_t rows = out.rows; rows > 0; rows -= m) {
        cursor at = {.k_bytes = k_bytes, .from = b, .room = next.room};
        Q7_UNROLL
        for (int i = 0; i < Q7_ORIGINS(m); i++) at.origin[i] = a + 5 * i * row_bytes;
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++) sum[i] = q7_set1(0.0f);
        if (SHORT_TILES || vectors > VECTORS)
            multiply_k(t, out, &at, &next, row_bytes, sum, m, vectors, access);
        else
            multiply_pairs(t, out, &at, &next, row_bytes, sum, m, vectors, access);
        next.room = at.room;
        put(out, sum, m, vectors);
        a += m * row_bytes;
        out.p += m * out.stride;
        out.c += m * out.c_stride;
        if (out.residual) out.residual += m * out.epilogue->residual_stride;
    }
}

/* Structs are handed on by their addresses, here and below: a copy of one reads as vectors what has just been
 * written field by field, and waits for all that is on its way to memory (docs/decisions.md 206). */
typedef void multiply_some(const q7_gemm_block *t, const float *b, const target *out,
                           const ahead *next);

/* One function per number of rows, so that each has all address registers to itself. */
/* clang-format off */
#define FUNCTION(name, m, vectors, access)                                                \
    static void name##_##m(const q7_gemm_block *t, const float *b, const target *out, const ahead *next) { \
        multiply(t, b, out, next, m, vectors, access);                                    \
    }
#define ROWS(m)                                                                        \
    FUNCTION(packed, m, VECTORS, PACKED) FUNCTION(stream, m, WIDE(m), STREAM)          \
    FUNCTION(f16, m, VECTORS, F16) FUNCTION(bf16, m, VECTORS, BF16)                    \
    FUNCTION(strided, m, VECTORS, STRIDED)
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) {packed_##m, stream_##m, f16_##m, bf16_##m, strided_##m},
static multiply_some *const by_rows[MR][TAIL] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* Of the last panel, those vectors that have columns. */
#define ROWS(m) FUNCTION(one, m, 1, PACKED)
Q7_EVERY_TALL_ROW(ROWS)
#undef ROWS
#define ROWS(m) one_##m,
static multiply_some *const one_vector[TALL] = {Q7_EVERY_TALL_ROW(ROWS)};
#undef ROWS
#if VECTORS == 3
#define ROWS(m) FUNCTION(two, m, 2, PACKED)
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) two_##m,
static multiply_some *const two_vectors[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
#endif
#define ROWS(m) FUNCTION(stream_f16, m, WIDE(m), F16) FUNCTION(stream_bf16, m, WIDE(m), BF16)
FEW_ROWS(ROWS)
#undef ROWS
#define ROWS(m) {stream_f16_##m, stream_bf16_##m},
static multiply_some *const half_streams[][2] = {FEW_ROWS(ROWS)};
#undef ROWS
#undef FUNCTION
/* clang-format on */

/* The right edge of an unpacked b: rare, so four rows or one at a time will do. */
static void four_rows_tail(const q7_gemm_block *t, const target *out, const ahead *next) {
    multiply(t, t->b, out, next, 4, VECTORS, TAIL);
}

static void one_row_tail(const q7_gemm_block *t, const target *out, const ahead *next) {
    multiply(t, t->b, out, next, 1, VECTORS, TAIL);
}

static void tail(const q7_gemm_block *t, const target *out, const ahead *next) {
    target fours = *out, rest = *out;
    fours.rows = out->rows / 4 * 4;
    four_rows_tail(t, &fours, next);
    rest.rows = out->rows - fours.rows;
    rest.a += fours.rows * t->a_row_stride;
    rest.p += fours.rows * out->stride;
    rest.c += fours.rows * out->c_stride;
    one_row_tail(t, &rest, next);
}

/* Whether strides are those of PACKED. */
static bool is_packed(const q7_gemm_block *t) { return t->b_packed && t->a_k_stride == 1; }

static multiply_some *function_for(const q7_gemm_block *t, int64_t m, bool stream,
                                   int64_t columns) {
    if (columns == Q7_W) return one_vector[m - 1];
#if VECTORS == 3
    if (columns == 2 * Q7_W) return two_vectors[m - 1];
#endif
    const enum access half = t->b_dtype == Q7_BF16 ? BF16 : F16;
    if (q7_is_half(t->b_dtype))
        return stream ? half_streams[m - 1][half - F16] : by_rows[m - 1][half];
    return by_rows[m - 1][stream ? STREAM : is_packed(t) ? PACKED : STRIDED];
}

/* Whether vectors of the last panel that have no column are left out. */
static bool narrows(const q7_gemm_block *t) { return is_packed(t) && !q7_is_half(t->b_dtype); }

/* Tiles of m rows, as many as `rows` from one on hold; columns are one panel, or as many as are multiplied at
 * once. */
static void multiply_tiles(const q7_gemm_block *t, int64_t begin, int64_t rows, int64_t m,
                           const ahead *next) {
    _Alignas(64) float sums[UNFINISHED * NR];
    const int64_t wide = panels_at_once(m) * NR;
    for (int64_t first = 0, n; first < t->n; first += n) {
        const bool stream = is_packed(t) && t->n - first >= wide && (wide > NR || next->once);
        const int64_t most = stream ? wide : NR;
        n = q7_min(t->n - first, most); /* how many of them exist */
        const int64_t columns = narrows(t) ? q7_ceil_div(n, Q7_W) * Q7_W : most;
        const float *b = t->b + first / NR * t->b_panel_stride;
        const q7_gemm_epilogue *e = t->epilogue;
        const bool direct = n == columns && (!e || is_simple(e));
        multiply_some *some = function_for(t, m, stream, columns);

        if (direct) {
            float *c = t->c + begin * t->c_stride + first;
            const target out = {.a = t->a + begin * t->a_row_stride,
                                .rows = rows,
                                .p = c,
                                .stride = t->c_stride,
                                .c = c,
                                .c_stride = t->c_stride,
                                .add = t->accumulate,
                                .epilogue = e,
                                .first = first,
                                .residual = e && e->residual
                                                ? e->residual + begin * e->residual_stride + first
                                                : NULL};
            some(t, b, &out, next);
            continue;
        }
        const int64_t most_rows = UNFINISHED / m * m;
        for (int64_t row = 0; row < rows; row += most_rows) {
            const int64_t here = q7_min(most_rows, rows - row);
            q7_gemm_block tile;
            q7_gemm_epilogue epilogue;
            q7_gemm_part(t, begin + row, here, 0, t->n, NR, &tile, &epilogue);
            target out = {.a = tile.a,
                          .rows = here,
                          .p = sums,
                          .stride = columns,
                          .c = tile.c + first,
                          .c_stride = tile.c_stride,
                          .fetched = row / m * t->k * next->stride};
            if (e && epilogue.gated)
                out.c = epilogue.gated + first / 2, out.c_stride = epilogue.gated_stride;
            if (n < NR && !t->b_packed)
                tail(&tile, &out, next);
            else
                some(&tile, b, &out, next);
            q7_finish_floats(&tile, sums, columns, first, n);
        }
    }
}

/* All rows of some columns, for k in a block: x is that part of a block. Tiles differ by one row at
 * most, larger ones first. next: of the first tile. */
static void multiply_rows(const q7_gemm_block *x, int64_t tiles, ahead *next) {
    const int64_t larger = x->m % tiles;
    for (int64_t row = 0, m = x->m / tiles + (larger > 0), end; row < x->m; row = end, m--) {
        end = larger > 0 && row == 0 ? larger * m : x->m;
        multiply_tiles(x, row, end - row, m, next);
        next->p += larger * x->k * next->stride;
    }
}

/* Leaves of a part, which has all of k, the block from k0 on. */
static void take_k(q7_gemm_block *part, int64_t k0) {
    const int64_t left = part->k - k0;
    part->k = q7_min(left, part->k_block);
    part->a += k0 * part->a_k_stride;
    part->b += k0 * part->b_stride;
    part->accumulate = part->accumulate || k0 > 0;
    if (left > part->k_block) part->epilogue = NULL;
}

/* sums += a row of `rows` elements by as many rows of b, n columns. */
Q7_INLINE void add_along(const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                         float *sums, int64_t n, const int rows) {
    q7_f32 x[ALONG];
    Q7_UNROLL
    for (int i = 0; i < rows; i++) x[i] = q7_set1(a[i * a_stride]);
    for (int64_t j = 0; j < n; j += Q7_W) {
        const int64_t lanes = q7_min(n - j, Q7_W);
        q7_f32 sum = q7_load(sums + j);
        Q7_UNROLL
        for (int i = 0; i < rows; i++)
            sum = q7_fma(x[i], q7_load_part(b + i * b_stride + j, lanes), sum);
        q7_store(sums + j, sum);
    }
}

/* One row by a b that is not packed: rows of b are read along, ALONG at once, as they lie in memory, and
 * sums stay in L1. */
static void one_row(const q7_gemm_block *x) {
    enum { COLUMNS = 1024 };
    _Alignas(64) float sums[COLUMNS];
    for (int64_t first = 0; first < x->n; first += COLUMNS) {
        const int64_t n = q7_min(COLUMNS, x->n - first);
        for (int64_t k0 = 0; k0 == 0 || k0 < x->k; k0 += x->k_block) {
            q7_gemm_block part;
            q7_gemm_epilogue epilogue;
            q7_gemm_part(x, 0, 1, first, n, NR, &part, &epilogue);
            take_k(&part, k0);
            for (int64_t j = 0; j < n; j += Q7_W) q7_store(sums + j, q7_set1(0.0f));
            for (int64_t k = 0, some; k < part.k; k += some) {
                some = part.k - k >= ALONG ? ALONG : 1;
                const float *a = part.a + k * x->a_k_stride, *b = part.b + k * x->b_stride;
                if (some == ALONG)
                    add_along(a, x->a_k_stride, b, x->b_stride, sums, n, ALONG);
                else
                    add_along(a, x->a_k_stride, b, x->b_stride, sums, n, 1);
            }
            q7_finish_floats(&part, sums, COLUMNS, 0, n);
        }
    }
}

/* sums[i] += the products of n elements of some rows of a by those of a column; rows behind the last
 * are the last one. Lanes hold parts of a sum. */
Q7_INLINE void add_dots(const float *a, int64_t a_stride, int64_t rows, const float *column,
                        int64_t n, float *sums) {
    enum { PARTS = 2 };
    const float *of[DOTS];
    q7_f32 sum[PARTS][DOTS];
    Q7_UNROLL
    for (int i = 0; i < DOTS; i++) {
        of[i] = a + q7_min(i, rows - 1) * a_stride;
        sum[0][i] = sum[1][i] = q7_set1(0.0f);
    }
    int64_t k = 0;
    for (; k + PARTS * Q7_W <= n; k += PARTS * Q7_W) {
        Q7_UNROLL
        for (int p = 0; p < PARTS; p++) {
            const q7_f32 x = q7_load(column + k + p * Q7_W);
            Q7_UNROLL
            for (int i = 0; i < DOTS; i++)
                sum[p][i] = q7_fma(q7_load(of[i] + k + p * Q7_W), x, sum[p][i]);
        }
    }
    for (; k < n; k += Q7_W) {
        const int64_t lanes = q7_min(n - k, Q7_W);
        const q7_f32 x = q7_load_part(column + k, lanes);
        Q7_UNROLL
        for (int i = 0; i < DOTS; i++)
            sum[0][i] = q7_fma(q7_load_part(of[i] + k, lanes), x, sum[0][i]);
    }
    Q7_UNROLL
    for (int i = 0; i < DOTS; i++) sum[0][i] = q7_add(sum[0][i], sum[1][i]);
    float dots[DOTS];
    q7_hsum_4(sum[0], dots);
    for (int i = 0; i < DOTS; i++) sums[i] += dots[i];
}

/* By one column: all k of some rows of a, and then of the next. A column that is packed is made
 * contiguous a block of k at a time. */
static void by_column(const q7_gemm_block *x) {
    float column[Q7_GEMM_K_BLOCK], sums[PIECE + Q7_W]; /* a vector is loaded at each sum */
    for (int64_t row = 0, rows; row < x->m; row += rows) {
        rows = q7_min(PIECE, x->m - row);
        q7_gemm_block part;
        q7_gemm_epilogue epilogue;
        q7_gemm_part(x, row, rows, 0, 1, NR, &part, &epilogue);
        for (int i = 0; i < PIECE; i++) sums[i] = 0.0f;
        for (int64_t k0 = 0, n; k0 < x->k; k0 += n) {
            const float *b = x->b + k0 * x->b_stride;
            n = q7_min(Q7_GEMM_K_BLOCK, x->k - k0);
            if (x->b_stride != 1) {
                for (int64_t k = 0; k < n; k++) column[k] = b[k * x->b_stride];
                b = column;
            }
            for (int64_t i = 0; i < rows; i += DOTS)
                add_dots(part.a + i * x->a_row_stride + k0, x->a_row_stride, rows - i, b, n,
                         sums + i);
        }
        if (part.epilogue || part.accumulate)
            q7_finish_floats(&part, sums, 1, 0, 1);
        else
            for (int64_t i = 0; i < rows; i++) part.c[i * part.c_stride] = sums[i];
    }
}

/* A single tile of rows reads b once and in the order of memory: all k of the panels that are
 * multiplied at once, then the next. So do several whose a stays in L2 as a whole. Else a panel of a
 * block of k stays in L1 for all tiles, and a of that block in L2 for all panels. Meanwhile as much of what
 * is multiplied next is fetched, a block of k ahead in the order in which b is read, or behind the last panel
 * of what lies behind b, which most drivers want next: by tall tiles as two halves, since two streams keep
 * more of the memory busy than one (docs/decisions.md 146). A panel of half floats is widened by the first
 * tile, which leaves it to others as floats. */
void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    if (x->m == 1 && !x->b_packed && x->n > NR) {
        one_row(x);
        return;
    }
    if (q7_gemm_by_column(x)) {
        by_column(x);
        return;
    }
    _Alignas(64) float room[Q7_GEMM_K_BLOCK * NR];
    const int64_t all_tiles = q7_ceil_div(x->m, q7_tallest(x->m, 4 * x->a_row_stride));
    const int64_t first = q7_ceil_div(x->m, all_tiles);
    const int64_t panels = q7_ceil_div(x->n, NR), at_once = panels_at_once(x->m);
    const bool long_stream = !SHORT_TILES && at_once == 1 && panels > SHARED;
    const bool few = all_tiles == 1 && x->b_packed && !long_stream;
    const int64_t width = few ? at_once * NR : NR;
    const bool in_order = all_tiles == 1 || (x->b_packed && x->m * x->k <= RESIDENT);
    for (int64_t g = 0, end; g < x->n; g = end) {
        end = in_order ? q7_min(g + width, x->n) : x->n;
        for (int64_t k0 = 0, k1; k0 == 0 || k0 < x->k; k0 = k1) {
            k1 = k0 + x->k_block;
            for (int64_t column = g; column < end; column += width) {
                q7_gemm_block part;
                q7_gemm_epilogue epilogue;
                q7_gemm_part(x, 0, x->m, column, q7_min(width, end - column), NR, &part, &epilogue);
                take_k(&part, k0);
                const bool tall = part.n <= Q7_W && narrows(x);
                const int64_t tiles = tall ? q7_ceil_div(x->m, TALL) : all_tiles;
                ahead next = {.p = part.b, .room = room};
                next.once = all_tiles == 1 && !q7_is_half(x->b_dtype);
                if (few) {
                    next.p = part.b + AHEAD;
                    next.stride = x->b_stride;
                    next.gap = Q7_LINE_FLOATS;
                } else if (x->b_packed) {
                    /* Where b is read a block of k later: in the next panel where this one's k, which may be
                     * a part of all, ends. */
                    int64_t panel = column / NR, k = k0;
                    if (in_order)
                        k += q7_min(x->k_block, x->k);
                    else if (column + width < x->n)
                        panel++;
                    else
                        panel = 0, k = k1;
                    if (k >= x->k) panel = column / NR + 1, k = in_order ? k - x->k : 0;
                    next.p = x->b + panel * x->b_panel_stride + k * x->b_stride;
                    next.gap = part.k * x->b_stride / 2;
                    next.stride = q7_ceil_div(x->b_stride, (SHORT_TILES ? 1 : 2) * tiles);
                }
                if (q7_is_half(x->b_dtype) && tiles > 1) {
                    q7_gemm_block tile, others;
                    q7_gemm_epilogue of_tile, of_others;
                    q7_gemm_part(&part, 0, first, 0, part.n, NR, &tile, &of_tile);
                    next.room_stride = NR;
                    multiply_tiles(&tile, 0, first, first, &next);
                    next.p += part.k * next.stride;
                    q7_gemm_part(&part, first, x->m - first, 0, part.n, NR, &others, &of_others);
                    others.b = room;
                    others.b_stride = NR;
                    others.b_dtype = Q7_F32;
                    multiply_rows(&others, tiles - 1, &next);
                    continue;
                }
                multiply_rows(&part, tiles, &next);
            }
        }
    }
}
