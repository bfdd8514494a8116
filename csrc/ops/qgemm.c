/* qgemm.c: integer products of 8-bit rows with packed weights. MatMulInteger, QLinearMatMul, and
 * linear layers between DequantizeLinear and QuantizeLinear.
 *
 * A task is a block of Q7_QGEMM_ROWS rows times a chunk of panels; it widens its rows to pairs
 * first. rows: threads * Q7_QGEMM_ROWS * ceil(k / 2) * 4 bytes. Read kernels/qgemm.h first. */
#include "../kernels/qgemm.h"

#include "panels.h"

typedef struct qgemm_job {
    const q7_qgemm_args *x;
    const q7_call *call;
    int64_t pairs, panels, chunk;
    int32_t a_zero, zero;
} qgemm_job;

static int32_t first_byte(const void *p, int64_t dtype) {
    if (!p) return 0;
    return dtype == Q7_I8 ? *(const int8_t *)p : *(const uint8_t *)p;
}

static int32_t pair_of(int32_t low, int32_t high) {
    return (int32_t)((uint32_t)high << 16 | ((uint32_t)low & 0xffff));
}

/* Rows [row, row + m) of a without the zero point, as pairs. */
static void widen(const qgemm_job *job, int64_t row, int64_t m, int32_t *pairs) {
    const int64_t k = job->x->k;
    const bool is_signed = job->x->a_dtype == Q7_I8;
    for (int64_t i = 0; i < m; i++, pairs += job->pairs) {
        const uint8_t *a = (const uint8_t *)job->x->a + (row + i) * k;
        for (int64_t p = 0; p < job->pairs; p++) {
            const bool has_second = 2 * p + 1 < k;
            const uint8_t low = a[2 * p], high = has_second ? a[2 * p + 1] : 0;
            const int32_t first = is_signed ? (int8_t)low : low;
            const int32_t second = is_signed ? (int8_t)high : high;
            pairs[p] = pair_of(first - job->a_zero, has_second ? second - job->a_zero : 0);
        }
    }
}

static void qgemm_task(void *arg, int64_t task, int64_t thread) {
    const qgemm_job *job = arg;
    const q7_qgemm_args *x = job->x;
    const int64_t nr = job->call->nr, chunks = q7_ceil_div(job->panels, job->chunk);
    const int64_t first = task % chunks * job->chunk, row0 = task / chunks * Q7_QGEMM_ROWS;
    const int64_t last = q7_min(first + job->chunk, job->panels);
    const int64_t rows = q7_min(x->m - row0, Q7_QGEMM_ROWS);
    const int64_t c_bytes = x->c_dtype == Q7_I32 || x->c_dtype == Q7_F32 ? 4 : 1;
    int32_t *pairs = (int32_t *)x->rows + thread * Q7_QGEMM_ROWS * job->pairs;
    widen(job, row0, rows, pairs);
    q7_qgemm_tile t = {.pairs = job->pairs,
                       .scale_step = x->scales > 1,
                       .zero = job->zero,
                       .c_dtype = x->c_dtype,
                       .c_stride = x->n};
    for (int64_t panel = first; panel < last; panel++) {
        const int64_t column = panel * nr;
        t.n = q7_min(nr, x->n - column);
        t.b = (const int16_t *)x->b + column * job->pairs * 2;
        t.scale = x->scale ? (const float *)x->scale + column * t.scale_step : NULL;
        t.bias = x->bias ? (const float *)x->bias + column : NULL;
        for (int64_t row = 0; row < rows; row += t.m) {
            t.m = q7_min(job->call->mr, rows - row);
            t.a = pairs + row * job->pairs;
            t.c = (char *)x->c + ((row0 + row) * x->n + column) * c_bytes;
            ((q7_qgemm_kernel)job->call->kernel)(&t);
        }
    }
}

void q7_op_qgemm(const q7_qgemm_args *x, const q7_call *call) {
    if (x->m == 0 || x->n == 0) return;
    qgemm_job job = {.x = x,
                     .call = call,
                     .pairs = q7_ceil_div(x->k, 2),
                     .panels = q7_ceil_div(x->n, call->nr),
                     .a_zero = first_byte(x->a_zero, x->a_dtype),
                     .zero = first_byte(x->zero, x->c_dtype)};
    const int64_t blocks = q7_ceil_div(x->m, Q7_QGEMM_ROWS);
    job.chunk = job.panels;
    if (x->m * x->n * x->k > Q7_SMALL_WORK)
        job.chunk = q7_max(1, job.panels * blocks / (call->threads * Q7_TASKS_PER_THREAD));
    q7_parallel(call, blocks * q7_ceil_div(job.panels, job.chunk), qgemm_task, &job);
}
