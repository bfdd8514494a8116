/* move.h: one element of elem_bytes, 1, 2, 4 or 8, from anywhere to anywhere. */
#ifndef Q7_OPS_MOVE_H
#define Q7_OPS_MOVE_H
#include <stdint.h>
#include <string.h>

static inline void q7_move(char *y, const char *x, int64_t elem_bytes) {
    switch (elem_bytes) { /* a constant size is one load and one store */
        case 1: *y = *x; break;
        case 2: memcpy(y, x, 2); break;
        case 4: memcpy(y, x, 4); break;
        default: memcpy(y, x, 8); break;
    }
}
#endif
