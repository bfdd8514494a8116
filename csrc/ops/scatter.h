/* scatter.h: what scatter_nd.c and scatter_elements.c share: y = x at first, and
 * how an update meets what is there. Integers wrap; NaN wins max and min; bools are the bytes 0
 * and 1. */
#ifndef Q7_OPS_SCATTER_H
#define Q7_OPS_SCATTER_H
#include <string.h>

#include "loops.h"

typedef struct q7_copy_job {
    const char *x;
    char *y;
    int64_t bytes;
} q7_copy_job;

static inline void q7_copy_task(void *arg, int64_t task, int64_t thread) {
    const q7_copy_job *job = arg;
    (void)thread;
    const int64_t begin = task * 4 * Q7_GRAIN;
    memcpy(job->y + begin, job->x + begin, (size_t)q7_min(job->bytes - begin, 4 * Q7_GRAIN));
}

/* y = x, unless they are one. */
static inline void q7_copy_all(const q7_call *call, void *y, const void *x, int64_t bytes) {
    q7_copy_job job = {x, y, bytes};
    if (y != x) q7_parallel(call, q7_ceil_div(bytes, 4 * Q7_GRAIN), q7_copy_task, &job);
}

/* T: element; U: what it is added and multiplied in, so that it wraps; NAN_OF(v): v is NaN. */
#define FLOAT_NAN(v) ((v) != (v))
#define NEVER(v) 0
#define T float
#define U float
#define NAME q7_scatter_f32
#define NAN_OF FLOAT_NAN
#include "scatter_typed.h"
#define T double
#define U double
#define NAME q7_scatter_f64
#define NAN_OF FLOAT_NAN
#include "scatter_typed.h"
#define T int8_t
#define U uint32_t
#define NAME q7_scatter_i8
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T uint8_t
#define U uint32_t
#define NAME q7_scatter_u8
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T int16_t
#define U uint32_t
#define NAME q7_scatter_i16
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T uint16_t
#define U uint32_t
#define NAME q7_scatter_u16
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T int32_t
#define U uint32_t
#define NAME q7_scatter_i32
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T uint32_t
#define U uint32_t
#define NAME q7_scatter_u32
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T int64_t
#define U uint64_t
#define NAME q7_scatter_i64
#define NAN_OF NEVER
#include "scatter_typed.h"
#define T uint64_t
#define U uint64_t
#define NAME q7_scatter_u64
#define NAN_OF NEVER
#include "scatter_typed.h"
#undef FLOAT_NAN
#undef NEVER

/* y[i] = scatter(y[i], x[i]) for i < n. */
static inline void q7_scatter(int64_t scatter, int64_t dtype, int64_t n, const void *x, void *y) {
    if (scatter == Q7_scatter_none) {
        memcpy(y, x, (size_t)(n * q7_dtype_bytes(dtype)));
        return;
    }
    switch (dtype) {
        case Q7_F32: q7_scatter_f32(scatter, n, x, y); break;
        case Q7_F64: q7_scatter_f64(scatter, n, x, y); break;
        case Q7_I8: q7_scatter_i8(scatter, n, x, y); break;
        case Q7_I16: q7_scatter_i16(scatter, n, x, y); break;
        case Q7_U16: q7_scatter_u16(scatter, n, x, y); break;
        case Q7_I32: q7_scatter_i32(scatter, n, x, y); break;
        case Q7_U32: q7_scatter_u32(scatter, n, x, y); break;
        case Q7_I64: q7_scatter_i64(scatter, n, x, y); break;
        case Q7_U64: q7_scatter_u64(scatter, n, x, y); break;
        default: q7_scatter_u8(scatter, n, x, y); break; /* Q7_U8, Q7_BOOL */
    }
}
#endif
