/* doubles.h: vectors of doubles as wide as those of floats. They are the compiler's own, so that
 * operators work on them, with scalars as well; what has no operator is a loop over lanes. */
#ifndef Q7_DOUBLES_H
#define Q7_DOUBLES_H
#include "simd.h"

#define Q7_D (Q7_W / 2) /* lanes */
typedef double q7_f64 __attribute__((vector_size(Q7_D * 8)));

Q7_INLINE q7_f64 q7_load_f64(const double *p) {
    q7_f64 v;
    memcpy(&v, p, sizeof v);
    return v;
}
Q7_INLINE void q7_store_f64(double *p, q7_f64 v) { memcpy(p, &v, sizeof v); }
#endif
