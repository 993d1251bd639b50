/* Grad scaler and autocast. Names with r<number> are cases of faults that users of other frameworks
 * have met. */
#include "amp/amp.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- A: scale arithmetic --------------------------------------------------------------------- */

START_TEST(test_r1_first_steps_skip)
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

START_TEST(test_r2_growth_ends_at_f32)
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

START_TEST(test_r3_overflow_on_unscaling)
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

START_TEST(test_r4_gradients_not_zeroed)
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

START_TEST(test_r5_floor)
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

START_TEST(test_r6_scale_is_f32)
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

START_TEST(test_r8_unscale_without_update)
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

START_TEST(test_r11_unscaled_once)
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

/* A new optimizer at the address of a freed one starts READY, and its owner does not touch it. */
START_TEST(test_r11_freed_optimizer)
{
    mn_check_run r = mn_check_run_scale("cpu", 1024);
    mn_check_backward(&r, 1);
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    mn_optimizer_free(r.sgd);
    mn_zero_grad(r.w);
    r.sgd = mn_check_sgd_of(r.ctx, &r.w, 1);
    ck_assert_int_eq(r.sgd->stage, MN_STAGE_READY);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    mn_check_backward(&r, 1);
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    mn_grad_scaler_free(r.scaler); /* the other way round */
    ck_assert_int_eq(r.sgd->stage, MN_STAGE_READY);
    r.scaler = NULL;
    mn_check_run_close(&r);
}
END_TEST

START_TEST(test_r12_order)
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

START_TEST(test_r13_no_gradients)
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

START_TEST(test_r14_half_parameters)
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
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
    mn_check_run_close(&r);
}
END_TEST

/* ---- C: accumulation and clipping ------------------------------------------------------------ */

START_TEST(test_r15_clip)
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

START_TEST(test_r16_accumulation)
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

/* A parameter whose first gradient comes after unscale would be stepped with the scale in it. */
START_TEST(test_late_gradient)
{
    mn_check_run r = mn_check_run_scale("cpu", 1024);
    const double ones[2] = {1, 1};
    mn_tensor *p[2] = {mn_check_parameter(r.ctx, "p0", 2, ones),
                       mn_check_parameter(r.ctx, "p1", 2, ones)};
    mn_optimizer *both = mn_check_sgd_of(r.ctx, p, 2);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p[0], 1), 1);
    mn_grad_scaler_unscale(r.scaler, both);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p[1], 1), 1);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, both, NULL), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "(p1) is still scaled");
    ck_assert_double_eq(mn_check_at(p[0], 0), 1);
    mn_optimizer_free(both);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_check_run_close(&r);
}
END_TEST

/* ---- D: skipped steps ------------------------------------------------------------------------ */

START_TEST(test_r20_schedule_follows_applied)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.5;
    options.momentum = 0.9;
    options.schedule = (mn_schedule){.kind = MN_SCHEDULE_COSINE, .total_steps = 4};
    mn_optimizer_free(r.sgd);
    r.sgd = mn_sgd_create(r.ctx, &r.w, 1, &options);
    ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    ck_assert_double_eq(mn_check_at(r.sgd->states[0][0], 0), 0);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(r.sgd, &stats);
    ck_assert_int_eq(stats.applied, 2);
    ck_assert_int_eq(stats.skipped, 1);
    ck_assert_int_eq(stats.nonfinite, 1);
    ck_assert_double_eq_tol(stats.lr, 0.25, 1e-12);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(test_two_optimizers)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    const double ones[2] = {1, 1};
    mn_tensor *p = mn_check_parameter(r.ctx, "p", 2, ones);
    mn_optimizer *second = mn_check_sgd_of(r.ctx, &p, 1);
    mn_step_outcome outcome[2];
    mn_check_backward(&r, (double)INFINITY);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p, 1), 1);
    mn_grad_scaler_step(r.scaler, r.sgd, &outcome[0]);
    mn_grad_scaler_step(r.scaler, second, &outcome[1]);
    ck_assert_int_eq(outcome[0], MN_STEP_SKIPPED);
    ck_assert_int_eq(outcome[1], MN_STEP_APPLIED);
    mn_grad_scaler_update(r.scaler);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 512);
    ck_assert_int_eq(r.sgd->stage, MN_STAGE_READY);
    ck_assert_int_eq(second->stage, MN_STAGE_READY);
    ck_assert_ptr_null(second->stage_list);
    mn_grad_scaler *other = mn_grad_scaler_create(r.ctx, NULL);
    mn_optimizer_zero_grad(second);
    mn_grad_scaler_backward(r.scaler, mn_check_loss_of(p, 1), 1);
    mn_grad_scaler_unscale(r.scaler, second);
    mn_grad_scaler_step(other, second, NULL);
    mn_check_expect(r.ctx, MN_ERR_STATE, "another scaler");
    mn_grad_scaler_free(other);
    mn_optimizer_free(second);
    mn_release(p);
    mn_check_run_close(&r);
}
END_TEST

/* Both losses are scaled before the first backward. */
START_TEST(test_two_losses)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_tensor *first = mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 1), 0.5);
    mn_tensor *second = mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 1), 2);
    ck_assert_int_eq(mn_backward(first, 1), MN_OK);
    ck_assert_int_eq(mn_backward(second, 1), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 2560);
    mn_check_run_close(&r);
}
END_TEST

/* A plain backward of a scaled loss, alone or in a sum, leaves scaled gradients; with the scaler
 * disabled, plain ones. */
START_TEST(test_backward_of_scaled)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_tensor *loss = mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 3), 1);
    ck_assert_int_eq(mn_backward(mn_add(loss, loss), 0.5), MN_OK);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_SCALED);
    ck_assert_int_eq(mn_optimizer_step(r.sgd), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "still scaled");
    ck_assert_int_eq(mn_backward(mn_check_loss_of(r.w, 3), 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "plain backward into scaled gradients");
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5 - 3);
    mn_tensor *old = mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 1), 1);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    mn_optimizer_zero_grad(r.sgd);
    mn_tensor *both = mn_add(old, mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 1), 1));
    ck_assert_int_eq(mn_backward(both, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "two scales");
    ck_assert_int_eq(mn_backward(old, 1), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "before the scale was changed");
    mn_check_run_close(&r);
    mn_grad_scaler_options off = mn_grad_scaler_options_default();
    off.enabled = false;
    r = mn_check_run_open(mn_check_devices[_i], &off);
    mn_backward(mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 3), 1), 1);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_PLAIN);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    mn_check_run_close(&r);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("amp");
    TCase *tc = tcase_create("grad scaler");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_r1_first_steps_skip, 0, 2);
    tcase_add_test(tc, test_r2_growth_ends_at_f32);
    tcase_add_loop_test(tc, test_r3_overflow_on_unscaling, 0, 2);
    tcase_add_loop_test(tc, test_r4_gradients_not_zeroed, 0, 2);
    tcase_add_loop_test(tc, test_r5_floor, 0, 2);
    tcase_add_loop_test(tc, test_r6_scale_is_f32, 0, 2);
    tcase_add_loop_test(tc, test_r8_unscale_without_update, 0, 2);
    tcase_add_loop_test(tc, test_r11_unscaled_once, 0, 2);
    tcase_add_test(tc, test_r11_freed_optimizer);
    tcase_add_loop_test(tc, test_r12_order, 0, 2);
    tcase_add_loop_test(tc, test_r13_no_gradients, 0, 2);
    tcase_add_test(tc, test_r14_half_parameters);
    tcase_add_loop_test(tc, test_r15_clip, 0, 2);
    tcase_add_loop_test(tc, test_r16_accumulation, 0, 2);
    tcase_add_test(tc, test_late_gradient);
    tcase_add_loop_test(tc, test_r20_schedule_follows_applied, 0, 2);
    tcase_add_loop_test(tc, test_two_optimizers, 0, 2);
    tcase_add_loop_test(tc, test_two_losses, 0, 2);
    tcase_add_loop_test(tc, test_backward_of_scaled, 0, 2);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
