/* tests/test_workers.c: the worker pool, the floating-point mode, and what the processor offers. */
#include "core/cpu.h"
#include "minim.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define MAX_COUNT 1000
#define MAX_SLOTS 8

static mn_workers *create(int threads)
{
    mn_error error = {MN_OK, ""};
    mn_workers *workers = mn_workers_create(NULL, threads, NULL, NULL, &error);
    ck_assert_msg(workers != NULL, "%s", error.message);
    return workers;
}

/* ---- every index once, no slot twice at a time ----------------------------------------------- */

typedef struct record {
    int threads;
    int runs[MAX_COUNT]; /* plain: a thread sanitizer sees it if the end of a run does not order */
    atomic_int in_slot[MAX_SLOTS];
    atomic_int faults;
    int scratch[MAX_SLOTS]; /* plain as well: slots are exclusive */
} record;

static void count_index(void *arg, int64_t index, int slot)
{
    record *r = arg;
    if (slot < 0 || slot >= r->threads || index < 0 || index >= MAX_COUNT) {
        atomic_fetch_add(&r->faults, 1);
        return;
    }
    if (atomic_exchange(&r->in_slot[slot], 1))
        atomic_fetch_add(&r->faults, 1);
    r->runs[index]++;
    r->scratch[slot]++;
    atomic_store(&r->in_slot[slot], 0);
}

static void check_run(mn_workers *workers, int threads, int64_t count)
{
    static record r;
    memset(&r, 0, sizeof r);
    r.threads = threads;
    mn_workers_run(workers, count, count_index, &r);
    ck_assert_int_eq(atomic_load(&r.faults), 0);
    int64_t total = 0;
    for (int64_t i = 0; i < MAX_COUNT; i++)
        ck_assert_msg(r.runs[i] == (i < count), "count %d, threads %d: index %d ran %d times",
                      (int)count, threads, (int)i, r.runs[i]);
    for (int s = 0; s < threads; s++)
        total += r.scratch[s];
    ck_assert_int_eq(total, count > 0 ? count : 0);
}

START_TEST(every_index_once)
{
    const int64_t counts[] = {-1, 0, 1, 2, 3, 7, 8, 9, 64, MAX_COUNT};
    for (int threads = 1; threads <= MAX_SLOTS; threads++) {
        mn_workers *workers = create(threads);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            check_run(workers, threads, counts[i]);
        mn_workers_free(workers);
    }
}
END_TEST

static void add(void *arg, int64_t index, int slot)
{
    (void)slot;
    atomic_fetch_add((_Atomic(int64_t) *)arg, index + 1);
}

START_TEST(many_short_runs)
{
    mn_workers *workers = create(3);
    _Atomic(int64_t) sum = 0;
    int64_t want = 0;
    for (int run = 0; run < 20000; run++) {
        int64_t count = 2 + run % 5;
        mn_workers_run(workers, count, add, &sum);
        want += count * (count + 1) / 2;
        ck_assert_int_eq(atomic_load(&sum), want);
    }
    mn_workers_free(workers);
}
END_TEST

static void sleep_milliseconds(int milliseconds)
{
    struct timespec pause = {0, milliseconds * 1000000L};
    nanosleep(&pause, NULL);
}

START_TEST(wakes_after_sleep)
{
    mn_workers *workers = create(4);
    _Atomic(int64_t) sum = 0;
    for (int run = 0; run < 20; run++) {
        sleep_milliseconds(3); /* far beyond the spin: all sleep */
        mn_workers_run(workers, 100, add, &sum);
    }
    ck_assert_int_eq(atomic_load(&sum), 20 * 5050);
    mn_workers_free(workers);
}
END_TEST

/* All slots must meet: they run at the same time, on threads of their own. */
static void meet(void *arg, int64_t index, int slot)
{
    atomic_int *arrived = arg;
    (void)index, (void)slot;
    atomic_fetch_add(arrived, 1);
    for (int i = 0; i < 5000 && atomic_load(arrived) < 4; i++)
        sleep_milliseconds(1);
}

START_TEST(runs_in_parallel)
{
    mn_workers *workers = create(4);
    for (int run = 0; run < 10; run++) {
        atomic_int arrived = 0;
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        mn_workers_run(workers, 4, meet, &arrived);
        clock_gettime(CLOCK_MONOTONIC, &end);
        ck_assert_int_eq(atomic_load(&arrived), 4);
        ck_assert_int_lt(end.tv_sec - start.tv_sec, 4);
    }
    mn_workers_free(workers);
}
END_TEST

START_TEST(idle_threads_use_no_time)
{
    mn_workers *workers = create(4);
    _Atomic(int64_t) sum = 0;
    mn_workers_run(workers, 100, add, &sum);
    sleep_milliseconds(20);
    clock_t before = clock();
    sleep_milliseconds(200);
    double used = (double)(clock() - before) / CLOCKS_PER_SEC;
    ck_assert_double_lt(used, 0.05);
    mn_workers_free(workers);
}
END_TEST

/* ---- nesting and the embedder's threads ------------------------------------------------------ */

typedef struct nest {
    mn_workers *workers;
    _Atomic(int64_t) sum;
    int depth;
} nest;

static void nested(void *arg, int64_t index, int slot)
{
    nest *n = arg;
    nest inner = {n->workers, 0, n->depth - 1};
    (void)slot;
    if (n->depth > 0)
        mn_workers_run(n->workers, 3, nested, &inner);
    atomic_fetch_add(&n->sum, index + atomic_load(&inner.sum));
}

START_TEST(nested_runs)
{
    mn_workers *workers = create(3);
    for (int run = 0; run < 200; run++) {
        nest outer = {workers, 0, 2};
        mn_workers_run(workers, 4, nested, &outer);
        /* Depth 0 adds 0+1+2; each of three at depth 1 its index and that; four at depth 2. */
        ck_assert_int_eq(atomic_load(&outer.sum), 6 + 4 * (3 + 3 * 3));
    }
    mn_workers_free(workers);
}
END_TEST

typedef struct embedder {
    int calls;
    int64_t slots;
} embedder;

static void backwards(void *user, int64_t count, void (*task)(void *arg, int64_t index), void *arg)
{
    embedder *e = user;
    e->calls++;
    e->slots = count;
    for (int64_t i = count - 1; i >= 0; i--)
        task(arg, i);
}

typedef struct outer_task {
    void (*task)(void *arg, int64_t index);
    void *arg;
    int64_t index;
} outer_task;

static void *outer_main(void *arg)
{
    outer_task *t = arg;
    t->task(t->arg, t->index);
    return NULL;
}

static void one_thread_each(void *user, int64_t count, void (*task)(void *arg, int64_t index),
                            void *arg)
{
    pthread_t threads[MAX_SLOTS];
    outer_task tasks[MAX_SLOTS];
    (void)user;
    ck_assert_int_le(count, MAX_SLOTS);
    for (int64_t i = 0; i < count; i++) {
        tasks[i] = (outer_task){task, arg, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, outer_main, &tasks[i]), 0);
    }
    for (int64_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(own_parallel_for)
{
    embedder e = {0, 0};
    mn_workers *workers = mn_workers_create(NULL, 5, backwards, &e, NULL);
    ck_assert_ptr_nonnull(workers);
    check_run(workers, 5, MAX_COUNT);
    ck_assert_int_eq(e.calls, 1);
    ck_assert_int_eq(e.slots, 5);
    check_run(workers, 5, 3);
    ck_assert_int_eq(e.slots, 3);
    check_run(workers, 5, 1);
    ck_assert_int_eq(e.calls, 2); /* one index runs inline */
    nest outer = {workers, 0, 1};
    mn_workers_run(workers, 4, nested, &outer);
    ck_assert_int_eq(atomic_load(&outer.sum), 6 + 4 * 3);
    ck_assert_int_eq(e.calls, 3);
    mn_workers_free(workers);

    workers = mn_workers_create(NULL, 4, one_thread_each, NULL, NULL);
    ck_assert_ptr_nonnull(workers);
    for (int run = 0; run < 50; run++)
        check_run(workers, 4, 1 + run * 13 % MAX_COUNT);
    mn_workers_free(workers);
}
END_TEST

/* ---- floating-point mode --------------------------------------------------------------------- */

typedef struct modes {
    atomic_int wrong, runs;
} modes;

static volatile float tiny = 1e-40F;
static volatile float one = 1.0F;

/* By results: on x86 fegetround tells the mode of another unit. */
static bool rounds_to_nearest(void)
{
    volatile float above = one + 0x1.8p-24F, below = one + 0x1p-25F, minus = -one - 0x1p-25F;
    return above == 1.0F + 0x1p-23F && below == 1.0F && minus == -1.0F;
}

static bool is_default_mode(void)
{
    volatile float same = tiny * one, smaller = one * 0x1p-126F * 0.25F;
    return rounds_to_nearest() && same > 0.0F && smaller > 0.0F;
}

/* True if the mode is what spoil_mode made. */
static bool is_spoilt_mode(void)
{
    volatile float below = -one - 0x1p-25F, above = one + 0x1.8p-24F;
    bool down = below == -1.0F - 0x1p-23F && above == 1.0F;
#if defined(__x86_64__)
    return down && (_mm_getcsr() & 0x8040) == 0x8040;
#else
    return down;
#endif
}

static void look_at_mode(void *arg, int64_t index, int slot)
{
    modes *m = arg;
    (void)index, (void)slot;
    atomic_fetch_add(&m->wrong, !is_default_mode());
    atomic_fetch_add(&m->runs, 1);
    fesetround(FE_UPWARD); /* a task that leaves a mess */
}

static void spoil_mode(void)
{
    fesetround(FE_DOWNWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
}

static void check_mode_kept(mn_workers *workers, int64_t count)
{
    modes m = {0, 0};
    mn_workers_run(workers, count, look_at_mode, &m);
    bool kept = is_spoilt_mode();
    unsigned mode = mn_fp_enter();
    ck_assert(kept);
    ck_assert_int_eq(atomic_load(&m.runs), count);
    /* Within one pull a task that changes the mode spoils it for later ones: count the first. */
    ck_assert_int_lt(atomic_load(&m.wrong), count);
    mn_fp_restore(mode);
}

static void look_only(void *arg, int64_t index, int slot)
{
    modes *m = arg;
    (void)index, (void)slot;
    atomic_fetch_add(&m->wrong, !is_default_mode());
    if (slot > 0)
        atomic_fetch_add(&m->runs, 1);
    sleep_milliseconds(1);
}

START_TEST(floating_point_mode)
{
    ck_assert(is_default_mode());
    spoil_mode();
    ck_assert(!is_default_mode());
    unsigned mode = mn_fp_enter();
    ck_assert(is_default_mode());
    mn_fp_restore(mode);
    ck_assert(is_spoilt_mode());

    mn_workers *workers = create(3); /* threads inherit the spoilt mode */
    modes m = {0, 0};
    mn_workers_run(workers, 30, look_only, &m);
    ck_assert_int_eq(atomic_load(&m.wrong), 0);
    ck_assert_int_gt(atomic_load(&m.runs), 0); /* workers took part */
    check_mode_kept(workers, 1);
    check_mode_kept(workers, 50);
    m = (modes){0, 0};
    mn_workers_run(workers, 30, look_only, &m); /* what the mess left is gone */
    ck_assert_int_eq(atomic_load(&m.wrong), 0);
    mn_workers_free(workers);
    ck_assert(is_spoilt_mode());
    mn_fp_enter();
}
END_TEST

/* ---- signals --------------------------------------------------------------------------------- */

static void look_at_signals(void *arg, int64_t index, int slot)
{
    atomic_int *seen = arg;
    sigset_t set;
    (void)index;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    bool blocked = sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) &&
                   sigismember(&set, SIGALRM) && sigismember(&set, SIGUSR1);
    bool faults_open = !sigismember(&set, SIGSEGV) && !sigismember(&set, SIGFPE);
    if (slot > 0)
        atomic_fetch_add(&seen[blocked && faults_open ? 0 : 1], 1);
    else
        atomic_fetch_add(&seen[blocked ? 2 : 3], 1);
    sleep_milliseconds(1);
}

START_TEST(signals)
{
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    mn_workers *workers = create(3);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++)
        ck_assert_int_eq(sigismember(&before, s), sigismember(&after, s));
    atomic_int seen[4] = {0, 0, 0, 0};
    mn_workers_run(workers, 60, look_at_signals, seen);
    ck_assert_int_gt(atomic_load(&seen[0]), 0);
    ck_assert_int_eq(atomic_load(&seen[1]), 0);
    ck_assert_int_eq(atomic_load(&seen[2]), 0);
    ck_assert_int_gt(atomic_load(&seen[3]), 0);
    mn_workers_free(workers);
}
END_TEST

/* ---- errors ---------------------------------------------------------------------------------- */

START_TEST(errors)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_workers_create(NULL, 0, NULL, NULL, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    ck_assert_ptr_null(mn_workers_create(NULL, -3, NULL, NULL, NULL));
    mn_workers_free(NULL);

    mn_test_counter counter = {0};
    mn_allocator allocator = mn_test_counting(&counter);
    counter.fail_at = 1;
    error = (mn_error){MN_OK, ""};
    ck_assert_ptr_null(mn_workers_create(&allocator, 2, NULL, NULL, &error));
    ck_assert_int_eq(error.status, MN_ERR_MEMORY);
    ck_assert_uint_gt(strlen(error.message), 0);
    mn_workers *workers = mn_workers_create(&allocator, 2, NULL, NULL, NULL);
    ck_assert_ptr_nonnull(workers);
    ck_assert_int_gt(counter.blocks, 0);
    check_run(workers, 2, 10);
    mn_workers_free(workers);
    ck_assert_int_eq(counter.blocks, 0);
    ck_assert_uint_eq(counter.bytes, 0);
}
END_TEST

#if !defined(MN_TEST_SANITIZED) && defined(__linux__)
static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return (rlim_t)pages * 4096;
}

/* Room for a few thread stacks, not for all: those started must end, and nothing may leak. */
START_TEST(threads_run_out)
{
    mn_test_counter counter = {0};
    mn_allocator allocator = mn_test_counting(&counter);
    mn_workers *workers = mn_workers_create(&allocator, 2, NULL, NULL, NULL);
    mn_workers_free(workers);
    struct rlimit before, tight, set;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = address_space() + (rlim_t)64 * 1024 * 1024;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &tight), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &set), 0);
    if (set.rlim_cur != tight.rlim_cur)
        return; /* an emulator that keeps its own memory out of such limits */
    mn_error error = {MN_OK, ""};
    workers = mn_workers_create(&allocator, 500, NULL, NULL, &error);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
    ck_assert_ptr_null(workers);
    ck_assert_int_eq(error.status, MN_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(error.message, "of 500"));
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST
#endif

/* ---- processor ------------------------------------------------------------------------------- */

START_TEST(processor)
{
    ck_assert_int_ge(mn_cpu_available(), 1);
    ck_assert(mn_cpu_has_kernels(MN_KERNELS_REFERENCE));
    ck_assert(mn_cpu_has_kernels(MN_KERNELS_PORTABLE));
    ck_assert(!mn_cpu_has_kernels((mn_kernel_set)99));
    bool avx2 = mn_cpu_has_kernels(MN_KERNELS_AVX2);
    bool avx512 = mn_cpu_has_kernels(MN_KERNELS_AVX512);
    bool neon = mn_cpu_has_kernels(MN_KERNELS_NEON);
    ck_assert_int_eq(mn_cpu_best_kernels(), neon     ? MN_KERNELS_NEON
                                            : avx512 ? MN_KERNELS_AVX512
                                            : avx2   ? MN_KERNELS_AVX2
                                                     : MN_KERNELS_PORTABLE);
    ck_assert(avx2 || !avx512);
#if defined(__aarch64__)
    ck_assert(neon);
#else
    ck_assert(!neon);
#endif
#if defined(MINIM_AVX2) && defined(__GNUC__)
    ck_assert_int_eq(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    ck_assert_int_eq(
        avx512, avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
#endif
    char name[64], features[160];
    mn_cpu_describe(name, sizeof name, features, sizeof features);
    ck_assert_uint_gt(strlen(name), 0);
    ck_assert(!avx2 || (strstr(features, "avx2") && strstr(features, "f16c")));
    ck_assert(!neon || strstr(features, "neon"));
    ck_assert(name[0] != ' ' && name[strlen(name) - 1] != ' ');

    /* Small buffers: cut, ended, and nothing written behind. */
    for (size_t size = 0; size <= 12; size++) {
        char small[2][16];
        memset(small, 'x', sizeof small);
        mn_cpu_describe(small[0], size, small[1], size);
        for (size_t i = size; i < 16; i++)
            ck_assert(small[0][i] == 'x' && small[1][i] == 'x');
        if (size > 0)
            ck_assert(memchr(small[0], 0, size) && memchr(small[1], 0, size));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("workers");
    TCase *tests = tcase_create("workers");
    tcase_add_test(tests, every_index_once);
    tcase_add_test(tests, many_short_runs);
    tcase_add_test(tests, wakes_after_sleep);
    tcase_add_test(tests, runs_in_parallel);
    tcase_add_test(tests, idle_threads_use_no_time);
    tcase_add_test(tests, nested_runs);
    tcase_add_test(tests, own_parallel_for);
    tcase_add_test(tests, floating_point_mode);
    tcase_add_test(tests, signals);
    tcase_add_test(tests, errors);
#if !defined(MN_TEST_SANITIZED) && defined(__linux__)
    tcase_add_test(tests, threads_run_out);
#endif
    tcase_add_test(tests, processor);
    tcase_set_timeout(tests, 100);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
