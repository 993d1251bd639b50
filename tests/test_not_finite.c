/* NaN and infinity as options, and where a decision hangs on them. All of this holds under
 * -ffast-math too (check_fast_math.sh), so that nothing here compares with them. */
#include "amp/amp.h"
#include "core/json_write.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"
#include "train/train.h"

#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const double bad[3] = {(double)NAN, (double)INFINITY, -(double)INFINITY};

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { SGD, ADAM, RMSPROP };
typedef struct option {
    int kind;
    size_t offset;
    const char *name;
} option;

static mn_optimizer *create(mn_context *ctx, mn_tensor *p, const option *which, double value)
{
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adam = mn_adam_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    void *const options[3] = {&sgd, &adam, &rmsprop};
    sgd.schedule = (mn_schedule){.kind = MN_SCHEDULE_STEP, .step_size = 2};
    memcpy((char *)options[which->kind] + which->offset, &value, sizeof value);
    if (which->kind == SGD)
        return mn_sgd_create(ctx, &p, 1, &sgd);
    return which->kind == ADAM ? mn_adam_create(ctx, &p, 1, &adam)
                               : mn_rmsprop_create(ctx, &p, 1, &rmsprop);
}

START_TEST(optimizers)
{
    static const option options[] = {
        {SGD, offsetof(mn_sgd_options, lr), "lr"},
        {SGD, offsetof(mn_sgd_options, weight_decay), "weight_decay"},
        {SGD, offsetof(mn_sgd_options, momentum), "momentum"},
        {SGD, offsetof(mn_sgd_options, schedule.gamma), "gamma"},
        {ADAM, offsetof(mn_adam_options, beta1), "beta1"},
        {ADAM, offsetof(mn_adam_options, beta2), "beta2"},
        {ADAM, offsetof(mn_adam_options, eps), "eps"},
        {RMSPROP, offsetof(mn_rmsprop_options, alpha), "alpha"},
        {RMSPROP, offsetof(mn_rmsprop_options, momentum), "momentum"},
        {RMSPROP, offsetof(mn_rmsprop_options, eps), "eps"},
    };
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (int k = 0; k < 3; k++) {
            ck_assert_ptr_null(create(ctx, p, &options[i], bad[k]));
            mn_check_expect(ctx, MN_ERR_ARGUMENT, options[i].name);
        }
    mn_ema_options ema = mn_ema_options_default();
    for (int k = 0; k < 3; k++) {
        ema.decay = bad[k];
        ck_assert_ptr_null(mn_ema_create(ctx, &p, 1, &ema));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "decay");
    }
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* NaN in a group's options means the optimizer's own; in a setter it means nothing. */
START_TEST(groups)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32), *q = mn_check_leaf(ctx, "q", MN_F32);
    mn_optimizer *sgd = mn_check_sgd_of(ctx, &p, 1);
    mn_param_group_options o = mn_param_group_options_default();
    for (int k = 1; k < 3; k++) {
        o.lr = bad[k];
        mn_optimizer_add_group(sgd, &q, 1, &o);
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "lr of a group");
    }
    o = mn_param_group_options_default();
    ck_assert_int_eq(mn_optimizer_add_group(sgd, &q, 1, &o), MN_OK);
    mn_check_give_gradient(q, 1, NULL);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    ck_assert_double_eq_tol(mn_check_at(q, 0), mn_check_start[0] - mn_check_gradient_at(1, 0),
                            1e-6);
    for (int k = 0; k < 3; k++) {
        mn_optimizer_set_lr(sgd, 0, bad[k]);
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "lr of a group");
    }
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_release(q);
    mn_check_done(ctx);
}
END_TEST

/* ---- gradients ------------------------------------------------------------------------------- */

START_TEST(clipping)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    double norm = 0;
    for (int k = 0; k < 3; k++) {
        mn_backward(mn_check_loss_of(r.w, 1), bad[k]);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "weight of backward");
        mn_grad_scaler_backward(r.scaler, mn_check_loss_of(r.w, 1), bad[k]);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "weight of the loss");
    }
    mn_backward(mn_check_loss_of(r.w, 3), 1);
    for (int k = 0; k < 3; k += 2) {
        mn_clip_grad_norm(r.sgd, bad[k], NULL);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "max_norm");
        mn_clip_grad_value(r.sgd, bad[k]);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "limit");
    }
    ck_assert_int_eq(mn_clip_grad_norm(r.sgd, (double)INFINITY, &norm), MN_OK); /* measures only */
    ck_assert_double_eq_tol(norm, 3 * sqrt(2.0), 1e-6);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 3);
    mn_check_run_close(&r);
}
END_TEST

/* A batch whose statistics are not finite leaves the running ones as they are. */
START_TEST(running_statistics)
{
    const int64_t shape[2] = {4, 1}, one = 1;
    mn_context_options options = mn_context_options_default();
    options.kernels = _i ? MN_KERNELS_REFERENCE : MN_KERNELS_AUTO;
    mn_context *ctx = mn_context_create(&options, NULL);
    mn_tensor *running[3] = {mn_full(ctx, MN_F32, 1, &one, 0), mn_full(ctx, MN_F32, 1, &one, 1),
                             mn_full(ctx, MN_I64, 0, NULL, 0)};
    mn_tensor *x = mn_full(ctx, MN_F32, 2, shape, 1);
    mn_tensor *weight = mn_full(ctx, MN_F32, 1, &one, 1);
    mn_batch_norm_options norm = mn_batch_norm_options_default();
    float values[4] = {1, 2, 3, 0};
    norm.training = true;
    for (int k = 0; k < 3; k++) {
        values[3] = (float)bad[k];
        ck_assert_int_eq(mn_tensor_write(x, values, sizeof values), MN_OK);
        ck_assert_ptr_nonnull(mn_batch_norm(x, weight, weight, running, &norm));
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq(mn_check_at(running[i], 0), i == 1);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- ops ------------------------------------------------------------------------------------- */

START_TEST(ops)
{
    const int64_t two = 2;
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = mn_full(ctx, MN_F32, 1, &two, 1);
    ck_assert_ptr_null(mn_clamp(x, bad[0], 1));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "bound is NaN");
    ck_assert_ptr_nonnull(mn_clamp(x, bad[2], bad[1]));
    mn_tensor_clamp(x, 0, bad[0]);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "limit is NaN");
    for (int k = 0; k < 3; k++) {
        ck_assert_ptr_null(mn_dropout(x, bad[k], true));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "dropout");
        ck_assert_ptr_null(mn_dropout_layer(ctx, bad[k]));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "p must be in [0, 1]");
        ck_assert_ptr_null(mn_layer_norm(x, 1, NULL, NULL, bad[k]));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "eps");
        ck_assert_ptr_null(mn_var(x, bad[k], 0, NULL, false));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "correction");
    }
    ck_assert_ptr_null(mn_huber_loss(x, x, bad[0], MN_REDUCTION_MEAN));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "delta");
    ck_assert_ptr_null(mn_norm(x, bad[0], 0, NULL, false));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "p is");
    ck_assert_ptr_null(mn_norm(x, bad[2], 0, NULL, false));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "p is");
    ck_assert_double_eq(mn_check_at(mn_norm(x, bad[1], 0, NULL, false), 0), 1);
    mn_tensor_fill(mn_full(ctx, MN_F16, 1, &two, 1), 1e6); /* finite, but not in f16 */
    mn_check_expect(ctx, MN_ERR_DTYPE, "does not fit f16");
    mn_check_done(ctx);
}
END_TEST

/* ---- training -------------------------------------------------------------------------------- */

/* NaN as learning rate or gamma means the default. */
START_TEST(training)
{
    static const struct {
        const char *name;
        size_t offset;
        int count; /* of bad values that are refused */
    } numbers[] = {
        {"--momentum", offsetof(mn_train_options, momentum), 3},
        {"--weight-decay", offsetof(mn_train_options, weight_decay), 3},
        {"--clip-norm", offsetof(mn_train_options, clip_norm), 1},
        {"--init-scale", offsetof(mn_train_options, scaler.init_scale), 1},
        {"--validation", offsetof(mn_train_options, validation), 3},
    };
    mn_train_options options;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int k = 0; k < numbers[i].count; k++) {
            mn_train_options given = mn_train_options_default();
            mn_error error = {MN_OK, ""};
            memcpy((char *)&given + numbers[i].offset, &bad[k], sizeof bad[k]);
            ck_assert_int_eq(mn_train_options_read(&given, &options, &error), MN_ERR_ARGUMENT);
            ck_assert_msg(strstr(error.message, numbers[i].name) != NULL, "%s", error.message);
        }
    mn_train_options given = mn_train_options_default();
    given.schedule = MN_SCHEDULE_STEP;
    given.step_size = 2;
    given.gamma = bad[1];
    ck_assert_int_eq(mn_train_options_read(&given, &options, NULL), MN_ERR_ARGUMENT);
    given = mn_train_options_default();
    ck_assert_int_eq(mn_train_options_read(&given, &options, NULL), MN_OK);
    ck_assert_double_gt(options.lr, 0);
    ck_assert_double_lt(options.lr, 1);
    for (int k = 0; k < 3; k++) {
        mn_compare_options compare = mn_compare_options_default();
        mn_error error = {MN_OK, ""};
        compare.margin = bad[k];
        ck_assert_ptr_null(mn_compare(&compare, &error));
        ck_assert_msg(strstr(error.message, "--margin") != NULL, "%s", error.message);
    }
}
END_TEST

START_TEST(loader)
{
    mn_error error = {MN_OK, ""};
    mn_dataset *data = mn_dataset_open("synthetic:8x8x1:2:10", true, NULL, &error);
    ck_assert_msg(data != NULL, "%s", error.message);
    for (int k = 0; k < 3; k++) {
        mn_loader_options o = mn_loader_options_default();
        o.validation = bad[k];
        error = (mn_error){MN_OK, ""};
        ck_assert_ptr_null(mn_loader_create(data, &o, &error));
        ck_assert_msg(strstr(error.message, "validation") != NULL, "%s", error.message);
        for (int i = 0; i < 2; i++) {
            o = mn_loader_options_default();
            o.normalization =
                (mn_normalization){.channels = 1, .mean = {0.5F}, .deviation = {0.5F}};
            (i ? o.normalization.mean : o.normalization.deviation)[0] = (float)bad[k];
            ck_assert_ptr_null(mn_loader_create(data, &o, &error));
            ck_assert_msg(strstr(error.message, "deviation above 0") != NULL, "%s", error.message);
        }
    }
    mn_dataset_free(data);
}
END_TEST

/* JSON has no such numbers. */
START_TEST(json)
{
    mn_json_out out;
    mn_out_init(&out, NULL);
    mn_out_begin(&out, NULL, '[');
    for (int k = 0; k < 3; k++)
        mn_out_number(&out, NULL, bad[k]);
    mn_out_measured(&out, NULL, bad[0]);
    mn_out_number(&out, NULL, 1.5);
    mn_out_end(&out, ']');
    ck_assert_str_eq(mn_out_text(&out), "[\"nan\",\"inf\",\"-inf\",null,1.5]");
    mn_out_free(&out);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("not finite");
    TCase *tc = tcase_create("not finite");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, optimizers);
    tcase_add_test(tc, groups);
    tcase_add_loop_test(tc, clipping, 0, 2);
    tcase_add_loop_test(tc, running_statistics, 0, 2);
    tcase_add_test(tc, ops);
    tcase_add_test(tc, training);
    tcase_add_test(tc, loader);
    tcase_add_test(tc, json);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
