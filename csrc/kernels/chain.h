/* chain.h: the loops that a chain runs: those of unary.h, binary.h, cast.h, reduce.h and quantize.h of the
 * same instruction set and nothing else, so that a chain has the bits of its ops run one by one. */
#ifndef Q7_KERNELS_CHAIN_H
#define Q7_KERNELS_CHAIN_H
#include "binary.h"
#include "cast.h"
#include "quantize.h"
#include "reduce.h"
#include "unary.h"

typedef struct q7_chain_loops {
    q7_unary_kernel unary;
    q7_binary_kernel binary;
    q7_binary_pair_kernel pair;
    q7_cast_kernel cast;
    q7_reduce_kernel reduce;
    q7_quantize_kernel quantize;
    q7_dequantize_kernel dequantize;
} q7_chain_loops;

typedef const q7_chain_loops *(*q7_chain_kernel)(void);
#endif
