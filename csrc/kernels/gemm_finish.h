/* gemm_finish.h: the epilogue of gemm.h, and its accumulation, for sums that lie in memory. */
#ifndef Q7_GEMM_FINISH_H
#define Q7_GEMM_FINISH_H
#include "gemm.h"
#include "math.h"
#include "tile.h"

/* c = act(alpha * (sums + what c held if accumulating) + biases) + residual, for n columns from the
 * given first one. */
Q7_INLINE void q7_finish_floats_as(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
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
Q7_INLINE void q7_finish_gated_as(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
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

static inline void q7_finish_floats(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
                                    int64_t first, int64_t n) {
    switch (t->epilogue ? t->epilogue->act : Q7_act_none) { /* a loop for each */
#define ACT(act)                                                               \
    case Q7_act_##act:                                                         \
        if (t->epilogue && t->epilogue->gated)                                 \
            q7_finish_gated_as(t, sums, sums_stride, first, n, Q7_act_##act);  \
        else                                                                   \
            q7_finish_floats_as(t, sums, sums_stride, first, n, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}
#endif
