/* nonzero.c: where x is not zero, in row-major order: y (ndim, count), a row of positions per dim.
 * ONNX NonZero. x is read twice: the count says how long a row of y is. y has room for one position
 * more than x has elements, so that each is written whether it counts or not. */
#include <string.h>

#include "abi.h"

#define COUNT(T, MASK) \
    for (int64_t i = 0; i < n; i++) found += (((const T *)x)[i] & (MASK)) != 0;
#define WRITE(T, MASK)                              \
    for (int64_t i = 0; i < n; i++) {               \
        y[found] = i;                               \
        found += (((const T *)x)[i] & (MASK)) != 0; \
    }
#define BY_SIZE(DO)                                                            \
    switch (bytes) {                                                           \
        case 1: DO(uint8_t, UINT8_MAX) break;                                  \
        case 2: DO(uint16_t, signs ? INT16_MAX : UINT16_MAX) break;            \
        case 4: DO(uint32_t, signs ? (uint32_t)INT32_MAX : UINT32_MAX) break;  \
        default: DO(uint64_t, signs ? (uint64_t)INT64_MAX : UINT64_MAX) break; \
    }

/* signs: floats, whose -0 is zero. */
static int64_t count_line(const void *x, int64_t n, int64_t bytes, bool signs) {
    int64_t found = 0;
    BY_SIZE(COUNT)
    return found;
}

static int64_t write_line(const void *x, int64_t n, int64_t bytes, bool signs, int64_t *y) {
    int64_t found = 0;
    BY_SIZE(WRITE)
    return found;
}

void q7_op_nonzero(const q7_nonzero_args *args, const q7_call *call) {
    const int64_t ndim = args->ndim, bytes = args->elem_bytes;
    const int64_t length = ndim ? args->shape[ndim - 1] : 1;
    int64_t lines = 1, at[Q7_MAX_NDIM] = {0}, done = 0, *y = args->y;
    (void)call;
    for (int64_t d = 0; d + 1 < ndim; d++) lines *= args->shape[d];
    const int64_t total = count_line(args->x, lines * length, bytes, args->is_float);
    *(int64_t *)args->count = total;
    if (ndim == 0) return;
    int64_t *last = y + (ndim - 1) * total;
    for (int64_t line = 0; line < lines; line++) {
        const char *x = (const char *)args->x + line * length * bytes;
        const int64_t found = write_line(x, length, bytes, args->is_float, last + done);
        for (int64_t d = 0; d + 1 < ndim; d++)
            for (int64_t i = done; i < done + found; i++) y[d * total + i] = at[d];
        done += found;
        for (int64_t d = ndim - 2; d >= 0 && ++at[d] == args->shape[d]; d--) at[d] = 0;
    }
}
