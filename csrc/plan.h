/* plan.h: a plan as plan.c makes it, and exec.c and bands.c read it; the layout of its sections is in
 * q7.h. */
#ifndef Q7_PLAN_H
#define Q7_PLAN_H
#include "runtime.h"

typedef struct {
    int64_t op, a, b;
} expr_row;
typedef struct {
    int64_t value, kind, limit;
} guard_row;
typedef struct {
    int64_t size, first, last;
} buffer_row;
typedef struct {
    int64_t op, kernel, args;
} step_row;
typedef struct {
    int64_t at, value;
} value_row;
typedef struct {
    int64_t at, space, index, offset;
} pointer_row;

struct q7_plan {
    int64_t n_symbols, n_exprs, n_guards, n_buffers, n_steps, n_value_patches, n_pointer_patches;
    int64_t image_bytes, n_inputs, n_outputs, n_constants;
    const expr_row *exprs;
    const guard_row *guards;
    const buffer_row *buffers;
    const step_row *steps;
    const value_row *value_patches;
    const pointer_row *pointers;
    const unsigned char *image;
    const void **constants;
    int64_t *links; /* of each step, see bands.h */
    bool *rooms;    /* of each buffer: whether it is ROOMS of one step */
    int64_t *words; /* owns the sections */
};

/* Writes an error, if one is wanted; its code. */
q7_status q7_fail(q7_error *error, q7_status code, int64_t index, const char *format, ...);

/* The row that patches a word of the args of a step, or NULL. */
const pointer_row *q7_pointer_of(const q7_plan *plan, int64_t step, int64_t word);

/* How many operands of a step are in a buffer. */
int64_t q7_uses_of(const q7_plan *plan, int64_t step, int64_t buffer);

/* Calls the driver of an op. */
void q7_drive(int64_t op, const void *args, const q7_call *call);
#endif
