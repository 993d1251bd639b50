/* The numerics monitor: statistics, what was first not finite, what rounding lost. */
#include "amp/monitor.h"
#include "core/half.h"
#include "tests/support_cases.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------- */

static void check_ok(mn_context *ctx)
{
    ck_assert_msg(mn_ok(ctx), "%s", mn_error_message(ctx));
}

/* The row of that op, layer, direction and dtype; it must be there. */
static const mn_monitor_row *row_at(mn_monitor *monitor, const char *layer, const char *op,
                                    mn_direction direction, mn_dtype dtype)
{
    int count;
    const mn_monitor_row *rows = mn_monitor_rows(monitor, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].layer, layer) == 0 && strcmp(rows[i].op, op) == 0 &&
            rows[i].direction == direction && rows[i].dtype == dtype)
            return &rows[i];
    ck_abort_msg("no row %s %s %d %s", layer, op, (int)direction, mn_dtype_name(dtype));
    return NULL;
}

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
            row_at(monitor, "place.tensor_copy", "assign", MN_FORWARD, dtype);
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

static mn_tensor *full(mn_context *ctx, mn_dtype dtype, double value)
{
    static const int64_t shape[4] = {1, 4, 4, 2};
    return mn_full(ctx, dtype, 4, shape, value);
}

/* Small values through an op: what is lost is known without running it. */
static void lose(mn_context *ctx, int what)
{
    static const int64_t vector[1] = {2}, matrix[2] = {3, 2}, filter[4] = {5, 1, 1, 2};
    static const float logits[6] = {0, -20, 0, -1, 0, -30};
    mn_tensor *weight = mn_full(ctx, MN_F32, 1, vector, 1e-10),
              *bias = mn_full(ctx, MN_F32, 1, vector, 0);
    switch (what) {
    case 0: /* all 32 values */
        mn_cast(full(ctx, MN_F32, 1e-8), MN_F16);
        break;
    case 1: /* 2^-13 2^-13 2 = 2^-25, a tie to the even 0 */
        mn_conv2d(full(ctx, MN_F16, 0x1p-13), mn_full(ctx, MN_F16, 4, filter, 0x1p-13), NULL, NULL);
        break;
    case 2:
        mn_linear(mn_full(ctx, MN_F16, 2, matrix, 0x1p-13),
                  mn_full(ctx, MN_F16, 2, matrix, 0x1p-13), NULL);
        break;
    case 3: /* the smallest value stays */
        mn_relu(full(ctx, MN_F16, 0x1p-24));
        break;
    case 4:
        mn_layer_norm(mn_cast(mn_tensor_from(ctx, MN_F32, 2, matrix, logits), MN_F16), 1, weight,
                      bias, 1e-5);
        break;
    default: /* two of six */
        mn_softmax(mn_cast(mn_tensor_from(ctx, MN_F32, 2, matrix, logits), MN_F16), 1);
    }
    check_ok(ctx);
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
        const mn_monitor_row *row = row_at(monitor, "", wanted[k].op, MN_FORWARD, MN_F16);
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
    {1024, 0.5F, "conv.weight", 60000, MN_OVERFLOW_FORWARD, "conv", "conv2d", "", MN_FORWARD,
     MN_F16, "step 7: conv: conv2d (forward, f16) is not finite"},
    {1024, 0.5F, "fc.weight", 1e5, MN_OVERFLOW_FORWARD, "fc", "cast", "", MN_FORWARD, MN_F16,
     "no loss scale can mend that"},
    {0x1p40, 0.5F, NULL, 0, MN_OVERFLOW_BACKWARD, "", "cross_entropy_backward", "", MN_BACKWARD,
     MN_F16, "a lower loss scale may mend that"},
    {0x1p127, 0.5F, "fc.weight", 60, MN_OVERFLOW_BACKWARD, "", "scaler_scale", "", MN_FORWARD,
     MN_F32, "a lower loss scale"},
    {1024, NAN, NULL, 0, MN_OVERFLOW_INPUT, "conv", "cast", "", MN_FORWARD, MN_F16, "the data?"},
    {1024, 0.5F, "fc.weight", INFINITY, MN_OVERFLOW_INPUT, "fc", "cast", "fc.weight", MN_FORWARD,
     MN_F16, "not finite before: fc.weight"},
    {1024, 0.5F, "bn.weight", NAN, MN_OVERFLOW_INPUT, "bn", "batch_norm", "bn.weight", MN_FORWARD,
     MN_F16, "bn.weight"},
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
        if (strcmp(f->op, "conv2d") == 0)
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
    const int64_t calls = row_at(n.monitor, "conv", "conv2d", MN_FORWARD, MN_F16)->calls;
    mn_monitor_rows(n.monitor, &before);
    ck_assert_int_eq(calls, 140);
    ck_assert_int_eq(mn_monitor_enable(n.monitor, false), MN_OK);
    net_step(&n, 140, NAN);
    ck_assert_int_eq(events(n.monitor), 0);
    ck_assert_int_eq(row_at(n.monitor, "conv", "conv2d", MN_FORWARD, MN_F16)->calls, calls);
    ck_assert_int_eq(mn_monitor_enable(n.monitor, true), MN_OK);
    net_step(&n, 141, NAN);
    ck_assert_int_eq(events(n.monitor), 1);
    ck_assert_int_eq(row_at(n.monitor, "conv", "conv2d", MN_FORWARD, MN_F16)->calls, calls + 1);
    mn_monitor_rows(n.monitor, &count);
    ck_assert_int_eq(count, before); /* no step makes new places */
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
    full(ctx, MN_F32, 1);
    mn_relu(full(ctx, MN_F32, 1));
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
    const mn_monitor_row *row = row_at(monitor, "", "blend", MN_BACKWARD, MN_F32);
    ck_assert_str_eq(row->parameter, "w");
    ck_assert_str_eq(row->backward_of, "mul");
    mn_monitor_free(monitor);
    mn_release(w);
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
    const mn_range_row *conv = range_at(r, "conv2", "conv2d", MN_FORWARD);
    ck_assert(!conv->exempt && conv->row->calls == 5 && conv->fit[0].factor < 1);
    ck_assert(range_at(r, "", "cross_entropy", MN_FORWARD)->exempt);
    ck_assert(range_at(r, "conv2", "assign", MN_BACKWARD)->exempt);
    const mn_range_row *slope = range_at(r, "", "cross_entropy_backward", MN_BACKWARD);
    const int scale = slope->fit[0].scale_log2;
    ck_assert(!slope->exempt && scale >= r->scale_log2[0] && r->scale_log2[0] < r->scale_log2[1]);
    ck_assert(!mn_monitor_fit_get(slope->row, MN_F16, scale).overflows);
    ck_assert(mn_monitor_fit_get(slope->row, MN_F16, scale + 1).overflows);
    ck_assert(ldexp(slope->row->largest, scale) < 65520);
    mn_range_result_free(r);
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
    tcase_add_loop_test(tcase, the_first_op_that_is_not_finite_is_named, 0, 2 * FAULTS);
    tcase_add_loop_test(tcase, other_causes, 0, 2);
    tcase_add_loop_test(tcase, updates_lost_to_rounding, 0, 2);
    tcase_add_loop_test(tcase, skipped_steps_lose_no_updates, 0, 2);
    tcase_add_loop_test(tcase, steps_and_collects, 0, 2);
    tcase_add_loop_test(tcase, a_monitor_changes_nothing, 0, 2);
    tcase_add_test(tcase, one_monitor_a_context);
    tcase_add_loop_test(tcase, gradients_of_gradients, 0, 2);
    tcase_add_test(tcase, limits_and_fits);
    tcase_add_loop_test(tcase, range_of_a_run, 0, 2);
    tcase_add_test(tcase, without_memory);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_NOFORK);
}
