/* where.h: the loop of where.c over one run of n elements, for chain.c too. Strides are 0 or 1; y must
 * not overlap what is read. */
#ifndef Q7_OPS_WHERE_H
#define Q7_OPS_WHERE_H
#include <stdint.h>

void q7_where_loop(int64_t elem_bytes, int64_t n, const void *c, int64_t c_stride, const void *a,
                   int64_t a_stride, const void *b, int64_t b_stride, void *y);
#endif
