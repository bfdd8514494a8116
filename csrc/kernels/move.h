/* move.h: one element of elem_bytes, 1, 2, 4 or 8, from anywhere to anywhere, or, of up to 16, in a
 * row. */
#ifndef Q7_KERNELS_MOVE_H
#define Q7_KERNELS_MOVE_H
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

#define Q7_REPEAT(type)                                                                        \
    do {                                                                                       \
        type one;                                                                              \
        memcpy(&one, x, sizeof one);                                                           \
        for (int64_t i = 0; i < n; i++) memcpy(y + i * (int64_t)sizeof one, &one, sizeof one); \
    } while (0)
/* n times the element x, which may be of 16 bytes. */
static inline void q7_repeat(char *y, const void *x, int64_t n, int64_t elem_bytes) {
    typedef struct wide {
        uint64_t half[2];
    } wide;
    switch (elem_bytes) {
        case 1: memset(y, *(const unsigned char *)x, (size_t)n); break;
        case 2: Q7_REPEAT(uint16_t); break;
        case 4: Q7_REPEAT(uint32_t); break;
        case 8: Q7_REPEAT(uint64_t); break;
        default: Q7_REPEAT(wide); break;
    }
}
#undef Q7_REPEAT
#endif
