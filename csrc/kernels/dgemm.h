/* dgemm.h: c = a @ b + bias for a block of doubles.
 *
 * Any strides of a and b, which c does not overlap, any alignment. Each element is one sum in order of
 * k, which begins with its bias, by fused multiply-adds where the ISA has them; where m or n is 1, and
 * a's rows and b's columns are dense, four vectors of sums, which are added up. NaN and inf spread as
 * in IEEE arithmetic. Where b is panels of nr columns, the last filled with zeros, b_row_stride is nr. */
#ifndef Q7_DGEMM_H
#define Q7_DGEMM_H
#include "../abi.h"

typedef struct q7_dgemm_block {
    int64_t m, n, k;
    const double *a; /* (m, k) */
    int64_t a_row_stride, a_col_stride;
    const double *b; /* (k, n) */
    int64_t b_row_stride, b_col_stride;
    int64_t b_panel_stride; /* from a panel to the next, or 0 */
    const double *bias;     /* (n,), or NULL */
    double *c;              /* (m, n) */
    int64_t c_stride;
} q7_dgemm_block;

typedef void (*q7_dgemm_kernel)(const q7_dgemm_block *block);
#endif
