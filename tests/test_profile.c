/* Profiles: what is counted, which direction, both devices, running out of memory, in mn_bench. */
#include "tests/support_counting.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <string.h>

/* The row of that op and direction; one with 0 calls if there is none. */
static mn_profile_row find(const mn_profile *profile, const char *op, mn_direction direction)
{
    mn_profile_row row;
    for (int64_t i = 0; mn_profile_get(profile, i, &row); i++)
        if (strcmp(row.op, op) == 0 && row.direction == direction)
            return row;
    return (mn_profile_row){.calls = 0};
}

static void expect(const mn_profile *profile, const char *op, mn_direction direction, int calls,
                   double flops, double bytes)
{
    mn_profile_row row = find(profile, op, direction);
    ck_assert_msg(row.calls == calls, "%s: %d calls", op, (int)row.calls);
    ck_assert_msg(row.flops == flops, "%s: %g flops", op, row.flops);
    ck_assert_msg(row.bytes == bytes, "%s: %g bytes", op, row.bytes);
    ck_assert((calls > 0) == (row.seconds > 0));
}

/* y [2, 3, 5, 6] = x [2, 5, 5, 4] * w [6, 3, 3, 2], twice grouped, padded by 1, strides 2 and 1;
 * then a linear layer 6 -> 7. */
static void convolve(mn_context *ctx, mn_tensor *const p[3])
{
    mn_scope scope = mn_scope_begin(ctx);
    mn_conv2d_options o = mn_conv2d_options_default();
    o.groups = 2;
    o.padding[0] = o.padding[1] = 1;
    o.stride[0] = 2;
    mn_tensor *y = mn_linear(mn_conv2d(p[0], p[1], NULL, &o), p[2], NULL);
    mn_backward(mn_check_total(y), 1);
    mn_scope_end(ctx, scope);
}

static void make(mn_context *ctx, mn_tensor *p[3])
{
    p[0] = mn_parameter_create(ctx, "x", MN_F32, 4, (int64_t[]){2, 5, 5, 4}, MN_LAYOUT_PLAIN);
    p[1] = mn_parameter_create(ctx, "w", MN_F32, 4, (int64_t[]){6, 3, 3, 2}, MN_LAYOUT_PLAIN);
    p[2] = mn_parameter_create(ctx, "v", MN_F32, 2, (int64_t[]){7, 6}, MN_LAYOUT_PLAIN);
}

START_TEST(test_counts)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p[3];
    make(ctx, p);
    mn_profile *profile = mn_profile_begin(ctx);
    convolve(ctx, p);
    convolve(ctx, p);
    mn_profile_end(profile);
    mn_profile_end(profile);
    convolve(ctx, p); /* not counted */
    const double conv = 2 * 2.0 * 180 * 18, linear = 2 * 2.0 * 210 * 6;
    const double conv_bytes = 2 * 4.0 * (200 + 108 + 180);
    expect(profile, "conv2d", MN_FORWARD, 2, conv, conv_bytes);
    expect(profile, "conv2d", MN_BACKWARD, 0, 0, 0);
    expect(profile, "conv2d_backward_input", MN_BACKWARD, 2, conv, conv_bytes);
    expect(profile, "conv2d_backward_weight", MN_BACKWARD, 2, conv, conv_bytes);
    expect(profile, "linear", MN_FORWARD, 2, linear, 2 * 4.0 * (180 + 42 + 210));
    /* g [30, 7] w [7, 6], and its transpose times x [30, 6]. */
    expect(profile, "matmul", MN_BACKWARD, 4, 2 * linear, 4 * 4.0 * (180 + 42 + 210));
    ck_assert_double_eq(find(profile, "reshape", MN_BACKWARD).bytes, 0);
    mn_profile_row row, next;
    for (int64_t i = 1; mn_profile_get(profile, i, &next); i++)
        ck_assert(mn_profile_get(profile, i - 1, &row) && row.seconds >= next.seconds);
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
    mn_check_done(ctx);
    ck_assert(!mn_profile_get(profile, -1, &row) && !mn_profile_get(profile, 0, NULL));
    ck_assert(mn_profile_get(profile, 0, &row)); /* also without the context */
    mn_profile_free(profile);
}
END_TEST

/* What is written in place counts once; an optimizer's calls are updates, and rehearsals are no
 * calls. Two profiles at a time are none of each other's business. */
START_TEST(test_update)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 4);
    mn_profile *profile = mn_profile_begin(r.ctx);
    mn_profile *inner = mn_profile_begin(r.ctx);
    mn_tensor_fill(r.w, 2);
    mn_profile_end(inner);
    expect(inner, "fill", MN_FORWARD, 1, 0, 8);
    mn_profile_free(inner);
    mn_check_whole_step(&r, 1);
    mn_check_whole_step(&r, 2);
    ck_assert_int_eq(find(profile, "sgd_step", MN_UPDATE).calls, 2);
    ck_assert_int_eq(find(profile, "grad_unscale", MN_UPDATE).calls, 2);
    mn_profile_free(profile);
    mn_check_run_close(&r);
}
END_TEST

static void profiled(mn_context *ctx)
{
    mn_tensor *p[3];
    mn_profile *profile = mn_profile_begin(ctx);
    make(ctx, p);
    convolve(ctx, p);
    mn_profile_row row;
    ck_assert(!mn_ok(ctx) || mn_profile_get(profile, 0, &row));
    mn_profile_free(profile);
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
}

START_TEST(test_memory)
{
    mn_profile_row row;
    ck_assert_ptr_null(mn_profile_begin(NULL));
    ck_assert(!mn_profile_get(NULL, 0, &row));
    mn_profile_end(NULL);
    mn_profile_free(NULL);
    mn_test_exhaust(profiled);
}
END_TEST

/* Its products are those of the step without the gradient of the images; its time is within the
 * steps'. */
START_TEST(test_bench)
{
    mn_bench_options options = mn_bench_options_default();
    mn_bench_result result;
    options.batch = 4;
    options.steps = 3;
    options.warmup = 1;
    ck_assert_int_eq(mn_bench(&options, &result, NULL), MN_OK);
    ck_assert_ptr_null(result.profile);
    options.profile = true;
    ck_assert_int_eq(mn_bench(&options, &result, NULL), MN_OK);
    mn_profile_row row;
    double seconds = 0, gflop = 0;
    for (int64_t i = 0; mn_profile_get(result.profile, i, &row); i++) {
        seconds += row.seconds;
        gflop += 1e-9 * row.flops / 3;
    }
    const double images = 1e-9 * 2 * 4 * 784 * 6 * 25;
    ck_assert_double_eq_tol(gflop, result.gflop_per_step - images, 1e-12);
    ck_assert(seconds > 0 && seconds < result.seconds);
    ck_assert_double_ge(result.seconds, 3e-3 * result.step_ms_min);
    ck_assert_int_eq(find(result.profile, "conv2d_relu", MN_FORWARD).calls, 6);
    mn_profile_free(result.profile);
    options.model = "none";
    ck_assert_int_ne(mn_bench(&options, &result, NULL), MN_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_counts, 0, 2);
    tcase_add_loop_test(tests, test_update, 0, 2);
    tcase_add_test(tests, test_memory);
    tcase_add_test(tests, test_bench);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
