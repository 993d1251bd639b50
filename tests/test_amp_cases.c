/* Cases of mixed precision, R1 to R19: scale arithmetic, order of calls, accumulation and clipping.
 * A number stands for a fault that users of other frameworks have met. */
#include "amp/amp.h"
#include "tests/support_amp_cases.h"
#include "tests/support_training.h"

#include <math.h>

/* ---- A: scale arithmetic --------------------------------------------------------------------- */

START_TEST(R1_first_steps_skip)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t shape[2] = {2, 2};
    const double a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
    const double da[4] = {11, 15, 11, 15}, db[4] = {4, 4, 6, 6};
    mn_tensor *p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = mn_parameter_create(ctx, i ? "B" : "A", MN_F32, 2, shape, MN_LAYOUT_PLAIN);
        mn_tensor_write_f64(p[i], i ? b : a, 4);
    }
    mn_optimizer *sgd = mn_check_sgd_of(ctx, p, 2);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    for (int step = 1; step <= 5; step++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_step_outcome outcome;
        ck_assert_double_eq(mn_check_stats_of(scaler).scale, ldexp(65536, 1 - step));
        mn_autocast_begin(ctx, MN_F16);
        mn_tensor *loss = mn_sum(mn_matmul(p[0], p[1]), 0, NULL, false);
        ck_assert_int_eq(mn_tensor_dtype(loss), MN_F32);
        mn_autocast_end(ctx);
        ck_assert_int_eq(mn_grad_scaler_backward(scaler, loss, 1), MN_OK);
        ck_assert_int_eq(mn_grad_scaler_unscale(scaler, sgd), MN_OK);
        for (int i = 0; i < 4 && step == 5; i++) {
            ck_assert_double_eq(mn_check_at(mn_grad(p[0]), i), da[i]);
            ck_assert_double_eq(mn_check_at(mn_grad(p[1]), i), db[i]);
        }
        ck_assert_int_eq(mn_grad_scaler_step(scaler, sgd, &outcome), MN_OK);
        ck_assert_int_eq(outcome, step < 5 ? MN_STEP_SKIPPED : MN_STEP_APPLIED);
        ck_assert_double_eq(mn_check_at(p[0], 0), step < 5 ? 1 : -10);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(sgd);
        mn_scope_end(ctx, scope);
    }
    ck_assert_double_eq(mn_check_stats_of(scaler).scale, 4096);
    ck_assert_int_eq(mn_check_stats_of(scaler).growth_tracker, 1);
    ck_assert_int_eq(mn_check_stats_of(scaler).backoffs, 4);
    ck_assert(mn_ok(ctx));
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(sgd);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_context_free(ctx);
}
END_TEST

START_TEST(R2_growth_ends_at_f32)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.growth_interval = 1;
    mn_check_run r = mn_check_run_open("cpu", &options);
    for (int i = 1; i <= 200; i++) {
        ck_assert_int_eq(mn_check_whole_step(&r, 0), MN_STEP_APPLIED);
        ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, ldexp(1, i < 111 ? 16 + i : 127));
        ck_assert_int_eq(mn_check_stats_of(r.scaler).growth_tracker, 0);
    }
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R3_overflow_on_unscaling)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], ldexp(1, -100));
    mn_step_outcome outcome;
    mn_check_give_scaled(r.w, 1e10); /* finite, but not after dividing */
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, &outcome), MN_OK);
    ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    mn_check_run_close(&r);
    r = mn_check_run_scale(mn_check_devices[_i], ldexp(1, -128)); /* 1/scale is infinite */
    mn_check_give_scaled(r.w, 0);
    mn_grad_scaler_step(r.scaler, r.sgd, &outcome);
    ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
    ck_assert_double_eq(mn_check_at(r.w, 1), -1);
    mn_grad_scaler_update(r.scaler);
    ck_assert(mn_check_stats_of(r.scaler).collapsed);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R4_gradients_not_zeroed)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_step_outcome outcome;
    mn_check_backward(&r, (double)INFINITY);
    mn_grad_scaler_step(r.scaler, r.sgd, &outcome);
    ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
    mn_grad_scaler_update(r.scaler);
    ck_assert_int_eq(mn_check_backward(&r, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "left over from a finished step: call mn_optimizer_zero");
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "left over from a finished step");
    mn_optimizer_zero_grad(r.sgd);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R5_floor)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.init_scale = 256;
    options.min_scale = 128;
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], &options);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
        ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 128);
        ck_assert_int_eq(mn_check_stats_of(r.scaler).collapsed, i > 0);
    }
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    mn_grad_scaler_save_state(r.scaler, dict);
    mn_grad_scaler *other = mn_grad_scaler_create(r.ctx, NULL);
    ck_assert_int_eq(mn_grad_scaler_load_state(other, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_set_scale(other, 64), MN_ERR_ARGUMENT);
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "[128, ");
    ck_assert(mn_check_stats_of(other).collapsed);
    ck_assert_int_eq(mn_check_stats_of(other).backoffs, 3);
    mn_grad_scaler_free(other);
    mn_state_dict_free(dict);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R6_scale_is_f32)
{
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], NULL);
    mn_autocast_begin(r.ctx, MN_F16);
    mn_tensor *scaled = mn_grad_scaler_scale(r.scaler, mn_full(r.ctx, MN_F16, 0, NULL, 1), 1);
    mn_autocast_end(r.ctx);
    ck_assert_int_eq(mn_tensor_dtype(scaled), MN_F32);
    ck_assert_double_eq(mn_check_at(scaled, 0), 65536);
    mn_check_run_close(&r);
}
END_TEST

/* ---- B: order of calls ----------------------------------------------------------------------- */

START_TEST(R8_unscale_without_update)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_check_backward(&r, (double)INFINITY);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    mn_optimizer_zero_grad(r.sgd); /* the user skips the step, and forgets update */
    mn_check_backward(&r, 1);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "call update() once per step, even when you skip");
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 512);
    mn_optimizer_zero_grad(r.sgd);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED); /* the old inf is forgotten */
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R11_unscaled_once)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_optimizer *alias = r.sgd;
    mn_check_backward(&r, 1);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 1024);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_UNSCALED);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, alias, NULL), MN_OK);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R12_order)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_ERR_NO_GRADIENT);
    mn_check_expect(r.ctx, MN_ERR_NO_GRADIENT, "0 of 1");
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "mn_grad_scaler_step");
    mn_backward(mn_check_loss_of(r.w, 1), 1);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE,
                    "(w) is not scaled: run backward through mn_grad_scaler_backward");
    mn_optimizer_zero_grad(r.sgd);
    mn_check_backward(&r, 1);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "step was already called");
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    mn_check_expect(r.ctx, MN_ERR_STATE, "unscale after step");
    mn_optimizer_step(r.sgd);
    mn_check_expect(r.ctx, MN_ERR_STATE, "already called");
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(r.sgd, &stats);
    ck_assert_int_eq(stats.applied, 1);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R13_no_gradients)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    const double ones[2] = {1, 1};
    mn_tensor *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = mn_check_parameter(r.ctx, "p", 2, ones);
    mn_optimizer *three = mn_check_sgd_of(r.ctx, p, 3);
    mn_check_backward(&r, 1);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, three), MN_ERR_NO_GRADIENT);
    mn_check_expect(r.ctx, MN_ERR_NO_GRADIENT,
                    "0 of 3 parameters have a gradient: is the loss connected to them?");
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p[1], 1), 1);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, three, NULL), MN_OK);
    ck_assert_double_eq(mn_check_at(p[0], 0), 1);
    ck_assert_double_eq(mn_check_at(p[1], 0), 0);
    ck_assert_double_eq(mn_check_at(p[2], 0), 1);
    mn_optimizer_free(three);
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R14_half_parameters)
{
    mn_check_run r = mn_check_run_scale("cpu", 1024);
    const double ones[2] = {1, 1};
    const int64_t two = 2;
    mn_tensor *p[3] = {mn_check_parameter(r.ctx, "p0", 2, ones),
                       mn_check_parameter(r.ctx, "p1", 2, ones)};
    p[2] = mn_parameter_create(r.ctx, "prelu.weight", MN_F16, 1, &two, MN_LAYOUT_PLAIN);
    mn_optimizer *three = mn_check_sgd_of(r.ctx, p, 3);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p[0], 1), 1);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, three), MN_ERR_DTYPE);
    mn_check_expect(r.ctx, MN_ERR_DTYPE, "parameter 2 (prelu.weight) is f16");
    ck_assert_double_eq(mn_check_at(mn_grad(p[0]), 0), 1024); /* nothing half-way */
    mn_optimizer_free(three);
    mn_release(p[2]); /* in bf16, whose gradients are f32 and not narrow, it is a parameter */
    p[2] = mn_parameter_create(r.ctx, "prelu.weight", MN_BF16, 1, &two, MN_LAYOUT_PLAIN);
    mn_tensor_fill(p[2], 1);
    three = mn_check_sgd_of(r.ctx, p, 3);
    mn_optimizer_zero_grad(three);
    mn_grad_scaler_backward(r.scaler, mn_check_total(mn_cast(p[2], MN_F32)), 3);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, three, NULL), MN_OK);
    ck_assert_double_eq(mn_check_at(p[2], 1), -2);
    mn_optimizer_free(three);
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
    mn_check_run_close(&r);
}
END_TEST

/* ---- C: accumulation and clipping ------------------------------------------------------------ */

START_TEST(R15_clip)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    const float g[2] = {3, 4};
    const int64_t two = 2;
    mn_tensor *loss = mn_dot(r.w, mn_tensor_from(r.ctx, MN_F32, 1, &two, g));
    mn_grad_scaler_backward(r.scaler, loss, 1);
    mn_clip_grad_norm(r.sgd, 1, NULL);
    mn_check_expect(r.ctx, MN_ERR_STATE, "gradients are still scaled: call mn_grad_scaler_unscale");
    uint64_t waits = r.ctx->device->synchronizations;
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    ck_assert_int_eq(mn_clip_grad_norm(r.sgd, 1, NULL), MN_OK);
    mn_grad_scaler_step(r.scaler, r.sgd, NULL);
    mn_grad_scaler_update(r.scaler);
    ck_assert_uint_eq(r.ctx->device->synchronizations, waits);
    ck_assert_double_eq_tol(mn_check_at(mn_grad(r.w), 0), 0.59999988, 6e-8);
    ck_assert_double_eq_tol(mn_check_at(mn_grad(r.w), 1), 0.79999984, 6e-8);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(R16_accumulation)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    for (int i = 0; i < 4; i++) {
        mn_scope scope = mn_scope_begin(r.ctx);
        ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, mn_check_loss_of(r.w, 1), 0.25), MN_OK);
        mn_scope_end(r.ctx, scope);
    }
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 1024);
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 1);
    ck_assert_int_eq(mn_check_backward(&r, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "scaled backward into unscaled gradients");
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 1);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    mn_check_run_close(&r);
}
END_TEST

/* R18: eight half gradients of 10000 do not fit f16, but their f32 sum holds them. */
START_TEST(R18_f32_accumulation)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t two = 2;
    mn_tensor *w = mn_full(ctx, MN_F16, 1, &two, 1), *x = mn_full(ctx, MN_F64, 1, &two, 1);
    mn_set_requires_grad(w, true);
    mn_set_requires_grad(x, true);
    for (int i = 0; i < 8; i++)
        mn_backward(mn_cast(mn_check_total(mn_cast(w, MN_F32)), MN_F32), 10000);
    ck_assert_int_eq(mn_tensor_dtype(mn_grad(w)), MN_F32);
    ck_assert_double_eq(mn_check_at(mn_grad(w), 0), 80000);
    mn_backward(mn_check_total(x), 1);
    ck_assert_int_eq(mn_tensor_dtype(mn_grad(x)), MN_F64);
    mn_check_done(ctx);
}
END_TEST

/* R19: there are no sparse gradients. Those of rows taken twice are summed: in f32 for an f32
 * table, rounded to f16 once, and so to infinity, for the f16 shadow of one. */
START_TEST(R19_rows_taken_twice)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t rows[2] = {6, 1}, two[2] = {2, 1}, index[2] = {5, 5};
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.init_scale = 1;
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &options);
    for (int half = 0; half < 2; half++) {
        mn_step_outcome outcome;
        mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 2, rows, MN_LAYOUT_PLAIN);
        mn_tensor_fill(w, 1);
        mn_optimizer *sgd = mn_check_sgd_of(ctx, &w, 1);
        mn_tensor *table = half ? mn_cast(w, MN_F16) : w;
        mn_tensor *taken = mn_gather(table, 0, mn_tensor_from(ctx, MN_I64, 2, two, index));
        mn_grad_scaler_backward(scaler, mn_check_total(mn_cast(taken, MN_F32)), 40000);
        ck_assert_int_eq(mn_grad_scaler_step(scaler, sgd, &outcome), MN_OK);
        ck_assert_int_eq(outcome, half ? MN_STEP_SKIPPED : MN_STEP_APPLIED);
        ck_assert_double_eq(mn_check_at(w, 5), half ? 1 : 1 - 80000.0);
        ck_assert_double_eq(mn_check_at(w, 4), 1);
        mn_optimizer_free(sgd);
        mn_release(w);
    }
    mn_grad_scaler_free(scaler);
    mn_check_done(ctx);
}
END_TEST

int main(void)
{
    const mn_amp_case cases[] = {
        {1, "R1_first_steps_skip", R1_first_steps_skip, 2},
        {2, "R2_growth_ends_at_f32", R2_growth_ends_at_f32, 1},
        {3, "R3_overflow_on_unscaling", R3_overflow_on_unscaling, 2},
        {4, "R4_gradients_not_zeroed", R4_gradients_not_zeroed, 2},
        {5, "R5_floor", R5_floor, 2},
        {6, "R6_scale_is_f32", R6_scale_is_f32, 2},
        {8, "R8_unscale_without_update", R8_unscale_without_update, 2},
        {11, "R11_unscaled_once", R11_unscaled_once, 2},
        {12, "R12_order", R12_order, 2},
        {13, "R13_no_gradients", R13_no_gradients, 2},
        {14, "R14_half_parameters", R14_half_parameters, 1},
        {15, "R15_clip", R15_clip, 2},
        {16, "R16_accumulation", R16_accumulation, 2},
        {18, "R18_f32_accumulation", R18_f32_accumulation, 2},
        {19, "R19_rows_taken_twice", R19_rows_taken_twice, 2},
    };
    return mn_amp_cases_run("amp cases", cases, (int)(sizeof cases / sizeof *cases), 1, 19);
}
