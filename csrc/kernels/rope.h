/* rope.h: rotary position embedding of the heads of one position: rows of D floats that share one
 * row of cos and one of sin.
 *
 *   y[i] = x[i] * cos[i] + turned[i] * sin[i]   for i < R, y[i] = x[i] for R <= i < D
 *
 * turned holds each pair of channels (a, b) as (-b, a): a pair is (i, i + R / 2), or
 * (2 i, 2 i + 1) if interleaved. cos and sin hold R floats, or R / 2 if half: one per pair.
 *
 *   full  c0 c1 c2 c3 c4 c5     half  c0 c1 c2 = c0 c1 c2 c0 c1 c2, interleaved c0 c0 c1 c1 c2 c2
 *
 * R is even, any alignment; y may be x (then with its stride), and does not overlap it otherwise.
 * One product is rounded, the other is part of an FMA. NaN and infinities stay in their pair. */
#ifndef Q7_KERNELS_ROPE_H
#define Q7_KERNELS_ROPE_H
#include "../abi.h"

typedef struct q7_rope_tile {
    int64_t heads, D, R;
    const float *x;             /* (heads, D) */
    float *y;                   /* (heads, D) */
    int64_t x_stride, y_stride; /* from head to head */
    const float *cos, *sin;     /* (R) or (R / 2) */
    bool half, interleaved;
} q7_rope_tile;

typedef void (*q7_rope_kernel)(const q7_rope_tile *tile);
#endif
