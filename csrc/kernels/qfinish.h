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

Q7_INLINE void q7_finish_as(const q7_qfinish *f, const q7_qsums *s, char *c, int64_t c_stride,
                            const int64_t act) {
    const bool is_float = f->c_dtype == Q7_F32;
    const float low = f->c_dtype == Q7_U8 ? 0.0f : -128.0f, zero = (float)f->zero;
    const q7_f32 bottom = q7_set1(low - zero), top = q7_set1(low + 255.0f - zero);
    const q7_f32 offset = q7_set1(zero), a_scale = q7_set1(f->a_scale);
    const q7_f32 alpha = q7_set1(f->act_alpha), beta = q7_set1(f->act_beta);
    for (int64_t j = 0; j < s->n; j += Q7_W) {
        const int64_t lanes = q7_min(s->n - j, Q7_W), at = s->first + j;
        q7_f32 scale = a_scale, bias = q7_set1(0.0f);
        if (f->scale)
            scale = q7_mul(a_scale, f->scale_step ? q7_load_part(f->scale + at, lanes)
                                                  : q7_set1(f->scale[0]));
        if (f->bias) bias = q7_load_part(f->bias + at, lanes);
        for (int64_t i = 0; i < s->m; i++) {
            q7_f32 x = q7_fma(q7_float(q7_corrected(s, i, j)), scale, bias);
            x = q7_act(act, x, alpha, beta);
            if (is_float) {
                q7_store_part((float *)(void *)c + i * c_stride + j, x, lanes);
            } else {
                x = q7_round_even(q7_vmin(q7_vmax(x, bottom), top)); /* NaN: bottom */
                q7_store_bytes((uint8_t *)c + i * c_stride + j, q7_add(x, offset), lanes);
            }
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
#define ACT(act) \
    case Q7_act_##act: q7_finish_as(f, s, c, c_stride, Q7_act_##act); return;
#include "../ops.def"
#undef ACT
    }
}
#endif
