/* peak.c: what a thread can do, with vectors of VECTOR_BYTES: the yardsticks of bench/roofline.py.
 * The rates are functions of one signature, by what they multiply: `n` rounds on any data, which
 * return how many operations that was. */
#define _GNU_SOURCE
#include <stdint.h>

enum { CHAINS = 12 }; /* independent sums: enough to hide the latency of two fma units */
typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

double rate_f32(int64_t n, const float *seed, float *result) {
    vector sum[CHAINS], x = {0}, y = {0};
    for (int i = 0; i < CHAINS; i++) sum[i] = (vector){0} + seed[i];
    x += seed[0];
    y += seed[1];
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * x + y;
    for (int i = 0; i < CHAINS; i++) result[i] = sum[i][0];
    return 2.0 * (double)n * CHAINS * (double)(sizeof(vector) / sizeof(float));
}

#if defined(__AVX2__)
#include <immintrin.h>

#if VECTOR_BYTES == 64
typedef __m512i integers;
#define MM(verb) _mm512_##verb
#define REGISTER "+v"
#else
typedef __m256i integers;
#define MM(verb) _mm256_##verb
#define REGISTER "+x"
#endif
#define set1(x) MM(set1_epi32)(x)
#if VECTOR_BYTES == 64 && defined(__AVX512VNNI__)
enum { BYTE_VECTORS = 1 };
static integers dot_i16(integers s, integers x, integers y) { return _mm512_dpwssd_epi32(s, x, y); }
static integers dot_i8(integers s, integers x, integers y) { return _mm512_dpbusd_epi32(s, x, y); }
#else
enum { BYTE_VECTORS = 2 }; /* whose products are added in int16 */
static integers dot_i16(integers s, integers x, integers y) {
    return MM(add_epi32)(s, MM(madd_epi16)(x, y));
}
static integers dot_i8(integers s, integers x, integers y) {
    const integers pairs = MM(add_epi16)(MM(maddubs_epi16)(x, y), MM(maddubs_epi16)(y, x));
    return dot_i16(s, pairs, MM(set1_epi16)(1));
}
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

typedef int32x4_t integers;
#define REGISTER "+w"
#define set1(x) vdupq_n_s32(x)
static integers dot_i16(integers s, integers x, integers y) {
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
    return vmlal_high_s16(vmlal_s16(s, vget_low_s16(a), vget_low_s16(b)), a, b);
}
#ifdef __ARM_FEATURE_MATMUL_INT8
enum { BYTE_VECTORS = 2 }; /* each byte of one vector meets two of the other */
#define DOT vmmlaq_s32
#else
enum { BYTE_VECTORS = 1 };
#define DOT vdotq_s32
#endif
static integers dot_i8(integers s, integers x, integers y) {
    return DOT(s, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
#endif

#ifdef REGISTER
/* One after the other, each anew: the compiler may not know that x is the same. */
#define RATE(name, dot, products)                                                                  \
    double name(int64_t n, const float *seed, float *result) {                                     \
        integers sum[CHAINS], x = set1((int)(100 * seed[0])), y = x;                               \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = set1(i);                \
        for (int64_t k = 0; k < n; k++) {                                                          \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) {                            \
                sum[i] = dot(sum[i], x, y);                                                        \
                __asm__ volatile("" : REGISTER(x), REGISTER(sum[i]));                              \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) result[i] = ((vector)sum[i])[0]; \
        return 2.0 * (double)n * CHAINS * (double)(products);                                      \
    }
RATE(rate_i16, dot_i16, sizeof(integers) / sizeof(int16_t))
RATE(rate_i8, dot_i8, BYTE_VECTORS * sizeof(integers))
#endif

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, TILE_ROWS = 16, TILE_BYTES = 64 };

/* Four sums of 16 x 16, two tiles of each operand. */
static int configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) tiles.bytes[i] = TILE_BYTES, tiles.rows[i] = TILE_ROWS;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) return 0;
    _tile_loadconfig(&tiles);
    return 1; /* and every tile is zero */
}

double rate_amx_i8(int64_t n, const float *seed, float *result) {
    (void)seed, (void)result;
    if (!configure()) return 0;
    for (int64_t k = 0; k < n; k++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return 2.0 * (double)n * 4 * TILE_ROWS * TILE_ROWS * TILE_BYTES;
}

double rate_amx_bf16(int64_t n, const float *seed, float *result) {
    (void)seed, (void)result;
    if (!configure()) return 0;
    for (int64_t k = 0; k < n; k++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)n * 4 * TILE_ROWS * TILE_ROWS * TILE_BYTES;
}
#endif

/* Reads n floats, n a multiple of 16 vectors, `times` times over, from two places side by side: one stream
 * keeps less of the memory busy. */
float read_all(int64_t n, const float *p, int64_t times) {
    vector sum[16] = {
        {0}}; /* as many loads in flight as there are registers for, or half of them */
    const int64_t w = sizeof(vector) / sizeof(float);
    for (int64_t t = 0; t < times; t++)
        for (int64_t i = 0; i < n / 2; i += 8 * w)
            for (int j = 0; j < 16; j++)
                sum[j] += *(const vector *)(const void *)(p + i + j / 2 * w + j % 2 * (n / 2));
    for (int j = 1; j < 16; j++) sum[0] += sum[j];
    return sum[0][0];
}

/* Reads n floats and writes as many, n a multiple of 4 vectors, `times` times over. */
void copy_all(int64_t n, const float *p, float *q, int64_t times) {
    const int64_t w = sizeof(vector) / sizeof(float);
    for (int64_t t = 0; t < times; t++) {
        for (int64_t i = 0; i < n; i += 4 * w)
            for (int j = 0; j < 4; j++)
                *(vector *)(void *)(q + i + j * w) = *(const vector *)(const void *)(p + i + j * w);
        __asm__ volatile("" : : : "memory"); /* or it would be copied once */
    }
}
