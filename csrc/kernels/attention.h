/* attention.h: for one head and a block of up to Q7_ATTENTION_QUERIES queries
 *   o[i,:] = sum_j softmax_j(cap(scale * q[i] . k[j]) + bias[i,j] + mask[i,j]) v[j,:]
 * without the (Sq, Skv) scores in memory; cap(s) = softcap * tanh(s / softcap), or s where softcap
 * is 0.
 *
 * Keys are taken in blocks of Q7_ATTENTION_KEYS, queries in panels of some vectors. Scores stand
 * transposed, so that queries are lanes and the softmax needs no horizontal step:
 *
 *     S^T (keys, panel) = K (keys, D) @ Q^T (D, panel, packed once)
 *     P^T = 2^(log2(e) * scale * S^T - max), max being an integer: rescaling is exact
 *     O (panel, Dv) = O * 2^(old max - max) + P (panel, keys: P^T read by columns) @ V (keys, Dv)
 *
 * A block that the mask hides from a panel is left out; where a query has seen nothing else, its panel
 * takes all of them again. What a query gets does not depend on those beside it, unless keys or values
 * that they see and it does not are NaN or infinite: ops/attention.c asks for it alone then. Few queries go
 * by dot products instead, with all heads that share keys: attention_rows.c. AMX: amx/attention.c.
 *
 * Any strides and alignment; o does not overlap the inputs. All in f32. bias and mask (elements,
 * strides >= 0): Q7_F32: added to the score.  Q7_BOOL (mask only): a false one replaces the score
 * by `fill`. Query i sees keys max(0, begin + i) <= j < min(keys, end + i) only; the others count
 * as -inf and blocks of them are not computed. sinks: the score of one more key per head, which every
 * query sees and whose v is 0; -inf: there is none. A row whose scores are all -inf gives NaN, or 0 with
 * zero_masked_rows; a row with a NaN or +inf score gives NaN, or 0 with zero_nan_rows. work: of the
 * thread, as much as q7x2_ep/ops/attention.py says. Returns whether all that was written is finite; may be
 * false where rows are 0 for want of keys. */
#ifndef Q7_KERNELS_ATTENTION_H
#define Q7_KERNELS_ATTENTION_H
#include "../abi.h"

/* Keys of a block: up to Q7_ATTENTION_KEYS, a multiple of 4 for the transposition of masks. */
static inline int64_t q7_attention_keys(int64_t Skv) {
    return q7_min(Q7_ATTENTION_KEYS, q7_ceil_div(Skv, 4) * 4);
}

/* (queries, keys) at strides that may be 0; at is NULL where there is none. */
typedef struct q7_attention_mask {
    const void *at;
    int64_t dtype, h_stride, q_stride, k_stride;
} q7_attention_mask;

/* From a head and a query on. */
static inline q7_attention_mask q7_attention_mask_of(const q7_attention_mask *mask, int64_t head,
                                                     int64_t query) {
    const int64_t bytes = mask->dtype == Q7_BOOL ? 1 : 4;
    q7_attention_mask from = *mask;
    if (mask->at)
        from.at = (const char *)mask->at + bytes * (head * mask->h_stride + query * mask->q_stride);
    return from;
}

typedef struct q7_attention_tile {
    int64_t heads;       /* that share k and v: 1, or heads * queries <= Q7_ATTENTION_ROWS */
    int64_t queries;     /* of each, 1 .. Q7_ATTENTION_QUERIES */
    int64_t all_queries; /* of the operand, whose number decides how */
    int64_t keys, D, Dv;
    const float *q, *k,
        *v;   /* (queries, D), (keys, D), (keys, Dv): rows at strides below, dense inside */
    float *o; /* (queries, Dv) */
    int64_t q_stride, k_stride, v_stride, o_stride, q_h_stride, o_h_stride;
    q7_attention_mask mask, bias;
    int64_t begin, end;
    bool zero_masked_rows, zero_nan_rows;
    float scale, softcap, fill;
    const float *sinks; /* (heads), or NULL */
    /* The thread's. It begins with whose blocks the copies are, -1 before the first task: kv_head and
     * number of the block. kept: how many there are; 0: keys and values are read in place. */
    float *work;
    int64_t kept, kv_head, all_keys; /* all_keys: of the operand, of which `keys` count */
    /* Few queries see some keys at a time: those of one of n_parts (1: all of them), or, with `part` so
     * many, none, but what became of all parts is joined. Rows of partial, of (head, query, part), hold
     * Dv sums, the maximum and the sum of weights. */
    int64_t part, n_parts;
    float *partial;
} q7_attention_tile;

/* Where the copies of the block from a key are, of those that are kept, and what says so. */
static inline int64_t q7_attention_place(const q7_attention_tile *t, int64_t key) {
    return key / Q7_ATTENTION_KEYS % t->kept;
}

static inline int64_t q7_attention_tag(const q7_attention_tile *t, int64_t key) {
    return t->kv_head * INT64_C(0x100000000) + key / Q7_ATTENTION_KEYS;
}

typedef bool (*q7_attention_kernel)(const q7_attention_tile *tile);
#endif
