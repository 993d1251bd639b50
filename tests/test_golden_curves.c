/* Whole training runs of LeNet-5 against PyTorch's: golden/curves.inc. */
#include "tests/support_golden.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { STEPS = 50, BATCH = 16, PIXELS = 28 * 28 };
typedef struct curve_case {
    mn_dtype amp;
    double bound;        /* of the differences, times the largest loss */
    float losses[STEPS]; /* before each step */
    float scales[STEPS]; /* of the scaler, after each step */
} curve_case;
static const curve_case cases[] = {
#include "tests/golden/curves.inc"
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };

/* Every parameter made by the formula, in the order of PyTorch's elements. */
static void set_parameters(mn_context *ctx, mn_module *net)
{
    mn_state_dict *old = mn_state_dict_create(ctx), *dict = mn_state_dict_create(ctx);
    ck_assert_int_eq(mn_module_save_state(net, old), MN_OK);
    mn_state_entry entry;
    double fan_in = 1;
    for (int64_t salt = 0; mn_state_dict_entry(old, salt, &entry); salt++) {
        const int64_t count = (int64_t)(entry.bytes / sizeof(float));
        float *values = malloc(entry.bytes);
        if (entry.ndim > 1)
            fan_in = (double)(count / entry.shape[0]);
        for (int64_t i = 0; i < count; i++)
            values[i] = (float)(2.5 * mn_golden_value(i, salt) / sqrt(fan_in));
        entry.data = values;
        ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_OK);
        free(values);
    }
    ck_assert_int_eq(mn_module_load_state(net, dict), MN_OK);
    mn_state_dict_free(old);
    mn_state_dict_free(dict);
}

static void make_batch(mn_context *ctx, int step, mn_tensor **images, mn_tensor **labels)
{
    static float pixels[BATCH * PIXELS];
    int64_t classes[BATCH];
    for (int n = 0; n < BATCH; n++) {
        classes[n] = (5 * n + n / 2 + step) % 10;
        for (int i = 0; i < PIXELS; i++)
            pixels[n * PIXELS + i] = (float)(mn_golden_value(i, classes[n]) +
                                             0.5 * mn_golden_value(i, 100 + step * BATCH + n));
    }
    const int64_t shape[4] = {BATCH, 28, 28, 1};
    *images = mn_tensor_from(ctx, MN_F32, 4, shape, pixels);
    *labels = mn_tensor_from(ctx, MN_I64, 1, shape, classes);
}

typedef struct curve_run {
    mn_context *ctx;
    mn_module *net;
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
} curve_run;

static curve_run run_open(mn_dtype amp, mn_kernel_set kernels)
{
    mn_context_options context = mn_context_options_default();
    context.kernels = kernels;
    context.winograd = false;
    curve_run r = {.ctx = mn_context_create(&context, NULL)};
    r.net = mn_model_create(r.ctx, "lenet5", NULL);
    set_parameters(r.ctx, r.net);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(r.net, &count);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.01;
    options.momentum = 0.5;
    options.weight_decay = 5e-4;
    r.sgd = mn_sgd_create(r.ctx, parameters, count, &options);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.growth_interval = 20;
    scaling.enabled = amp == MN_F16;
    r.scaler = mn_grad_scaler_create(r.ctx, &scaling);
    return r;
}

static double run_step(curve_run *r, mn_dtype amp, int step)
{
    double value = (double)NAN;
    mn_tensor *images = NULL, *labels = NULL;
    mn_scope scope = mn_scope_begin(r->ctx);
    make_batch(r->ctx, step, &images, &labels);
    mn_autocast_begin(r->ctx, amp);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(r->net, images), labels, NULL);
    mn_autocast_end(r->ctx);
    mn_grad_scaler_backward(r->scaler, loss, 1);
    mn_grad_scaler_step(r->scaler, r->sgd, NULL);
    mn_grad_scaler_update(r->scaler);
    mn_optimizer_zero_grad(r->sgd);
    mn_tensor_item(loss, &value);
    mn_scope_end(r->ctx, scope);
    ck_assert_msg(mn_error_status(r->ctx) == MN_OK, "%s", mn_error_message(r->ctx));
    return value;
}

START_TEST(test_curve)
{
    const curve_case *c = &cases[_i % CASES];
    curve_run r = run_open(c->amp, _i < CASES ? MN_KERNELS_AUTO : MN_KERNELS_PORTABLE);
    for (int step = 0; step < STEPS; step++) {
        const double loss = run_step(&r, c->amp, step), expected = (double)c->losses[step];
        ck_assert_msg(fabs(loss - expected) <= c->bound * (double)c->losses[0],
                      "%s, step %d: loss %.6f, expected %.6f", mn_dtype_name(c->amp), step, loss,
                      expected);
        ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, (double)c->scales[step]);
    }
    mn_grad_scaler_free(r.scaler);
    mn_optimizer_free(r.sgd);
    mn_module_free(r.net);
    mn_check_done(r.ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("golden_curves");
    TCase *tc = tcase_create("golden_curves");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_curve, 0, 2 * CASES);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
