/* grid_sample.c: y[n,c,i..] = x[n,c] at grid[n,i..], whose last dim are 2 or 3 coordinates. ONNX
 * GridSample, of float; kernels/grid_sample.h says what a place is. x (N,C,D,H,W), D 1 for images, and y
 * (N,C,points) have any strides.
 *
 * Tasks have points for some microseconds: parts of large images, or several small ones. */
#include "../kernels/grid_sample.h"

enum { TASK = 1 << 16 }; /* products and sums of channels; a place costs as much as some */

typedef struct grid_job {
    q7_grid_part part;
    q7_grid_sample_kernel kernel;
    int64_t images, points; /* in all, of an image */
    int64_t parts;          /* of an image */
} grid_job;

/* Some images, or a part of one. */
static void grid_task(void *arg, int64_t task, int64_t thread) {
    const grid_job *job = arg;
    q7_grid_part part = job->part;
    (void)thread;
    const int64_t n = task / job->parts * part.images, first = task % job->parts * part.points;
    part.images = q7_min(part.images, job->images - n);
    part.points = q7_min(part.points, job->points - first);
    part.x += n * part.x_n_stride;
    part.grid += (n * job->points + first) * part.axes;
    part.y += n * part.y_n_stride + first * part.y_stride;
    job->kernel(&part);
}

static int64_t taps_of(const q7_grid_sample_args *x) {
    const int64_t taps = x->interpolation == Q7_interpolation_nearest  ? 1
                         : x->interpolation == Q7_interpolation_linear ? 2
                                                                       : 4;
    return x->axes == 3 ? taps * taps * taps : taps * taps;
}

void q7_op_grid_sample(const q7_grid_sample_args *x, const q7_call *call) {
    if (x->N * x->C * x->points == 0) return;
    const int64_t size[] = {x->D, x->H, x->W};
    const int64_t stride[] = {x->x_d_stride, x->x_h_stride, x->x_w_stride};
    int64_t elements = 1, origin = 0; /* of an image; lines may go backwards */
    for (int i = 0; i < 3; i++) {
        const int64_t length = q7_max(0, size[i] - 1) * stride[i];
        elements += length < 0 ? -length : length;
        origin -= q7_min(0, length);
    }
    if (elements > INT32_MAX) {
        q7_fault(call, "elements of an image", elements, 0, INT32_MAX);
        return;
    }
    const int64_t wanted = q7_max(16, TASK / (16 + x->C * taps_of(x))); /* points of a task */
    grid_job job = {.part = {.x = (const float *)x->x - origin,
                             .grid = x->grid,
                             .y = x->y,
                             .images = q7_max(1, wanted / x->points),
                             .points = q7_min(wanted, x->points),
                             .channels = x->C,
                             .axes = x->axes,
                             .size = {x->D, x->H, x->W},
                             .stride = {x->x_d_stride, x->x_h_stride, x->x_w_stride},
                             .origin = origin,
                             .x_n_stride = x->x_n_stride,
                             .x_c_stride = x->x_c_stride,
                             .y_n_stride = x->y_n_stride,
                             .y_c_stride = x->y_c_stride,
                             .y_stride = x->y_stride,
                             .interpolation = x->interpolation,
                             .border = x->border,
                             .align_corners = x->align_corners != 0},
                    .kernel = (q7_grid_sample_kernel)call->kernel,
                    .images = x->N,
                    .points = x->points};
    job.parts = q7_ceil_div(x->points, job.part.points);
    q7_parallel(call, job.parts * q7_ceil_div(x->N, job.part.images), grid_task, &job);
}
