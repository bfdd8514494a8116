/* plan.c: makes a plan of its bytes, whose layout is in q7.h.
 *
 * It is validated once, whole: no offset or index in it can lead outside of it afterwards. Read q7.h
 * and plan.h first. */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bands.h"

static const int64_t args_bytes[Q7_OP_COUNT] = {
#define OP(name, meaning, OPERANDS, ARGS) (int64_t)sizeof(q7_##name##_args),
#include "ops.def"
#undef OP
};
static const char *const families[Q7_OP_COUNT] = {
#define CALLS(op, family) [Q7_OP_##op] = #family,
#include "kernels.def"
#undef CALLS
};

/* Whether a pointer in the args of an op, so many bytes from their front, is to ROOMS. */
static bool is_rooms(int64_t op, int64_t at) {
#define IN(x)
#define OPT(x)
#define OUT(x)
#define OPTOUT(x)
#define SCRATCH(x)
#define ROOMS(x) || at == (int64_t)offsetof(T, x)
#define OP(name, meaning, OPERANDS, ARGS) \
    case Q7_OP_##name: {                  \
        typedef q7_##name##_args T;       \
        return sizeof(T) == 0 OPERANDS;   \
    }
    switch (op) {
#include "ops.def"
        default: return false;
    }
#undef OP
}

q7_status q7_fail(q7_error *error, q7_status code, int64_t index, const char *format, ...) {
    if (error) {
        error->code = code;
        error->index = index;
        error->value = error->limit = 0;
        va_list args;
        va_start(args, format);
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
    }
    return code;
}

static bool is_index(int64_t i, int64_t count) { return i >= 0 && i < count; }

static const char *check_exprs(const q7_plan *p) {
    for (int64_t i = 0; i < p->n_exprs; i++) {
        const expr_row *e = &p->exprs[i];
        if (!is_index(e->op, Q7_EXPR_BROADCAST + 1)) return "unknown expression";
        if (e->op == Q7_EXPR_CONST) continue;
        if (!is_index(e->a, p->n_symbols + i) || !is_index(e->b, p->n_symbols + i))
            return "expression out of order";
    }
    return NULL;
}

static const char *check_tables(const q7_plan *p) {
    const int64_t n_values = p->n_symbols + p->n_exprs;
    for (int64_t i = 0; i < p->n_guards; i++)
        if (!is_index(p->guards[i].value, n_values) || !is_index(p->guards[i].limit, n_values) ||
            !is_index(p->guards[i].kind, Q7_GUARD_GE + 1))
            return "guard out of range";
    for (int64_t i = 0; i < p->n_buffers; i++)
        if (!is_index(p->buffers[i].size, n_values) || !is_index(p->buffers[i].first, p->n_steps) ||
            !is_index(p->buffers[i].last, p->n_steps) || p->buffers[i].first > p->buffers[i].last)
            return "buffer out of range";
    for (int64_t i = 0; i < p->n_value_patches; i++)
        if (p->value_patches[i].at % 8 || !is_index(p->value_patches[i].at, p->image_bytes - 7) ||
            !is_index(p->value_patches[i].value, n_values))
            return "value patch out of range";
    const int64_t limits[] = {p->n_buffers, p->n_constants, p->n_inputs, p->n_outputs};
    for (int64_t i = 0; i < p->n_pointer_patches; i++) {
        const pointer_row *r = &p->pointers[i];
        if (r->at % 8 || !is_index(r->at, p->image_bytes - 7) ||
            !is_index(r->space, Q7_SPACE_OUTPUT + 1) || !is_index(r->index, limits[r->space]) ||
            !is_index(r->offset, n_values))
            return "pointer patch out of range";
    }
    return NULL;
}

static const char *check_steps(const q7_plan *p) {
    for (int64_t i = 0; i < p->n_steps; i++) {
        const step_row *s = &p->steps[i];
        if (!is_index(s->op, Q7_OP_COUNT)) return "unknown op";
        if (s->kernel != -1 && !is_index(s->kernel, Q7_KERNEL_COUNT)) return "unknown kernel";
        const char *family = s->kernel < 0 ? NULL : q7_kernels[s->kernel].family;
        const char *called = families[s->op];
        if (!family != !called || (called && strcmp(family, called) != 0))
            return "a kernel of another family than CALLS in kernels.def names for the op";
        if (s->args % 8 || s->args < 0 || s->args > p->image_bytes - args_bytes[s->op])
            return "args out of range";
    }
    return NULL;
}

const pointer_row *q7_pointer_of(const q7_plan *p, int64_t step, int64_t word) {
    const int64_t at = p->steps[step].args + 8 * word;
    for (int64_t i = 0; i < p->n_pointer_patches; i++)
        if (p->pointers[i].at == at) return &p->pointers[i];
    return NULL;
}

int64_t q7_uses_of(const q7_plan *p, int64_t step, int64_t buffer) {
    const int64_t first = p->steps[step].args;
    const int64_t end = step + 1 < p->n_steps ? p->steps[step + 1].args : p->image_bytes;
    int64_t count = 0;
    for (int64_t i = 0; i < p->n_pointer_patches; i++) {
        const pointer_row *r = &p->pointers[i];
        count += r->at >= first && r->at < end && r->space == Q7_SPACE_ARENA && r->index == buffer;
    }
    return count;
}

static void find_rooms(q7_plan *p) {
    for (int64_t i = 0; i < p->n_pointer_patches; i++) {
        const pointer_row *r = &p->pointers[i];
        if (r->space != Q7_SPACE_ARENA) continue;
        const buffer_row *buffer = &p->buffers[r->index];
        const step_row *step = &p->steps[buffer->first];
        p->rooms[r->index] |=
            buffer->first == buffer->last && is_rooms(step->op, r->at - step->args);
    }
}

/* Points the sections into p->words; false where the header's counts do not add up to `bytes`. */
static bool lay_out(q7_plan *p, int64_t bytes) {
    const int64_t *h = p->words;
    p->n_symbols = h[Q7_PLAN_SYMBOLS];
    p->n_exprs = h[Q7_PLAN_EXPRS];
    p->n_guards = h[Q7_PLAN_GUARDS];
    p->n_buffers = h[Q7_PLAN_BUFFERS];
    p->n_steps = h[Q7_PLAN_STEPS];
    p->n_value_patches = h[Q7_PLAN_VALUE_PATCHES];
    p->n_pointer_patches = h[Q7_PLAN_POINTER_PATCHES];
    p->image_bytes = h[Q7_PLAN_IMAGE_BYTES];
    p->n_inputs = h[Q7_PLAN_INPUTS];
    p->n_outputs = h[Q7_PLAN_OUTPUTS];
    for (int i = Q7_PLAN_SYMBOLS; i < Q7_PLAN_HEADER; i++)
        if (h[i] < 0 || h[i] > bytes) return false; /* so that the sums below cannot overflow */
    const int64_t words = Q7_PLAN_HEADER +
                          3 * (p->n_exprs + p->n_guards + p->n_buffers + p->n_steps) +
                          2 * p->n_value_patches + 4 * p->n_pointer_patches;
    if (p->n_symbols < 1 || words * 8 + p->image_bytes != bytes) return false;
    const int64_t *at = h + Q7_PLAN_HEADER;
    p->exprs = (const expr_row *)at, at += 3 * p->n_exprs;
    p->guards = (const guard_row *)at, at += 3 * p->n_guards;
    p->buffers = (const buffer_row *)at, at += 3 * p->n_buffers;
    p->steps = (const step_row *)at, at += 3 * p->n_steps;
    p->value_patches = (const value_row *)at, at += 2 * p->n_value_patches;
    p->pointers = (const pointer_row *)at, at += 4 * p->n_pointer_patches;
    p->image = (const unsigned char *)at;
    return true;
}

static q7_status check(const q7_plan *p, q7_error *error) {
    const char *problem = check_exprs(p);
    if (!problem) problem = check_tables(p);
    if (!problem) problem = check_steps(p);
    if (problem) return q7_fail(error, Q7_BAD_ARG, -1, "corrupt plan: %s", problem);
    for (int64_t i = 0; i < p->n_steps; i++) {
        const int64_t kernel = p->steps[i].kernel;
        if (kernel < 0) continue;
        const q7_kernel_row *row = &q7_kernels[kernel];
        if (!row->kernel || !q7_isa_present(row->isa))
            return q7_fail(error, Q7_UNSUPPORTED, i, "kernel %s_%s_%s is not available here",
                           row->family, row->dtypes, q7_isa_name(row->isa));
    }
    return Q7_OK;
}

q7_status q7_plan_create(const void *blob, int64_t blob_bytes, const void *const *constants,
                         int64_t n_constants, q7_plan **plan, q7_error *error) {
    *plan = NULL;
    if (blob_bytes < Q7_PLAN_HEADER * 8 || blob_bytes % 8 || n_constants < 0)
        return q7_fail(error, Q7_BAD_ARG, -1, "corrupt plan: %lld bytes", (long long)blob_bytes);
    q7_plan *p = calloc(1, sizeof *p);
    if (p) {
        p->words = malloc((size_t)blob_bytes);
        p->constants = malloc((size_t)(n_constants + 1) * sizeof *p->constants);
    }
    if (!p || !p->words || !p->constants) {
        q7_plan_destroy(p);
        return q7_fail(error, Q7_NO_MEMORY, -1, "no memory for a plan of %lld bytes",
                       (long long)blob_bytes);
    }
    memcpy(p->words, blob, (size_t)blob_bytes);
    p->n_constants = n_constants;
    for (int64_t i = 0; i < n_constants; i++) p->constants[i] = constants[i];
    q7_status status = Q7_OK;
    if (p->words[Q7_PLAN_MAGIC_WORD] != Q7_PLAN_MAGIC || p->words[Q7_PLAN_ABI] != Q7_ABI_VERSION)
        status = q7_fail(error, Q7_BAD_ARG, -1, "not a plan of ABI version %d", Q7_ABI_VERSION);
    else if (!lay_out(p, blob_bytes))
        status = q7_fail(error, Q7_BAD_ARG, -1, "corrupt plan: sections do not fill its %lld bytes",
                         (long long)blob_bytes);
    else
        status = check(p, error);
    if (status == Q7_OK) {
        p->links = malloc((size_t)(p->n_steps + 1) * sizeof *p->links);
        p->rooms = calloc((size_t)p->n_buffers + 1, sizeof *p->rooms);
        if (!p->links || !p->rooms)
            status = q7_fail(error, Q7_NO_MEMORY, -1, "no memory for a plan of %lld steps",
                             (long long)p->n_steps);
    }
    if (status == Q7_OK) {
        q7_bands_link(p, p->links);
        find_rooms(p);
    }
    if (status != Q7_OK)
        q7_plan_destroy(p);
    else
        *plan = p;
    return status;
}

void q7_plan_destroy(q7_plan *plan) {
    if (!plan) return;
    free(plan->links);
    free(plan->rooms);
    free(plan->words);
    free(plan->constants);
    free(plan);
}
