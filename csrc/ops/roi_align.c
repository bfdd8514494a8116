/* roi_align.c: y (regions, C, OH, OW): for each cell of a grid laid over a region of x (N, C, H, W),
 * the mean (or with `most` the largest weighted element) of bilinear samples. ONNX RoiAlign.
 *
 * rois (regions, 4) float: x1, y1, x2, y2, times scale, minus shift; images (regions,) int64: which image
 * each is of. ratio: samples of a cell along each dim, 0: as many as a cell has elements. Without a
 * shift regions are at least one element wide. Samples of a cell are found once, for all channels; those
 * of a pixel may lie side by side (last). Samples outside the image, of which a region can have far more
 * than others, are 0 and only counted. */
#include <math.h>

#include "abi.h"

enum { SAMPLES = 64 }; /* that are kept at a time */

typedef struct {
    int64_t at[4]; /* in a plane */
    float weight[4];
} sample;

/* Where a sample lies along one dim. false: outside. */
static bool place(float at, int64_t size, int64_t *low, int64_t *high, float *weight) {
    const bool inside = at >= -1 && at <= (float)size;
    const float last = (float)(size - 1);
    at = at > 0 ? (at < last ? at : last) : 0; /* NaN: 0 */
    *low = (int64_t)at;
    *high = q7_min(*low + 1, size - 1);
    *weight = at - (float)*low;
    return inside;
}

typedef struct {
    float start, cell;
    int64_t samples;
} span; /* of a region along one dim */

static span span_of(const q7_roi_align_args *x, float from, float to, int64_t cells) {
    const float scale = (float)x->scale, shift = (float)x->shift;
    const float start = from * scale - shift;
    float length = to * scale - shift - start;
    if (shift == 0) length = length > 1 ? length : 1;
    const float cell = length / (float)cells;
    const double wanted = ceil((double)cell);
    return (span){start, cell, x->ratio > 0 ? x->ratio : wanted > 0 ? (int64_t)wanted : 0};
}

/* Whether four coordinates are numbers that sums of samples can count; else a fault tells of one. */
static bool can_be_cut(const q7_roi_align_args *x, const q7_call *call, const float *roi) {
    enum { LIMIT = 1 << 30 };
    for (int i = 0; i < 4; i++) {
        const float at = roi[i] * (float)x->scale;
        if (at > -LIMIT && at < LIMIT) continue;
        q7_fault(call, "coordinate of a region", at > 0 ? LIMIT : -LIMIT - 1, -LIMIT, LIMIT);
        return false;
    }
    return true;
}

/* The i-th sample of a region, rounded as onnxruntime does: at the border that decides what counts. */
static float sample_of(span s, int64_t i) {
    const float cell = s.start + (float)(i / s.samples) * s.cell;
    return cell + ((float)(i % s.samples) + 0.5f) * s.cell / (float)s.samples;
}

/* The first of samples [first, end), which ascend, at `limit` or beyond it. */
static int64_t sample_from(span s, int64_t first, int64_t end, float limit, bool beyond) {
    while (first < end) {
        const int64_t middle = first + (end - first) / 2;
        const float at = sample_of(s, middle);
        if (beyond ? at > limit : at >= limit)
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}

typedef struct {
    int64_t first, count;
} range;

/* The samples of a cell that are inside the image; all of a region that is turned. */
static range inside_of(span s, int64_t cell, int64_t size) {
    const int64_t begin = cell * s.samples, end = begin + s.samples;
    if (s.cell < 0) return (range){begin, s.samples};
    const int64_t first = sample_from(s, begin, end, -1, false);
    return (range){first, sample_from(s, first, end, (float)size, true) - first};
}

static sample sample_at(const q7_roi_align_args *x, span v, span h, int64_t row, int64_t column) {
    int64_t top, bottom, left, right;
    float below, beyond;
    const float y = sample_of(v, row), z = sample_of(h, column);
    bool inside = place(y, x->H, &top, &bottom, &below);
    inside = place(z, x->W, &left, &right, &beyond) && inside;
    sample s = {
        {top * x->W + left, top * x->W + right, bottom * x->W + left, bottom * x->W + right},
        {(1 - below) * (1 - beyond), (1 - below) * beyond, below * (1 - beyond), below * beyond}};
    for (int i = 0; i < 4 && !inside; i++) s.weight[i] = 0;
    return s;
}

/* Adds samples to a cell of every channel. */
static void add_samples(const q7_roi_align_args *x, const float *image, float *cell,
                        const sample *samples, int64_t n) {
    const int64_t plane = x->H * x->W, step = x->OH * x->OW;
    for (int64_t c = 0; c < x->C; c++, image += plane, cell += step) {
        float sum = *cell, most = *cell;
        for (int64_t i = 0; i < n; i++) {
            const sample *s = &samples[i];
            float part[4];
            for (int j = 0; j < 4; j++) part[j] = image[s->at[j]] * s->weight[j];
            sum += (part[0] + part[1]) + (part[2] + part[3]);
            for (int j = 0; j < 4; j++) most = part[j] > most ? part[j] : most;
        }
        *cell = x->most ? most : sum;
    }
}

/* The same where the channels of a pixel lie side by side. */
static void add_pixels(const q7_roi_align_args *x, const float *image, float *cell,
                       const sample *samples, int64_t n) {
    enum { TOGETHER = 32 };
    const int64_t step = x->OH * x->OW;
    for (int64_t c0 = 0; c0 < x->C; c0 += TOGETHER, image += TOGETHER) {
        const int64_t count = q7_min(x->C - c0, TOGETHER);
        float total[TOGETHER];
        for (int64_t c = 0; c < count; c++) total[c] = cell[(c0 + c) * step];
        for (int64_t i = 0; i < n; i++) {
            const float *pixel[4], *weight = samples[i].weight;
            for (int j = 0; j < 4; j++) pixel[j] = image + samples[i].at[j] * x->C;
            if (!x->most) {
                for (int64_t c = 0; c < count; c++)
                    total[c] += (pixel[0][c] * weight[0] + pixel[1][c] * weight[1]) +
                                (pixel[2][c] * weight[2] + pixel[3][c] * weight[3]);
                continue;
            }
            for (int j = 0; j < 4; j++)
                for (int64_t c = 0; c < count; c++) {
                    const float part = pixel[j][c] * weight[j];
                    total[c] = part > total[c] ? part : total[c];
                }
        }
        for (int64_t c = 0; c < count; c++) cell[(c0 + c) * step] = total[c];
    }
}

typedef struct {
    const q7_roi_align_args *args;
    const q7_call *call;
} roi_job;

static void roi_task(void *arg, int64_t task, int64_t thread) {
    const roi_job *job = arg;
    const q7_roi_align_args *x = job->args;
    const int64_t roi = task / x->OH, row = task % x->OH, step = x->OH * x->OW;
    const int64_t n = ((const int64_t *)x->images)[roi];
    (void)thread;
    if (n < 0 || n >= x->N) {
        q7_fault(job->call, "region of an image", n, 0, x->N);
        return;
    }
    const float *r = (const float *)x->rois + 4 * roi,
                *image = (const float *)x->x + n * x->C * x->H * x->W;
    if (!can_be_cut(x, job->call, r)) return;
    const span v = span_of(x, r[1], r[3], x->OH), h = span_of(x, r[0], r[2], x->OW);
    const int64_t total = x->H && x->W ? v.samples * h.samples : 0;
    const range rows = inside_of(v, row, x->H);
    for (int64_t column = 0; column < x->OW; column++) {
        const range columns = inside_of(h, column, x->W);
        const int64_t inside = total ? rows.count * columns.count : 0;
        float *cell = (float *)x->y + roi * x->C * step + row * x->OW + column;
        sample samples[SAMPLES];
        const float start = x->most && inside && inside == total ? -INFINITY : 0;
        for (int64_t c = 0; c < x->C; c++) cell[c * step] = start;
        for (int64_t first = 0; first < inside; first += SAMPLES) {
            const int64_t count = q7_min(inside - first, SAMPLES);
            for (int64_t i = 0; i < count; i++)
                samples[i] = sample_at(x, v, h, rows.first + (first + i) / columns.count,
                                       columns.first + (first + i) % columns.count);
            (x->last ? add_pixels : add_samples)(x, image, cell, samples, count);
        }
        for (int64_t c = 0; c < x->C && total && !x->most; c++) cell[c * step] /= (float)total;
    }
}

void q7_op_roi_align(const q7_roi_align_args *args, const q7_call *call) {
    roi_job job = {args, call};
    q7_parallel(call, args->regions * args->OH, roi_task, &job);
}
