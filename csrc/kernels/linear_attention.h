/* linear_attention.h: T steps of one head of keys and values, whose state S (Dk, Dv) is what earlier
 * steps left of it:
 *
 *   S *= decay[t], row by row or as a whole      d = beta[t] * (v[t] - S^T k[t]), or v[t]
 *   S += k[t] d^T                                o[t,h] = scale * S^T q[t,h] for all `heads` of q
 *
 * Columns of S never meet: each goes through all steps alone, in vectors that stay in L1.
 * decay: `decays` factors a step, 1 or Dk, or NULL; beta: one number a step, or NULL for d = v.
 * Strides are from step to step; rows of q, k, v, o and S are dense, any alignment. o overlaps
 * nothing. Sums over Dk are one chain of FMA per column. NaN stays in its column. */
#ifndef Q7_KERNELS_LINEAR_ATTENTION_H
#define Q7_KERNELS_LINEAR_ATTENTION_H
#include "../abi.h"

typedef struct q7_linear_attention_tile {
    int64_t T, heads, Dk, Dv;
    const float *q, *k, *v, *decay, *beta; /* (T, heads, Dk), (T, Dk), (T, Dv), (T, decays), (T) */
    float *state, *o;                      /* (Dk, Dv), (T, heads, Dv) */
    int64_t q_stride, q_head_stride, k_stride, v_stride, decay_stride, beta_stride, o_stride;
    int64_t decays;
    float scale;
} q7_linear_attention_tile;

typedef void (*q7_linear_attention_kernel)(const q7_linear_attention_tile *tile);
#endif
