/* rnn.h: one step in time of an LSTM, GRU or RNN, for some rows of the batch and some hidden units.
 *
 *     a[g] = x[g] + bias[0, g] + h @ R[g] + bias[1, g]       gates g in the order of ONNX
 *
 *     LSTM (i o f c)  c' = f(a[f] + p[f] c) c + f(a[i] + p[i] c) g(a[c])     peepholes p
 *                     h' = f(a[o] + p[o] c') h(c')
 *     GRU (z r h)     h' = (1 - f(a[z])) g(a[h]) + f(a[z]) h
 *                     in a[h], h is f(a[r]) h; or if linear_before_reset it is multiplied by f(a[r])
 *                     after R and its bias
 *     RNN             h' = f(a)
 *
 * f, g and h are given; what they take is cut to [-clip, clip] first, but not the cell that h takes.
 * input_forget: f(a[f] ..) is 1 - f(a[i] ..). A row whose length is not above t keeps its h and c
 * and has a y of 0. R is packed (kernels/gemm.h), a matrix (H, H) per gate, and the product has
 * the bits of the GEMM kernel, k in blocks of Q7_GEMM_K_BLOCK; accuracy of the functions: math.h.
 *
 * A step of a GRU without linear_before_reset has two parts: for the second, the first must have
 * been run for all units. h_next is not h; nothing else overlaps. Any alignment. */
#ifndef Q7_KERNELS_RNN_H
#define Q7_KERNELS_RNN_H
#include "../abi.h"

enum { Q7_RNN = 1, Q7_GRU = 3, Q7_LSTM = 4 }; /* by their number of gates */

typedef struct q7_rnn_function {
    int64_t act; /* Q7_act_* */
    float alpha, beta;
} q7_rnn_function;

typedef struct q7_rnn_step {
    int64_t gates;
    bool linear_before_reset, input_forget;
    int64_t rows, H;
    int64_t first, n;      /* units [first, first + n); first is a multiple of the GEMM's nr */
    const float *x;        /* (rows, gates, H) */
    const float *r;        /* (gates, packed) */
    const float *bias;     /* (2, gates, H), or NULL */
    const float *peephole; /* (3, H): i o f, or NULL */
    float *sums;           /* (gates, rows, H): workspace, kept between the parts */
    const float *h;        /* (rows, H) */
    float *h_next;         /* (rows, H) */
    float *c;              /* (rows, H): the cell of an LSTM; f(a[r]) h of a GRU, as sums */
    float *y;              /* (rows, H): as h_next, or NULL */
    int64_t x_stride, sums_stride, y_stride; /* between rows; gates; rows */
    const int32_t *lengths;                  /* (rows,), or NULL */
    int64_t t;
    float clip;
    q7_rnn_function function[3]; /* f g h */
} q7_rnn_step;

/* part: 0, then 1 where there is one. */
typedef void (*q7_rnn_kernel)(const q7_rnn_step *step, int64_t part);

static inline int64_t q7_rnn_parts(int64_t gates, bool linear_before_reset) {
    return gates == Q7_GRU && !linear_before_reset ? 2 : 1;
}
#endif
