/* lookup.c: the kernel of lookup.h for every ISA. Read that first. */
#include "lookup.h"

#include "../simd/simd.h"

void Q7_KERNEL(lookup_u8)(int64_t n, const uint8_t *x, const uint8_t *table, uint8_t *y) {
#ifdef Q7_HAS_LOOKUP
    if (q7_may_look_up()) {
        q7_look_up(n, x, table, y);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) y[i] = table[x[i]];
}
