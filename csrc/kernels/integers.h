/* integers.h: arithmetic of 64-bit integers that C leaves undefined or ONNX has differently. Results
 * wrap. x / 0, and the rests of it, are 0. Shifts by a negative count or by 64 and more leave what
 * the sign extends to: -1 on the right of a negative number, else 0. */
#ifndef Q7_KERNELS_INTEGERS_H
#define Q7_KERNELS_INTEGERS_H
#include <stdint.h>

static inline int64_t div_i(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y; /* INT64_MIN / -1 wraps */
}
static inline uint64_t div_u(uint64_t x, uint64_t y) { return y ? x / y : 0; }

/* The rest of the division towards zero: it has the sign of x. */
static inline int64_t fmod_i(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
static inline uint64_t fmod_u(uint64_t x, uint64_t y) { return y ? x % y : 0; }

/* The rest of the floored division: it has the sign of y. */
static inline int64_t mod_i(int64_t x, int64_t y) {
    const int64_t r = fmod_i(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* The same of 32 bits, without branches and by way of doubles, which hold enough of the quotient. */
static inline int32_t div_i32(int32_t x, int32_t y) {
    const int32_t by = y == 0 || y == -1 ? 1 : y; /* INT32_MIN / -1 is no int32 */
    const int32_t quotient = (int32_t)((double)x / (double)by);
    return y == 0 ? 0 : y == -1 ? (int32_t)(0 - (uint32_t)x) : quotient;
}
static inline int32_t fmod_i32(int32_t x, int32_t y) {
    return y == 0 ? 0 : (int32_t)((uint32_t)x - (uint32_t)div_i32(x, y) * (uint32_t)y);
}
static inline int32_t mod_i32(int32_t x, int32_t y) {
    const int32_t r = fmod_i32(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static inline uint64_t pow_u(uint64_t x, uint64_t y) {
    uint64_t result = 1;
    for (uint64_t base = x; y; y >>= 1, base *= base)
        if (y & 1) result *= base;
    return result;
}
/* A negative exponent gives the truncated power: 0 but for bases 1 and -1. */
static inline int64_t pow_i(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
    return (int64_t)pow_u((uint64_t)x, (uint64_t)y);
}

static inline uint64_t shl_u(uint64_t x, uint64_t y) { return y > 63 ? 0 : x << y; }
static inline uint64_t shr_u(uint64_t x, uint64_t y) { return y > 63 ? 0 : x >> y; }
static inline int64_t shl_i(int64_t x, int64_t y) {
    return (int64_t)shl_u((uint64_t)x, (uint64_t)y);
}
static inline int64_t shr_i(int64_t x, int64_t y) { return x >> (y < 0 || y > 63 ? 63 : y); }

#define Q7_INT(f, x, y) _Generic((x), int64_t : f##_i, uint64_t : f##_u)(x, y)
#define mod_u fmod_u
#endif
