/* attention.h: for one head and a block of up to Q7_ATTENTION_QUERIES queries
 *   o[i,:] = sum_j softmax_j(cap(scale * q[i] . k[j]) + bias[i,j] + mask[i,j]) v[j,:]
 * without the (Sq, Skv) scores in memory; cap(s) = softcap * tanh(s / softcap), or s where softcap
 * is 0.
 *
 * Keys are taken in blocks of Q7_ATTENTION_KEYS, beginning with the first that a query sees. Scores
 * stand transposed, so that the softmax runs down vectors of queries and needs no horizontal step;
 * both products use the GEMM kernel of the ISA:
 *
 *     S^T (keys, NR) = K (keys, D, in place) @ (scale * Q)^T (D, NR, packed once), NR queries at a
 *                      time
 *     O (queries, Dv) += P (queries, keys: S^T read by columns) @ V (keys, Dv, packed once per
 *                      block)
 *
 * Between blocks O is rescaled by exp(old max - new max). Up to 4 queries go by dot products
 * instead.
 *
 * Any strides and alignment; o does not overlap the inputs. All in f32. bias and mask (elements,
 * strides >= 0): Q7_F32: added to the score.  Q7_BOOL (mask only): a false one replaces the score
 * by `fill`. Query i sees keys max(0, begin + i) <= j < min(keys, end + i) only; the others count
 * as -inf and blocks of them are not computed. sink: the score of one more key, which every query
 * sees and whose v is 0; -inf: there is none. A row whose scores are all -inf gives NaN, or 0 with
 * zero_masked_rows; a row with a NaN or +inf score gives NaN, or 0 with zero_nan_rows. work: q7_attention_work() floats of the thread. */
#ifndef Q7_KERNELS_ATTENTION_H
#define Q7_KERNELS_ATTENTION_H
#include "../abi.h"

/* Queries of a task: even blocks of whole panels for the widest ISA. 128 are 64 + 64, not 96 + 32.
 * Each task reads all keys and values: blocks of up to 384 instead of 96 take 0.89 of the time for
 * 2048 causal queries, 0.92 for 1024 (12 heads of 64 in rows of 2304, avx512). */
static inline int64_t q7_attention_queries(int64_t Sq) {
    const int64_t blocks = q7_max(q7_ceil_div(Sq, Q7_ATTENTION_QUERIES),
                                  q7_min(q7_ceil_div(Sq, Q7_ATTENTION_SHORT), Q7_ATTENTION_BLOCKS));
    return q7_ceil_div(q7_ceil_div(Sq, blocks), Q7_ATTENTION_MAX_NR) * Q7_ATTENTION_MAX_NR;
}

/* Keys of a block: up to Q7_ATTENTION_KEYS, a multiple of 4 for the transposition of masks. */
static inline int64_t q7_attention_keys(int64_t Skv) {
    return q7_min(Q7_ATTENTION_KEYS, q7_ceil_div(Skv, 4) * 4);
}

/* Q^T (D, queries: with nr 12 the last panel may reach 8 further); scores, mask and bias (keys,
 * nr); V (keys, Dv rounded up to nr): at most, in floats. q7x2_ep/ops/attention.py holds the same
 * formula. */
static inline int64_t q7_attention_work(int64_t Sq, int64_t Skv, int64_t D, int64_t Dv) {
    return (q7_attention_queries(Sq) + 8) * D +
           q7_attention_keys(Skv) * (Dv + 4 * Q7_ATTENTION_MAX_NR);
}

/* (queries, keys) at strides that may be 0; at is NULL where there is none. */
typedef struct q7_attention_mask {
    const void *at;
    int64_t dtype, q_stride, k_stride;
} q7_attention_mask;

typedef struct q7_attention_tile {
    int64_t queries; /* 1 .. Q7_ATTENTION_QUERIES */
    int64_t keys, D, Dv;
    const float *q, *k,
        *v;   /* (queries, D), (keys, D), (keys, Dv): rows at strides below, dense inside */
    float *o; /* (queries, Dv) */
    int64_t q_stride, k_stride, v_stride, o_stride;
    q7_attention_mask mask, bias;
    int64_t begin, end;
    bool zero_masked_rows, zero_nan_rows;
    float scale, softcap, fill, sink;
    float *work;
} q7_attention_tile;

typedef void (*q7_attention_kernel)(const q7_attention_tile *tile);
#endif
