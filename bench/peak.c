/* peak.c: what a thread can do, with vectors of VECTOR_BYTES: the yardsticks of bench/roofline.py. */
#include <stdint.h>

enum { CHAINS = 12 }; /* independent sums: enough to hide the latency of two fma units */
typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

/* n rounds of CHAINS fused multiply-adds; returns how many operations that was. */
double multiply_add(int64_t n, const float *seed, float *result) {
    vector sum[CHAINS], x = {0}, y = {0};
    for (int i = 0; i < CHAINS; i++) sum[i] = (vector){0} + seed[i];
    x += seed[0];
    y += seed[1];
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * x + y;
    for (int i = 0; i < CHAINS; i++) result[i] = sum[i][0];
    return 2.0 * (double)n * CHAINS * (double)(sizeof(vector) / sizeof(float));
}

/* Reads n floats, n a multiple of 16 vectors, `times` times over. */
float read_all(int64_t n, const float *p, int64_t times) {
    vector sum[16] = {{0}}; /* as many loads in flight as there are registers for, or half of them */
    const int64_t w = sizeof(vector) / sizeof(float);
    for (int64_t t = 0; t < times; t++)
        for (int64_t i = 0; i < n; i += 16 * w)
            for (int j = 0; j < 16; j++) sum[j] += *(const vector *)(const void *)(p + i + j * w);
    for (int j = 1; j < 16; j++) sum[0] += sum[j];
    return sum[0][0];
}
