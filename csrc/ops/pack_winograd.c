/* pack_winograd.c: the kernels of a convolution, transformed as kernels/winograd.h has them, into panels
 * of nr filters. w (n, C, planes, elements) of any alignment: a model file has weights wherever their
 * names end.
 *
 * G w G^T of a kernel of 3x3 is made of its columns, then of its rows, in doubles, which hold sums of so
 * few floats as they are: rounded once. Of stride 2, G only adds w[0] and w[2]. Matrices are powers of
 * two apart, and so are filters: some rows are made before they are written, of a few filters at a time,
 * so that neither takes lines of L1 that the other wants. */
#define _DEFAULT_SOURCE /* madvise under -std=c11 */
#include "pages.h"
#include "panels.h"

enum { LINE = 3, MOST = 16 }; /* elements; matrices */
enum { LANES = 4, ROWS = 8 }; /* filters at a time, of which nr is a multiple; channels */
enum { WIDEST = 64 };         /* nr */

typedef struct transform_job {
    const q7_pack_winograd_args *x;
    int64_t matrices, line, threes, rest; /* elements that are transformed; parts of a line */
    int64_t filter, plane;                /* floats of w from one to the next */
    int64_t begin;                        /* the first panel of this band */
} transform_job;

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

/* G of a line, whose elements are w_step apart: four, `step` apart. */
static inline void transform_line(const doubles *w, int64_t w_step, bool by_two, doubles *to,
                                  int64_t step) {
    const doubles middle = w[w_step], ends = w[0] + w[2 * w_step];
    to[0] = w[0];
    to[step] = by_two ? middle : 0.5 * (ends + middle);
    to[2 * step] = by_two ? ends : 0.5 * (ends - middle);
    to[3 * step] = w[2 * w_step];
}

/* The elements of all matrices, of kernels of 3x3 or of one line. */
static inline void transform(const doubles *w, bool is_line, bool by_two, doubles *to) {
    if (is_line) {
        transform_line(w, 1, by_two, to, 1);
        return;
    }
    doubles lines[4 * LINE];
    for (int64_t i = 0; i < LINE; i++) transform_line(w + i, LINE, by_two, lines + i, LINE);
    for (int64_t i = 0; i < 4; i++) transform_line(lines + i * LINE, 1, by_two, to + 4 * i, 1);
}

/* Elements [0, count) of n kernels times their factors, zeros for those beyond. */
static inline void load(const q7_loose_float *w, int64_t filter, int64_t n, int64_t count,
                        floats factors, doubles *to) {
    floats elements[LINE * LINE];
    int64_t i = 0;
    if (n == LANES)
        for (; i + 4 <= count; i += 4) q7_transpose_4x4(w + i, filter, elements + i, LANES);
    for (; i < count; i++)
        for (int64_t j = 0; j < LANES; j++) elements[i][j] = j < n ? w[j * filter + i] : 0;
    for (i = 0; i < count; i++) to[i] = __builtin_convertvector(elements[i] * factors, doubles);
}

/* Rows of a matrix; has_rest: of one that makes but one of the two sums of a line. */
static int64_t rows_of(const transform_job *job, bool has_rest) {
    return job->x->planes * (job->threes + (has_rest ? job->rest : 0)) * job->x->C;
}

/* Up to ROWS rows of a panel in each matrix, of as many channels from w on; rows[i]: the first. factors:
 * of the filters of the panel. */
static void transform_rows(const transform_job *job, const q7_loose_float *w, const float *factors,
                           int64_t channels, int64_t n, float *const *rows) {
    const q7_pack_winograd_args *x = job->x;
    float made[MOST][ROWS * WIDEST];
    for (int64_t first = 0; first < x->nr; first += LANES) {
        floats times;
        memcpy(&times, factors + first, sizeof times);
        for (int64_t c = 0; c < channels; c++) {
            doubles elements[LINE * LINE], lanes[MOST];
            load(w + first * job->filter + c * x->planes * job->plane, job->filter,
                 q7_max(0, q7_min(LANES, n - first)), job->line, times, elements);
            transform(elements, job->matrices == 4, x->stride == 2, lanes);
            for (int64_t i = 0; i < job->matrices; i++) {
                const floats rounded = __builtin_convertvector(lanes[i], floats);
                memcpy(made[i] + c * x->nr + first, &rounded, sizeof rounded);
            }
        }
    }
    for (int64_t i = 0; i < job->matrices; i++)
        q7_write_past((const q7_loose_float *)made[i], channels * x->nr, rows[i]);
}

static void panel_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const transform_job *job = arg;
    const q7_pack_winograd_args *x = job->x;
    const int64_t panel = job->begin + task, column = panel * x->nr, C = x->C;
    const int64_t n = q7_min(x->nr, x->n - column), last = job->matrices - 1;
    const int64_t whole = rows_of(job, true), part = rows_of(job, false);
    const q7_loose_float *w = x->w;
    w += column * job->filter;
    float factors[WIDEST] = {0};
    for (int64_t j = 0; j < n; j++)
        factors[j] = x->factors ? ((const float *)x->factors)[column + j] : 1;
    float *matrix[MOST];
    matrix[0] = (float *)x->packed + panel * (2 * whole + (last - 1) * part) * x->nr;
    for (int64_t i = 0; i < last; i++) matrix[i + 1] = matrix[i] + (i == 0 ? whole : part) * x->nr;
    for (int64_t at = 0; at < x->planes * job->threes; at++) {
        const int64_t from = at / job->threes * job->plane + at % job->threes * job->line;
        for (int64_t c = 0; c < C; c += ROWS) {
            float *rows[MOST];
            for (int64_t i = 0; i <= last; i++) rows[i] = matrix[i] + (at * C + c) * x->nr;
            transform_rows(job, w + c * x->planes * job->plane + from, factors, q7_min(ROWS, C - c),
                           n, rows);
        }
    }
    for (int64_t i = 0; i < job->rest; i++) /* of the line of a kernel of one plane */
        for (int64_t c = 0; c < C; c++)
            for (int64_t j = 0; j < x->nr; j++) {
                const int64_t at = (part + i * C + c) * x->nr + j;
                const int64_t from = c * job->plane + job->threes * LINE + i;
                matrix[0][at] = j < n ? w[j * job->filter + from] * factors[j] : 0;
                matrix[last][at] = -matrix[0][at];
            }
    q7_end_past();
}

void q7_op_pack_winograd(const q7_pack_winograd_args *x, const q7_call *call) {
    const bool is_line = x->kh == 1;
    const int64_t panels = q7_ceil_div(x->n, x->nr), plane = x->kh * x->kw;
    const int64_t filter = x->C * x->planes * plane, panel = x->nr * filter;
    const int64_t line = is_line ? LINE : LINE * LINE;
    transform_job job = {x, is_line ? 4 : MOST, line, x->kw / LINE, x->kw % LINE, filter, plane, 0};
    const int64_t size = (int64_t)sizeof(float), whole = x->n * filter * size;
    const int64_t band = x->drops ? q7_pages_band(panel * size) : panels;
    for (; job.begin < panels; job.begin += band) {
        const int64_t end = q7_min(panels, job.begin + band);
        q7_parallel(call, end - job.begin, panel_task, &job);
        if (x->drops)
            q7_drop_pages(x->w, job.begin * panel * size, q7_min(whole, end * panel * size));
    }
    if (x->drops) q7_drop_pages(x->w, 0, whole); /* what reading ahead has brought back */
}
