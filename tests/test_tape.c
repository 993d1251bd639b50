/* The tape: depth, life times, and what happens when memory runs out. */
#include "autograd/autograd.h"
#include "tests/support_training.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

static mn_tensor *vector(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &count);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    return x;
}

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = vector(ctx, dtype, count, values);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    return x;
}

static const double one_two[2] = {1, 2};

/* ---- life times ------------------------------------------------------------------------------ */

enum { CHAIN = 100000 };

static mn_tensor *chain(mn_tensor *x)
{
    const double one[1] = {1};
    mn_tensor *y = x, *b = vector(mn_tensor_context(x), MN_F32, 1, one);
    for (int i = 0; i < CHAIN; i++)
        y = mn_add(y, b);
    return y;
}

static void *run_chains(void *result)
{
    mn_context *ctx = mn_check_context("cpu");
    const double one[1] = {1};
    mn_tensor *x = leaf(ctx, MN_F32, 1, one);
    mn_scope scope = mn_scope_begin(ctx);
    mn_status status = mn_backward(chain(x), 5);
    mn_scope_end(ctx, scope);
    scope = mn_scope_begin(ctx);
    mn_tensor *last = mn_retain(chain(x)); /* owns all nodes, never used */
    mn_scope_end(ctx, scope);
    mn_release(last);
    *(bool *)result = status == MN_OK && mn_check_at(mn_grad(x), 0) == 5;
    mn_check_done(ctx);
    return NULL;
}

/* Neither backward nor freeing recurses: a stack of 256 KiB is enough for any depth. */
START_TEST(test_deep_chain)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool fine = false;
    pthread_attr_init(&attributes);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, run_chains, &fine), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    ck_assert(fine);
}
END_TEST

static void train_step(mn_context *ctx, mn_tensor *w, bool backward)
{
    mn_scope scope = mn_scope_begin(ctx);
    const double x[2] = {0.5, -1};
    mn_tensor *y = mn_relu(mn_mul(vector(ctx, MN_F32, 2, x), w));
    mn_tensor *loss = mn_check_total(mn_mul(y, mn_softmax(y, 0)));
    if (backward)
        mn_backward(loss, 1);
    mn_scope_end(ctx, scope);
}

START_TEST(test_no_growth)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = leaf(ctx, MN_F32, 2, one_two);
    for (int i = 0; i < 3; i++) {
        train_step(ctx, w, true);
        train_step(ctx, w, false);
    }
    mn_synchronize(ctx);
    mn_zero_grad(w);
    uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    uint64_t requests = mn_memory_stats_get(ctx).system_requests;
    for (int i = 0; i < 100; i++) {
        train_step(ctx, w, i % 3 != 0); /* some graphs are dropped unused */
        mn_zero_grad(w);
        ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
    }
    ck_assert_uint_eq(mn_memory_stats_get(ctx).system_requests, requests);
    mn_check_done(ctx);
}
END_TEST

/* What only the tape needs is freed while backward runs, although the scope goes on. */
START_TEST(test_freed_as_used)
{
    mn_context *ctx = mn_check_context("cpu");
    const int64_t shape[1] = {1000};
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 1, shape, MN_LAYOUT_PLAIN);
    mn_backward(mn_check_total(w), 1);
    uint64_t before = mn_memory_stats_get(ctx).live_bytes;
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *loss = mn_retain(mn_check_total(mn_mul(mn_mul(w, w), w)));
    mn_scope_end(ctx, scope);
    ck_assert_uint_ge(mn_memory_stats_get(ctx).live_bytes, before + 4000);
    mn_backward(loss, 1);
    ck_assert_uint_lt(mn_memory_stats_get(ctx).live_bytes, before + 1000);
    mn_release(loss);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, before);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* A graph may outlive the leaf's owner and the context's end. */
START_TEST(test_outliving)
{
    mn_test_counter counter = {.fail_at = 0};
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    mn_context *ctx = mn_context_create(&options, NULL);
    mn_tensor *loss = mn_retain(mn_check_total(mn_relu(leaf(ctx, MN_F32, 2, one_two))));
    mn_context_free(ctx);
    ck_assert_int_eq(mn_backward(loss, 1), MN_ERR_STATE);
    mn_release(loss);
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST

/* ---- memory exhaustion ----------------------------------------------------------------------- */

static mn_status try_step(mn_context *ctx)
{
    mn_scope scope = mn_scope_begin(ctx);
    int64_t count = 2;
    mn_tensor *a = mn_tensor_create(ctx, MN_F32, 1, &count);
    mn_tensor_write_f64(a, one_two, 2);
    mn_set_requires_grad(a, true);
    mn_name_push(ctx, "layer");
    mn_tensor *y = mn_mul(mn_relu(a), a);
    mn_name_pop(ctx);
    mn_status status = mn_backward(mn_check_total(mn_add(y, y)), 1);
    if (status == MN_OK)
        ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 8);
    if (mn_error_status(ctx) != MN_OK)
        status = mn_error_status(ctx);
    mn_scope_end(ctx, scope);
    return status;
}

/* The k-th request for memory fails, for every k until a step succeeds: no leak, and the context
 * goes on. */
START_TEST(test_memory_exhaustion)
{
    bool succeeded = false;
    for (long k = 1; k < 2000 && !succeeded; k++) {
        mn_test_counter counter = {.fail_at = 0};
        mn_context_options options = mn_context_options_default();
        options.threads = 1;
        options.allocator = mn_test_counting(&counter);
        mn_context *ctx = mn_context_create(&options, NULL);
        ck_assert_ptr_nonnull(ctx);
        counter.fail_at = counter.calls + k;
        mn_status status = try_step(ctx);
        ck_assert_msg(status == MN_OK || status == MN_ERR_MEMORY, "%ld: %s", k,
                      mn_error_message(ctx));
        succeeded = counter.calls < counter.fail_at;
        counter.fail_at = 0;
        mn_error_clear(ctx);
        ck_assert_int_eq(try_step(ctx), MN_OK);
        mn_context_free(ctx);
        ck_assert_int_eq(counter.blocks, 0);
    }
    ck_assert(succeeded);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("tape");
    TCase *tc = tcase_create("tape");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_deep_chain);
    tcase_add_loop_test(tc, test_no_growth, 0, 2);
    tcase_add_test(tc, test_freed_as_used);
    tcase_add_test(tc, test_outliving);
    tcase_add_test(tc, test_memory_exhaustion);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
