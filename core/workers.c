/* Worker threads. Each slot has a share of the indices, neighbours of each other and the same in
 * every run of as many, so that what one op leaves in a core's caches the next one finds there; who
 * has done his own share goes on with the others'.
 *
 * A run is published by raising `generation` and closed when the caller finds no index left. A
 * worker joins only while the run is open, so the caller waits for those that joined, never for one
 * that has not woken yet. Nested runs (or a second thread's) find `busy` set and run inline. */
#include "core/core.h"

#include <stdatomic.h>

#define ALIGNMENT 64
/* Ops follow each other closely: waiting a little saves a sleep and a wake-up. */
#define SPIN_SECONDS    20e-6
#define PAUSES_PER_LOOK 32

typedef struct work {
    void (*task)(void *arg, int64_t index, int slot);
    void *arg;
    int64_t count;
} work;

/* Of a slot, in a cache line of its own. */
typedef struct share {
    _Alignas(ALIGNMENT) _Atomic(int64_t) next; /* first index not yet taken */
    int64_t end;
} share;

typedef struct worker {
    mn_workers *workers;
    pthread_t thread;
    int slot;
} worker;

struct mn_workers {
    mn_allocator allocator;
    size_t bytes;
    int threads, started;
    mn_parallel_for parallel;
    void *parallel_user;
    atomic_bool busy;
    atomic_uint generation;    /* written under the lock, polled without */
    atomic_int active;         /* workers inside the open run; likewise */
    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t wake, idle; /* a new run or stop; active became 0 */
    work job;
    int sleeping;
    bool open, stop;
    worker *worker; /* threads - 1, none with `parallel` */
    share shares[]; /* one for each of the threads */
};

static void pause_briefly(void)
{
    for (int i = 0; i < PAUSES_PER_LOOK; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* First index of a slot's share. */
static int64_t first_of(int64_t count, int threads, int slot)
{
    return count / threads * slot + count % threads * slot / threads;
}

static void share_out(mn_workers *workers, int64_t count)
{
    for (int i = 0; i < workers->threads; i++) {
        share *s = &workers->shares[i];
        atomic_store_explicit(&s->next, first_of(count, workers->threads, i), memory_order_relaxed);
        s->end = first_of(count, workers->threads, i + 1);
    }
}

/* Takes indices until none is left, its own first. */
static void pull(mn_workers *workers, const work *job, int slot)
{
    unsigned mode = mn_fp_enter();
    for (int i = 0; i < workers->threads; i++) {
        share *s = &workers->shares[(slot + i) % workers->threads];
        while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
            int64_t index = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
            if (index < s->end)
                job->task(job->arg, index, slot);
        }
    }
    mn_fp_restore(mode);
}

static void run_inline(const work *job)
{
    unsigned mode = mn_fp_enter();
    for (int64_t i = 0; i < job->count; i++)
        job->task(job->arg, i, 0);
    mn_fp_restore(mode);
}

/* ---- own threads ----------------------------------------------------------------------------- */

static void spin_for_generation(mn_workers *workers, unsigned seen)
{
    double end = mn_clock_seconds() + SPIN_SECONDS;
    while (atomic_load(&workers->generation) == seen && mn_clock_seconds() < end)
        pause_briefly();
}

/* Waits for a run that is not `*seen` and joins it if it is still open; false: stop. */
static bool await_run(mn_workers *workers, unsigned *seen, work *job, bool *joined)
{
    spin_for_generation(workers, *seen);
    pthread_mutex_lock(&workers->lock);
    while (atomic_load(&workers->generation) == *seen && !workers->stop) {
        workers->sleeping++;
        pthread_cond_wait(&workers->wake, &workers->lock);
        workers->sleeping--;
    }
    bool stop = workers->stop;
    *seen = atomic_load(&workers->generation);
    *joined = !stop && workers->open;
    if (*joined) {
        *job = workers->job;
        atomic_fetch_add(&workers->active, 1);
    }
    pthread_mutex_unlock(&workers->lock);
    return !stop;
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    mn_workers *workers = self->workers;
    unsigned seen = 0;
    bool joined;
    work job;
    while (await_run(workers, &seen, &job, &joined)) {
        if (!joined)
            continue;
        pull(workers, &job, self->slot);
        pthread_mutex_lock(&workers->lock);
        if (atomic_fetch_sub(&workers->active, 1) == 1)
            pthread_cond_signal(&workers->idle);
        pthread_mutex_unlock(&workers->lock);
    }
    return NULL;
}

static void publish(mn_workers *workers, const work *job)
{
    pthread_mutex_lock(&workers->lock);
    workers->job = *job;
    workers->open = true;
    share_out(workers, job->count);
    atomic_fetch_add(&workers->generation, 1);
    for (int i = 0; i < workers->sleeping && i < job->count - 1; i++)
        pthread_cond_signal(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
}

/* Lets no worker join any more and waits for those that have. */
static void finish(mn_workers *workers)
{
    pthread_mutex_lock(&workers->lock);
    workers->open = false;
    pthread_mutex_unlock(&workers->lock);
    double end = mn_clock_seconds() + SPIN_SECONDS;
    while (atomic_load(&workers->active) != 0 && mn_clock_seconds() < end)
        pause_briefly();
    pthread_mutex_lock(&workers->lock);
    while (atomic_load(&workers->active) != 0)
        pthread_cond_wait(&workers->idle, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
}

/* ---- the embedder's threads ------------------------------------------------------------------ */

static void pull_slot(void *arg, int64_t slot)
{
    mn_workers *workers = arg;
    pull(workers, &workers->job, (int)slot);
}

static void run_parallel(mn_workers *workers, const work *job)
{
    workers->job = *job;
    share_out(workers, job->count);
    int64_t slots = job->count < workers->threads ? job->count : workers->threads;
    workers->parallel(workers->parallel_user, slots, pull_slot, workers);
}

void mn_workers_run(mn_workers *workers, int64_t count,
                    void (*task)(void *arg, int64_t index, int slot), void *arg)
{
    work job = {task, arg, count};
    if (count <= 1 || workers->threads == 1 || atomic_exchange(&workers->busy, true)) {
        run_inline(&job);
        return;
    }
    if (workers->parallel) {
        run_parallel(workers, &job);
    } else {
        publish(workers, &job);
        pull(workers, &job, 0);
        finish(workers);
    }
    atomic_store(&workers->busy, false);
}

/* ---- creation -------------------------------------------------------------------------------- */

static int start_threads(mn_workers *workers)
{
    int code = 0;
    while (code == 0 && workers->started < workers->threads - 1) {
        worker *w = &workers->worker[workers->started];
        w->workers = workers;
        w->slot = workers->started + 1;
        code = mn_thread_start(&w->thread, worker_main, w);
        workers->started += code == 0;
    }
    return code;
}

mn_workers *mn_workers_create(const mn_allocator *allocator, int threads, mn_parallel_for parallel,
                              void *parallel_user, mn_error *error)
{
    if (threads < 1) {
        mn_error_set(error, MN_ERR_ARGUMENT, "%d threads: at least 1 is needed", threads);
        return NULL;
    }
    mn_allocator host = mn_allocator_or_default(allocator);
    size_t own = parallel ? 0 : (size_t)threads - 1, shares, bytes;
    bool fits = mn_size_mul((size_t)threads, sizeof(share), &shares) &&
                mn_size_add(shares, sizeof(mn_workers), &shares) &&
                mn_size_mul(own, sizeof(worker), &bytes) && mn_size_add(bytes, shares, &bytes);
    mn_workers *workers = fits ? host.alloc(host.user, bytes, ALIGNMENT) : NULL;
    if (!workers) {
        mn_error_set(error, MN_ERR_MEMORY, "no memory for %d worker threads", threads);
        return NULL;
    }
    *workers = (mn_workers){
        .allocator = host,
        .bytes = bytes,
        .threads = threads,
        .worker = (worker *)(void *)((char *)workers + shares),
        .parallel = parallel,
        .parallel_user = parallel_user,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .wake = PTHREAD_COND_INITIALIZER,
        .idle = PTHREAD_COND_INITIALIZER,
    };
    int code = parallel ? 0 : start_threads(workers);
    if (code != 0) {
        mn_error_set(error, MN_ERR_MEMORY, "cannot start thread %d of %d (error %d); ask for fewer",
                     workers->started + 2, threads, code);
        mn_workers_free(workers);
        return NULL;
    }
    return workers;
}

void mn_workers_free(mn_workers *workers)
{
    if (!workers)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->stop = true;
    atomic_fetch_add(&workers->generation, 1);
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
    for (int i = 0; i < workers->started; i++)
        pthread_join(workers->worker[i].thread, NULL);
    pthread_cond_destroy(&workers->idle);
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->lock);
    mn_allocator allocator = workers->allocator;
    allocator.free(allocator.user, workers, workers->bytes);
}
