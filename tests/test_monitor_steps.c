/* The numerics monitor over whole steps: what was first not finite, sequences of steps and
 * collects, ranges. */
#include "core/core.h"
#include "tests/support_monitor.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <string.h>

/* ---- a net ----------------------------------------------------------------------------------- */

/* A net with a named convolution and a linear layer, in f16, with a scaler. */
typedef struct net {
    mn_context *ctx;
    mn_module *model;
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
    mn_monitor *monitor;
} net;

enum { SIDE = 6, BATCH = 3, CLASSES = 4 };

static void net_open(net *n, mn_context *ctx, double scale)
{
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.in_channels = 2;
    conv.out_channels = 5;
    conv.kernel[0] = conv.kernel[1] = 3;
    *n = (net){.ctx = ctx, .model = mn_sequential(ctx)};
    mn_sequential_add(n->model, "conv", mn_conv2d_layer(ctx, &conv));
    mn_sequential_add(n->model, "bn", mn_batch_norm_layer(ctx, 5));
    mn_sequential_add(n->model, "relu", mn_relu_layer(ctx));
    mn_sequential_add(n->model, "pool", mn_global_avg_pool2d_layer(ctx));
    mn_sequential_add(n->model, "fc", mn_linear_layer(ctx, 5, CLASSES, true));
    mn_module_init(n->model);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(n->model, &count);
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.momentum = 0.9;
    n->sgd = mn_sgd_create(ctx, parameters, count, &sgd);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.init_scale = scale;
    n->scaler = mn_grad_scaler_create(ctx, &scaling);
    n->monitor = mn_monitor_create(ctx, NULL);
}

static void net_close(net *n)
{
    mn_monitor_free(n->monitor);
    mn_grad_scaler_free(n->scaler);
    mn_optimizer_free(n->sgd);
    mn_module_free(n->model);
}

/* One step, with the first element of the batch given. */
static mn_status net_step(net *n, int64_t step, float first)
{
    static const int64_t shape[4] = {BATCH, SIDE, SIDE, 2}, rows[1] = {BATCH},
                         labels[BATCH] = {0, 1, 3};
    float images[BATCH * SIDE * SIDE * 2];
    for (int i = 0; i < BATCH * SIDE * SIDE * 2; i++)
        images[i] = (float)(i * 37 % 101) / 101.0f;
    images[0] = first;
    mn_scope scope = mn_scope_begin(n->ctx);
    mn_monitor_step(n->monitor, step);
    mn_tensor *x = mn_tensor_from(n->ctx, MN_F32, 4, shape, images);
    mn_tensor *y = mn_tensor_from(n->ctx, MN_I64, 1, rows, labels);
    mn_autocast_begin(n->ctx, MN_F16);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(n->model, x), y, NULL);
    mn_autocast_end(n->ctx);
    mn_grad_scaler_backward(n->scaler, loss, 1);
    mn_grad_scaler_step(n->scaler, n->sgd, NULL);
    mn_grad_scaler_update(n->scaler);
    mn_optimizer_zero_grad(n->sgd);
    mn_scope_end(n->ctx, scope);
    return mn_error_status(n->ctx);
}

/* ---- what was first not finite --------------------------------------------------------------- */

static mn_tensor *parameter(net *n, const char *name)
{
    int count;
    mn_tensor *const *parameters = mn_module_parameters(n->model, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(mn_tensor_name(parameters[i]), name) == 0)
            return parameters[i];
    ck_abort_msg("no parameter %s", name);
    return NULL;
}

typedef struct fault {
    double scale;
    float batch; /* its first element */
    const char *parameter;
    double value; /* of all of it */
    /* What is to be found. */
    mn_overflow_cause cause;
    const char *layer, *op, *input;
    mn_direction direction;
    mn_dtype dtype;
    const char *text;
} fault;

static const fault faults[] = {
    {1024, 0.5F, "conv.weight", 60000, MN_OVERFLOW_FORWARD, "conv", "conv2d_moments", "",
     MN_FORWARD, MN_F16, "step 7: conv: conv2d_moments (forward, f16) is not finite"},
    {1024, 0.5F, "fc.weight", 1e5, MN_OVERFLOW_FORWARD, "fc", "cast", "", MN_FORWARD, MN_F16,
     "no loss scale can mend that"},
    {0x1p40, 0.5F, NULL, 0, MN_OVERFLOW_BACKWARD, "", "cross_entropy_backward", "", MN_BACKWARD,
     MN_F16, "a lower loss scale may mend that"},
    {0x1p127, 0.5F, "fc.weight", 60, MN_OVERFLOW_BACKWARD, "", "scaler_scale", "", MN_FORWARD,
     MN_F32, "a lower loss scale"},
    {1024, NAN, NULL, 0, MN_OVERFLOW_INPUT, "conv", "cast", "", MN_FORWARD, MN_F16, "the data?"},
    {1024, 0.5F, "fc.weight", (double)INFINITY, MN_OVERFLOW_INPUT, "fc", "cast", "fc.weight",
     MN_FORWARD, MN_F16, "not finite before: fc.weight"},
    {1024, 0.5F, "bn.weight", (double)NAN, MN_OVERFLOW_INPUT, "bn", "batch_norm_relu", "bn.weight",
     MN_FORWARD, MN_F16, "bn.weight"},
};
enum { FAULTS = (int)(sizeof faults / sizeof *faults) };

static void check_fault(const fault *f, const mn_overflow *o)
{
    char text[300];
    mn_overflow_describe(o, text, sizeof text);
    ck_assert_msg(strcmp(o->row->op, f->op) == 0 && strcmp(o->row->layer, f->layer) == 0, "%s",
                  text);
    ck_assert_int_eq(o->cause, f->cause);
    ck_assert_int_eq(o->step, 7);
    ck_assert_int_eq(o->row->direction, f->direction);
    ck_assert_int_eq(o->row->dtype, f->dtype);
    ck_assert_str_eq(o->input_name, f->input);
    ck_assert_int_eq(o->input >= 0, f->cause == MN_OVERFLOW_INPUT);
    ck_assert_int_gt(o->infinities + o->nans, 0);
    ck_assert(o->largest <= mn_float_limits_get(f->dtype).largest);
    ck_assert_ptr_nonnull(strstr(text, f->text));
}

START_TEST(the_first_op_that_is_not_finite_is_named)
{
    const fault *f = &faults[_i / 2];
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    net n;
    net_open(&n, ctx, f->scale);
    if (f->parameter) {
        mn_tensor *p = parameter(&n, f->parameter);
        double values[200];
        for (int i = 0; i < mn_tensor_numel(p); i++)
            values[i] = i % 2 == 0 ? f->value : -f->value;
        if (strcmp(f->op, "conv2d_moments") == 0)
            values[1] = f->value; /* so that a sum is not 0 everywhere */
        mn_tensor_write_f64(p, values, mn_tensor_numel(p));
    }
    const uint64_t waits = ctx->device->synchronizations;
    ck_assert_int_eq(net_step(&n, 7, f->batch), MN_OK);
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    int count;
    ck_assert_int_eq(mn_monitor_collect(n.monitor), MN_OK);
    const mn_overflow *found = mn_monitor_overflows(n.monitor, &count);
    ck_assert_int_eq(count, 1);
    check_fault(f, found);
    net_close(&n);
    mn_check_done(ctx);
}
END_TEST

/* Made by the op itself, and by unscaling. */
START_TEST(other_causes)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_monitor *monitor = mn_monitor_create(ctx, NULL);
    mn_tensor *zero = mn_full(ctx, MN_F32, 0, NULL, 0);
    int count;
    mn_div(zero, zero);
    mn_monitor_collect(monitor);
    const mn_overflow *o = mn_monitor_overflows(monitor, &count);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(o->cause, MN_OVERFLOW_FORWARD);
    ck_assert_int_eq(o->nans, 1);
    ck_assert_str_eq(o->row->op, "div");
    mn_monitor_free(monitor);
    mn_check_done(ctx);
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 0x1p-100);
    monitor = mn_monitor_create(r.ctx, NULL);
    mn_monitor_step(monitor, 3);
    mn_check_backward(&r, 0x1p60);
    mn_grad_scaler_step(r.scaler, r.sgd, NULL);
    mn_monitor_collect(monitor);
    mn_monitor_overflows(monitor, &count);
    ck_assert_int_eq(count, 0);
    mn_grad_scaler_update(r.scaler);
    mn_optimizer_zero_grad(r.sgd);
    mn_check_give_scaled(r.w, 0x1p60);
    mn_grad_scaler_step(r.scaler, r.sgd, NULL);
    mn_monitor_collect(monitor);
    o = mn_monitor_overflows(monitor, &count);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(o->cause, MN_OVERFLOW_UPDATE);
    ck_assert_str_eq(o->row->op, "grad_unscale");
    ck_assert_int_eq(o->step, 3);
    mn_monitor_free(monitor);
    mn_check_run_close(&r);
}
END_TEST

/* ---- sequences ------------------------------------------------------------------------------- */

static int events(mn_monitor *monitor)
{
    int count;
    ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
    mn_monitor_overflows(monitor, &count);
    return count;
}

START_TEST(steps_and_collects)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    net n;
    int count, before;
    net_open(&n, ctx, 1024);
    for (int step = 0; step < 70; step++)
        net_step(&n, step, step % 2 == 0 ? NAN : 0.5F);
    ck_assert_int_eq(events(n.monitor), 35);
    ck_assert_int_eq(mn_monitor_overflows(n.monitor, &count)[34].step, 68);
    ck_assert_int_eq(events(n.monitor), 0);
    for (int step = 70; step < 140; step++)
        net_step(&n, step, NAN);
    ck_assert_int_eq(events(n.monitor), 64);
    ck_assert_int_eq(mn_monitor_overflows(n.monitor, &count)[0].step, 76);
    ck_assert_int_eq(mn_monitor_totals_get(n.monitor).overflows, 105);
    const int64_t calls =
        mn_test_row(n.monitor, "conv", "conv2d_moments", MN_FORWARD, MN_F16)->calls;
    mn_monitor_rows(n.monitor, &before);
    ck_assert_int_eq(calls, 140);
    ck_assert_int_eq(mn_monitor_enable(n.monitor, false), MN_OK);
    net_step(&n, 140, NAN);
    ck_assert_int_eq(events(n.monitor), 0);
    ck_assert_int_eq(mn_test_row(n.monitor, "conv", "conv2d_moments", MN_FORWARD, MN_F16)->calls,
                     calls);
    ck_assert_int_eq(mn_monitor_enable(n.monitor, true), MN_OK);
    net_step(&n, 141, NAN);
    ck_assert_int_eq(events(n.monitor), 1);
    ck_assert_int_eq(mn_test_row(n.monitor, "conv", "conv2d_moments", MN_FORWARD, MN_F16)->calls,
                     calls + 1);
    mn_monitor_rows(n.monitor, &count);
    ck_assert_int_eq(count, before); /* no step makes new places */
    net_close(&n);
    mn_check_done(ctx);
}
END_TEST

/* Unscaling is told by its parameter in every step: zero_grad has given the buffer back. */
START_TEST(gradients_are_known_in_each_step)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    net n;
    int count, parameters, unscaled = 0;
    net_open(&n, ctx, 1024);
    for (int step = 0; step < 4; step++)
        net_step(&n, step, 0.5F);
    ck_assert_int_eq(mn_monitor_collect(n.monitor), MN_OK);
    mn_module_parameters(n.model, &parameters);
    const mn_monitor_row *rows = mn_monitor_rows(n.monitor, &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].op, "grad_unscale") != 0)
            continue;
        unscaled++;
        ck_assert_str_ne(rows[i].parameter, "");
        ck_assert_int_eq(rows[i].calls, 4);
    }
    ck_assert_int_eq(unscaled, parameters);
    net_close(&n);
    mn_check_done(ctx);
}
END_TEST

/* Training is the same with a monitor and without. */
START_TEST(a_monitor_changes_nothing)
{
    float weights[2][90];
    for (int k = 0; k < 2; k++) {
        mn_context *ctx = mn_check_context(mn_check_devices[_i]);
        net n;
        net_open(&n, ctx, 0x1p20);
        mn_monitor_enable(n.monitor, k == 1);
        for (int step = 0; step < 8; step++)
            net_step(&n, step, 0.5F);
        mn_tensor_read(parameter(&n, "conv.weight"), weights[k], sizeof weights[k]);
        net_close(&n);
        mn_check_done(ctx);
    }
    ck_assert(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
}
END_TEST

static mn_status infer_nothing(mn_infer *call)
{
    (void)call;
    return MN_OK;
}

static void run_nothing(const mn_call *call)
{
    (void)call;
}

/* A custom op may leave out the input that it writes, or have no other. */
START_TEST(what_is_written_may_be_absent)
{
    static const mn_op op = {.size = sizeof op,
                             .name = "write",
                             .summary = "nothing",
                             .max_inputs = 2,
                             .optional = 1,
                             .mutates = 1,
                             .infer = infer_nothing,
                             .kernels = {{.dtypes = 0xff, .run = run_nothing}}};
    mn_context *ctx = mn_test_open();
    mn_monitor *monitor = mn_monitor_create(ctx, NULL);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_tensor *inputs[2] = {NULL, mn_relu(mn_test_full(ctx, MN_F32, 1))}, *outputs[1];
    int count = 0;
    for (int i = 0; i <= 2; i++)
        mn_apply(ctx, &op, inputs, i, NULL, outputs);
    ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
    ck_assert_str_eq(mn_monitor_rows(monitor, &count)->op, "relu");
    ck_assert_int_eq(count, 1);
    inputs[0] = inputs[1];
    mn_apply(ctx, &op, inputs, 1, NULL, outputs);
    ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
    ck_assert_int_eq(mn_monitor_rows(monitor, NULL)[1].count, 32);
    ck_assert_ptr_nonnull(mn_monitor_overflows(monitor, NULL));
    mn_trace_free(trace);
    mn_monitor_free(monitor);
    mn_context_free(ctx);
}
END_TEST

START_TEST(one_monitor_a_context)
{
    mn_context *ctx = mn_test_open(), *other = mn_test_open();
    mn_monitor *monitor = mn_monitor_create(ctx, NULL), *second = mn_monitor_create(other, NULL);
    ck_assert(monitor && second);
    ck_assert_ptr_null(mn_monitor_create(ctx, NULL));
    mn_test_expect(ctx, MN_ERR_STATE, "another monitor");
    mn_monitor_enable(monitor, false);
    mn_monitor *third = mn_monitor_create(ctx, NULL);
    ck_assert_int_eq(mn_monitor_enable(monitor, true), MN_ERR_STATE);
    mn_test_expect(ctx, MN_ERR_STATE, "another monitor");
    mn_test_full(ctx, MN_F32, 1);
    mn_relu(mn_test_full(ctx, MN_F32, 1));
    mn_monitor_collect(third);
    mn_monitor_collect(second);
    int count;
    mn_monitor_rows(third, &count);
    ck_assert_int_eq(count, 1);
    mn_monitor_rows(second, &count);
    ck_assert_int_eq(count, 0);
    mn_monitor_free(monitor);
    mn_monitor_free(NULL);
    mn_context_free(ctx);
    mn_monitor_free(third); /* after its context */
    mn_monitor_free(second);
    mn_context_free(other);
    ck_assert_int_eq(mn_monitor_step(NULL, 0), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_monitor_collect(NULL), MN_ERR_ARGUMENT);
}
END_TEST

START_TEST(gradients_of_gradients)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_monitor *monitor = mn_monitor_create(ctx, NULL);
    static const double values[3] = {1, 2, 3};
    mn_tensor *w = mn_check_parameter(ctx, "w", 3, values), *g = NULL;
    mn_tensor *loss = mn_check_total(mn_mul(w, mn_mul(w, w)));
    ck_assert_int_eq(mn_gradients(loss, &w, 1, true, &g), MN_OK);
    mn_backward(mn_check_total(mn_mul(g, g)), 1);
    ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
    const mn_monitor_row *row = mn_test_row(monitor, "", "blend", MN_BACKWARD, MN_F32);
    ck_assert_str_eq(row->parameter, "w");
    ck_assert_str_eq(row->backward_of, "mul");
    mn_monitor_free(monitor);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* ---- range ----------------------------------------------------------------------------------- */

static const mn_range_row *range_at(const mn_range_result *r, const char *layer, const char *op,
                                    mn_direction direction)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->rows[i].row->layer, layer) == 0 && strcmp(r->rows[i].row->op, op) == 0 &&
            r->rows[i].row->direction == direction)
            return &r->rows[i];
    ck_abort_msg("no row %s %s", layer, op);
    return NULL;
}

START_TEST(range_of_a_run)
{
    mn_train_options options = mn_train_options_default();
    options.data = "synthetic:28x28x1:10:64";
    options.batch = 24;
    options.steps = 5; /* more than an epoch */
    options.amp = _i == 0 ? MN_F32 : MN_BF16;
    options.context.threads = 1;
    mn_error error;
    mn_range_result *r = mn_range(&options, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    ck_assert(r->steps == 5 && r->fits[0] && r->fits[1]);
    const mn_range_row *conv = range_at(r, "conv2", "conv2d_relu", MN_FORWARD);
    ck_assert(!conv->exempt && conv->row->calls == 5 && conv->fit[0].factor < 1);
    ck_assert(range_at(r, "", "cross_entropy", MN_FORWARD)->exempt);
    ck_assert(range_at(r, "conv2", "assign", MN_BACKWARD)->exempt);
    const mn_range_row *slope = range_at(r, "", "cross_entropy_backward", MN_BACKWARD);
    const int scale = slope->fit[0].scale_log2;
    ck_assert(!slope->exempt && scale >= r->scale_log2[0] && r->scale_log2[0] < r->scale_log2[1]);
    ck_assert(!mn_monitor_fit_get(slope->row, MN_F16, scale).overflows);
    ck_assert(mn_monitor_fit_get(slope->row, MN_F16, scale + 1).overflows);
    ck_assert(ldexp(slope->row->largest, scale) < 65520);
    ck_assert_int_eq(r->scale_log2[1], 127); /* more is no f32 */
    mn_range_result_free(r);
    options.rules = "conv2d=FP32,cross_entropy=KEEP";
    r = mn_range(&options, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    ck_assert(range_at(r, "conv2", "conv2d", MN_FORWARD)->exempt);
    ck_assert(range_at(r, "conv2", "conv2d_backward_weight", MN_BACKWARD)->exempt);
    ck_assert(!range_at(r, "", "cross_entropy", MN_FORWARD)->exempt);
    mn_range_result_free(r);
    options.rules = NULL;
    options.amp = MN_F16;
    ck_assert_ptr_null(mn_range(&options, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    options.amp = MN_F32;
    options.lr = 40;
    options.momentum = 0;
    options.steps = 12;
    r = mn_range(&options, NULL);
    ck_assert(r && !r->fits[0]);
    mn_range_result_free(r);
    mn_range_result_free(NULL);
}
END_TEST

/* The residual's gradient, output 3, is as wide as the activations; those of parameters are f32. */
START_TEST(range_of_residuals)
{
    mn_train_options options = mn_train_options_default();
    options.data = "synthetic:8x8x3:10:8";
    options.model = "resnet8";
    options.batch = 4;
    options.steps = 1;
    options.context.threads = 1;
    mn_error error;
    mn_range_result *r = mn_range(&options, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    const mn_range_row *row = range_at(r, "layer3.0.bn2", "batch_norm_relu_backward", MN_BACKWARD);
    for (int i = 0; i < 4; i++, row++) {
        ck_assert_int_eq(row->row->output, i);
        ck_assert_int_eq(row->exempt, i == 1 || i == 2);
    }
    mn_range_result_free(r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitor over steps");
    TCase *tcase = tcase_create("monitor over steps");
    tcase_add_loop_test(tcase, the_first_op_that_is_not_finite_is_named, 0, 2 * FAULTS);
    tcase_add_loop_test(tcase, other_causes, 0, 2);
    tcase_add_loop_test(tcase, steps_and_collects, 0, 2);
    tcase_add_loop_test(tcase, gradients_are_known_in_each_step, 0, 2);
    tcase_add_loop_test(tcase, a_monitor_changes_nothing, 0, 2);
    tcase_add_test(tcase, what_is_written_may_be_absent);
    tcase_add_test(tcase, one_monitor_a_context);
    tcase_add_loop_test(tcase, gradients_of_gradients, 0, 2);
    tcase_add_loop_test(tcase, range_of_a_run, 0, 2);
    tcase_add_test(tcase, range_of_residuals);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_NOFORK);
}
