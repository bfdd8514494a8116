/* qgemm.h: a tile of c = finish((a - zero) @ b) in integers, a and b widened to 16 bits.
 *
 * Sums are exact while k * 255 * 255 < 2^31, and wrap beyond. finish by c_dtype: int32 nothing;
 * float sums * scale + bias; uint8 and int8 that rounded to even, plus zero, saturated.
 *
 * Pairs: elements 2 p and 2 p + 1 of k lie together, the last odd one beside a 0.
 *
 *     a  (m, pairs) int32, a pair in each       b  panels of nr columns: (pairs, nr, 2) int16
 *
 * int16 pairs multiply and add in one instruction on all our ISAs, twice as many a cycle as float;
 * unlike the 8-bit forms, signs mix and nothing saturates in between. */
#ifndef Q7_QGEMM_H
#define Q7_QGEMM_H
#include <stdint.h>

typedef struct q7_qgemm_tile {
    int64_t m, n, pairs; /* m in [1, mr], n in [1, nr] */
    const int32_t *a;    /* (m, pairs) */
    const int16_t *b;    /* (pairs, nr, 2) */
    const float *scale;  /* (n,), or one number if scale_step is 0; unless c is int32 */
    int64_t scale_step;
    const float *bias; /* (n,) or NULL */
    int32_t zero;
    int64_t c_dtype; /* Q7_I32, Q7_F32, Q7_U8 or Q7_I8 */
    void *c;         /* (m, n) */
    int64_t c_stride;
} q7_qgemm_tile;

typedef void (*q7_qgemm_kernel)(const q7_qgemm_tile *tile);
#endif
