/* groupnorm.h: some pixels of an image whose channels lie side by side, C each, x_stride apart.
 *
 * Statistics, where y is NULL: the mean of every channel over these pixels, and the sum of the squares
 * of what is left without it. Else y = (x - mean) * factor + bias by channel, its pixels y_stride
 * apart; bias NULL: 0. y may be x. */
#ifndef Q7_GROUPNORM_H
#define Q7_GROUPNORM_H
#include "../abi.h"

typedef struct q7_groupnorm_part {
    int64_t pixels, channels;
    const float *x;
    int64_t x_stride;
    float *mean, *squares; /* (channels): what is written without y; mean is read with it */
    const float *factor, *bias;
    float *y;
    int64_t y_stride;
} q7_groupnorm_part;

typedef void (*q7_groupnorm_kernel)(const q7_groupnorm_part *part);
#endif
