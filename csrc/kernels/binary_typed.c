/* binary_typed.c: binary.h in f64, integers and bool. */
#include <math.h>

#include "binary.h"
#include "integers.h"
#include "move.h"
#include "typed.h"

enum { BLOCK = 512 }; /* elements for which a repeated one is written out */

/* NaN if either side is. */
static inline double float_min(double x, double y) { return x < y || x != x ? x : y; }
static inline double float_max(double x, double y) { return x > y || x != x ? x : y; }

/* y[i] = the rest of a[i] / b[i] towards zero, or of the floored division, of which a rest of 0 has the sign of
 * b too. As the quotient is whole the rest is exact, once it is above zero where the quotient was rounded up.
 * What is left to C's fmod, which takes a step for each few bits of the quotient: larger ones, and what is not
 * finite. */
static void rests_f64(bool is_floored, int64_t n, const double *a, const double *b, double *y) {
    enum { SOME = 64 };
    double rest[SOME];
    for (int64_t first = 0; first < n; first += SOME, a += SOME, b += SOME, y += SOME) {
        const int64_t count = q7_min(SOME, n - first);
        int64_t is_left = 0;
        for (int64_t i = 0; i < count; i++) {
            const double x = fabs(a[i]), by = fabs(b[i]), quotient = floor(x / by);
            const double r = fma(-quotient, by, x), up = r < 0 ? r + by : r;
            is_left |= !(quotient < 0x1p52) | !(up >= 0);
            rest[i] = copysign(up, a[i]);
        }
        for (int64_t i = 0; i < count && is_left; i++) rest[i] = fmod(a[i], b[i]);
        for (int64_t i = 0; i < count && is_floored; i++) {
            const double r = rest[i], z = b[i], above = (r < 0) != (z < 0) ? r + z : r;
            rest[i] = r == 0 ? copysign(0, z) : above;
        }
        memcpy(y, rest, (size_t)count * sizeof *y);
    }
}

/* y[i] = e for every i, with X and Z the operands there. */
#define EACH(R, e) \
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (e)
#define X a[i]
#define Z b[i]
static void binary_f64(int64_t op, int64_t n, const void *pa, const void *pb, bool is_repeated,
                       void *y) {
    const double *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: EACH(double, X + Z); break;
        case Q7_binary_sub: EACH(double, X - Z); break;
        /* clang-format off */ /* it takes X for a type */
        case Q7_binary_mul: EACH(double, X * Z); break;
        /* clang-format on */
        case Q7_binary_div: EACH(double, X / Z); break;
        case Q7_binary_pow: {
            const double whole = is_repeated ? *b : 0; /* squares and cubes are most */
            /* clang-format off */
            if (whole == 2) EACH(double, X * X);
            else if (whole == 3) EACH(double, X * X * X);
            else EACH(double, pow(X, Z));
            /* clang-format on */
            break;
        }
        case Q7_binary_mod: rests_f64(true, n, a, b, y); break;
        case Q7_binary_fmod: rests_f64(false, n, a, b, y); break;
        case Q7_binary_prelu: EACH(double, X < 0 ? X * Z : X); break;
        case Q7_binary_min: EACH(double, float_min(X, Z)); break;
        case Q7_binary_max: EACH(double, float_max(X, Z)); break;
        case Q7_binary_equal: EACH(uint8_t, X == Z); break;
        case Q7_binary_less: EACH(uint8_t, X < Z); break;
        case Q7_binary_less_equal: EACH(uint8_t, X <= Z); break;
        case Q7_binary_greater: EACH(uint8_t, X > Z); break;
        default: EACH(uint8_t, X >= Z); break; /* greater_equal: no bits of floats */
    }
}
#undef EACH
#undef X
#undef Z

#define LOOPS "binary_int.h"
#include "each_int.h"

/* is_repeated: whether b is. */
static void run(int64_t dtype, int64_t op, int64_t n, const void *a, const void *b,
                bool is_repeated, void *y) {
    switch (dtype) {
        case Q7_F64: binary_f64(op, n, a, b, is_repeated, y); break;
        case Q7_I64: binary_i64(op, n, a, b, y); break;
        case Q7_I32: binary_i32(op, n, a, b, y); break;
        case Q7_I16: binary_i16(op, n, a, b, y); break;
        case Q7_I8: binary_i8(op, n, a, b, y); break;
        case Q7_U64: binary_u64(op, n, a, b, y); break;
        case Q7_U32: binary_u32(op, n, a, b, y); break;
        case Q7_U16: binary_u16(op, n, a, b, y); break;
        default: binary_u8(op, n, a, b, y); break; /* Q7_U8, Q7_BOOL */
    }
}

void Q7_KERNEL(binary_typed)(int64_t dtype, int64_t op, int64_t n, const void *a, int64_t a_stride,
                             const void *b, int64_t b_stride, void *y) {
    if (n <= 0) return;
    if (a_stride && b_stride) {
        run(dtype, op, n, a, b, false, y);
        return;
    }
    const int64_t bytes = q7_dtype_bytes(dtype), most = q7_min(n, BLOCK);
    uint64_t a_room[BLOCK], b_room[BLOCK];
    if (!a_stride) q7_repeat((char *)a_room, a, most, bytes);
    if (!b_stride) q7_repeat((char *)b_room, b, most, bytes);
    for (int64_t i = 0; i < n; i += BLOCK)
        run(dtype, op, q7_min(BLOCK, n - i),
            a_stride ? (const char *)a + i * bytes : (char *)a_room,
            b_stride ? (const char *)b + i * bytes : (char *)b_room, !b_stride,
            (char *)y + i * q7_binary_bytes(op, dtype));
}
