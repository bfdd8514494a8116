/* exec.c: the plan executor: a context of a plan, bind, run.
 *
 * A plan is valid (plan.c). Bind evaluates sizes and patches the args; run is a loop over steps. Read
 * q7.h and plan.h first. */
#define _GNU_SOURCE /* madvise under -std=c11 */
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "arena.h"
#include "bands.h"
#include "over.h"
#include "plan.h"

struct q7_context {
    const q7_plan *plan;
    int64_t threads;
    bool bound; /* whether values and image are those of the symbols in values[1..] */
    int64_t *values;
    unsigned char *image;
    q7_call *calls;
    q7_interval *intervals; /* one per buffer, and that of rooms */
    q7_band_step *bands;    /* one per step */
    q7_band_thread *band_threads;
    int64_t *order; /* scratch of placement */
    int64_t *over;  /* see over.h */
    unsigned char *arena;
    int64_t arena_bytes, reserved_bytes, allocations;
    int64_t *step_ns;
    struct q7_run_state state;
};

typedef void (*driver)(const void *args, const q7_call *call);
#define OP(name, meaning, OPERANDS, ARGS) \
    static void drive_##name(const void *args, const q7_call *call) { q7_op_##name(args, call); }
#include "ops.def"
#undef OP
static const driver drivers[Q7_OP_COUNT] = {
#define OP(name, meaning, OPERANDS, ARGS) drive_##name,
#include "ops.def"
#undef OP
};
void q7_drive(int64_t op, const void *args, const q7_call *call) { drivers[op](args, call); }

/* ---- create ---- */

q7_status q7_context_create(const q7_plan *plan, int64_t threads, q7_context **context,
                            q7_error *error) {
    *context = NULL;
    if (threads < 1) return q7_fail(error, Q7_BAD_ARG, -1, "%lld threads", (long long)threads);
    q7_context *c = calloc(1, sizeof *c);
    if (c) {
        c->plan = plan;
        c->threads = threads;
        c->values = calloc((size_t)(plan->n_symbols + plan->n_exprs), sizeof *c->values);
        c->image = malloc((size_t)plan->image_bytes + 1);
        c->calls = calloc((size_t)plan->n_steps + 1, sizeof *c->calls);
        c->intervals = calloc((size_t)plan->n_buffers + 1, sizeof *c->intervals);
        c->bands = calloc((size_t)plan->n_steps + 1, sizeof *c->bands);
        c->band_threads = calloc((size_t)threads, sizeof *c->band_threads);
        c->order = calloc((size_t)plan->n_buffers * 2 + 2, sizeof *c->order);
        c->over = calloc((size_t)plan->n_buffers + 1, sizeof *c->over);
    }
    if (!c || !c->values || !c->image || !c->calls || !c->intervals || !c->bands ||
        !c->band_threads || !c->order || !c->over) {
        q7_context_destroy(c);
        return q7_fail(error, Q7_NO_MEMORY, -1, "no memory for a context");
    }
    memcpy(c->image, plan->image, (size_t)plan->image_bytes);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        const q7_kernel_row *row =
            plan->steps[i].kernel < 0 ? NULL : &q7_kernels[plan->steps[i].kernel];
        c->calls[i] = (q7_call){
            row ? row->kernel : NULL, row ? row->mr : 0, row ? row->nr : 0, threads, 0, &c->state};
    }
    *context = c;
    return Q7_OK;
}

void q7_context_destroy(q7_context *context) {
    if (!context) return;
    free(context->values);
    free(context->image);
    free(context->calls);
    free(context->intervals);
    free(context->bands);
    free(context->band_threads);
    free(context->order);
    free(context->over);
    free(context->arena);
    free(context);
}

/* ---- bind ---- */

/* false on overflow or division by zero */
static bool evaluate(const expr_row *e, const int64_t *values, int64_t *result) {
    if (e->op == Q7_EXPR_CONST) {
        *result = e->a;
        return true;
    }
    const int64_t a = values[e->a], b = values[e->b];
    switch (e->op) {
        case Q7_EXPR_ADD: return !__builtin_add_overflow(a, b, result);
        case Q7_EXPR_SUB: return !__builtin_sub_overflow(a, b, result);
        case Q7_EXPR_MUL: return !__builtin_mul_overflow(a, b, result);
        case Q7_EXPR_MIN: *result = q7_min(a, b); return true;
        case Q7_EXPR_MAX: *result = q7_max(a, b); return true;
        case Q7_EXPR_BROADCAST: *result = a == 1 ? b : b == 1 || a == b ? a : -1; return true;
        default: break;
    }
    if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
    const int64_t quotient = a / b, rest = a % b; /* FLOORDIV; C divides towards zero */
    const bool below = rest != 0 && (rest < 0) != (b < 0);
    *result = quotient - below;
    return true;
}

static q7_status compute_values(q7_context *c, q7_error *error) {
    const q7_plan *p = c->plan;
    for (int64_t i = 0; i < p->n_exprs; i++)
        if (!evaluate(&p->exprs[i], c->values, &c->values[p->n_symbols + i]))
            return q7_fail(error, Q7_BAD_ARG, -1,
                           "sizes overflow, or divide by zero, for these shapes");
    for (int64_t i = 0; i < p->n_guards; i++) {
        const guard_row *g = &p->guards[i];
        const int64_t value = c->values[g->value], limit = c->values[g->limit];
        if (g->kind == Q7_GUARD_EQ ? value == limit : value >= limit) continue;
        q7_fail(error, Q7_BAD_ARG, i, "shapes do not fit");
        if (error) error->value = value, error->limit = limit;
        return Q7_BAD_ARG;
    }
    return Q7_OK;
}

/* Images of some MB are walked in the order of pixels, not of pages: ResNet-50 takes 0.94 of the time
 * where the system has huge pages for them. Those that the arena fills, so that it is no larger. */
static void ask_for_huge_pages(char *arena, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const size_t huge = (size_t)1 << 21, first = (huge - (uintptr_t)arena % huge) % huge;
    if (bytes < first + huge) return;
    (void)madvise(arena + first, (bytes - first) / huge * huge, MADV_HUGEPAGE);
#else
    (void)arena, (void)bytes;
#endif
}

/* Room for `needed` bytes. An arena that grows once may grow with every run (a KV cache): a quarter
 * on top makes that rare, and costs no memory before it is touched. */
static bool reserve(q7_context *c, int64_t needed) {
    if (needed <= c->reserved_bytes) return true;
    const size_t bytes = (size_t)needed + (c->reserved_bytes ? (size_t)needed / 4 : 0);
    free(c->arena); /* first, so that both are never held at once */
    c->arena = NULL;
    c->reserved_bytes = 0;
    void *arena = NULL;
    if (posix_memalign(&arena, Q7_ARENA_ALIGN, bytes)) return false;
    ask_for_huge_pages(arena, bytes);
    c->arena = arena;
    c->reserved_bytes = (int64_t)bytes;
    c->allocations++;
    return true;
}

/* Where the rooms of steps are, behind the images of bands in the room of the first of several threads: all
 * at one place, as memory that another core has written last takes 100 ns to be written again
 * (docs/decisions.md 149). Returns their bytes in each. Those of one step are next to one another among
 * the buffers. */
static int64_t place_rooms(q7_context *c, int64_t offset) {
    const q7_plan *p = c->plan;
    int64_t most = 0, used = 0, step = -1;
    for (int64_t i = 0; i < p->n_buffers; i++) {
        if (!p->rooms[i]) continue;
        if (p->buffers[i].first != step) used = 0;
        step = p->buffers[i].first;
        c->intervals[i].offset = offset + used;
        used += q7_arena_aligned(q7_ceil_div(c->values[p->buffers[i].size], c->threads));
        most = q7_max(most, used);
    }
    return most;
}

static q7_status place_buffers(q7_context *c, q7_error *error) {
    const q7_plan *p = c->plan;
    for (int64_t i = 0; i < p->n_buffers; i++) {
        const int64_t bytes = c->values[p->buffers[i].size];
        if (bytes < 0 || bytes > INT64_MAX / 4)
            return q7_fail(error, Q7_BAD_ARG, -1, "a buffer of %lld bytes for these shapes",
                           (long long)bytes);
        c->intervals[i] = (q7_interval){bytes, p->buffers[i].first, p->buffers[i].last, 0};
    }
    q7_interval *rooms = &c->intervals[p->n_buffers];
    *rooms = (q7_interval){0, p->n_steps, -1, 0};
    q7_bands_find(p, c->image, c->threads, c->bands);
    const int64_t images = q7_bands_adjust(p, c->bands, c->intervals, rooms);
    q7_over_find(p, c->values, c->image, c->bands, c->intervals, c->over);
    int64_t room_bytes = images;
    if (c->threads > 1) {
        room_bytes += place_rooms(c, 0);
        *rooms = (q7_interval){0, 0, p->n_steps - 1, 0};
        for (int64_t i = 0; i < p->n_buffers; i++)
            if (p->rooms[i]) c->intervals[i].bytes = 0; /* of its own */
    }
    if (__builtin_mul_overflow(c->threads, room_bytes, &rooms->bytes)) rooms->bytes = INT64_MAX / 4;
    const int64_t needed = q7_arena_place(c->intervals, p->n_buffers + 1, c->order);
    if (needed < 0) return q7_fail(error, Q7_BAD_ARG, -1, "the arena overflows for these shapes");
    if (c->threads > 1) (void)place_rooms(c, rooms->offset + images);
    for (int64_t i = 0; i < p->n_buffers; i++)
        c->intervals[i].offset = c->intervals[c->over[i]].offset;
    for (int64_t i = 0; i < p->n_steps; i++) c->calls[i].room_bytes = room_bytes;
    if (!reserve(c, needed))
        return q7_fail(error, Q7_NO_MEMORY, -1, "no memory for an arena of %lld bytes",
                       (long long)needed);
    c->arena_bytes = needed;
    return Q7_OK;
}

/* In unsigned arithmetic: offsets of operands without elements may lead anywhere. */
static void put_pointer(unsigned char *image, const pointer_row *r, const void *base,
                        int64_t offset) {
    const uintptr_t address = base ? (uintptr_t)base + (uintptr_t)offset : 0;
    memcpy(image + r->at, &address, sizeof address);
}

static void patch_values(q7_context *c) {
    const q7_plan *p = c->plan;
    for (int64_t i = 0; i < p->n_value_patches; i++)
        memcpy(c->image + p->value_patches[i].at, &c->values[p->value_patches[i].value], 8);
}

static void patch_pointers(q7_context *c) {
    const q7_plan *p = c->plan;
    for (int64_t i = 0; i < p->n_pointer_patches; i++) {
        const pointer_row *r = &p->pointers[i];
        if (r->space == Q7_SPACE_ARENA)
            put_pointer(c->image, r, c->arena ? c->arena + c->intervals[r->index].offset : NULL,
                        c->values[r->offset]);
        else if (r->space == Q7_SPACE_CONSTANT)
            put_pointer(c->image, r, p->constants[r->index], c->values[r->offset]);
    }
}

static bool same_symbols(const q7_context *c, const int64_t *symbols) {
    for (int64_t i = 1; i < c->plan->n_symbols; i++)
        if (c->values[i] != symbols[i - 1]) return false;
    return true;
}

q7_status q7_bind(q7_context *context, const int64_t *symbols, int64_t *values, q7_error *error) {
    q7_context *c = context;
    const q7_plan *p = c->plan;
    if (!c->bound || !same_symbols(c, symbols)) {
        c->bound = false;
        c->values[0] = c->threads;
        for (int64_t i = 1; i < p->n_symbols; i++) c->values[i] = symbols[i - 1];
        q7_status status = compute_values(c, error);
        if (status != Q7_OK) return status;
        patch_values(c);
        status = place_buffers(c, error);
        if (status != Q7_OK) return status;
        patch_pointers(c);
        c->bound = true;
    }
    memcpy(values, c->values, (size_t)(p->n_symbols + p->n_exprs) * sizeof *values);
    return Q7_OK;
}

/* ---- run ---- */

void q7_fault(const q7_call *call, const char *what, int64_t value, int64_t low, int64_t limit) {
    struct q7_run_state *s = call->run;
    int none = 0;
    if (!atomic_compare_exchange_strong(&s->faulted, &none, 1)) return;
    s->what = what;
    s->value = value;
    s->low = low;
    s->limit = limit;
    atomic_store(&s->faulted, 2);
}

static void patch_feeds(q7_context *c, const void *const *inputs, void *const *outputs) {
    const q7_plan *p = c->plan;
    for (int64_t i = 0; i < p->n_pointer_patches; i++) {
        const pointer_row *r = &p->pointers[i];
        if (r->space == Q7_SPACE_INPUT)
            put_pointer(c->image, r, inputs[r->index], c->values[r->offset]);
        else if (r->space == Q7_SPACE_OUTPUT)
            put_pointer(c->image, r, outputs[r->index], c->values[r->offset]);
    }
}

/* Runs a step, or the bands that begin with it. Under Q7_DEBUG, whether it kept to its buffers. */
static bool run_step(q7_context *c, int64_t i) {
    const step_row *step = &c->plan->steps[i];
#ifdef Q7_DEBUG
    const int64_t n = c->plan->n_buffers + 1;
    q7_arena_poison(c->arena, c->arena_bytes, c->intervals, n, i);
#endif
    if (c->bands[i].last >= 0)
        q7_bands_run(c->plan, c->image, c->calls, c->bands, i,
                     c->arena + c->intervals[c->plan->n_buffers].offset, c->band_threads,
                     c->step_ns);
    else
        drivers[step->op](c->image + step->args, &c->calls[i]);
#ifdef Q7_DEBUG
    return q7_arena_damage(c->arena, c->arena_bytes, c->intervals, n, i) < 0;
#else
    return true;
#endif
}

static q7_status run_error(q7_context *c, int64_t step, q7_error *error) {
    q7_fail(error, Q7_DATA_FAULT, step, "%s", c->state.what);
    if (error) {
        error->value = c->state.value;
        error->low = c->state.low;
        error->limit = c->state.limit;
    }
    return Q7_DATA_FAULT;
}

static q7_status run_steps(const q7_job *job) {
    q7_context *c = job->context;
    q7_error *error = job->error;
    if (!c->bound) return q7_fail(error, Q7_BAD_ARG, -1, "run before bind");
    if (job->first < 0 || job->last > c->plan->n_steps)
        return q7_fail(error, Q7_BAD_ARG, -1, "steps %lld to %lld of %lld", (long long)job->first,
                       (long long)job->last, (long long)c->plan->n_steps);
    patch_feeds(c, job->inputs, job->outputs);
    atomic_store(&c->state.faulted, 0);
    int64_t before = c->step_ns ? q7_now_ns() : 0;
    for (int64_t i = job->first; i < job->last; i++) {
        if (c->bands[i].last == Q7_BANDS_INSIDE) continue;
        if (!run_step(c, i))
            return q7_fail(error, Q7_INTERNAL, i, "wrote to the arena outside of its operands");
        if (atomic_load_explicit(&c->state.faulted, memory_order_acquire))
            return run_error(c, i, error);
        if (!c->step_ns) continue;
        const int64_t after = q7_now_ns();
        c->step_ns[i] += after - before;
        before = after;
    }
    return Q7_OK;
}

q7_status q7_run(const q7_job *job) {
    q7_pool_enter();
    const q7_status status = run_steps(job);
    q7_pool_leave();
    return status;
}

void q7_profile(q7_context *context, int64_t *step_ns) { context->step_ns = step_ns; }

int64_t q7_stat(const q7_context *context, int32_t what, int64_t index) {
    const q7_context *c = context;
    switch (what) {
        case Q7_STAT_ARENA: return (int64_t)(intptr_t)c->arena;
        case Q7_STAT_ARENA_BYTES: return c->arena_bytes;
        case Q7_STAT_RESERVED_BYTES: return c->reserved_bytes;
        case Q7_STAT_ALLOCATIONS: return c->allocations;
        default: break;
    }
    if (index < 0 || index >= c->plan->n_buffers) return -1;
    if (what == Q7_STAT_BUFFER_OFFSET) return c->intervals[index].offset;
    const bool shared = c->plan->rooms[index] && c->threads > 1; /* with other steps */
    return c->intervals[shared ? c->plan->n_buffers : c->over[index]].bytes;
}
