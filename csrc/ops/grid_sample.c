/* grid_sample.c: y[n,c,i,j] = x[n,c] at grid[n,i,j] = (column, row), where -1 and 1 are the centres
 * of the outermost pixels (align_corners) or their outer borders; x (N,C,H,W), grid (N,OH,OW,2), y
 * (N,C,OH,OW), float. A pixel outside is 0, the edge, or the mirror image of x. Interpolation:
 * nearest, linear, or Keys' cubic with -0.75. NaN lies outside of x. ONNX GridSample. */
#include <math.h>

#include "loops.h"

enum { TAPS = 4 };

/* The pixels of one axis that a place is made of. */
typedef struct taps {
    int64_t count, at[TAPS];
    float weight[TAPS];
} taps;

/* x mirrored at low and high until it lies between them. */
static float reflect(float x, float low, float high) {
    const float range = high - low;
    if (!(range > 0)) return low;
    const float distance = fmodf(fabsf(x - low), 2 * range);
    return distance <= range ? low + distance : high - (distance - range);
}

static void cubic_weights(float x, float *weight) {
    const float a = -0.75f, y = 1 - x;
    weight[0] = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a;
    weight[1] = ((a + 2) * x - (a + 3)) * x * x + 1;
    weight[2] = ((a + 2) * y - (a + 3)) * y * y + 1;
    weight[3] = ((a * (y + 1) - 5 * a) * (y + 1) + 8 * a) * (y + 1) - 4 * a;
}

static taps taps_of(const q7_grid_sample_args *args, float at, int64_t n) {
    const float low = args->align_corners ? 0 : -0.5f, high = (float)n - 1 - low;
    float x = args->align_corners ? (at + 1) / 2 * (float)(n - 1) : ((at + 1) * (float)n - 1) / 2;
    if (args->interpolation == Q7_interpolation_nearest) x = nearbyintf(x);
    if (args->border == Q7_border_edge) { /* from 2 pixels outside on, all taps are the edge */
        x = x < -2 ? -2 : x > (float)n + 1 ? (float)n + 1 : x;
    } else if (x < low || x > high) {
        if (args->border == Q7_border_reflect) x = reflect(x, low, high);
    }
    if (!(fabsf(x) < 1e9f)) x = -1e9f; /* NaN too: what follows are integers */
    const int64_t whole = (int64_t)floorf(x);
    const float part = x - (float)whole;
    float weight[TAPS] = {1 - part, part};
    int64_t first = whole, count = 2;
    if (args->interpolation == Q7_interpolation_nearest) count = 1, weight[0] = 1;
    if (args->interpolation == Q7_interpolation_cubic) {
        count = 4, first--;
        cubic_weights(part, weight);
    }
    taps found = {0, {0}, {0}};
    for (int64_t t = 0; t < count; t++) {
        int64_t i = first + t;
        if (args->border == Q7_border_edge) i = q7_max(0, q7_min(i, n - 1));
        if (args->border == Q7_border_reflect && (i < 0 || i >= n))
            i = q7_max(0, q7_min((int64_t)reflect((float)i, low, high), n - 1));
        if (i < 0 || i >= n) continue;
        found.at[found.count] = i;
        found.weight[found.count++] = weight[t];
    }
    return found;
}

/* One row of the grid, for all channels. */
static void grid_task(void *arg, int64_t task, int64_t thread) {
    const q7_grid_sample_args *args = arg;
    (void)thread;
    const int64_t plane = args->H * args->W, out = args->OH * args->OW;
    const int64_t n = task / args->OH, i = task % args->OH;
    const float *grid = (const float *)args->grid + task * args->OW * 2; /* (OW, 2) */
    const float *x = (const float *)args->x + n * args->C * plane;       /* (C, H, W) */
    float *y = (float *)args->y + n * args->C * out + i * args->OW;      /* (C, OH, OW) */
    for (int64_t j = 0; j < args->OW; j++) {
        const taps cols = taps_of(args, grid[2 * j], args->W);
        const taps rows = taps_of(args, grid[2 * j + 1], args->H);
        for (int64_t c = 0; c < args->C; c++) {
            float sum = 0;
            for (int64_t r = 0; r < rows.count; r++) {
                const float *row = x + c * plane + rows.at[r] * args->W;
                float line = 0;
                for (int64_t k = 0; k < cols.count; k++) line += cols.weight[k] * row[cols.at[k]];
                sum += rows.weight[r] * line;
            }
            y[c * out + j] = sum;
        }
    }
}

void q7_op_grid_sample(const q7_grid_sample_args *args, const q7_call *call) {
    q7_parallel(call, args->N * args->OH, grid_task, (void *)args);
}
