/* pool.c: one thread pool per process.
 *
 * A region (one q7_parallel) gives each thread an even run of the tasks, the same one whenever the
 * region is run, so that it finds in its own cache what it left there: rows of the step before,
 * panels of the run before. Who has done his own takes half of what another has left, from the end,
 * so that both go on with tasks that lie side by side. Workers join a region if they are awake in
 * time; the caller works too, closes the region when no task is left, and waits only for workers
 * that are inside it, so that a worker whose core is busy elsewhere delays nobody before it has
 * taken a task, and afterwards gets the caller's core (cores.h): the caller sleeps, then or after a
 * while of spinning, as idle workers do. Where a worker keeps the caller waiting for longer than the
 * region would have taken without it, regions run inline for a while.
 *
 * A run takes a crew with its first region and keeps it to its end; workers are dealt out to the
 * crews of all runs under way like cards, and work for no other, so that n runs at once have an nth
 * of them each, whatever the length of their tasks. A run that finds no crew or no worker left works
 * alone. A forked child starts with an empty pool. Read runtime.h first. */
#define _GNU_SOURCE /* pthread_sigmask under -std=c11 */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "cores.h"
#include "runtime.h"

/* Idle workers, and callers that wait, spin for so long before they sleep, and look at the clock after so
 * many pauses of 10 to 50 ns. From one run to the next are 20 to 50 us where a model has left nothing of
 * the interpreter in L2, and to be woken takes a worker 45 us more. After 10 us for callers, MiniLM of
 * 16 tokens took 10 % more with two threads. */
enum { MAX_WORKERS = 255, SPIN_NS = 100000, PAUSES = 64 };

enum { EARLY_NS = 20000 }; /* before a caller that waits looks whether the worker runs */

/* A region that took longer than its caller alone would have needed, and STOLEN_NS of waiting, had
 * a worker whose core is busy elsewhere. Regions run inline then for BACK_OFF / threads times the
 * wait: with two threads probing costs at most a fifth; the more there are, the more a run without
 * them costs. BERT-base of 16 tokens on 16 shared cores: 10 ms where it was 4 times the wait for
 * any number, 6 ms so. */
enum { STOLEN_NS = 100000, BACK_OFF = 8 };

/* Where tasks may be done some at a time, a thread does 1 / SHARE of what its run has left: less and less,
 * so that others find something to take when they are done, and it is held up (docs/decisions.md 211). */
enum { SHARE = 4 };

enum { CREWS = 16 }; /* runs at once that can have workers */

/* The state of a crew names its last region: its number, which no other region has, its threads
 * (the caller is thread 0), how the workers were dealt out then (the first is worker `first`, then
 * every `stride`th), and CLOSED. */
#define CLOSED UINT64_C(1)
#define THREADS UINT64_C(2)
#define STRIDE UINT64_C(0x400)
#define FIRST UINT64_C(0x8000)
#define REGION UINT64_C(0x100000)

/* The tasks [next, end) that are a thread's own, in one word. */
typedef uint64_t tasks_left;
static inline tasks_left run_of(int64_t next, int64_t end) {
    return (uint64_t)end << 32 | (uint64_t)next;
}
static inline int64_t next_of(tasks_left t) { return (int64_t)(t & UINT32_MAX); }
static inline int64_t end_of(tasks_left t) { return (int64_t)(t >> 32); }

/* What one thread writes and others read: a cache line of its own. */
typedef struct {
    _Alignas(64) atomic_uint_least64_t tasks;
} seat;

typedef struct {
    _Alignas(64) atomic_uint_least64_t state;
    q7_range_task fn;
    void *arg;
    int64_t least, most;     /* tasks of a call of fn */
    int64_t inline_until_ns; /* the caller's: no regions before */
    atomic_uint_least64_t caller_sleeps;
    pthread_cond_t done;
    seat seats[MAX_WORKERS + 1];
} crew;

static struct {
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    atomic_int sleepers;
    q7_worker all[MAX_WORKERS];
    atomic_int caller; /* the core of who woke workers last, or -1 */
    atomic_int_least64_t workers;
    atomic_int_least64_t cores;                 /* 0: not told */
    _Alignas(64) atomic_uint_least64_t regions; /* so far */
    _Alignas(64) atomic_uint_least64_t taken;   /* a bit for each crew */
    struct {
        _Alignas(64)
            atomic_uint_least64_t state; /* of the region that this worker has joined, or 0 */
    } inside[MAX_WORKERS];
    crew crews[CREWS];
} pool = {.sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* Of the run on this thread. */
static _Thread_local struct {
    int64_t depth;
    crew *crew;
} run;

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* For two threads that each store, then look at what the other stores: one of them must see the other. An
 * exchange (on x86 as good as a store), as emulators let a look pass a mere store: under qemu 7.2, AArch64
 * on x86, callers slept for good. */
static inline void store_and_look(atomic_uint_least64_t *to, uint64_t value) {
    (void)atomic_exchange(to, value);
}

/* Whether there is time for a pause, the i-th, and the pause; end_ns is set by the first look. */
static inline bool spins(int64_t i, int64_t *end_ns) {
    pause_cpu();
    if (i % PAUSES) return true;
    const int64_t now = q7_now_ns();
    if (i == 0) *end_ns = now + SPIN_NS;
    return now < *end_ns;
}

int64_t q7_now_ns(void) { return q7_clock_ns(CLOCK_MONOTONIC); }

static inline int64_t threads_of(uint64_t state) { return (int64_t)(state % STRIDE / THREADS); }
static inline int64_t stride_of(uint64_t state) { return (int64_t)(state % FIRST / STRIDE); }
static inline int64_t first_of(uint64_t state) { return (int64_t)(state % REGION / FIRST); }
static inline int64_t bits(uint64_t mask) { return __builtin_popcountll(mask); }

static int64_t worker_of(uint64_t state, int64_t thread) {
    return first_of(state) + (thread - 1) * stride_of(state);
}

/* Which thread of the region this worker is, or 0. */
static int64_t thread_of(uint64_t state, int64_t worker) {
    const int64_t turn = worker - first_of(state);
    if (state & CLOSED || turn < 0 || turn % stride_of(state)) return 0;
    const int64_t thread = turn / stride_of(state) + 1;
    return thread < threads_of(state) ? thread : 0;
}

/* Does this thread's tasks. Returns how many. */
static int64_t work_own(crew *c, int64_t thread) {
    seat *s = &c->seats[thread];
    for (int64_t done = 0, n;; done += n) {
        tasks_left t = atomic_load_explicit(&s->tasks, memory_order_relaxed);
        do {
            const int64_t left = end_of(t) - next_of(t);
            if (left <= 0) return done;
            n = q7_min(q7_min(q7_max(q7_ceil_div(left, SHARE), c->least), c->most), left);
        } while (!atomic_compare_exchange_weak_explicit(
            &s->tasks, &t, t + (uint64_t)n, memory_order_relaxed, memory_order_relaxed));
        c->fn(c->arg, next_of(t), next_of(t) + n, thread);
    }
}

/* Makes half of what another has left this thread's own, if anything is. */
static bool take_half(crew *c, int64_t thread, int64_t other) {
    seat *s = &c->seats[other];
    tasks_left t = atomic_load_explicit(&s->tasks, memory_order_relaxed);
    int64_t middle;
    do {
        if (next_of(t) >= end_of(t)) return false;
        middle = next_of(t) + (end_of(t) - next_of(t)) / 2;
    } while (!atomic_compare_exchange_weak_explicit(&s->tasks, &t, run_of(next_of(t), middle),
                                                    memory_order_relaxed, memory_order_relaxed));
    atomic_store_explicit(&c->seats[thread].tasks, run_of(middle, end_of(t)), memory_order_relaxed);
    return true;
}

/* Does this thread's tasks, then those that others have left. Returns how many. */
static int64_t work(crew *c, int64_t thread, int64_t threads) {
    int64_t done = work_own(c, thread);
    for (int64_t i = 1; i < threads; i++) {
        const int64_t other = thread + i < threads ? thread + i : thread + i - threads;
        if (!take_half(c, thread, other)) continue;
        done += work_own(c, thread);
        i = 0; /* whom it has passed may have taken some since */
    }
    return done;
}

/* The crew that this worker belongs to while those of `taken` are. */
static crew *crew_of(int64_t worker, uint64_t taken) {
    for (int64_t turn = worker % bits(taken); turn > 0; turn--) taken &= taken - 1;
    return &pool.crews[__builtin_ctzll(taken)];
}

/* The crew whose open region waits for this worker, or NULL. seen: the last that it knows of. */
static crew *wanted(int64_t worker, uint64_t seen, uint64_t *state) {
    const uint64_t taken = atomic_load(&pool.taken);
    if (!taken) return NULL;
    crew *c = crew_of(worker, taken);
    *state = atomic_load(&c->state);
    return *state != seen && thread_of(*state, worker) ? c : NULL;
}

/* `patient`: spins before it sleeps. */
static crew *await_region(int64_t worker, uint64_t seen, bool patient, uint64_t *state) {
    crew *c;
    int64_t end_ns = 0;
    for (int64_t i = 0; i == 0 || (patient && spins(i - 1, &end_ns)); i++)
        if ((c = wanted(worker, seen, state))) return c;
    q7_worker *me = &pool.all[worker];
    q7_keep_off(me, atomic_load(&pool.caller));
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.sleepers, 1);
    me->sleeps = true;
    while (!(c = wanted(worker, seen, state))) pthread_cond_wait(&pool.wake, &pool.sleep);
    me->sleeps = false;
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
    q7_after_sleep(me);
    return c;
}

/* Returns whether the core is the caller's, which wants it. */
static bool leave_region(crew *c, int64_t worker) {
    store_and_look(&pool.inside[worker].state, 0);
    if (!atomic_load(&c->caller_sleeps)) return false;
    pthread_mutex_lock(&pool.sleep);
    const bool fetched = q7_let_go(&pool.all[worker]);
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&pool.sleep);
    return fetched;
}

/* Joining is a store, then a look at the state; closing a store to the state, then a look at who is
 * inside: one of the two sees the other. */
static void *work_forever(void *number) {
    const int64_t worker = (int64_t)(intptr_t)number;
    uint64_t state = 0;
    pool.all[worker].thread = pthread_self();
    q7_as_process();
    for (bool fetched = false;;) {
        crew *c = await_region(worker, state, !fetched, &state);
        store_and_look(&pool.inside[worker].state, state);
        if (atomic_load(&c->state) == state)
            (void)work(c, thread_of(state, worker), threads_of(state));
        fetched = leave_region(c, worker);
    }
    return NULL;
}

static void reset(void) {
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.wake, NULL);
    atomic_store(&pool.workers, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.taken, 0);
    atomic_store(&pool.caller, -1);
    for (int i = 0; i < MAX_WORKERS; i++) {
        atomic_store(&pool.inside[i].state, 0);
        pool.all[i] = (q7_worker){.without = -1};
    }
    for (int i = 0; i < CREWS; i++) {
        atomic_store(&pool.crews[i].state, CLOSED);
        atomic_store(&pool.crews[i].caller_sleeps, 0);
        pool.crews[i].inline_until_ns = 0;
        pthread_cond_init(&pool.crews[i].done, NULL);
    }
}

static void start(void) {
    reset();
    pthread_atfork(NULL, NULL, reset);
}

void q7_pool_cores(int64_t cores) { atomic_store(&pool.cores, cores); }

/* Workers leave signals to the threads of the program. Fewer workers than wanted is no error. */
static void grow(int64_t workers) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&pool.sleep);
    for (int64_t i = atomic_load(&pool.workers); i < q7_min(workers, MAX_WORKERS); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work_forever, (void *)(intptr_t)i)) break;
        pthread_detach(thread);
        atomic_store(&pool.workers, i + 1);
    }
    pthread_mutex_unlock(&pool.sleep);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A crew that nobody has, or NULL. */
static crew *take_crew(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    uint64_t taken = atomic_load(&pool.taken);
    for (;;) {
        const uint64_t free = ~taken & ((UINT64_C(1) << CREWS) - 1);
        if (!free) return NULL;
        if (atomic_compare_exchange_weak(&pool.taken, &taken, taken | (free & -free)))
            return &pool.crews[__builtin_ctzll(free)];
    }
}

void q7_pool_enter(void) { run.depth++; }

void q7_pool_leave(void) {
    if (--run.depth > 0 || !run.crew) return;
    atomic_fetch_and(&pool.taken, ~(UINT64_C(1) << (run.crew - pool.crews)));
    run.crew = NULL;
}

/* The state of a region of this crew with at most so many threads. A single run may have more than
 * there are cores, if it is told to. */
static uint64_t deal(const crew *c, int64_t threads) {
    const uint64_t taken = atomic_load(&pool.taken), bit = UINT64_C(1) << (c - pool.crews);
    const int64_t runs = bits(taken), first = bits(taken & (bit - 1));
    const int64_t others = q7_max(atomic_load(&pool.cores) - runs, 0);
    const int64_t wanted = runs == 1 ? threads - 1 : q7_min(runs * (threads - 1), others);
    if (atomic_load(&pool.workers) < wanted) grow(wanted);
    const int64_t workers = atomic_load(&pool.workers),
                  all = runs == 1 ? workers : q7_min(workers, others);
    threads = q7_min(threads, q7_ceil_div(q7_max(all - first, 0), runs) + 1);
    return (uint64_t)threads * THREADS + (uint64_t)runs * STRIDE + (uint64_t)first * FIRST;
}

/* Wakes workers of a region, and with them all who sleep, but not for those of others alone: a broadcast
 * that nobody needs takes five times as long as a region. */
static void wake(uint64_t state) {
    bool is_asleep = false;
    pthread_mutex_lock(&pool.sleep);
    const int core = q7_core();
    for (int64_t thread = 1; thread < threads_of(state); thread++) {
        q7_worker *who = &pool.all[worker_of(state, thread)];
        if (!who->sleeps) continue;
        is_asleep = true;
        q7_keep_off(who, core);
    }
    if (is_asleep) {
        atomic_store(&pool.caller, core);
        pthread_cond_broadcast(&pool.wake);
    }
    pthread_mutex_unlock(&pool.sleep);
}

static void open_region(crew *c, uint64_t state, int64_t tasks) {
    const int64_t threads = threads_of(state);
    for (int64_t i = 0; i < threads; i++) {
        atomic_store_explicit(&c->seats[i].tasks,
                              run_of(tasks * i / threads, tasks * (i + 1) / threads),
                              memory_order_relaxed);
    }
    store_and_look(&c->state, state);
    if (atomic_load(&pool.sleepers) > 0) wake(state);
}

/* Whether a thread is inside a region. */
static bool is_busy(uint64_t state, int64_t thread) {
    return atomic_load(&pool.inside[worker_of(state, thread)].state) == state;
}

/* Spins while it is, for some time. Returns whether it hardly ran after an early look, for which most waits
 * are too short. */
static bool is_held_up(uint64_t state, int64_t thread) {
    const q7_worker *who = &pool.all[worker_of(state, thread)];
    int64_t end_ns = 0, looked_ns = 0, ran_ns = -1;
    for (int64_t i = 0; spins(i, &end_ns); i++) {
        if (!is_busy(state, thread)) return false;
        if (i % PAUSES || looked_ns || q7_now_ns() < end_ns - SPIN_NS + EARLY_NS) continue;
        looked_ns = q7_now_ns();
        ran_ns = q7_ran_ns(who);
    }
    return ran_ns >= 0 && q7_ran_ns(who) - ran_ns < (q7_now_ns() - looked_ns) / 4;
}

static void close_region(crew *c, uint64_t state) {
    store_and_look(&c->state, state | CLOSED);
    for (int64_t thread = 1; thread < threads_of(state); thread++) {
        const bool held_up = is_busy(state, thread) && is_held_up(state, thread);
        if (!is_busy(state, thread)) continue;
        pthread_mutex_lock(&pool.sleep);
        store_and_look(&c->caller_sleeps, 1);
        /* Whoever is inside now takes the lock when he leaves. */
        if (held_up && is_busy(state, thread)) q7_fetch(&pool.all[worker_of(state, thread)]);
        while (is_busy(state, thread)) pthread_cond_wait(&c->done, &pool.sleep);
        atomic_store(&c->caller_sleeps, 0);
        pthread_mutex_unlock(&pool.sleep);
    }
}

static void run_inline(int64_t tasks, int64_t most, q7_range_task fn, void *arg) {
    for (int64_t next = 0, end; next < tasks; next = end) {
        end = q7_min(next + most, tasks);
        fn(arg, next, end, 0);
    }
}

void q7_parallel_ranges(const q7_call *call, int64_t tasks, int64_t least, int64_t most,
                        q7_range_task fn, void *arg) {
    const int64_t wanted = q7_min(call->threads, q7_ceil_div(tasks, least));
    if (wanted < 2 || tasks > UINT32_MAX || (!run.crew && !(run.crew = take_crew()))) {
        run_inline(tasks, most, fn, arg);
        return;
    }
    crew *c = run.crew;
    const int64_t start = q7_now_ns();
    uint64_t state = deal(c, wanted);
    const int64_t threads = threads_of(state);
    if (threads < 2 || start < c->inline_until_ns) {
        run_inline(tasks, most, fn, arg);
        return;
    }
    state += (atomic_fetch_add(&pool.regions, 1) + 1) * REGION;
    c->fn = fn;
    c->arg = arg;
    c->least = least;
    c->most = most;
    open_region(c, state, tasks);
    const int64_t done = work(c, 0, threads), end = q7_now_ns();
    close_region(c, state);
    const int64_t closed = q7_now_ns(), wait = closed - end;
    const int64_t alone = (end - start) / q7_max(done, 1) * tasks;
    if (wait > STOLEN_NS && closed - start > alone)
        c->inline_until_ns = closed + BACK_OFF * wait / threads;
}

typedef struct {
    q7_task fn;
    void *arg;
} each;

static void run_each(void *arg, int64_t begin, int64_t end, int64_t thread) {
    const each *x = arg;
    for (int64_t task = begin; task < end; task++) x->fn(x->arg, task, thread);
}

void q7_parallel(const q7_call *call, int64_t tasks, q7_task fn, void *arg) {
    q7_parallel_ranges(call, tasks, 1, 1, run_each, &(each){fn, arg});
}
