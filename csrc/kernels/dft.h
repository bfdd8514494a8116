/* dft.h: discrete Fourier transforms of a group of lines: y[k] = the sum over j of x[j] w^(j k), w =
 * exp(-2 pi i / n), or, inverse, of x[j] w^(-j k) / n. Up to nr lines, the lanes of a vector, have one
 * transform, so that a pass over their elements needs no shuffles.
 *
 * Numbers have one part, the real one, or two, side by side. Of an inverse whose x has two parts and whose y
 * has one, x has the elements up to n / 2, and the others are their conjugates; imaginary parts that must be
 * 0 then are not read. Of what has one part and an even n, elements 2 j and 2 j + 1 are one of n / 2.
 *
 * The passes are Stockham's: each takes a factor of n, and leaves its results in order. */
#ifndef Q7_DFT_H
#define Q7_DFT_H
#include "../abi.h"

enum { Q7_DFT_FACTORS = 64 }; /* of n, at most */

typedef struct q7_dft_group {
    const float *x, *window;           /* window: NULL, or a factor for each element of a line */
    const float *turns;                /* w^k, n of them, two parts each */
    float *y, *work;                   /* work: 3 times n numbers of two parts, of nr lines */
    int64_t lines, n;                  /* lines up to nr */
    int64_t x_line, x_stride, x_parts; /* floats from a line to the next, and from an element; */
    int64_t y_line, y_stride, y_parts; /* one of these is parts: some are side by side */
    int64_t x_count, y_count;          /* elements of a line that are read, up to n: others are 0;
                                              and that are written */
    const int64_t *factors;            /* of n, or n / 2 where pairs are one number; 0 ends them */
    bool inverse, pairs;
} q7_dft_group;

typedef void (*q7_dft_kernel)(const q7_dft_group *group);
#endif
