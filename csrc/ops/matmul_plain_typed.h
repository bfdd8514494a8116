/* matmul_plain_typed.h: rows [first, last) of one product of matmul_plain.c, for elements of type T.
 * Included once per dtype. */
#include "typed_name.h"

static void NAMED(multiply)(const q7_matmul_plain_args *x, const void *pa, const void *pb, void *pc,
                            int64_t first, int64_t last) {
    const T *a = pa, *b = pb;
    T *c = pc;
    const int64_t n = x->n, stride = x->b_col_stride;
    for (int64_t i = first * n; i < last * n; i++) c[i] = 0;
    for (int64_t k = 0; k < x->k; k++) /* a row of b serves all rows while it is in L1 */
        for (int64_t i = first; i < last; i++) {
            const T v = a[i * x->a_row_stride + k * x->a_col_stride];
            const T *from = b + k * x->b_row_stride;
            T *to = c + i * n;
            if (stride == 1)
                for (int64_t j = 0; j < n; j++) to[j] += v * from[j];
            else
                for (int64_t j = 0; j < n; j++) to[j] += v * from[j * stride];
        }
}
