/* attention.h: o[i,:] = sum_j softmax_j(scale * q[i] . k[j] + mask[i,j]) v[j,:] for one head and a
 * block of up to Q7_ATTENTION_QUERIES queries, without the (Sq, Skv) scores in memory.
 *
 * Keys are taken in blocks of Q7_ATTENTION_KEYS. Scores stand transposed, so that the softmax runs
 * down vectors of queries and needs no horizontal step; both products use the GEMM kernel of the
 * ISA:
 *
 *     S^T (keys, NR) = K (keys, D, in place) @ (scale * Q)^T (D, NR, packed once)     NR queries at
 * a time O (queries, Dv) += P (queries, keys: S^T read by columns) @ V (keys, Dv, packed once per
 * block)
 *
 * Between blocks O is rescaled by exp(old max - new max). Up to 4 queries go by dot products
 * instead.
 *
 * Any strides and alignment; o does not overlap the inputs. All in f32. mask (elements, strides >=
 * 0): Q7_F32: added to the scaled score.  Q7_BOOL: a false one replaces the scaled score by `fill`.
 * causal: query i sees keys j < visible + i only, the others count as -inf and are mostly not
 * computed. A row whose scores are all -inf gives NaN, or 0 with zero_masked_rows; keys == 0 gives
 * 0. work: Q7_ATTENTION_WORK(D, Dv) floats of the thread. */
#ifndef Q7_KERNELS_ATTENTION_H
#define Q7_KERNELS_ATTENTION_H
#include "../abi.h"

/* Q^T (D, 96); scores and mask, (128 keys, nr) each; V (128 keys, Dv rounded up to nr). The same
 * formula stands in q7x2_ep/ops/attention.py. */
#define Q7_ATTENTION_WORK(D, Dv) \
    (Q7_ATTENTION_QUERIES * (D) + Q7_ATTENTION_KEYS * ((Dv) + 3 * Q7_ATTENTION_MAX_NR))

typedef struct q7_attention_tile {
    int64_t queries; /* 1 .. Q7_ATTENTION_QUERIES */
    int64_t keys, D, Dv;
    const float *q, *k,
        *v;   /* (queries, D), (keys, D), (keys, Dv): rows at strides below, dense inside */
    float *o; /* (queries, Dv) */
    int64_t q_stride, k_stride, v_stride, o_stride;
    const void *mask; /* (queries, keys) or NULL */
    int64_t mask_dtype, mask_q_stride, mask_k_stride;
    bool causal, zero_masked_rows;
    int64_t visible;
    float scale, fill;
    float *work;
} q7_attention_tile;

typedef void (*q7_attention_kernel)(const q7_attention_tile *tile);
#endif
