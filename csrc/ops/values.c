/* values.c: y[i] = values[i], integers that are known when shapes are bound, as a tensor of dtype.
 */
#include "loops.h"

void q7_op_values(const q7_values_args *args, const q7_call *call) {
    (void)call;
    for (int64_t i = 0; i < args->n; i++) {
        const int64_t value = args->values[i];
        switch (args->dtype) {
            case Q7_F32: ((float *)args->y)[i] = (float)value; break;
            case Q7_F64: ((double *)args->y)[i] = (double)value; break;
            case Q7_I32: ((int32_t *)args->y)[i] = (int32_t)value; break;
            case Q7_BOOL: ((uint8_t *)args->y)[i] = value != 0; break;
            case Q7_U8:
            case Q7_I8: ((uint8_t *)args->y)[i] = (uint8_t)value; break;
            default: ((int64_t *)args->y)[i] = value; break;
        }
    }
}
