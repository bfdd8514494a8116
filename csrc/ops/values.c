/* values.c: y[i] = values[i], integers that are known when shapes are bound, as a tensor of integers or
 * bools. */
#include <string.h>

#include "loops.h"

void q7_op_values(const q7_values_args *args, const q7_call *call) {
    const int64_t bytes = q7_dtype_bytes(args->dtype); /* the low ones of a value */
    (void)call;
    for (int64_t i = 0; i < args->n; i++) {
        const int64_t value = args->values[i];
        if (args->dtype == Q7_BOOL)
            ((uint8_t *)args->y)[i] = value != 0;
        else
            memcpy((char *)args->y + i * bytes, &value, (size_t)bytes);
    }
}
