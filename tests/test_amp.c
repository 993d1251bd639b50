/* Grad scaler: several optimizers and losses, and orders of calls beside the numbered cases (in
 * test_amp_cases.c). */
#include "amp/amp.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A new optimizer at the address of a freed one starts READY, and its owner does not touch it. */
START_TEST(test_freed_optimizer)
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
    tcase_add_test(tc, test_freed_optimizer);
    tcase_add_test(tc, test_late_gradient);
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
