/* groupnorm.c: y = (x - mean) / sqrt(variance + eps) * weight + bias over each group of channels of an
 * image, whose channels lie side by side: x (N, pixels, C), its pixels x_stride apart, y likewise. ONNX
 * GroupNormalization, and InstanceNormalization, where a group is a channel.
 *
 * Statistics are those of parts of the image, a mean and a sum of squares around it for each channel,
 * which are joined as Chan, Golub and LeVeque (1983) do: x is read from memory once for them, and what
 * is summed is small. Parts are the same for any number of threads.
 *
 * weight, bias: (C), or NULL for 1 and 0. sums: for each image the parts' means (parts, C) and squares
 * (parts, C), then the mean and the factor of each channel; parts = ceil(pixels / part). */
#include "../kernels/groupnorm.h"

#include <math.h>

#include "loops.h"

typedef struct norm_job {
    const q7_groupnorm_args *x;
    q7_groupnorm_kernel kernel;
    int64_t parts;
} norm_job;

/* Of image n: the means of its parts; what else it has follows as told above. */
static float *sums_of(const norm_job *job, int64_t n) {
    return (float *)job->x->sums + n * (2 * job->parts + 2) * job->x->C;
}

static int64_t pixels_of(const norm_job *job, int64_t part) {
    return q7_min(job->x->part, job->x->pixels - part * job->x->part);
}

static q7_groupnorm_part part_of(const norm_job *job, int64_t n, int64_t part) {
    const q7_groupnorm_args *x = job->x;
    const int64_t pixel = n * x->pixels + part * x->part;
    return (q7_groupnorm_part){.pixels = pixels_of(job, part),
                               .channels = x->C,
                               .x = (const float *)x->x + pixel * x->x_stride,
                               .x_stride = x->x_stride,
                               .y_stride = x->y_stride};
}

static void statistics_task(void *arg, int64_t task, int64_t thread) {
    const norm_job *job = arg;
    (void)thread;
    const int64_t n = task / job->parts, part = task % job->parts;
    q7_groupnorm_part t = part_of(job, n, part);
    t.mean = sums_of(job, n) + part * job->x->C;
    t.squares = t.mean + job->parts * job->x->C;
    job->kernel(&t);
}

enum { TOGETHER = 64 }; /* channels whose parts are read line by line, and groups of a task */

/* Sums over the parts of image n, for `count` groups from `first` on: of what they hold where mean is
 * NULL, else of its squares around these means. */
static void add_parts(const norm_job *job, int64_t n, int64_t first, int64_t count,
                      const double *mean, double *total) {
    const q7_groupnorm_args *x = job->x;
    const int64_t each = x->C / x->groups, begin = first * each, end = begin + count * each;
    const float *means = sums_of(job, n), *squares = means + job->parts * x->C;
    for (int64_t g = 0; g < count; g++) total[g] = 0;
    for (int64_t c = begin, width; c < end; c += width) {
        double sum[TOGETHER] = {0}, centre[TOGETHER] = {0};
        width = q7_min(end - c, TOGETHER);
        for (int64_t i = 0; mean && i < width; i++) centre[i] = mean[(c + i) / each - first];
        for (int64_t part = 0; part < job->parts; part++) {
            const double pixels = (double)pixels_of(job, part);
            const float *m = means + part * x->C + c, *s = squares + part * x->C + c;
            if (!mean)
                for (int64_t i = 0; i < width; i++) sum[i] += m[i] * pixels;
            else
                for (int64_t i = 0; i < width; i++) {
                    const double off = m[i] - centre[i];
                    sum[i] += s[i] + off * off * pixels;
                }
        }
        for (int64_t i = 0; i < width; i++) total[(c + i) / each - first] += sum[i];
    }
}

/* Groups of a task. */
static int64_t groups_of(const q7_groupnorm_args *x) {
    return q7_max(1, q7_min(TOGETHER * x->groups / x->C, x->groups));
}

/* The mean and the factor of the channels of some groups. */
static void join_task(void *arg, int64_t task, int64_t thread) {
    const norm_job *job = arg;
    const q7_groupnorm_args *x = job->x;
    (void)thread;
    const int64_t tasks = q7_ceil_div(x->groups, groups_of(x)), n = task / tasks;
    const int64_t first = task % tasks * groups_of(x);
    const int64_t count = q7_min(groups_of(x), x->groups - first), each = x->C / x->groups;
    const double size = (double)(x->pixels * each);
    double mean[TOGETHER], power[TOGETHER];
    add_parts(job, n, first, count, NULL, mean);
    for (int64_t g = 0; g < count; g++) mean[g] /= size;
    add_parts(job, n, first, count, mean, power);
    float *centres = sums_of(job, n) + 2 * job->parts * x->C, *factors = centres + x->C;
    for (int64_t c = first * each; c < (first + count) * each; c++) {
        const int64_t g = c / each - first;
        const float weight = x->weight ? ((const float *)x->weight)[c] : 1.0f;
        centres[c] = (float)mean[g];
        factors[c] = (float)(weight / sqrt(power[g] / size + x->eps));
    }
}

static void normalise_task(void *arg, int64_t task, int64_t thread) {
    const norm_job *job = arg;
    const q7_groupnorm_args *x = job->x;
    (void)thread;
    const int64_t n = task / job->parts, part = task % job->parts;
    q7_groupnorm_part t = part_of(job, n, part);
    t.mean = sums_of(job, n) + 2 * job->parts * x->C;
    t.factor = t.mean + x->C;
    t.bias = x->bias;
    t.y = (float *)x->y + (n * x->pixels + part * x->part) * x->y_stride;
    job->kernel(&t);
}

void q7_op_groupnorm(const q7_groupnorm_args *x, const q7_call *call) {
    if (x->N * x->pixels * x->C == 0) return;
    norm_job job = {x, (q7_groupnorm_kernel)call->kernel, q7_ceil_div(x->pixels, x->part)};
    q7_parallel(call, x->N * job.parts, statistics_task, &job);
    q7_parallel(call, x->N * q7_ceil_div(x->groups, groups_of(x)), join_task, &job);
    q7_parallel(call, x->N * job.parts, normalise_task, &job);
}
