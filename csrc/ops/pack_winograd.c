/* pack_winograd.c: the kernels of a convolution, transformed as kernels/winograd.h has them, into panels
 * of nr filters. w (n, C, planes, elements) of any alignment: a model file has weights wherever their
 * names end.
 *
 * G w G^T of a kernel of 3x3 is made of its columns, then of its rows, in doubles, which hold sums of so
 * few floats as they are: rounded once. Of stride 2, G only adds w[0] and w[2]. */
#include "pages.h"
#include "panels.h"

enum { LINE = 3, MOST = 16, LANES = 4 }; /* elements; matrices; filters at a time, nr a multiple */

typedef struct transform_job {
    const q7_pack_winograd_args *x;
    int64_t matrices, elements, threes, rest; /* of a kernel in a plane; parts of its line */
    int64_t begin;                            /* the first panel of this band */
} transform_job;

/* G of a line: `to` the four elements, `step` vectors apart. */
static inline void transform_line(const double (*w)[LANES], int64_t w_step, bool by_two,
                                  double (*to)[LANES], int64_t step) {
    for (int64_t j = 0; j < LANES; j++) {
        const double first = w[0][j], middle = w[w_step][j], last = w[2 * w_step][j];
        const double ends = first + last;
        to[0][j] = first;
        to[step][j] = by_two ? middle : 0.5 * (ends + middle);
        to[2 * step][j] = by_two ? ends : 0.5 * (ends - middle);
        to[3 * step][j] = last;
    }
}

/* The matrices' elements of LANES kernels, of 3x3 or of one line. */
static void transform(const double (*w)[LANES], int64_t matrices, bool by_two,
                      double (*to)[LANES]) {
    if (matrices == 4) {
        transform_line(w, 1, by_two, to, 1);
        return;
    }
    double lines[4 * LINE][LANES]; /* (4, 3) */
    for (int64_t i = 0; i < LINE; i++) transform_line(w + i, LINE, by_two, lines + i, LINE);
    for (int64_t i = 0; i < 4; i++) transform_line(lines + i * LINE, 1, by_two, to + 4 * i, 1);
}

/* Rows of a matrix; has_rest: of one that makes but one of the two sums of a line. */
static int64_t rows_of(const transform_job *job, bool has_rest) {
    return job->x->planes * (job->threes + (has_rest ? job->rest : 0)) * job->x->C;
}

static void panel_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const transform_job *job = arg;
    const q7_pack_winograd_args *x = job->x;
    const int64_t panel = job->begin + task, column = panel * x->nr;
    const int64_t n = q7_min(x->nr, x->n - column), C = x->C, matrices = job->matrices;
    const int64_t line = matrices == 4 ? LINE : LINE * LINE, plane = job->elements;
    const int64_t whole = rows_of(job, true), part = rows_of(job, false);
    const int64_t rows = matrices * part + 2 * (whole - part);
    float *to = (float *)x->packed + panel * rows * x->nr;
    const q7_loose_float *w = x->w;
    w += column * C * x->planes * plane;
    for (int64_t at = 0; at < x->planes * job->threes; at++)
        for (int64_t c = 0; c < C; c++) {
            const int64_t from =
                (c * x->planes + at / job->threes) * plane + at % job->threes * line;
            for (int64_t first = 0; first < x->nr; first += LANES) {
                double elements[LINE * LINE][LANES] = {{0}}, made[MOST][LANES];
                for (int64_t j = 0; j < q7_min(LANES, n - first); j++)
                    for (int64_t i = 0; i < line; i++)
                        elements[i][j] = w[(first + j) * C * x->planes * plane + from + i];
                transform(elements, matrices, x->stride == 2, made);
                for (int64_t i = 0; i < matrices; i++) {
                    const int64_t before = i * part + (i > 0 ? whole - part : 0);
                    float *row = to + (before + at * C + c) * x->nr + first;
                    for (int64_t j = 0; j < LANES; j++) row[j] = (float)made[i][j];
                }
            }
        }
    for (int64_t i = 0; i < job->rest; i++) /* of a line, in the first and in the last matrix */
        for (int64_t c = 0; c < C; c++) {
            float *first = to + (part + i * C + c) * x->nr;
            float *last = to + (rows - whole + part + i * C + c) * x->nr;
            for (int64_t j = 0; j < x->nr; j++) {
                first[j] = j < n ? w[(j * C + c) * plane + job->threes * LINE + i] : 0;
                last[j] = -first[j];
            }
        }
}

void q7_op_pack_winograd(const q7_pack_winograd_args *x, const q7_call *call) {
    const bool is_line = x->kh == 1;
    const int64_t panels = q7_ceil_div(x->n, x->nr), elements = x->kh * x->kw;
    transform_job job = {x, is_line ? 4 : MOST, elements, x->kw / LINE, x->kw % LINE, 0};
    const int64_t panel = x->nr * x->C * x->planes * elements; /* floats of w */
    const int64_t band = x->drops ? q7_pages_band(panel) : panels;
    for (; job.begin < panels; job.begin += band) {
        const int64_t count = q7_min(band, panels - job.begin);
        q7_parallel(call, count, panel_task, &job);
        const int64_t end = q7_min(job.begin + count, panels) * panel;
        if (x->drops) q7_drop_pages(x->w, job.begin * panel, q7_min(end, x->n * (panel / x->nr)));
    }
}
