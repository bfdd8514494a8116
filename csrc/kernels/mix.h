/* mix.h: planes as sums of a few others: y[m][i] = the sum over c of w[m, c] x[c][i], plus bias[m], in order
 * of c. Planes of x and of y, which do not overlap, are any floats apart; weights are (M, C). */
#ifndef Q7_MIX_H
#define Q7_MIX_H
#include "../abi.h"

typedef struct q7_mix_part {
    const float *x, *w, *bias; /* bias: (M,), or NULL */
    float *y;
    int64_t C, M, n, x_stride, y_stride;
} q7_mix_part;

typedef void (*q7_mix_kernel)(const q7_mix_part *part);
#endif
