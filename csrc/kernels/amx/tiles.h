/* tiles.h: the configuration of AMX tiles: 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b. */
#ifndef Q7_TILES_H
#define Q7_TILES_H
#include "../../simd/simd.h"

/* What LDTILECFG reads. */
typedef struct q7_tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} q7_tiles;

/* Sums and rows of a in tiles of `rows` rows, the second ones (2, 3 and 5) of `more`, which is what
 * products take: b in whole tiles, of 16. */
static inline void q7_tiles_configure(int64_t rows, int64_t more) {
    q7_tiles config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = (uint8_t)(i > 5 ? 16 : i == 2 || i == 3 || i == 5 ? more : rows);
    }
    __asm__ volatile("" ::"m"(config)); /* gcc's intrinsic is said to read 8 bytes */
    _tile_loadconfig(&config);
}

/* The compiler does not know what tile instructions read and write. */
#define BARRIER() __asm__ volatile("" ::: "memory")
#endif
