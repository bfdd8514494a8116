/* columns.h: panels of b for amx/gemm.c, cut into parts a pair of rows or so at a time, beside products. Read
 * rows.h first.
 *
 * A float has three parts, a float16 two, a bfloat16 is one, and so is the difference of a weight of a few
 * bits and its zero, an integer of up to 255. */
#ifndef Q7_COLUMNS_H
#define Q7_COLUMNS_H
#include <string.h>

#include "../block_gemm.h"
#include "rows.h"

enum kind { FLOATS, F16, BF16, BITS };

Q7_INLINE int parts_of(const enum kind kind) {
    return kind == FLOATS ? Q7_PARTS : kind == F16 ? 2 : 1;
}

/* Bytes from where b is cut to where it is prefetched, three halves of a step of floats. */
enum { AHEAD = 3 * TILE * NR * 4 };

/* Steps to cut. A unit is a row and the one 16 on from it, or those that share their bytes. */
typedef struct columns {
    const char *b; /* of the unit */
    q7_bf16 *parts;
    int64_t units, per_step;   /* that are left; of a step */
    int turn;                  /* whose q7_parts_room.b they are in */
    bool by_turns;             /* every step begins the other one */
    bool tail;                 /* the last step is in q7_parts_room.tail */
    bool all;                  /* lines are to be prefetched */
    int64_t bits, step, steps; /* of a block */
    const uint8_t *zero;       /* of the block, or NULL */
    __m512i shift[2];          /* what makes an index of q, or takes off the zero; pairs */
    __m512 largest[2];         /* of what has no few bits */
} columns;

/* Bits of 16 columns of two rows of 16 bits, from column 0 or 16 on, as pairs. */
Q7_INLINE __m512i pairs_of(__m512i low, __m512i high, const int column) {
    const __m512i pairs =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i first = _mm512_set1_epi16((short)column);
    return _mm512_permutex2var_epi16(low, _mm512_add_epi16(pairs, first), high);
}

Q7_INLINE __m512i words_of(const void *bytes) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(bytes));
}

/* Those of a block: weights of up to 4 bits are looked up at q - zero + 16. */
Q7_INLINE void note_zeros(columns *c, const uint8_t *zero) {
    const __m512i base = _mm512_set1_epi16(c->bits == 8 ? 0 : 16);
    const __m512i middle = _mm512_set1_epi16((short)(1 << (c->bits - 1)));
    const __m512i zeros = zero ? words_of(zero) : middle;
    Q7_UNROLL
    for (int j = 0; j < 2; j++)
        c->shift[j] = _mm512_sub_epi16(base, pairs_of(zeros, zeros, 16 * j));
}

/* What follows is cut into the other q7_parts_room.b. */
Q7_INLINE void take_turns(columns *c) {
    c->turn = !c->turn;
    c->parts = q7_parts_room.b[c->turn];
}

/* Where a panel of x begins. */
static const char *panel_of(const q7_gemm_block *x, const q7_block_tile *few, int64_t panel) {
    if (!few) return (const char *)(x->b + panel * x->b_panel_stride);
    const int64_t q_rows = q7_ceil_div(few->k * few->bits, 8);
    return (const char *)few->q + (panel * q_rows + few->first * few->bits / 8) * NR;
}

/* `visit` steps of a panel from `step` of x on, or what there is of them; few: of BITS. */
static void point_at(columns *c, const q7_gemm_block *x, const q7_block_tile *few, int64_t panel,
                     int64_t step, int64_t visit) {
    const int64_t k = step * Q7_PARTS_STEP, left = x->k - k;
    const int64_t steps = q7_min(visit, q7_ceil_div(left, Q7_PARTS_STEP));
    const bool ends = panel * NR >= x->n + x->n_after || steps <= 0;
    int64_t step_bytes = Q7_PARTS_STEP * x->b_stride * 4, left_bytes = left * x->b_stride * 4;
    c->b = panel_of(x, few, panel);
    c->per_step = TILE;
    if (few) {
        step_bytes = Q7_PARTS_STEP * few->bits / 8 * NR;
        left_bytes = q7_ceil_div(left * few->bits, 8) * NR;
        c->per_step = TILE * few->bits / 8;
        c->bits = few->bits;
        c->steps = few->block / Q7_PARTS_STEP;
        c->step = (few->first + k) / Q7_PARTS_STEP % c->steps;
        if (few->zero)
            c->zero = (const uint8_t *)few->zero +
                      (panel * few->blocks + (few->first + k) / few->block) * NR;
        if (!ends) note_zeros(c, c->zero);
    }
    c->b += step * step_bytes;
    c->units = ends ? 0 : steps * c->per_step;
    take_turns(c);
    c->tail = !ends && steps * step_bytes > left_bytes;
    if (!c->tail) return;
    const int64_t whole = (steps - 1) * step_bytes;
    memset(q7_parts_room.tail, 0, (size_t)step_bytes);
    memcpy(q7_parts_room.tail, c->b + whole, (size_t)(left_bytes - whole));
    if (steps == 1) c->b = (const char *)q7_parts_room.tail;
}

/* Bytes of few bits: pairs of as many rows as share a byte. */
Q7_INLINE void cut_bits(const columns *c, const char *low, const char *high) {
    const __m512i table = _mm512_set_epi16(
        0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40e0, 0x40c0, 0x40a0,
        0x4080, 0x4040, 0x4000, 0x3f80, 0, (short)0xbf80, (short)0xc000, (short)0xc040,
        (short)0xc080, (short)0xc0a0, (short)0xc0c0, (short)0xc0e0, (short)0xc100, (short)0xc110,
        (short)0xc120, (short)0xc130, (short)0xc140, (short)0xc150, (short)0xc160, (short)0xc170,
        (short)0xc180); /* 15 to -16 */
    const __m512i first = words_of(low), other = words_of(high);
    const __m512i mask = _mm512_set1_epi16((short)((1 << c->bits) - 1));
    Q7_UNROLL
    for (int j = 0; j < 2; j++) {
        __m512i q = pairs_of(first, other, 16 * j);
        q7_bf16 *to = c->parts + j * Q7_PARTS_TILE;
        if (c->bits == 8) {
            const __m512i w = _mm512_add_epi16(q, c->shift[j]);
            const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(w, 16), 16);
            const __m512i upper = _mm512_srai_epi32(w, 16);
            _mm512_store_si512(
                to, q7_upper_halves(_mm512_cvtepi32_ps(even), _mm512_cvtepi32_ps(upper), false));
            continue;
        }
        for (int64_t e = 0; e < 8; e += c->bits, to += Q7_PARTS_STEP) {
            const __m512i at = _mm512_add_epi16(_mm512_and_si512(q, mask), c->shift[j]);
            _mm512_store_si512(to, _mm512_permutexvar_epi16(at, table));
            q = c->bits == 4 ? _mm512_srli_epi16(q, 4) : _mm512_srli_epi16(q, 2);
        }
    }
}

/* Ahead of a step of floats are the high rows of the next and the low rows of the one behind it, with
 * which a page of panels begins. Where as many rows as a task may have leave time, fetching only these is
 * better: the others then come unasked. */
Q7_INLINE void cut_unit(columns *c, const enum kind kind) {
    const int64_t row = kind == FLOATS ? NR * 4 : kind == BITS ? NR : NR * 2;
    const int parts = parts_of(kind);
    const char *low = c->b, *high = low + c->per_step * row;
    const float *floats = (const float *)(const void *)low, *others = (const void *)high;
    q7_prefetch(high + AHEAD);
    if (kind == FLOATS) q7_prefetch(high + AHEAD + 64);
    if (c->all) q7_prefetch(low + AHEAD);
    if (c->all && kind == FLOATS) q7_prefetch(low + AHEAD + 64);
    if (kind == BITS) cut_bits(c, low, high);
    Q7_UNROLL
    for (int j = 0; j < 2 && kind != BITS; j++) {
        q7_bf16 *to = c->parts + j * Q7_PARTS_TILE;
        if (kind == BF16) {
            const __m512i pairs =
                pairs_of(_mm512_loadu_si512(low), _mm512_loadu_si512(high), 16 * j);
            const __m512i upper = _mm512_and_epi32(pairs, _mm512_set1_epi32((int)0xffff0000));
            _mm512_store_si512(to, pairs);
            q7_note_largest(&c->largest[j], _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                            _mm512_castsi512_ps(upper));
        } else if (kind == F16) { /* none is too small, or an infinity */
            const uint16_t *halves = (const void *)(floats + 8 * j);
            const uint16_t *more = (const void *)(others + 8 * j);
            q7_store_some_parts(q7_load_f16(halves), q7_load_f16(more), parts, false, to,
                                2 * Q7_PARTS_TILE);
        } else {
            q7_store_parts(_mm512_loadu_ps(floats + 16 * j), _mm512_loadu_ps(others + 16 * j),
                           false, to, 2 * Q7_PARTS_TILE, &c->largest[j]);
        }
    }
    const int64_t pairs = TILE / c->per_step;
    const bool ends = --c->units % c->per_step == 0, to_tail = c->tail && c->units == c->per_step;
    c->b = !ends ? low + row : to_tail ? (const char *)q7_parts_room.tail : high + row;
    c->parts += pairs * Q7_PARTS_STEP;
    if (ends) c->parts += (2 * parts - 1) * Q7_PARTS_TILE;
    if (ends && c->by_turns && c->units) take_turns(c);
    if (kind == BITS && ends && c->zero && ++c->step == c->steps) {
        c->step = 0;
        c->zero += NR;
        if (c->units) note_zeros(c, c->zero);
    }
}

Q7_INLINE void cut_units(columns *c, int64_t count, const enum kind kind) {
    for (int64_t i = q7_min(count, c->units); i > 0; i--) cut_unit(c, kind);
}
#endif
