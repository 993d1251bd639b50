/* Arithmetic in place, clipping by value, and averages of weights. */
#include "optim/optim.h"
#include "core/state_dict.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>

/* ---- in place -------------------------------------------------------------------------------- */

START_TEST(test_clip_value)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p = mn_check_leaf(ctx, "fc.bias", _i ? MN_F64 : MN_F32);
    mn_optimizer *optimizer = mn_adam_create(ctx, &p, 1, NULL);
    const double bad[3] = {(double)NAN, -7, (double)INFINITY};
    mn_clip_grad_value(optimizer, 1);
    mn_check_expect(ctx, MN_ERR_NO_GRADIENT, "0 of 1");
    mn_check_give_gradient(p, 2, NULL);
    mn_tensor_write_f64(mn_grad(p), bad, 3);
    uint64_t waits = ctx->device->synchronizations;
    ck_assert_int_eq(mn_clip_grad_value(optimizer, 2.5), MN_OK);
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    ck_assert(isnan(mn_check_at(mn_grad(p), 0)));
    ck_assert_double_eq(mn_check_at(mn_grad(p), 1), -2.5);
    ck_assert_double_eq(mn_check_at(mn_grad(p), 2), 2.5);
    mn_clip_grad_value(optimizer, 0);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "limit is 0, must be positive");
    mn_clip_grad_value(optimizer, (double)NAN);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "limit is nan");
    ck_assert_int_eq(mn_clip_grad_value(NULL, 1), MN_ERR_ARGUMENT);
    mn_optimizer_zero_grad(optimizer);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    mn_check_give_gradient(p, 0, scaler);
    mn_clip_grad_value(optimizer, 1);
    mn_check_expect(ctx, MN_ERR_STATE, "call mn_grad_scaler_unscale before clipping (fc.bias)");
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

static const mn_dtype floats[] = {MN_F64, MN_F32, MN_F16, MN_BF16};

/* dtype of the destination: _i % 4, of the source: _i / 4. All values are exact in all of them. */
START_TEST(test_in_place)
{
    const int64_t count = 3;
    const double addend[3] = {8, -2, (double)NAN};
    mn_context *ctx = mn_check_context("cpu-deferred");
    mn_tensor *x = mn_tensor_create(ctx, floats[_i % 4], 1, &count);
    mn_tensor *y = mn_tensor_create(ctx, floats[_i / 4], 1, &count);
    mn_tensor_write_f64(x, mn_check_start, count);
    mn_tensor_write_f64(y, addend, count);
    uint64_t version = mn_tensor_version(x);
    ck_assert_int_eq(mn_tensor_add(x, y, -0.25), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(x), version + 1);
    ck_assert_double_eq(mn_check_at(x, 0), -1.5);
    ck_assert_double_eq(mn_check_at(x, 1), -0.75);
    ck_assert(isnan(mn_check_at(x, 2)));
    ck_assert_int_eq(mn_tensor_scale(x, -4, 0.5), MN_OK);
    ck_assert_double_eq(mn_check_at(x, 0), 6.5);
    ck_assert_double_eq(mn_check_at(x, 1), 3.5);
    ck_assert_int_eq(mn_tensor_clamp(x, 4, 6), MN_OK);
    ck_assert_double_eq(mn_check_at(x, 0), 6);
    ck_assert_double_eq(mn_check_at(x, 1), 4);
    ck_assert(isnan(mn_check_at(x, 2)));
    ck_assert_int_eq(mn_tensor_add(x, x, 1), MN_OK);
    ck_assert_double_eq(mn_check_at(x, 0), 12);
    ck_assert_uint_eq(mn_tensor_version(x), version + 4);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_in_place_refusals)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32), *x = mn_mul(p, p);
    mn_tensor *whole = mn_full(ctx, MN_I32, 0, NULL, 1), *other = mn_full(ctx, MN_F32, 0, NULL, 1);
    mn_tensor_add(p, other, 1);
    mn_check_expect(ctx, MN_ERR_STATE, "tensor_add: the destination is part of the graph");
    mn_tensor_scale(x, 1, 0);
    mn_check_expect(ctx, MN_ERR_STATE, "tensor_scale: the destination is part of the graph");
    mn_tensor_clamp(p, 0, 1);
    mn_check_expect(ctx, MN_ERR_STATE, "tensor_clamp: the destination is part of the graph");
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_tensor_clamp(p, 0, 1), MN_OK);
    mn_no_grad_end(ctx);
    ck_assert_double_eq(mn_check_at(p, 2), 1);
    ck_assert_int_eq(mn_backward(mn_check_total(x), 1), MN_ERR_VERSION);
    mn_error_clear(ctx);
    mn_tensor_add(other, mn_detach(p), 1);
    mn_check_expect(ctx, MN_ERR_SHAPE, "blend: ");
    mn_tensor_add(other, NULL, 1);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "blend: argument 2 is NULL");
    mn_tensor_add(other, other, 1e300);
    mn_check_expect(ctx, MN_ERR_DTYPE, "1.0000000000000001e+300 does not fit f32");
    mn_tensor_scale(whole, 2, 0);
    mn_check_expect(ctx, MN_ERR_DTYPE, "the tensor is i32");
    mn_tensor_clamp(other, (double)NAN, 1);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "tensor_clamp: a limit is NaN");
    ck_assert_int_eq(mn_tensor_add(NULL, NULL, 1), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_tensor_scale(NULL, 1, 0), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_tensor_clamp(NULL, 0, 1), MN_ERR_ARGUMENT);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- averages -------------------------------------------------------------------------------- */

/* Device _i % 2; the parameter f32 or, on the second round, bf16, whose own values come back. */
START_TEST(test_ema)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    mn_tensor *p = mn_check_leaf(ctx, "p", _i < 2 ? MN_F32 : MN_BF16);
    mn_adam_options adam = mn_adam_options_default();
    adam.lr = 0.1;
    mn_optimizer *optimizer = mn_adam_create(ctx, &p, 1, &adam);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    mn_ema_options options = mn_ema_options_default();
    options.decay = 0.75;
    mn_ema *ema = mn_ema_create(ctx, &p, 1, &options);
    double hand[3] = {mn_check_start[0], mn_check_start[1], mn_check_start[2]};
    for (int step = 0; step < 6; step++) {
        mn_check_give_gradient(p, step, scaler);
        if (step == 3)
            ck_assert_int_eq(mn_tensor_scale(mn_grad(p), (double)INFINITY, 0), MN_OK);
        mn_grad_scaler_step(scaler, optimizer, NULL);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(optimizer);
        uint64_t waits = ctx->device->synchronizations;
        ck_assert_int_eq(mn_ema_update(ema, step == 5 ? NULL : optimizer), MN_OK);
        ck_assert_uint_eq(ctx->device->synchronizations, waits);
        for (int i = 0; i < 3 && step != 3; i++)
            hand[i] = 0.75 * hand[i] + 0.25 * mn_check_at(p, i);
    }
    double own[3];
    mn_tensor_read_f64(p, own, 3);
    uint64_t version = mn_tensor_version(p);
    ck_assert_int_eq(mn_ema_swap(ema), MN_OK);
    ck_assert_uint_gt(mn_tensor_version(p), version);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(mn_check_at(p, i), hand[i], _i < 2 ? 1e-6 : 0.01);
    mn_ema_update(ema, optimizer);
    mn_check_expect(ctx, MN_ERR_STATE, "ema_update: the parameters hold the averages");
    ck_assert_int_eq(mn_ema_swap(ema), MN_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(mn_check_at(p, i), own[i]);
    mn_ema_free(ema);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_ema_state)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p[2] = {mn_check_leaf(ctx, "fc.weight", MN_BF16), mn_check_leaf(ctx, "", MN_F32)};
    mn_ema *from = mn_ema_create(ctx, p, 2, NULL);
    mn_no_grad_begin(ctx);
    mn_tensor_fill(p[0], 3);
    mn_ema *to = mn_ema_create(ctx, p, 2, NULL);
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    mn_ema_load_state(to, dict);
    mn_check_expect(ctx, MN_ERR_MISMATCH, "ema.fc.weight");
    ck_assert_int_eq(mn_ema_swap(from), MN_OK); /* what is saved is the average in any case */
    ck_assert_int_eq(mn_ema_save_state(from, dict), MN_OK);
    ck_assert_int_eq(mn_ema_swap(from), MN_OK);
    ck_assert(mn_state_dict_find(dict, "ema.1", &entry));
    ck_assert(mn_state_dict_find(dict, "ema.fc.weight", &entry));
    ck_assert_int_eq(entry.dtype, MN_F32);
    ck_assert_int_eq(mn_ema_swap(to), MN_OK);
    mn_ema_load_state(to, dict);
    mn_check_expect(ctx, MN_ERR_STATE, "ema_load_state: the parameters hold the averages");
    ck_assert_int_eq(mn_ema_swap(to), MN_OK);
    ck_assert_double_eq(mn_check_at(p[0], 1), 3);
    ck_assert_int_eq(mn_ema_load_state(to, dict), MN_OK);
    ck_assert_int_eq(mn_ema_swap(to), MN_OK);
    ck_assert_double_eq(mn_check_at(p[0], 1), mn_check_start[1]);
    mn_module *net = mn_linear_layer(ctx, 2, 2, false);
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    ck_assert_int_eq(mn_module_save_state(net, dict), MN_OK);
    ck_assert_int_eq(mn_module_load_state(net, dict), MN_OK); /* ema. is passed over */
    mn_module_free(net);
    mn_state_dict_free(dict);
    mn_ema_free(from);
    mn_ema_free(to);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_ema_refusals)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    mn_ema_options options = mn_ema_options_default();
    ck_assert_ptr_null(mn_ema_create(NULL, &p, 1, NULL));
    ck_assert_ptr_null(mn_ema_create(ctx, &p, 0, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "ema: there are no parameters");
    options.decay = 1.5;
    ck_assert_ptr_null(mn_ema_create(ctx, &p, 1, &options));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "ema: decay is 1.5");
    ck_assert_int_eq(mn_ema_update(NULL, NULL), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_ema_swap(NULL), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_ema_save_state(NULL, NULL), MN_ERR_ARGUMENT);
    mn_ema *ema = mn_ema_create(ctx, &p, 1, NULL);
    mn_ema_save_state(ema, NULL);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "dict is NULL");
    mn_ema_load_state(ema, NULL);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "dict is NULL");
    mn_ema_free(ema);
    mn_ema_free(NULL);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* An average is updated, and swapped, for all parameters or for none. */
START_TEST(test_ema_is_whole_or_not_at_all)
{
    static const double moved[3] = {7, 8, 9};
    mn_status status = MN_ERR_MEMORY;
    for (long k = 1; status != MN_OK; k++) {
        mn_test_counter counter = {.for_good = true};
        mn_context_options options = mn_context_options_default();
        options.kernels = MN_KERNELS_REFERENCE;
        options.allocator = mn_test_counting(&counter);
        mn_context *ctx = mn_context_create(&options, NULL);
        mn_tensor *p[2] = {mn_check_leaf(ctx, "a", MN_F32), mn_check_leaf(ctx, "b", MN_F32)};
        mn_ema *ema = mn_ema_create(ctx, p, 2, NULL);
        for (int i = 0; i < 2; i++)
            mn_tensor_write_f64(p[i], moved, 3);
        mn_memory_trim(ctx);
        counter.fail_at = counter.calls + k;
        status = mn_ema_swap(ema);
        counter.fail_at = 0;
        mn_error_clear(ctx);
        for (int i = 0; i < 2; i++)
            ck_assert_double_eq(mn_check_at(p[i], 0),
                                status == MN_OK ? mn_check_start[0] : moved[0]);
        ck_assert(status == MN_OK || mn_ema_update(ema, NULL) == MN_OK);
        mn_ema_free(ema);
        mn_release(p[0]);
        mn_release(p[1]);
        mn_check_done(ctx);
        ck_assert_int_eq(counter.blocks, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ema");
    TCase *tc = tcase_create("ema");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_clip_value, 0, 2);
    tcase_add_loop_test(tc, test_in_place, 0, 16);
    tcase_add_test(tc, test_in_place_refusals);
    tcase_add_loop_test(tc, test_ema, 0, 4);
    tcase_add_test(tc, test_ema_state);
    tcase_add_test(tc, test_ema_refusals);
    tcase_add_test(tc, test_ema_is_whole_or_not_at_all);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
