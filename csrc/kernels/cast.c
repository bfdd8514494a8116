/* cast.c: the loops of cast.h, which compilers vectorise. Read cast.h first. */
#include "cast.h"

#include <string.h>

#include "../simd/simd.h"
#include "halves.h"

/* A double or a large integer that would be halfway between two halves once it is a float would
 * round twice: what is inexact is forced to be odd, which keeps it on its side. */
static inline float odd_f64(double x) {
    float y = (float)x;
    if ((double)y != x && y - y == 0) {
        uint32_t bits;
        memcpy(&bits, &y, 4);
        if ((bits & 1) == 0)
            bits += (y < 0 ? -(double)y : (double)y) < (x < 0 ? -x : x) ? 1 : UINT32_MAX;
        memcpy(&y, &bits, 4);
    }
    return y;
}
static inline float odd_i64(int64_t x) {
    if (x > -(INT64_C(1) << 53) && x < INT64_C(1) << 53) return odd_f64((double)x);
    return odd_f64((double)(x >> 11 | ((x & 0x7ff) != 0)) * 0x1p11);
}
static inline float odd_u64(uint64_t x) {
    if (x < UINT64_C(1) << 53) return odd_f64((double)x);
    return odd_f64((double)(x >> 11 | ((x & 0x7ff) != 0)) * 0x1p11);
}

/* Of floats the lowest integer is chosen before they are converted: loops of that are vectors. */
#ifdef Q7_ISA_avx2 /* has no vectors for it, and an instruction that gives the lowest by itself */
static inline int64_t to_i64(double x) { return _mm_cvttsd_si64(_mm_set_sd(x)); }
#else
static inline int64_t to_i64(double x) {
    return (int64_t)(x >= -0x1p63 && x < 0x1p63 ? x : -0x1p63);
}
#endif
static inline uint64_t to_u64(double x) {
    return x < 0x1p63 || x != x ? (uint64_t)to_i64(x) : x < 0x1p64 ? (uint64_t)x : 0;
}
static inline int32_t to_i32(double x) {
    return (int32_t)(x > -2147483649.0 && x < 0x1p31 ? x : -0x1p31);
}
static inline int32_t float_to_i32(float x) {
    return (int32_t)(x >= -0x1p31f && x < 0x1p31f ? x : -0x1p31f);
}

static void f16_to_floats(const f16 *x, float *y, int64_t n) {
    int64_t i = 0;
#ifdef Q7_HAS_STORE_F16
    for (; i + Q7_W <= n; i += Q7_W) q7_store(y + i, q7_load_f16(&x[i].bits));
#endif
    for (; i < n; i++) y[i] = of_f16(x[i]);
}

static void floats_to_f16(const float *x, f16 *y, int64_t n) {
    int64_t i = 0;
#ifdef Q7_HAS_STORE_F16
    for (; i + Q7_W <= n; i += Q7_W) q7_store_f16(&y[i].bits, q7_load(x + i));
#endif
    for (; i < n; i++) y[i] = f16_of(x[i]);
}

/* FROM: source type; NARROW: a number of it as a float from which halves are made; I64, U64, I32: how it
 * becomes one; TO_F16(x, y, n): how all become float16, or else by the loop of f16_of. */
#define REAL(x) (x)
#define FROM float
#define CAST cast_f32
#define NARROW REAL
#define I64 to_i64
#define U64 to_u64
#define I32 float_to_i32
#define TO_F16 floats_to_f16
#include "cast_typed.h"
#define FROM double
#define CAST cast_f64
#define NARROW odd_f64
#define I64 to_i64
#define U64 to_u64
#define I32 to_i32
#include "cast_typed.h"
/* Halves become floats first, some at a time. */
static void cast_halves(const void *from, bool is_f16, char *to, int64_t n, int64_t to_dtype) {
    enum { CHUNK = 512 };
    float some[CHUNK];
    const int64_t size = q7_dtype_bytes(to_dtype);
    for (int64_t i = 0; i < n; i += CHUNK, to += CHUNK * size) {
        const int64_t count = q7_min(n - i, CHUNK);
        float *floats = to_dtype == Q7_F32 ? (float *)(void *)to : some;
        if (is_f16)
            f16_to_floats((const f16 *)from + i, floats, count);
        else
            for (int64_t j = 0; j < count; j++) floats[j] = of_bf16(((const bf16 *)from)[i + j]);
        if (to_dtype != Q7_F32) cast_f32(some, to, count, to_dtype);
    }
}

#define WRAP32(x) ((int32_t)(x))
#define FROM int64_t
#define CAST cast_i64
#define NARROW odd_i64
#define I64 REAL
#define U64 REAL
#define I32 WRAP32
#include "cast_typed.h"
#define FROM uint64_t
#define CAST cast_u64
#define NARROW odd_u64
#define I64 REAL
#define U64 REAL
#define I32 WRAP32
#include "cast_typed.h"
#define FROM int32_t
#define CAST cast_i32
#define NARROW odd_f64
#define I64 REAL
#define U64 REAL
#define I32 REAL
#include "cast_typed.h"
#define FROM uint32_t
#define CAST cast_u32
#define NARROW odd_f64
#define I64 REAL
#define U64 REAL
#define I32 WRAP32
#include "cast_typed.h"
#define FROM int16_t
#define CAST cast_i16
#define NARROW (float)
#define I64 REAL
#define U64 REAL
#define I32 REAL
#include "cast_typed.h"
#define FROM uint16_t
#define CAST cast_u16
#define NARROW (float)
#define I64 REAL
#define U64 REAL
#define I32 REAL
#include "cast_typed.h"
#define FROM int8_t
#define CAST cast_i8
#define NARROW (float)
#define I64 REAL
#define U64 REAL
#define I32 REAL
#include "cast_typed.h"
#define FROM uint8_t
#define CAST cast_u8
#define NARROW (float)
#define I64 REAL
#define U64 REAL
#define I32 REAL
#include "cast_typed.h"

void Q7_KERNEL(cast_any)(int64_t from, int64_t to, int64_t n, const void *x, void *y) {
    if (from == to) {
        if (x != y) memcpy(y, x, (size_t)(n * q7_dtype_bytes(to)));
        return;
    }
    switch (from) {
        case Q7_F32: cast_f32(x, y, n, to); break;
        case Q7_F64: cast_f64(x, y, n, to); break;
        case Q7_F16: cast_halves(x, true, y, n, to); break;
        case Q7_BF16: cast_halves(x, false, y, n, to); break;
        case Q7_I64: cast_i64(x, y, n, to); break;
        case Q7_U64: cast_u64(x, y, n, to); break;
        case Q7_I32: cast_i32(x, y, n, to); break;
        case Q7_U32: cast_u32(x, y, n, to); break;
        case Q7_I16: cast_i16(x, y, n, to); break;
        case Q7_U16: cast_u16(x, y, n, to); break;
        case Q7_I8: cast_i8(x, y, n, to); break;
        default: cast_u8(x, y, n, to); break; /* Q7_U8, Q7_BOOL: bytes 0 and 1 */
    }
}
