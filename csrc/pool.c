/* pool.c: one thread pool per process.
 *
 * A region (one q7_parallel) gives each thread an even run of the tasks, the same one whenever the
 * region is run, so that it finds in its own cache what it left there: rows of the step before,
 * panels of the run before. Who has done his own takes what is left of the others'. Workers join a
 * region if they are awake in time; the caller works too, closes the region when no task is left,
 * and waits only for workers that are inside it, so that a worker whose core is busy elsewhere
 * delays nobody before it has taken a task, and afterwards gets the caller's core: the caller soon
 * sleeps instead of spinning. Where a worker keeps the caller waiting for much longer than tasks
 * take, its core is busy elsewhere, and regions run inline for a while. Idle workers spin for a
 * bounded time, then sleep. One region at a time: a second caller runs its tasks inline. A forked
 * child starts with an empty pool. Read runtime.h first. */
#define _GNU_SOURCE /* pthread_sigmask under -std=c11 */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "runtime.h"

/* A spin is a pause of 10-50 ns: workers spin for about 100 us before they sleep, callers 10 us. */
enum { MAX_WORKERS = 255, WORKER_SPINS = 4000, CALLER_SPINS = 400 };

/* A wait of STOLEN_NS beyond four times the caller's own time per task is a stolen core. The pool
 * is left alone for BACK_OFF / threads times the wait: with two threads probing costs at most a
 * fifth then; the more there are, the more a run without them costs. BERT-base of 16 tokens on 16
 * shared cores: 10 ms where it was 4 times the wait for any number, 6 ms so. */
enum { STOLEN_NS = 100000, BACK_OFF = 8 };

/* state: number of the region, its threads, and CLOSED, from high to low bits */
#define CLOSED UINT64_C(1)
#define THREADS UINT64_C(2)
#define REGION UINT64_C(0x400)

/* What one thread writes and others read: a cache line of its own. Thread 0 is the caller. */
typedef struct {
    _Alignas(64) atomic_int_least64_t next; /* of the tasks that are its own in this region */
    int64_t end;
    atomic_uint_least64_t inside; /* the state that it has joined, or 0 */
} seat;

static struct {
    pthread_mutex_t owner; /* held by the caller whose region it is */
    pthread_mutex_t sleep;
    pthread_cond_t wake, done;
    atomic_int sleepers, owner_sleeps;
    int64_t workers;
    int64_t inline_until_ns; /* the owner's: no regions before */
    _Alignas(64) atomic_uint_least64_t state;
    q7_task fn;
    void *arg;
    seat seats[MAX_WORKERS + 1];
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .state = CLOSED};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int64_t q7_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t threads_of(uint64_t state) { return (int64_t)(state % REGION / THREADS); }

/* Does this thread's tasks, then those that others have left. Returns how many. */
static int64_t work(int64_t thread, int64_t threads) {
    int64_t done = 0;
    for (int64_t i = 0; i < threads; i++) {
        seat *s = &pool.seats[thread + i < threads ? thread + i : thread + i - threads];
        while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
            const int64_t task = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
            if (task >= s->end) break;
            pool.fn(pool.arg, task, thread);
            done++;
        }
    }
    return done;
}

/* The state once it shows another region than `seen`. */
static uint64_t await_region(uint64_t seen) {
    for (int i = 0; i < WORKER_SPINS; i++) {
        const uint64_t state = atomic_load(&pool.state);
        if (state / REGION != seen) return state;
        pause_cpu();
    }
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.state) / REGION == seen) pthread_cond_wait(&pool.wake, &pool.sleep);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
    return atomic_load(&pool.state);
}

static void leave_region(seat *mine) {
    atomic_store(&mine->inside, 0);
    if (!atomic_load(&pool.owner_sleeps)) return;
    pthread_mutex_lock(&pool.sleep);
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.sleep);
}

/* Joining is a store, then a look at the state; closing a store to the state, then a look at the
 * seats: one of the two sees the other. */
static void *worker(void *number) {
    const int64_t thread = (int64_t)(intptr_t)number;
    seat *mine = &pool.seats[thread];
    uint64_t seen = 0;
    for (;;) {
        const uint64_t state = await_region(seen);
        seen = state / REGION;
        if (state & CLOSED || thread >= threads_of(state)) continue;
        atomic_store(&mine->inside, state);
        if (atomic_load(&pool.state) == state) (void)work(thread, threads_of(state));
        leave_region(mine);
    }
    return NULL;
}

static void reset_after_fork(void) {
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.workers = 0;
    pool.inline_until_ns = 0;
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.owner_sleeps, 0);
    atomic_store(&pool.state, CLOSED);
    for (int i = 0; i <= MAX_WORKERS; i++) atomic_store(&pool.seats[i].inside, 0);
}

static void register_fork_handler(void) { pthread_atfork(NULL, NULL, reset_after_fork); }

/* Workers leave signals to the threads of the program. Fewer workers than wanted is no error. */
static void grow(int64_t workers) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < q7_min(workers, MAX_WORKERS)) {
        pthread_t thread;
        void *number = (void *)(intptr_t)(pool.workers + 1);
        if (pthread_create(&thread, NULL, worker, number)) break;
        pthread_detach(thread);
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Returns the state of the open region. */
static uint64_t open_region(int64_t tasks, int64_t threads, q7_task fn, void *arg) {
    pool.fn = fn;
    pool.arg = arg;
    for (int64_t i = 0; i < threads; i++) {
        atomic_store_explicit(&pool.seats[i].next, tasks * i / threads, memory_order_relaxed);
        pool.seats[i].end = tasks * (i + 1) / threads;
    }
    const uint64_t region = atomic_load(&pool.state) / REGION + 1;
    const uint64_t state = region * REGION + (uint64_t)threads * THREADS;
    atomic_store(&pool.state, state);
    if (atomic_load(&pool.sleepers) == 0) return state;
    pthread_mutex_lock(&pool.sleep);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.sleep);
    return state;
}

/* The first thread from `from` on that is inside, or the number of threads. */
static int64_t busy(uint64_t state, int64_t from) {
    while (from < threads_of(state) && atomic_load(&pool.seats[from].inside) != state) from++;
    return from;
}

static void close_region(uint64_t state) {
    const int64_t threads = threads_of(state);
    atomic_store(&pool.state, state | CLOSED);
    int64_t thread = busy(state, 1);
    for (int i = 0; i < CALLER_SPINS && thread < threads; i++) {
        pause_cpu();
        thread = busy(state, thread);
    }
    if (thread == threads) return;
    pthread_mutex_lock(&pool.sleep);
    atomic_store(&pool.owner_sleeps, 1);
    while ((thread = busy(state, thread)) < threads) pthread_cond_wait(&pool.done, &pool.sleep);
    atomic_store(&pool.owner_sleeps, 0);
    pthread_mutex_unlock(&pool.sleep);
}

static void run_inline(int64_t tasks, q7_task fn, void *arg) {
    for (int64_t task = 0; task < tasks; task++) fn(arg, task, 0);
}

static void run_region(int64_t tasks, int64_t threads, q7_task fn, void *arg) {
    const int64_t start = q7_now_ns();
    if (start < pool.inline_until_ns) {
        run_inline(tasks, fn, arg);
        return;
    }
    if (pool.workers < threads - 1) grow(threads - 1);
    threads = q7_min(threads, pool.workers + 1);
    const uint64_t state = open_region(tasks, threads, fn, arg);
    const int64_t done = work(0, threads), end = q7_now_ns();
    close_region(state);
    const int64_t closed = q7_now_ns(), wait = closed - end;
    if (wait > STOLEN_NS + 4 * (end - start) / q7_max(done, 1))
        pool.inline_until_ns = closed + BACK_OFF * wait / threads;
}

void q7_parallel(const q7_call *call, int64_t tasks, q7_task fn, void *arg) {
    const int64_t threads = q7_min(call->threads, tasks);
    if (threads < 2 || pthread_mutex_trylock(&pool.owner)) {
        run_inline(tasks, fn, arg);
        return;
    }
    run_region(tasks, threads, fn, arg);
    pthread_mutex_unlock(&pool.owner);
}
