/* qfinish.h: what becomes of the int32 sums of integer products, for every kernel that makes them.
 * The sums of qgemm.h are sums[i,j] + shift[j] - row_sums[i] * b_zero[j]; integers wrap. */
#ifndef Q7_QFINISH_H
#define Q7_QFINISH_H
#include "math.h"
#include "qgemm.h"

/* Sums (m, n) of a tile; columns from `first` on of those that q7_qfinish has. */
typedef struct q7_qsums {
    int64_t m, n, first;
    const int32_t *sums;
    int64_t stride;
    const int32_t *shift;    /* a panel of columns, or NULL */
    const int32_t *row_sums; /* (m,), where there is: */
    const int32_t *b_zero;   /* a panel of columns, or NULL */
} q7_qsums;

Q7_INLINE q7_i32 q7_corrected(const q7_qsums *s, int64_t i, int64_t j) {
    q7_i32 sum = q7_i32_load(s->sums + i * s->stride + j);
    if (s->shift) sum = q7_i32_add(sum, q7_i32_load(s->shift + j));
    if (s->b_zero)
        sum = q7_i32_add(sum, q7_i32_mul(q7_i32_set1(-s->row_sums[i]), q7_i32_load(s->b_zero + j)));
    return sum;
}

/* What a vector of columns from `at` on has in common; `lanes` of them, or all, or none, are there. */
typedef struct q7_qcolumns {
    q7_f32 scale, bias, alpha, beta;
} q7_qcolumns;

Q7_INLINE q7_qcolumns q7_columns(const q7_qfinish *f, int64_t at, int64_t lanes) {
    q7_qcolumns c = {.scale = q7_set1(f->a_scale), .bias = q7_set1(0.0f)};
    c.alpha = q7_set1(f->act_alpha);
    c.beta = q7_set1(f->act_beta);
    if (lanes <= 0) return c;
    if (f->scale)
        c.scale = q7_mul(c.scale,
                         f->scale_step ? q7_load_part(f->scale + at, lanes) : q7_set1(f->scale[0]));
    if (f->bias) c.bias = q7_load_part(f->bias + at, lanes);
    return c;
}

Q7_INLINE q7_f32 q7_real(q7_i32 sum, const q7_qcolumns *c, const int64_t act) {
    return q7_act(act, q7_fma(q7_float(sum), c->scale, c->bias), c->alpha, c->beta);
}

Q7_INLINE void q7_finish_floats(const q7_qfinish *f, const q7_qsums *s, float *c, int64_t c_stride,
                                const int64_t act) {
    for (int64_t j = 0; j < s->n; j += Q7_W) {
        const int64_t lanes = q7_min(s->n - j, Q7_W);
        const q7_qcolumns columns = q7_columns(f, s->first + j, lanes);
        for (int64_t i = 0; i < s->m; i++)
            q7_store_part(c + i * c_stride + j, q7_real(q7_corrected(s, i, j), &columns, act),
                          lanes);
    }
}

/* Two vectors of columns of two rows, c and d, as bytes. */
Q7_INLINE void q7_finish_four(const q7_qfinish *f, const q7_qcolumns columns[2],
                              const q7_i32 sum[4], uint8_t *c, uint8_t *d, int64_t lanes,
                              const int64_t act) {
    const q7_f32 x[4] = {q7_real(sum[0], columns, act), q7_real(sum[1], columns + 1, act),
                         q7_real(sum[2], columns, act), q7_real(sum[3], columns + 1, act)};
    const q7_block bytes = q7_block_of(x, f->zero, f->c_dtype == Q7_I8);
    q7_block_store_halves(c, d, q7_block_in_order(bytes), lanes);
}

/* The sums of a tile are whole vectors. */
Q7_INLINE void q7_finish_bytes(const q7_qfinish *f, const q7_qsums *s, uint8_t *c, int64_t c_stride,
                               const int64_t act) {
    for (int64_t j = 0; j < s->n; j += 2 * Q7_W) {
        const int64_t lanes = q7_min(s->n - j, 2 * Q7_W), next = lanes > Q7_W ? j + Q7_W : j;
        const q7_qcolumns columns[2] = {q7_columns(f, s->first + j, lanes),
                                        q7_columns(f, s->first + j + Q7_W, lanes - Q7_W)};
        for (int64_t i = 0; i < s->m; i += 2) {
            const int64_t k = q7_min(i + 1, s->m - 1);
            const q7_i32 sum[4] = {q7_corrected(s, i, j), q7_corrected(s, i, next),
                                   q7_corrected(s, k, j), q7_corrected(s, k, next)};
            q7_finish_four(f, columns, sum, c + i * c_stride + j, c + k * c_stride + j, lanes, act);
        }
    }
}

Q7_INLINE void q7_finish_sums(const q7_qsums *s, int32_t *c, int64_t c_stride) {
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j += Q7_W) {
            const q7_i32 sum = q7_corrected(s, i, j);
            int32_t part[Q7_W], *to = c + i * c_stride + j;
            if (s->n - j >= Q7_W) {
                q7_i32_store(to, sum);
            } else {
                q7_i32_store(part, sum);
                memcpy(to, part, (size_t)(s->n - j) * sizeof *part);
            }
        }
}

/* c: of c_dtype, from row 0 and column `first` on; c_stride in elements. */
static inline void q7_finish(const q7_qfinish *f, const q7_qsums *s, void *c, int64_t c_stride) {
    if (f->c_dtype == Q7_I32) {
        q7_finish_sums(s, c, c_stride);
        return;
    }
    switch (f->act) { /* a loop for each */
#define ACT(act)                                                         \
    case Q7_act_##act:                                                   \
        if (f->c_dtype == Q7_F32)                                        \
            q7_finish_floats(f, s, (float *)c, c_stride, Q7_act_##act);  \
        else                                                             \
            q7_finish_bytes(f, s, (uint8_t *)c, c_stride, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}
#endif
