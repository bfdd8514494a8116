/* cast.c: y[i] = (to)x[i] among f32 f64 f16 i64 i32 i8 u8 bool, as numpy does: floats to integers
 * are cut towards zero, integers to narrower ones wrap, anything to bool is x != 0 (NaN is true). A
 * float that its integer type cannot hold, or NaN, gives the lowest int32 or int64 on every CPU
 * (8-bit targets go by way of int64, so 300.0 to u8 is 44). y may be x where both are of one size.
 */
#include <string.h>

#include "elementwise.h"
#include "loops.h"

typedef struct f16 {
    uint16_t bits;
} f16;

static inline float widen(f16 h) {
    const uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, magnitude = h.bits & 0x7fff;
    uint32_t bits;
    float x;
    if (magnitude < 0x0400) { /* zero and subnormals: a multiple of 2^-24 */
        x = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &x, 4);
    } else {
        bits = (magnitude << 13) + (magnitude < 0x7c00 ? UINT32_C(112) << 23 : UINT32_C(224) << 23);
    }
    bits |= sign;
    memcpy(&x, &bits, 4);
    return x;
}

/* Rounds to nearest even. */
static inline f16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    uint32_t h;
    if (bits > 0x7f800000) {
        h = 0x7e00 | (bits >> 13 & 0x03ff); /* NaN keeps the top of its payload */
    } else if (bits >= 0x477ff000) {
        h = 0x7c00; /* from 65520 on: infinity */
    } else if (bits < 0x38800000) {
        float magnitude; /* below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits */
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&h, &magnitude, 4);
        h -= 0x3f000000;
    } else {
        h = (bits - (UINT32_C(112) << 23) + 0x0fff + (bits >> 13 & 1)) >> 13;
    }
    return (f16){(uint16_t)(sign | h)};
}

/* A double halfway between two halves after rounding to float would round twice: force the float to
 * odd when it is inexact, which keeps it on its side. */
static inline f16 narrow_f64(double x) {
    float y = (float)x;
    if ((double)y != x && y - y == 0) {
        uint32_t bits;
        memcpy(&bits, &y, 4);
        if ((bits & 1) == 0)
            bits += (y < 0 ? -(double)y : (double)y) < (x < 0 ? -x : x) ? 1 : UINT32_MAX;
        memcpy(&y, &bits, 4);
    }
    return narrow(y);
}

static inline int64_t to_i64(double x) {
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}
static inline int32_t to_i32(double x) {
    return x > -2147483649.0 && x < 0x1p31 ? (int32_t)x : INT32_MIN;
}

/* FROM: source type; READ(x): its value as a C number; I64, I32, F16: how that number becomes one.
 */
#define REAL(x) (x)
#define FROM float
#define CAST cast_f32
#define READ REAL
#define I64 to_i64
#define I32 to_i32
#define HALF narrow
#include "cast_typed.h"
#define FROM double
#define CAST cast_f64
#define READ REAL
#define I64 to_i64
#define I32 to_i32
#define HALF narrow_f64
#include "cast_typed.h"
#define FROM f16
#define CAST cast_f16
#define READ widen
#define I64 to_i64
#define I32 to_i32
#define HALF narrow
#include "cast_typed.h"

#define WRAP32(x) ((int32_t)(x))
#define FROM int64_t
#define CAST cast_i64
#define READ REAL
#define I64 REAL
#define I32 WRAP32
#define HALF(x) narrow_f64((double)(x))
#include "cast_typed.h"
#define FROM int32_t
#define CAST cast_i32
#define READ REAL
#define I64 REAL
#define I32 REAL
#define HALF(x) narrow_f64((double)(x))
#include "cast_typed.h"
#define FROM int8_t
#define CAST cast_i8
#define READ REAL
#define I64 REAL
#define I32 REAL
#define HALF(x) narrow((float)(x))
#include "cast_typed.h"
#define FROM uint8_t
#define CAST cast_u8
#define READ REAL
#define I64 REAL
#define I32 REAL
#define HALF(x) narrow((float)(x))
#include "cast_typed.h"

void q7_cast_loop(int64_t from, int64_t to, int64_t n, const void *x, void *y) {
    if (from == to) {
        if (x != y) memcpy(y, x, (size_t)(n * q7_dtype_bytes(to)));
        return;
    }
    switch (from) {
        case Q7_F32: cast_f32(x, y, n, to); break;
        case Q7_F64: cast_f64(x, y, n, to); break;
        case Q7_F16: cast_f16(x, y, n, to); break;
        case Q7_I64: cast_i64(x, y, n, to); break;
        case Q7_I32: cast_i32(x, y, n, to); break;
        case Q7_I8: cast_i8(x, y, n, to); break;
        default: cast_u8(x, y, n, to); break; /* Q7_U8, Q7_BOOL: bytes 0 and 1 */
    }
}

static void cast_task(void *arg, int64_t task, int64_t thread) {
    const q7_cast_args *args = arg;
    (void)thread;
    const int64_t begin = task * Q7_GRAIN;
    q7_cast_loop(args->from, args->to, q7_min(args->n - begin, Q7_GRAIN),
                 (const char *)args->x + begin * q7_dtype_bytes(args->from),
                 (char *)args->y + begin * q7_dtype_bytes(args->to));
}

void q7_op_cast(const q7_cast_args *args, const q7_call *call) {
    q7_parallel(call, q7_ceil_div(args->n, Q7_GRAIN), cast_task, (void *)args);
}
