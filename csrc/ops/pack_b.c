/* pack_b.c: b (k, n) of any strides into panels of nr columns; kernels/gemm.h shows the layout.
 * Panels that two matrices share are filled by a step for each. Rows (n_stride 1) may have any
 * alignment: a model file has weights wherever their names end.
 *
 * Rows are read as they lie, some of all panels at a time, since no prefetcher follows one panel
 * through them, and written past the caches. Each thread has panels of its own: two that touch a new
 * page at once both wait for its zeros. 330 MB of a mapped file take 115 ms instead of 145 with one
 * thread, 77 instead of 90 with two; the system needs 60 of the 115 for its pages. */
#define _DEFAULT_SOURCE /* madvise under -std=c11 */
#include "../kernels/halves.h"
#include "pages.h"
#include "panels.h"

enum { ROWS = 16, LEAST_PANELS = 8 }; /* of b that a task reads */

typedef struct pack_job {
    const q7_pack_b_args *x;
    int64_t k, panels;      /* k: rows of a tap */
    int64_t blocks, groups; /* that these are cut into */
    int64_t begin, end;     /* rows, or panels, of this band */
} pack_job;

/* `panel` is that of the first of the rows; n <= width. */
static void copy_rows(const q7_loose_float *b, int64_t k_stride, int64_t rows, int64_t n,
                      int64_t width, int64_t nr, float *panel) {
    for (int64_t i = 0; i < rows; i++) {
        const q7_loose_float *from = b + i * k_stride;
        float *to = panel + i * nr;
        q7_write_past(from, n, to);
        for (int64_t j = n; j < width; j++) to[j] = 0;
    }
}

/* The same for panels of half floats, which hold b exactly: it has no factors. b is at an element. */
static void copy_halves(const q7_pack_b_args *x, int64_t element, int64_t rows, int64_t n,
                        uint16_t *panel) {
    for (int64_t i = 0; i < rows; i++, panel += x->nr) {
        const int64_t at = element + i * x->k_stride, stride = x->n_stride;
        const q7_loose_float *from = x->b;
        if (q7_is_half(x->b_dtype) && stride == 1)
            memcpy(panel, (const q7_loose_half *)x->b + at, (size_t)n * sizeof(uint16_t));
        else if (q7_is_half(x->b_dtype))
            for (int64_t j = 0; j < n; j++)
                panel[j] = ((const q7_loose_half *)x->b)[at + j * stride];
        else if (x->dtype == Q7_F16)
            for (int64_t j = 0; j < n; j++) panel[j] = f16_of(from[at + j * stride]).bits;
        else
            for (int64_t j = 0; j < n; j++) panel[j] = bf16_of(from[at + j * stride]).bits;
        for (int64_t j = n; j < x->width; j++) panel[j] = 0;
    }
}

static void rows_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const pack_job *job = arg;
    const q7_pack_b_args *x = job->x;
    const int64_t group = task / job->blocks, last = q7_part(job->panels, job->groups, group + 1);
    const int64_t first = job->begin + task % job->blocks * ROWS;
    const int64_t rows = q7_min(ROWS, job->end - first);
    for (int64_t tap = 0; tap < x->taps; tap++) {
        const int64_t row = tap * x->tap_stride + first * x->k_stride;
        const int64_t at = (tap * job->k + first) * x->nr + x->first;
        for (int64_t p = q7_part(job->panels, job->groups, group); p < last; p++) {
            const int64_t column = p * x->width, n = q7_min(x->width, x->n - column);
            const int64_t to = at + p * x->nr * x->k;
            if (q7_is_half(x->dtype))
                copy_halves(x, row + column, rows, n, (uint16_t *)x->packed + to);
            else
                copy_rows((const q7_loose_float *)x->b + row + column, x->k_stride, rows, n,
                          x->width, x->nr, (float *)x->packed + to);
        }
    }
    q7_end_past();
}

/* The columns of a panel of so many rows times their factors. */
static void scale_columns(const float *factors, int64_t rows, int64_t n, int64_t nr, float *panel) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) panel[i * nr + j] *= factors[j];
}

static void panel_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const pack_job *job = arg;
    const q7_pack_b_args *x = job->x;
    const int64_t panel = job->begin + task, column = panel * x->width, k = job->k;
    const int64_t n = q7_min(x->width, x->n - column);
    for (int64_t tap = 0; tap < x->taps; tap++) {
        const int64_t from = tap * x->tap_stride + column * x->n_stride;
        const int64_t to = panel * x->nr * x->k + tap * k * x->nr + x->first;
        if (q7_is_half(x->dtype))
            copy_halves(x, from, k, n, (uint16_t *)x->packed + to);
        else
            q7_pack_panel((const q7_loose_float *)x->b + from, x->k_stride, x->n_stride, k, n,
                          x->width, x->nr, (float *)x->packed + to);
        if (x->factors)
            scale_columns((const float *)x->factors + column, k, n, x->nr, (float *)x->packed + to);
    }
}

static int64_t element_size(const q7_pack_b_args *x) {
    return (int64_t)(q7_is_half(x->b_dtype) ? sizeof(uint16_t) : sizeof(float));
}

/* Rows, or panels, until pages go. */
static int64_t lines_of_band(const q7_pack_b_args *x, bool by_rows, int64_t line) {
    const int64_t lines = q7_pages_band(line * element_size(x));
    if (!x->drops) return q7_max(x->k, x->n);
    return by_rows ? q7_ceil_div(lines, ROWS) * ROWS : lines;
}

void q7_op_pack_b(const q7_pack_b_args *x, const q7_call *call) {
    const bool by_rows = x->n_stride == 1 && x->factors == NULL;
    const int64_t k = x->k / q7_max(1, x->taps), panels = q7_ceil_div(x->n, x->width);
    const int64_t groups = q7_max(1, q7_min(call->threads, panels / LEAST_PANELS));
    const int64_t count = by_rows ? k : panels;
    const int64_t line = by_rows ? x->k_stride : x->width * x->n_stride;
    const int64_t band = lines_of_band(x, by_rows, line);
    const int64_t last =
        (x->taps - 1) * x->tap_stride + (k - 1) * x->k_stride + (x->n - 1) * x->n_stride;
    const int64_t size = element_size(x), whole = (last + 1) * size;
    for (int64_t begin = 0; begin < count; begin += band) {
        const int64_t end = q7_min(count, begin + band), blocks = q7_ceil_div(end - begin, ROWS);
        pack_job job = {x, k, panels, blocks, groups, begin, end};
        if (by_rows)
            q7_parallel(call, groups * blocks, rows_task, &job);
        else
            q7_parallel(call, end - begin, panel_task, &job);
        if (x->drops) q7_drop_pages(x->b, begin * line * size, q7_min(whole, end * line * size));
    }
    if (x->drops) q7_drop_pages(x->b, 0, whole); /* what reading ahead has brought back */
}
