/* over.h: results that are written over what is added to them.
 *
 * A convolution whose residual nobody reads any more has its y in the place of that: y is not fetched
 * for nothing, and an image less is in memory. Drivers of the ops in over.c then have one address for
 * both, so each element of y is written after that of the residual was read, by the same thread, and
 * nothing else is written there. */
#ifndef Q7_OVER_H
#define Q7_OVER_H
#include "arena.h"
#include "bands.h"
#include "plan.h"

/* over: of each buffer the one in whose memory it is: its own, or where it is written over another, the
 * other's, which becomes alive for both, while its own has no bytes. values: those of symbols and
 * expressions; args in image have them, but need no pointers. */
void q7_over_find(const q7_plan *plan, const int64_t *values, const unsigned char *image,
                  const q7_band_step *bands, q7_interval *intervals, int64_t *over);
#endif
