/* lookup.h: y[i] = table[x[i]], of bytes, for one run of n of them. y may be x. */
#ifndef Q7_KERNELS_LOOKUP_H
#define Q7_KERNELS_LOOKUP_H
#include "../abi.h"

typedef void (*q7_lookup_kernel)(int64_t n, const uint8_t *x, const uint8_t *table, uint8_t *y);
#endif
