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

/* The mean and the factor of the channels of a group. */
static void join_task(void *arg, int64_t task, int64_t thread) {
    const norm_job *job = arg;
    const q7_groupnorm_args *x = job->x;
    (void)thread;
    const int64_t n = task / x->groups, each = x->C / x->groups, first = task % x->groups * each;
    const float *means = sums_of(job, n) + first, *squares = means + job->parts * x->C;
    const double count = (double)(x->pixels * each);
    double sum = 0, power = 0;
    for (int64_t part = 0; part < job->parts; part++) {
        double all = 0;
        for (int64_t c = 0; c < each; c++) all += means[part * x->C + c];
        sum += all * (double)pixels_of(job, part);
    }
    const double mean = sum / count;
    for (int64_t part = 0; part < job->parts; part++) {
        double between = 0, within = 0;
        for (int64_t c = 0; c < each; c++) {
            const double off = means[part * x->C + c] - mean;
            between += off * off;
            within += squares[part * x->C + c];
        }
        power += within + between * (double)pixels_of(job, part);
    }
    const double scale = 1 / sqrt(power / count + x->eps);
    float *centres = sums_of(job, n) + 2 * job->parts * x->C + first, *factors = centres + x->C;
    for (int64_t c = 0; c < each; c++) {
        const float weight = x->weight ? ((const float *)x->weight)[first + c] : 1.0f;
        centres[c] = (float)mean;
        factors[c] = (float)(scale * weight);
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
    q7_parallel(call, x->N * x->groups, join_task, &job);
    q7_parallel(call, x->N * job.parts, normalise_task, &job);
}
