/* Mixed precision used in odd orders and with odd things: parts freed between calls, errors in
 * between, tensors without elements, f64, every rule for every op. */
#include "amp/amp.h"
#include "tests/support_cases.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const int64_t two = 2;

/* ---- parts that go away ---------------------------------------------------------------------- */

/* A scaler freed after unscale, also while an error is pending: what it had found goes with it. */
START_TEST(test_freed_scaler)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i % 2], 64);
    const bool failed = _i >= 2;
    mn_check_backward(&r, (double)INFINITY);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    if (failed)
        mn_reshape(r.w, 1, NULL);
    mn_grad_scaler_free(r.scaler);
    r.scaler = NULL;
    if (failed)
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "reshape");
    ck_assert_int_eq(mn_optimizer_step(r.sgd), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "unscaled already: call mn_optimizer_zero_grad");
    mn_optimizer_zero_grad(r.sgd);
    mn_backward(mn_check_loss_of(r.w, 1), 1);
    ck_assert_int_eq(mn_clip_grad_norm(r.sgd, 10, NULL), MN_OK);
    ck_assert_int_eq(mn_optimizer_step(r.sgd), MN_OK);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_optimizer_stats stats;
    ck_assert_int_eq(mn_optimizer_stats_get(r.sgd, &stats), MN_OK);
    ck_assert(stats.applied == 1 && stats.skipped == 0 && stats.nonfinite == 0);
    mn_check_run_close(&r);
}
END_TEST

/* The same with a new scaler in its place. */
START_TEST(test_replaced_scaler)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    mn_check_backward(&r, (double)INFINITY);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    mn_grad_scaler_free(r.scaler);
    r.scaler = mn_grad_scaler_create(r.ctx, NULL);
    mn_optimizer_zero_grad(r.sgd);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_check_run_close(&r);
}
END_TEST

/* Gradients of a skipped step are not stepped by the optimizer alone afterwards. */
START_TEST(test_step_after_skip)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    mn_check_backward(&r, (double)NAN);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    ck_assert_int_eq(mn_optimizer_step(r.sgd), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "left over from a finished step");
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    mn_check_run_close(&r);
}
END_TEST

/* The tensor that was the loss of one backward cannot be that of another; scaling it again neither.
 */
START_TEST(test_loss_twice)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    mn_tensor *loss = mn_check_loss_of(r.w, 1);
    ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, loss, 1), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, loss, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "second backward");
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 64);
    mn_optimizer_zero_grad(r.sgd);
    mn_tensor *twice = mn_grad_scaler_scale(r.scaler, mn_check_loss_of(r.w, 1), 1);
    ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, twice, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "scaled twice");
    mn_check_run_close(&r);
}
END_TEST

/* An error after any call of a step, cleared: then zero_grad, and the next step is a good one. */
START_TEST(test_error_after_each_call)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    for (int at = 0; at < 6; at++) {
        const double before = mn_check_at(r.w, 0);
        for (int call = 0; call < 6; call++) {
            if (call == at)
                mn_reshape(r.w, 1, NULL);
            if (call == 0)
                mn_autocast_begin(r.ctx, MN_F16);
            else if (call == 1)
                mn_check_backward(&r, 1);
            else if (call == 2)
                mn_grad_scaler_unscale(r.scaler, r.sgd);
            else if (call == 3)
                mn_clip_grad_norm(r.sgd, 100, NULL);
            else if (call == 4)
                mn_grad_scaler_step(r.scaler, r.sgd, NULL);
            else
                mn_grad_scaler_update(r.scaler);
        }
        mn_autocast_end(r.ctx);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "reshape");
        ck_assert_int_eq(mn_autocast_dtype(r.ctx), MN_F32);
        ck_assert_double_eq(mn_check_at(r.w, 0), before - (at == 5));
        ck_assert_int_eq(mn_optimizer_zero_grad(r.sgd), MN_OK);
        ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
        ck_assert_double_eq(mn_check_at(r.w, 0), before - 1 - (at == 5));
        ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 64);
    }
    mn_check_run_close(&r);
}
END_TEST

/* ---- odd tensors ----------------------------------------------------------------------------- */

/* A parameter without elements beside one with, and alone. */
START_TEST(test_no_elements)
{
    const int64_t shape[2] = {0, 2};
    for (int alone = 0; alone < 2; alone++) {
        mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
        mn_tensor *p[2] = {mn_parameter_create(r.ctx, "e", MN_F32, 2, shape, MN_LAYOUT_PLAIN), r.w};
        mn_optimizer *adam = mn_adam_create(r.ctx, p, 2 - alone, NULL);
        mn_ema *ema = mn_ema_create(r.ctx, p, 2 - alone, NULL);
        mn_step_outcome outcome = MN_STEP_SKIPPED;
        for (int step = 0; step < 2; step++) {
            mn_autocast_begin(r.ctx, MN_F16);
            mn_tensor *x = mn_full(r.ctx, MN_F32, 1, &two, 3);
            mn_tensor *y = mn_linear(mn_reshape(x, 2, (const int64_t[]){1, 2}), p[0], NULL);
            ck_assert_int_eq(mn_tensor_dtype(y), MN_F16);
            mn_tensor *loss = mn_add(mn_check_total(y), mn_check_total(r.w));
            mn_autocast_end(r.ctx);
            ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, loss, 1), MN_OK);
            ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, adam), MN_OK);
            ck_assert_int_eq(mn_clip_grad_norm(adam, 1, NULL), MN_OK);
            ck_assert_int_eq(mn_clip_grad_value(adam, 1), MN_OK);
            ck_assert_int_eq(mn_grad_scaler_step(r.scaler, adam, &outcome), MN_OK);
            ck_assert_int_eq(outcome, MN_STEP_APPLIED);
            ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
            ck_assert_int_eq(mn_ema_update(ema, adam), MN_OK);
            mn_optimizer_zero_grad(adam);
            mn_zero_grad(r.w);
        }
        mn_state_dict *dict = mn_state_dict_create(r.ctx);
        ck_assert_int_eq(mn_optimizer_save_state(adam, dict), MN_OK);
        ck_assert_int_eq(mn_optimizer_load_state(adam, dict), MN_OK);
        mn_state_dict_free(dict);
        mn_ema_free(ema);
        mn_optimizer_free(adam);
        mn_release(p[0]);
        mn_check_run_close(&r);
    }
}
END_TEST

/* A model in f64 is not touched by a region, and the scaler keeps its precision. */
START_TEST(test_f64_model)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F64);
    mn_optimizer *sgd = mn_check_sgd_of(ctx, &p, 1);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    const int64_t row[2] = {1, 3};
    mn_tensor *x = mn_full(ctx, MN_F64, 2, row, 1.0 / 3);
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *y = mn_softmax(mn_linear(x, mn_reshape(p, 2, row), NULL), 1);
    mn_tensor *loss = mn_sum(mn_mul(p, mn_reshape(x, 1, row + 1)), 0, NULL, false);
    ck_assert_int_eq(mn_tensor_dtype(y), MN_F64);
    ck_assert_int_eq(mn_tensor_dtype(loss), MN_F64);
    mn_autocast_end(ctx);
    ck_assert_ptr_null(p->leaf->shadow[0].storage);
    ck_assert_int_eq(mn_grad_scaler_backward(scaler, loss, 1), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_step(scaler, sgd, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(scaler), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(p), 0), 1.0 / 3);
    ck_assert_double_eq(mn_check_at(p, 0), mn_check_start[0] - 1.0 / 3);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

static mn_status copy_infer(mn_infer *infer)
{
    infer->out[0] = infer->in[0];
    return MN_OK;
}

static void copy_reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = in[0][i];
}

/* Leaves a region open, which casts nothing here and ends with the backward function. */
static mn_status region_backward(mn_backward_call *call)
{
    mn_tensor *g = call->grad_out[0];
    mn_autocast_begin(call->context, MN_F16);
    ck_assert_int_eq(mn_tensor_dtype(mn_dot(g, g)), MN_F32);
    call->grad_in[0] = mn_mul(g, g);
    return mn_error_status(call->context);
}

START_TEST(test_region_in_backward)
{
    static const mn_op op = {.size = sizeof(mn_op),
                             .name = "region",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .outputs = 1,
                             .differentiable = 1,
                             .rule = {MN_CAST_LOWER, MN_CAST_LOWER},
                             .infer = copy_infer,
                             .backward = region_backward,
                             .reference = copy_reference};
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    mn_tensor *w = mn_check_leaf(ctx, "w", MN_F32), *y;
    ck_assert_int_eq(mn_apply(ctx, &op, &w, 1, NULL, &y), MN_OK);
    mn_tensor *loss = mn_check_total(y);
    if (_i >= 2)
        mn_autocast_begin(ctx, MN_BF16);
    ck_assert_int_eq(mn_backward(loss, 3), MN_OK);
    ck_assert_int_eq(mn_autocast_dtype(ctx), _i >= 2 ? MN_BF16 : MN_F32);
    ck_assert_double_eq(mn_check_at(mn_grad(w), 0), 9);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* ---- rules ----------------------------------------------------------------------------------- */

/* What reshape shows of a parameter in a region is the caller's to write to. */
START_TEST(test_view_is_no_shadow)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t shape[2] = {1, 2};
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 2, shape, MN_LAYOUT_PLAIN);
    mn_tensor_write_f64(w, (const double[]){1, 2}, 2);
    ck_assert_int_eq(mn_autocast_set_rule(ctx, "reshape", MN_CAST_LOWER), MN_OK);
    mn_autocast_begin(ctx, MN_BF16);
    mn_tensor *view = mn_reshape(w, 1, &two);
    ck_assert_int_eq(mn_tensor_dtype(view), MN_BF16);
    ck_assert_int_eq(mn_tensor_write_f64(view, (const double[]){7, 7}, 2), MN_OK);
    mn_tensor *row = mn_full(ctx, MN_F32, 2, shape, 1);
    ck_assert_double_eq(mn_check_at(mn_linear(row, w, NULL), 0), 3);
    mn_autocast_end(ctx);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *case_in_region(mn_context *ctx, const op_case *c)
{
    mn_tensor *in[CASE_INPUTS] = {NULL};
    for (int i = 0; i < mn_case_inputs(c); i++) {
        const case_input *input = &c->inputs[i];
        in[i] = mn_tensor_create(ctx, mn_case_dtype(input->kind, i % 2 ? MN_F16 : MN_F32),
                                 input->ndim, input->shape);
        const int64_t count = mn_tensor_numel(in[i]);
        double *values = calloc((size_t)count + 1, sizeof *values);
        mn_case_draw(c, i, MN_BF16, count, values);
        mn_tensor_write_f64(in[i], values, count);
        free(values);
        if (mn_case_wants_gradient(c, i))
            mn_set_requires_grad(in[i], true);
    }
    mn_autocast_begin(ctx, MN_BF16);
    mn_tensor *y = mn_case_build(ctx, in, c);
    if (y && mn_tensor_dtype(y) != MN_F32 && mn_dtype_is_float(mn_tensor_dtype(y)))
        y = mn_cast(y, MN_F32);
    if (y && mn_requires_grad(y))
        mn_backward(mn_check_total(y), 1);
    mn_autocast_end(ctx);
    return y;
}

/* Every case in a region in which every op has the rule, with mixed dtypes: it runs, or an error
 * says why not; the region is closed again. */
START_TEST(test_every_rule_for_every_op)
{
    mn_context *ctx = mn_check_context("cpu");
    const mn_cast_rule rule = (mn_cast_rule)_i;
    int refused = 0;
    for (int i = 0; i < mn_op_count(); i++) {
        mn_op_info info;
        ck_assert(mn_op_info_get(i, &info));
        const bool fits = rule != MN_CAST_FP32_OUT || info.rule_cpu == MN_CAST_FP32_OUT;
        if (mn_autocast_set_rule(ctx, info.name, rule) != MN_OK)
            mn_check_expect(ctx, MN_ERR_ARGUMENT, "use FP32");
        else
            ck_assert_msg(fits, "%s", info.name);
    }
    for (int i = 0; i < mn_case_count(); i++) {
        const op_case *c = mn_case_at(i);
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *y = case_in_region(ctx, c);
        ck_assert_msg(y || !mn_ok(ctx), "%s", c->name);
        if (!mn_ok(ctx)) {
            refused++;
            ck_assert_msg(mn_error_status(ctx) == MN_ERR_UNSUPPORTED ||
                              (rule != MN_CAST_REFUSE && mn_error_status(ctx) == MN_ERR_DTYPE),
                          "%s: %s", c->name, mn_error_message(ctx));
            mn_error_clear(ctx);
        }
        mn_scope_end(ctx, scope);
        ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F32);
    }
    if (rule == MN_CAST_FP32)
        ck_assert_int_eq(refused, 0);
    if (rule == MN_CAST_REFUSE) /* all but the one of functions that write in place */
        ck_assert_int_eq(refused, mn_case_count() - 1);
    mn_check_done(ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("amp orders");
    TCase *tc = tcase_create("orders");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_freed_scaler, 0, 4);
    tcase_add_loop_test(tc, test_replaced_scaler, 0, 2);
    tcase_add_loop_test(tc, test_step_after_skip, 0, 2);
    tcase_add_loop_test(tc, test_loss_twice, 0, 2);
    tcase_add_loop_test(tc, test_error_after_each_call, 0, 2);
    tcase_add_loop_test(tc, test_no_elements, 0, 2);
    tcase_add_loop_test(tc, test_f64_model, 0, 2);
    tcase_add_loop_test(tc, test_region_in_backward, 0, 4);
    tcase_add_loop_test(tc, test_view_is_no_shadow, 0, 2);
    tcase_add_loop_test(tc, test_every_rule_for_every_op, 0, MN_CAST_REFUSE + 1);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
