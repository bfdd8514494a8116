/* where.c: y = c ? a : b with broadcasting. c is bool, a and b are any elements of elem_bytes. */
#include "where.h"

#include "loops.h"

typedef struct where_job {
    const q7_where_args *args;
    int64_t c_stride, a_stride, b_stride; /* of the innermost dim: 0 or 1 */
} where_job;

/* One function per element width; the widths are all that differs. */
#define T uint8_t
#define SELECT select_1
#include "where_typed.h"
#define T uint16_t
#define SELECT select_2
#include "where_typed.h"
#define T uint32_t
#define SELECT select_4
#include "where_typed.h"
#define T uint64_t
#define SELECT select_8
#include "where_typed.h"

void q7_where_loop(int64_t elem_bytes, int64_t n, const void *c, int64_t c_stride, const void *a,
                   int64_t a_stride, const void *b, int64_t b_stride, void *y) {
    switch (elem_bytes) {
        case 1: select_1(n, c, c_stride, a, a_stride, b, b_stride, y); break;
        case 2: select_2(n, c, c_stride, a, a_stride, b, b_stride, y); break;
        case 4: select_4(n, c, c_stride, a, a_stride, b, b_stride, y); break;
        default: select_8(n, c, c_stride, a, a_stride, b, b_stride, y); break;
    }
}

static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const where_job *job = arg;
    const q7_where_args *args = job->args;
    const int64_t bytes = args->elem_bytes;
    q7_where_loop(bytes, n, (const char *)args->c + offset[0], job->c_stride,
                  (const char *)args->a + offset[1] * bytes, job->a_stride,
                  (const char *)args->b + offset[2] * bytes, job->b_stride,
                  (char *)args->y + position * bytes);
}

void q7_op_where(const q7_where_args *args, const q7_call *call) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_add(&nest, args->c_shape);
    q7_nest_add(&nest, args->a_shape);
    q7_nest_add(&nest, args->b_shape);
    q7_nest_collapse(&nest);
    const int64_t last = nest.ndim - 1;
    where_job job = {args, nest.stride[0][last], nest.stride[1][last], nest.stride[2][last]};
    q7_nest_run(&nest, call, body, &job);
}
