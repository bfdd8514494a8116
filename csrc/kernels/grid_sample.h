/* grid_sample.h: some points of images (C, D, H, W), each a weighted sum of the pixels around it.
 *
 * A grid has 2 or 3 coordinates for each point, of columns first: -1 and 1 are the centres of the
 * outermost pixels (align_corners) or their outer borders. A pixel outside is 0, the edge, or the mirror
 * image of x. Interpolation: nearest, linear, or, of 2 coordinates, Keys' cubic with -0.75. NaN lies
 * outside of x.
 *
 * Images have any strides, of less than 2^31 elements. What is side by side are the channels of a pixel
 * (x_c_stride 1), which are summed as vectors, or pixels, of which as many are gathered. */
#ifndef Q7_GRID_SAMPLE_H
#define Q7_GRID_SAMPLE_H
#include "../abi.h"

typedef struct q7_grid_part {
    const float *x, *grid; /* the lowest element of the first image; the first point */
    float *y;
    int64_t images, points; /* of each image; a grid has them one after the other */
    int64_t channels, axes; /* 2 or 3 */
    int64_t size[3];        /* D, H, W */
    int64_t stride[3];      /* of x, likewise; */
    int64_t origin; /* what its first element is from the lowest, which others may be below */
    int64_t x_n_stride, x_c_stride, y_n_stride, y_c_stride, y_stride;
    int64_t interpolation, border;
    bool align_corners;
} q7_grid_part;

typedef void (*q7_grid_sample_kernel)(const q7_grid_part *part);
#endif
