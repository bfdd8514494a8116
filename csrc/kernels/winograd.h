/* winograd.h: some tiles of a 3x3 convolution of stride 1, channels last, by the algorithm of
 * Winograd that makes 2 x 2 pixels of 4 x 4 (F(2x2,3x3); Lavin and Gray 2015):
 *
 *     y = A^T [(G w G^T) * (B^T d B)] A + bias, summed over channels, then act and residual as in
 *     conv_last; d the 4 x 4 pixels of x under a tile of y, zeros around x
 *
 * 16 products of matrices (tiles, C) @ (C, M), a multiplication for each output of 2.25 that a direct
 * sum takes. w holds the 16 matrices G w G^T as packed panels. Channels are summed in blocks of
 * Q7_WINOGRAD_K_BLOCK. room: q7_winograd_room floats. */
#ifndef Q7_WINOGRAD_H
#define Q7_WINOGRAD_H
#include "../abi.h"

typedef struct q7_winograd_block {
    int64_t first, end;         /* tiles, of (N, OH / 2, OW / 2), rounded up */
    int64_t first_panel, panel; /* of w; the one that is not computed any more */
    float *room;
} q7_winograd_block;

typedef void (*q7_winograd_kernel)(const q7_winograd_args *args, const q7_winograd_block *block);

enum { Q7_WINOGRAD_GAP = 16 }; /* floats between rows of channels: not the same sets of L1 */

/* Zeros, the transformed x of a block, and the products of a panel. */
static inline int64_t q7_winograd_room(int64_t channels, int64_t nr) {
    const int64_t row = channels + Q7_WINOGRAD_GAP;
    return row + 16 * Q7_WINOGRAD_TILES * (row + nr);
}
#endif
