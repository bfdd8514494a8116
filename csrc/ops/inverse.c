/* inverse.c: y[o] = the inverse of x[o] (n, n), or its determinant, by Gaussian elimination with partial
 * pivoting. com.microsoft Inverse, ONNX Det; f32 and f64. A singular matrix has determinant 0, and an inverse of
 * infinities and NaN. */
#include <math.h>

#include "loops.h"

#define T float
#define DTYPE f32
#define ABS fabsf
#include "inverse_typed.h"
#define T double
#define DTYPE f64
#define ABS fabs
#include "inverse_typed.h"

typedef struct inverse_job {
    const q7_inverse_args *args;
    const q7_call *call;
    int64_t per_task; /* matrices */
} inverse_job;

static void inverse_task(void *arg, int64_t task, int64_t thread) {
    const inverse_job *job = arg;
    const q7_inverse_args *args = job->args;
    const int64_t n = args->n, bytes = q7_dtype_bytes(args->dtype), matrix = n * n * bytes;
    void *a = q7_room_of(job->call, args->room, matrix, thread);
    const int64_t end = q7_min(args->outer, (task + 1) * job->per_task);
    for (int64_t o = task * job->per_task; o < end; o++) {
        void *y = (char *)args->y + o * (args->is_det ? bytes : matrix);
        if (matrix > 0) memcpy(a, (const char *)args->x + o * matrix, (size_t)matrix);
        if (!args->is_det && args->dtype == Q7_F32)
            invert_f32(n, a, y);
        else if (!args->is_det)
            invert_f64(n, a, y);
        else if (args->dtype == Q7_F32)
            *(float *)y = eliminate_f32(n, a, NULL);
        else
            *(double *)y = eliminate_f64(n, a, NULL);
    }
}

void q7_op_inverse(const q7_inverse_args *args, const q7_call *call) {
    const int64_t most = Q7_GRAIN / q7_max(1, args->n * args->n * args->n);
    inverse_job job = {args, call, q7_units_of_task(call, args->outer, most)};
    q7_parallel(call, q7_ceil_div(args->outer, job.per_task), inverse_task, &job);
}
