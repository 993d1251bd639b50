/* Autocast and threads: regions belong to the context, not to the thread, and hold in whatever runs
 * its work; many iterations in one region keep the memory that the first took. */
#include "amp/amp.h"
#include "tests/support_counting.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

enum { ROWS = 64, IN = 48, OUT = 40 };

/* A linear layer, its optimizer and scaler, in a context with these options. */
typedef struct model {
    mn_context *ctx;
    mn_tensor *w;
    mn_optimizer *adam;
    mn_grad_scaler *scaler;
    mn_dtype dtype;
    int steps;
    double loss;
} model;

static void fill(mn_tensor *x, double scale)
{
    const int64_t count = mn_tensor_numel(x);
    double *values = calloc((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * (double)((i * 37 + 11) % 101 - 50);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    free(values);
}

static model open_model(const mn_context_options *options, mn_dtype dtype, int steps)
{
    const int64_t shape[2] = {OUT, IN};
    model m = {.ctx = mn_context_create(options, NULL), .dtype = dtype, .steps = steps};
    ck_assert_ptr_nonnull(m.ctx);
    m.w = mn_parameter_create(m.ctx, "w", MN_F32, 2, shape, MN_LAYOUT_PLAIN);
    fill(m.w, 0.001);
    m.adam = mn_adam_create(m.ctx, &m.w, 1, NULL);
    m.scaler = mn_grad_scaler_create(m.ctx, NULL);
    ck_assert_ptr_nonnull(m.scaler);
    return m;
}

static void close_model(model *m)
{
    ck_assert_msg(mn_ok(m->ctx), "%s", mn_error_message(m->ctx));
    mn_grad_scaler_free(m->scaler);
    mn_optimizer_free(m->adam);
    mn_release(m->w);
    mn_context_free(m->ctx);
}

static void one_step(model *m)
{
    const int64_t shape[2] = {ROWS, IN};
    mn_scope scope = mn_scope_begin(m->ctx);
    mn_tensor *x = mn_tensor_create(m->ctx, MN_F32, 2, shape);
    fill(x, 0.01);
    mn_tensor *y = mn_linear(x, m->w, NULL);
    mn_tensor *loss = mn_mean(mn_cast(mn_mul(y, y), MN_F32), 0, NULL, false);
    mn_grad_scaler_backward(m->scaler, loss, 1);
    mn_grad_scaler_step(m->scaler, m->adam, NULL);
    mn_grad_scaler_update(m->scaler);
    mn_optimizer_zero_grad(m->adam);
    mn_tensor_item(loss, &m->loss);
    if (mn_tensor_dtype(y) != m->dtype) /* no assertion: this may run in a thread */
        m->loss = -1;
    mn_scope_end(m->ctx, scope);
}

/* The whole loop, in the region that is open, or in one of its own. */
static void *run_steps(void *user)
{
    model *m = user;
    const bool open = mn_autocast_dtype(m->ctx) != MN_F32;
    if (!open)
        mn_autocast_begin(m->ctx, m->dtype);
    for (int i = 0; i < m->steps; i++)
        one_step(m);
    if (!open)
        mn_autocast_end(m->ctx);
    return NULL;
}

static model reference(mn_dtype dtype, int steps)
{
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    model m = open_model(&options, dtype, steps);
    run_steps(&m);
    return m;
}

static void check_same(model *a, model *b)
{
    static float values[2][OUT * IN];
    ck_assert_double_gt(a->loss, 0);
    ck_assert_double_eq(a->loss, b->loss);
    ck_assert_int_eq(mn_tensor_read(a->w, values[0], sizeof values[0]), MN_OK);
    ck_assert_int_eq(mn_tensor_read(b->w, values[1], sizeof values[1]), MN_OK);
    ck_assert_mem_eq(values[0], values[1], sizeof values[0]);
}

/* A thread other than the one that made the context and began the region. */
START_TEST(test_step_on_another_thread)
{
    mn_context_options options = mn_context_options_default();
    options.device = mn_check_devices[_i % 2];
    options.threads = 3;
    const mn_dtype dtype = _i < 2 ? MN_F16 : MN_BF16;
    model m = open_model(&options, dtype, 3), wanted = reference(dtype, 3);
    pthread_t thread;
    mn_autocast_begin(m.ctx, dtype);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_steps, &m), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(mn_autocast_dtype(m.ctx), dtype);
    mn_autocast_end(m.ctx);
    check_same(&m, &wanted);
    close_model(&m);
    close_model(&wanted);
}
END_TEST

/* Contexts with different regions, each in its thread, at once. */
START_TEST(test_contexts_at_once)
{
    enum { THREADS = 4 };
    model models[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        mn_context_options options = mn_context_options_default();
        options.threads = 1 + i % 2;
        models[i] = open_model(&options, i % 2 ? MN_F16 : MN_BF16, 10);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_steps, &models[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        model wanted = reference(models[i].dtype, 10);
        check_same(&models[i], &wanted);
        close_model(&wanted);
        close_model(&models[i]);
    }
}
END_TEST

/* The embedder's own loop, which gives every task to a new thread. */
typedef struct task {
    void (*run)(void *arg, int64_t index);
    void *arg;
    int64_t index;
} task;

static void *run_task(void *user)
{
    const task *t = user;
    t->run(t->arg, t->index);
    return NULL;
}

static void thread_each(void *user, int64_t count, void (*run)(void *arg, int64_t index), void *arg)
{
    int *calls = user;
    for (int64_t i = 0; i < count; i++) {
        task t = {run, arg, i};
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, run_task, &t), 0);
        pthread_join(thread, NULL);
    }
    (*calls)++;
}

START_TEST(test_own_parallel_for)
{
    int calls = 0;
    mn_context_options options = mn_context_options_default();
    options.threads = 3;
    options.parallel = thread_each;
    options.parallel_user = &calls;
    model m = open_model(&options, MN_F16, 3), wanted = reference(MN_F16, 3);
    run_steps(&m);
    ck_assert_int_gt(calls, 0);
    check_same(&m, &wanted);
    close_model(&m);
    close_model(&wanted);
}
END_TEST

/* Thousands of iterations inside one region, with no-grad passes and writes in between: neither the
 * pool nor the host memory grows. */
START_TEST(test_memory_of_a_long_region)
{
    mn_test_counter counter = {.fail_at = 0};
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    model m = open_model(&options, MN_F16, 1);
    mn_memory_stats stats = {0};
    size_t bytes = 0;
    mn_autocast_begin(m.ctx, MN_F16);
    for (int i = 0; i < 3000; i++) {
        mn_no_grad_begin(m.ctx);
        mn_scope scope = mn_scope_begin(m.ctx);
        mn_tensor *view = mn_reshape(m.w, mn_tensor_ndim(m.w), mn_tensor_shape(m.w));
        mn_linear(view, m.w, NULL);
        mn_scope_end(m.ctx, scope);
        mn_no_grad_end(m.ctx);
        one_step(&m);
        mn_autocast_begin(m.ctx, i % 3 ? MN_F32 : MN_BF16);
        mn_scope inner = mn_scope_begin(m.ctx);
        mn_linear(m.w, m.w, NULL);
        mn_scope_end(m.ctx, inner);
        mn_autocast_end(m.ctx);
        if (i % 100 == 0)
            fill(m.w, 0.001);
        if (i == 10) {
            stats = mn_memory_stats_get(m.ctx);
            bytes = counter.bytes;
        }
        if (i < 10)
            continue;
        ck_assert_uint_eq(counter.bytes, bytes);
        ck_assert_uint_eq(mn_memory_stats_get(m.ctx).live_bytes, stats.live_bytes);
        ck_assert_uint_eq(mn_memory_stats_get(m.ctx).pool_bytes, stats.pool_bytes);
    }
    mn_autocast_end(m.ctx);
    ck_assert_double_gt(m.loss, 0);
    close_model(&m);
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("amp threads");
    TCase *tc = tcase_create("threads");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_step_on_another_thread, 0, 4);
    tcase_add_test(tc, test_contexts_at_once);
    tcase_add_test(tc, test_own_parallel_for);
    tcase_add_test(tc, test_memory_of_a_long_region);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
