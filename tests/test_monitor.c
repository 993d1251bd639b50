/* The numerics monitor: statistics of values, what stores and updates lose, formats. */
#include "core/half.h"
#include "ops/ops.h"
#include "tests/support_cases.h"
#include "tests/support_counting.h"
#include "tests/support_monitor.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- statistics ------------------------------------------------------------------------------ */

/* Of all magnitudes that a dtype has, subnormal ones as well, with zeros, infinities and NaN. */
static void fill_values(double *values, int64_t n, bool zeros)
{
    for (int64_t i = 0; i < n; i++) {
        const int exponent = (int)(i * 7919 % 320) - 170;
        values[i] = ldexp(1 + (double)(i * 37 % 100) / 128, exponent) * (i % 3 == 0 ? -1 : 1);
        if (i % 11 == 0)
            values[i] = i % 2 == 0 ? 0 : -0.0;
        if (i % 501 == 500)
            values[i] = i % 4 == 0 ? (double)NAN : (double)INFINITY;
        if (zeros)
            values[i] = 0;
    }
}

static void check_against_loop(const mn_monitor_row *row, int64_t n, const double *values)
{
    int64_t zeros = 0, infinities = 0, nans = 0, histogram[MN_MONITOR_BINS] = {0};
    double largest = 0, smallest = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs(values[i]);
        zeros += x == 0;
        infinities += isinf(x) != 0;
        nans += isnan(x) != 0;
        if (x == 0 || !isfinite(x))
            continue;
        const int bin = ilogb(x) - MN_MONITOR_LOWEST;
        histogram[bin < 0 ? 0 : bin > MN_MONITOR_BINS - 1 ? MN_MONITOR_BINS - 1 : bin]++;
        largest = x > largest ? x : largest;
        smallest = smallest == 0 || x < smallest ? x : smallest;
    }
    ck_assert_int_eq(row->count, n);
    ck_assert_int_eq(row->zeros, zeros);
    ck_assert_int_eq(row->infinities, infinities);
    ck_assert_int_eq(row->nans, nans);
    ck_assert(row->largest == largest && row->smallest == smallest);
    ck_assert(memcmp(row->histogram, histogram, sizeof histogram) == 0);
}

static const struct {
    const char *device;
    mn_kernel_set kernels;
    int threads;
} kinds[] = {{"cpu", MN_KERNELS_AUTO, 1},         {"cpu", MN_KERNELS_AUTO, 2},
             {"cpu", MN_KERNELS_AUTO, 3},         {"cpu", MN_KERNELS_AUTO, 5},
             {"cpu", MN_KERNELS_PORTABLE, 2},     {"cpu", MN_KERNELS_REFERENCE, 1},
             {"cpu-deferred", MN_KERNELS_AUTO, 2}};
enum { KINDS = (int)(sizeof kinds / sizeof *kinds) };

static mn_context *open_kind(int kind)
{
    mn_context_options options = mn_context_options_default();
    options.device = kinds[kind].device;
    options.kernels = kinds[kind].kernels;
    options.threads = kinds[kind].threads;
    mn_context *ctx = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(ctx);
    return ctx;
}

START_TEST(statistics_are_those_of_a_plain_loop)
{
    static const mn_dtype dtypes[] = {MN_F64, MN_F32, MN_F16, MN_BF16};
    static const int64_t sizes[] = {0, 1, 7, 513, 16384 + 37, 50001};
    static double values[50001];
    mn_context *ctx = open_kind(_i);
    for (int k = 0; k < 4 * 6 * 2; k++) {
        const mn_dtype dtype = dtypes[k % 4];
        const int64_t n = sizes[k / 4 % 6];
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &n),
                  *y = mn_tensor_create(ctx, dtype, 1, &n);
        fill_values(values, n, k >= 24);
        mn_tensor_write_f64(x, values, n);
        mn_tensor_read_f64(x, values, n); /* as rounded */
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        mn_name_push(ctx, "place");
        mn_tensor_copy(y, x);
        mn_name_pop(ctx);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        const mn_monitor_row *row =
            mn_test_row(monitor, "place.tensor_copy", "assign", MN_FORWARD, dtype);
        ck_assert_int_eq(row->calls, 1);
        check_against_loop(row, n, values);
        mn_monitor_free(monitor);
        mn_scope_end(ctx, scope);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- stores ---------------------------------------------------------------------------------- */

/* They move 16-bit values as they are. */
static bool only_moves(const char *op)
{
    static const char *const names[] = {"permute", "pad",        "concat", "gather",
                                        "assign",  "max_pool2d", "where"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(op, names[i]) == 0)
            return true;
    return false;
}

static void run_case(mn_context *ctx, const op_case *c, mn_dtype dtype)
{
    mn_tensor *inputs[CASE_INPUTS] = {NULL};
    for (int i = 0; i < mn_case_inputs(c); i++) {
        const case_input *in = &c->inputs[i];
        mn_tensor *x = mn_tensor_create(ctx, mn_case_dtype(in->kind, dtype), in->ndim, in->shape);
        const int64_t n = mn_tensor_numel(x);
        double *values = malloc((size_t)(n + 1) * sizeof *values);
        mn_case_draw(c, i, dtype, n, values);
        mn_tensor_write_f64(x, values, n);
        free(values);
        if (mn_case_wants_gradient(c, i))
            mn_set_requires_grad(x, true);
        inputs[i] = x;
    }
    mn_tensor *y = mn_case_build(ctx, inputs, c);
    if (y && mn_requires_grad(y) && !c->forward_only)
        mn_backward(mn_sum(mn_cast(y, MN_F32), 0, NULL, false), 1);
    ck_assert_msg(mn_ok(ctx), "%s: %s", c->name, mn_error_message(ctx));
}

START_TEST(stores_of_every_op_are_counted)
{
    int seen = 0;
    for (int k = 0; k < mn_case_count() * 2; k++) {
        const op_case *c = mn_case_at(k / 2);
        mn_context *ctx = open_kind(_i);
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        run_case(ctx, c, k % 2 == 0 ? MN_F16 : MN_BF16);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        int count;
        const mn_monitor_row *row = mn_monitor_rows(monitor, &count);
        for (int i = 0; i < count; i++, row++) {
            if (row->dtype != MN_F16 && row->dtype != MN_BF16)
                continue;
            if (row->output == 0 && !only_moves(row->op))
                ck_assert_msg(row->stored >= row->count - row->zeros - row->nans,
                              "%s: %s stored %lld of %lld", c->name, row->op,
                              (long long)row->stored, (long long)(row->count - row->zeros));
            ck_assert_int_le(row->lost, row->stored);
            seen += row->stored > 0;
        }
        mn_monitor_free(monitor);
        mn_context_free(ctx);
    }
    ck_assert_int_gt(seen, 100);
}
END_TEST

/* Small values through an op: what is lost is known without running it. */
static void lose(mn_context *ctx, int what)
{
    static const int64_t vector[1] = {2}, matrix[2] = {3, 2}, filter[4] = {5, 1, 1, 2};
    static const float logits[6] = {0, -20, 0, -1, 0, -30};
    mn_tensor *weight = mn_full(ctx, MN_F32, 1, vector, 1e-10),
              *bias = mn_full(ctx, MN_F32, 1, vector, 0);
    switch (what) {
    case 0: /* all 32 values */
        mn_cast(mn_test_full(ctx, MN_F32, 1e-8), MN_F16);
        break;
    case 1: /* 2^-13 2^-13 2 = 2^-25, a tie to the even 0 */
        mn_conv2d(mn_test_full(ctx, MN_F16, 0x1p-13), mn_full(ctx, MN_F16, 4, filter, 0x1p-13),
                  NULL, NULL);
        break;
    case 2:
        mn_linear(mn_full(ctx, MN_F16, 2, matrix, 0x1p-13),
                  mn_full(ctx, MN_F16, 2, matrix, 0x1p-13), NULL);
        break;
    case 3: /* the smallest value stays */
        mn_relu(mn_test_full(ctx, MN_F16, 0x1p-24));
        break;
    case 4:
        mn_layer_norm(mn_cast(mn_tensor_from(ctx, MN_F32, 2, matrix, logits), MN_F16), 1, weight,
                      bias, 1e-5);
        break;
    default: /* two of six */
        mn_softmax(mn_cast(mn_tensor_from(ctx, MN_F32, 2, matrix, logits), MN_F16), 1);
    }
    ck_assert_msg(mn_ok(ctx), "%s", mn_error_message(ctx));
}

START_TEST(lost_stores_are_those_that_formulas_give)
{
    static const struct {
        const char *op;
        int64_t stored, lost;
    } wanted[] = {{"cast", 32, 32}, {"conv2d", 80, 80},   {"linear", 9, 9},
                  {"relu", 32, 0},  {"layer_norm", 6, 6}, {"softmax", 6, 2}};
    mn_context *ctx = open_kind(_i);
    for (int k = 0; k < 6; k++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        lose(ctx, k);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        const mn_monitor_row *row = mn_test_row(monitor, "", wanted[k].op, MN_FORWARD, MN_F16);
        ck_assert_int_eq(row->stored, wanted[k].stored);
        ck_assert_int_eq(row->lost, wanted[k].lost);
        const mn_monitor_totals totals = mn_monitor_totals_get(monitor);
        ck_assert_int_ge(totals.stored[MN_FORWARD], wanted[k].stored);
        ck_assert_int_eq(totals.lost[MN_FORWARD], wanted[k].lost);
        ck_assert_int_eq(totals.stored[MN_BACKWARD] + totals.stored[MN_UPDATE], 0);
        mn_monitor_free(monitor);
        mn_scope_end(ctx, scope);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- updates --------------------------------------------------------------------------------- */

static mn_optimizer *optimizer_of(mn_context *ctx, mn_tensor *p, int kind)
{
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adam = mn_adam_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    sgd.lr = adam.lr = rmsprop.lr = 1e-9;
    sgd.momentum = kind == 1 ? 0.9 : 0;
    return kind < 2    ? mn_sgd_create(ctx, &p, 1, &sgd)
           : kind == 2 ? mn_adam_create(ctx, &p, 1, &adam)
                       : mn_rmsprop_create(ctx, &p, 1, &rmsprop);
}

/* Of 1, 1e-9 and 0 with gradients 1, 1 and 0 the first does not move, and the last is not due. */
START_TEST(updates_lost_to_rounding)
{
    static const int64_t shape[1] = {3};
    static const double start[3] = {1, 1e-9, 0}, g[3] = {1, 1, 0};
    static const mn_dtype dtypes[3] = {MN_F32, MN_BF16, MN_F64};
    static const int64_t lost[3] = {1, 1, 0};
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    for (int k = 0; k < 12; k++) {
        mn_tensor *p =
            mn_parameter_create(ctx, k % 2 ? "p" : "", dtypes[k / 4], 1, shape, MN_LAYOUT_PLAIN);
        mn_tensor *slope = mn_tensor_create(ctx, dtypes[k / 4], 1, shape);
        mn_tensor_write_f64(p, start, 3);
        mn_tensor_write_f64(slope, g, 3);
        mn_optimizer *optimizer = optimizer_of(ctx, p, k % 4);
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        mn_backward(mn_check_total(mn_mul(p, slope)), 1);
        mn_optimizer_step(optimizer);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        const mn_monitor_totals totals = mn_monitor_totals_get(monitor);
        ck_assert_int_eq(totals.updates, 2);
        ck_assert_int_eq(totals.updates_lost, lost[k / 4]);
        mn_monitor_free(monitor);
        mn_optimizer_free(optimizer);
        mn_release(p);
    }
    mn_check_done(ctx);
}
END_TEST

START_TEST(skipped_steps_lose_no_updates)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 4);
    mn_monitor *monitor = mn_monitor_create(r.ctx, NULL);
    ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
    mn_monitor_collect(monitor);
    ck_assert_int_eq(mn_monitor_totals_get(monitor).updates, 0);
    ck_assert_int_eq(mn_check_whole_step(&r, 1e-12), MN_STEP_APPLIED);
    mn_monitor_collect(monitor);
    ck_assert_int_eq(mn_monitor_totals_get(monitor).updates, 2);
    ck_assert_int_eq(mn_monitor_totals_get(monitor).updates_lost, 2);
    mn_monitor_free(monitor);
    mn_monitor_options options = mn_monitor_options_default();
    options.updates = false;
    monitor = mn_monitor_create(r.ctx, &options);
    mn_check_whole_step(&r, 1e-12);
    mn_monitor_collect(monitor);
    ck_assert_int_eq(mn_monitor_totals_get(monitor).updates, 0);
    mn_monitor_free(monitor);
    mn_check_run_close(&r);
}
END_TEST

/* 2 - 1/512 is no bf16, but the master holds it; a stochastic step loses nothing in the mean. */
START_TEST(updates_of_bf16_parameters)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t two = 2, lost[3] = {2, 0, 0}, updates[3] = {2, 2, 0};
    for (int rounding = MN_ROUNDING_NEAREST; rounding <= MN_ROUNDING_STOCHASTIC; rounding++) {
        mn_sgd_options options = mn_sgd_options_default();
        options.lr = 1.0 / 512;
        options.rounding = (mn_rounding)rounding;
        mn_tensor *w = mn_parameter_create(ctx, "w", MN_BF16, 1, &two, MN_LAYOUT_PLAIN);
        mn_tensor_fill(w, 2);
        mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, &options);
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        ck_assert_int_eq(mn_backward(mn_check_total(mn_cast(w, MN_F32)), 1), MN_OK);
        ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        ck_assert_int_eq(mn_monitor_totals_get(monitor).updates, updates[rounding]);
        ck_assert_int_eq(mn_monitor_totals_get(monitor).updates_lost, lost[rounding]);
        mn_monitor_free(monitor);
        mn_optimizer_free(sgd);
        mn_release(w);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- formats --------------------------------------------------------------------------------- */

START_TEST(limits_and_fits)
{
    const mn_float_limits half = mn_float_limits_get(MN_F16), brain = mn_float_limits_get(MN_BF16);
    ck_assert(half.largest == 65504 && half.smallest_normal == 0x1p-14 && half.smallest == 0x1p-24);
    ck_assert(brain.smallest_normal == 0x1p-126 && brain.smallest == 0x1p-133);
    ck_assert(brain.largest == (double)mn_bf16_bits_to_f32(0x7f7f));
    ck_assert(mn_float_limits_get(MN_F32).largest == 0x1.fffffep127);
    ck_assert(mn_float_limits_get(MN_F64).smallest == 0x1p-1074);
    ck_assert(mn_float_limits_get(MN_I64).largest == 0);
    int64_t histogram[MN_MONITOR_BINS] = {0};
    mn_monitor_row row = {.largest = 65519, .histogram = histogram};
    ck_assert(mn_monitor_fit_get(&row, MN_F16, 0).lost == 0); /* of nothing */
    histogram[15 - MN_MONITOR_LOWEST] = 1;
    histogram[-14 - MN_MONITOR_LOWEST] = 1;
    histogram[-15 - MN_MONITOR_LOWEST] = 1;
    histogram[-26 - MN_MONITOR_LOWEST] = 1;
    mn_monitor_fit fit = mn_monitor_fit_get(&row, MN_F16, 0);
    ck_assert(!fit.overflows && fit.overflow == 0 && fit.subnormal == 0.25 && fit.lost == 0.25);
    fit = mn_monitor_fit_get(&row, MN_F16, 1);
    ck_assert(fit.overflows && fit.overflow == 0.25 && fit.subnormal == 0.25 && fit.lost == 0);
    row.largest = 65520; /* rounds to infinity */
    ck_assert(mn_monitor_fit_get(&row, MN_F16, 0).overflows);
    fit = mn_monitor_fit_get(&row, MN_BF16, 0);
    ck_assert(!fit.overflows && fit.subnormal == 0 && fit.lost == 0);
    fit = mn_monitor_fit_get(&row, MN_F16, INT_MAX);
    ck_assert(fit.overflows && fit.overflow == 1 && fit.lost == 0);
    fit = mn_monitor_fit_get(&row, MN_F16, INT_MIN);
    ck_assert(!fit.overflows && fit.overflow == 0 && fit.lost == 1);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static void run_out(mn_context *ctx)
{
    mn_monitor *monitor = mn_monitor_create(ctx, NULL);
    mn_tensor *p = mn_parameter_create(ctx, "p", MN_F32, 0, NULL, MN_LAYOUT_PLAIN);
    mn_optimizer *optimizer = p ? optimizer_of(ctx, p, 1) : NULL;
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *y = p ? mn_matmul(mn_reshape(p, 2, (const int64_t[]){1, 1}),
                                 mn_reshape(p, 2, (const int64_t[]){1, 1}))
                     : NULL;
    mn_autocast_end(ctx);
    mn_backward(mn_sum(y, 0, NULL, false), 1);
    mn_optimizer_step(optimizer);
    mn_monitor_collect(monitor);
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_monitor_free(monitor);
}

START_TEST(without_memory)
{
    mn_test_exhaust(run_out);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitor");
    TCase *tcase = tcase_create("monitor");
    tcase_add_loop_test(tcase, statistics_are_those_of_a_plain_loop, 0, KINDS);
    tcase_add_loop_test(tcase, stores_of_every_op_are_counted, 3, KINDS);
    tcase_add_loop_test(tcase, lost_stores_are_those_that_formulas_give, 0, KINDS);
    tcase_add_loop_test(tcase, updates_lost_to_rounding, 0, 2);
    tcase_add_loop_test(tcase, skipped_steps_lose_no_updates, 0, 2);
    tcase_add_loop_test(tcase, updates_of_bf16_parameters, 0, 2);
    tcase_add_test(tcase, limits_and_fits);
    tcase_add_test(tcase, without_memory);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_NOFORK);
}
