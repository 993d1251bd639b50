/* 16-bit parameters: nearest, masters and stochastic rounding, alone and as a whole model's; and
 * steps of infinite parameters, and of those that hold averages. */
#include "core/half.h"
#include "core/philox.h"
#include "core/state_dict.h"
#include "models/module.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than two blocks of a kernel, with a tail. */
enum { COUNT = 1101, SEED = 5, OPTIMIZERS = 4 };

static const mn_rounding nearest = MN_ROUNDING_NEAREST, master = MN_ROUNDING_MASTER,
                         stochastic = MN_ROUNDING_STOCHASTIC;

static mn_context *open_on(const char *device, mn_kernel_set kernels, int threads)
{
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.kernels = kernels;
    options.threads = threads;
    options.seed = SEED;
    mn_context *ctx = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(ctx);
    return ctx;
}

/* A leaf of `count` elements around 1 that bf16 and f16 hold exactly. */
static mn_tensor *leaf_of(mn_context *ctx, const char *name, mn_dtype dtype, int64_t count)
{
    mn_tensor *p = mn_parameter_create(ctx, name, dtype, 1, &count, MN_LAYOUT_PLAIN);
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(i % 63 - 31) / 16;
    ck_assert_int_eq(mn_tensor_write_f64(p, values, count), MN_OK);
    free(values);
    return p;
}

/* 0: SGD with momentum, 1: Adam, 2: AdamW, 3: RMSprop with momentum. */
static mn_optimizer *optimizer_of(mn_tensor *p, int kind, mn_rounding rounding, double lr,
                                  double decay)
{
    mn_context *ctx = mn_tensor_context(p);
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adam = kind == 1 ? mn_adam_options_default() : mn_adamw_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    sgd.momentum = rmsprop.momentum = 0.9;
    sgd.lr = adam.lr = rmsprop.lr = lr;
    sgd.weight_decay = adam.weight_decay = rmsprop.weight_decay = decay;
    sgd.rounding = adam.rounding = rmsprop.rounding = rounding;
    if (kind == 0)
        return mn_sgd_create(ctx, &p, 1, &sgd);
    return kind == 3 ? mn_rmsprop_create(ctx, &p, 1, &rmsprop) : mn_adam_create(ctx, &p, 1, &adam);
}

static mn_optimizer *plain_sgd(mn_tensor *p, mn_rounding rounding, double lr)
{
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.lr = lr;
    sgd.rounding = rounding;
    return mn_sgd_create(mn_tensor_context(p), &p, 1, &sgd);
}

/* One step with these gradients: g, or without them from the step's number. */
static void step_with(mn_optimizer *optimizer, mn_tensor *p, int step, const double *g)
{
    const int64_t count = mn_tensor_numel(p);
    double *values = malloc((size_t)count * sizeof *values);
    mn_scope scope = mn_scope_begin(p->context);
    for (int64_t i = 0; i < count; i++)
        values[i] = g ? g[i] : 0.01 * sin(0.7 * step + (double)i);
    ck_assert_int_eq(mn_backward(mn_check_total(p), 1), MN_OK);
    ck_assert_int_eq(mn_tensor_dtype(mn_grad(p)), MN_F32);
    ck_assert_int_eq(mn_tensor_write_f64(mn_grad(p), values, count), MN_OK);
    const uint64_t waits = p->context->device->synchronizations;
    ck_assert_msg(mn_optimizer_step(optimizer) == MN_OK, "%s", mn_error_message(p->context));
    ck_assert_uint_eq(p->context->device->synchronizations, waits);
    ck_assert_int_eq(mn_optimizer_zero_grad(optimizer), MN_OK);
    mn_scope_end(p->context, scope);
    free(values);
}

static void read_all(const mn_tensor *x, double *values)
{
    ck_assert_int_eq(mn_tensor_read_f64(x, values, mn_tensor_numel(x)), MN_OK);
}

static void close_all(mn_context *ctx, mn_optimizer *optimizer, mn_tensor *p)
{
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}

static const struct {
    const char *device;
    mn_kernel_set kernels;
} places[] = {{"cpu", MN_KERNELS_AUTO},
              {"cpu", MN_KERNELS_PORTABLE},
              {"cpu", MN_KERNELS_REFERENCE},
              {"cpu-deferred", MN_KERNELS_AUTO}};
enum { PLACES = sizeof places / sizeof *places };

/* ---- masters --------------------------------------------------------------------------------- */

/* A 16-bit parameter is at each step the rounding of the f32 parameter of the same run. */
START_TEST(test_master_is_an_f32_run)
{
    mn_context *ctx = open_on(places[_i % PLACES].device, places[_i % PLACES].kernels, 2);
    const int kind = _i / PLACES;
    static double wide[COUNT], narrow[COUNT], kept[COUNT];
    for (int d = 0; d < 2; d++) {
        const mn_dtype dtype = d ? MN_F16 : MN_BF16;
        mn_tensor *p = leaf_of(ctx, "p", dtype, COUNT), *q = leaf_of(ctx, "q", MN_F32, COUNT);
        mn_optimizer *of_p = optimizer_of(p, kind, master, 1e-3, 0.1);
        mn_optimizer *of_q = optimizer_of(q, kind, master, 1e-3, 0.1);
        for (int step = 0; step < 12; step++) {
            step_with(of_p, p, step, NULL);
            step_with(of_q, q, step, NULL);
            read_all(p, narrow);
            read_all(q, wide);
            read_all(of_p->states[MN_MASTER][0], kept);
            for (int i = 0; i < COUNT; i++) {
                ck_assert(kept[i] == wide[i]);
                ck_assert(narrow[i] == (d ? (double)mn_f16_to_f32(mn_f16_from_f64(wide[i]))
                                          : (double)mn_bf16_to_f32(mn_bf16_from_f64(wide[i]))));
            }
        }
        ck_assert_ptr_null(of_q->states[MN_MASTER][0]);
        mn_optimizer_free(of_p), mn_optimizer_free(of_q);
        mn_release(p), mn_release(q);
    }
    mn_check_done(ctx);
}
END_TEST

/* What else writes the parameter is not undone; what it does not write keeps its f32 value, also
 * over a swap with averages and back. */
START_TEST(test_master_follows_writes)
{
    mn_context *ctx = open_on(places[_i].device, places[_i].kernels, 1);
    mn_tensor *p = leaf_of(ctx, "p", MN_BF16, 3);
    mn_optimizer *sgd = plain_sgd(p, master, 1);
    mn_ema *ema = mn_ema_create(ctx, &p, 1, NULL);
    const double start[3] = {1, 1, -2}, g[3] = {-0x1p-10, -0x1p-10, -0x1p-10};
    mn_tensor_write_f64(p, start, 3);
    step_with(sgd, p, 0, g);
    ck_assert_double_eq(mn_check_at(p, 0), 1);
    ck_assert_double_eq(mn_check_at(sgd->states[MN_MASTER][0], 0), 1 + 0x1p-10);
    const double written[3] = {1, 5, -2}; /* the first and last as they are */
    mn_tensor_write_f64(p, written, 3);
    ck_assert_int_eq(mn_ema_swap(ema), MN_OK);
    ck_assert_double_eq(mn_check_at(p, 1), -30.0 / 16);
    ck_assert_int_eq(mn_ema_swap(ema), MN_OK);
    step_with(sgd, p, 1, g);
    ck_assert_double_eq(mn_check_at(sgd->states[MN_MASTER][0], 0), 1 + 0x1p-9);
    ck_assert_double_eq(mn_check_at(sgd->states[MN_MASTER][0], 1), 5 + 0x1p-10);
    ck_assert_double_eq(mn_check_at(sgd->states[MN_MASTER][0], 2), -2 + 0x1p-9);
    ck_assert_double_eq(mn_check_at(p, 1), 5);
    mn_ema_free(ema);
    close_all(ctx, sgd, p);
}
END_TEST

/* ---- stochastic rounding --------------------------------------------------------------------- */

/* 1 - lr g by hand, from the stream that the header promises. */
static float rounded_by_hand(float value, mn_stream *stream, uint32_t words[4], int i)
{
    uint32_t bits;
    for (int k = 0; k < 4 && i % 8 == 0; k++)
        words[k] = mn_stream_u32(stream);
    memcpy(&bits, &value, sizeof bits);
    bits += i % 8 < 4 ? words[i % 8] % 65536 : words[i % 8 - 4] / 65536;
    bits -= bits % 65536;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

START_TEST(test_draws)
{
    mn_context *ctx = open_on(places[_i].device, places[_i].kernels, 3);
    mn_tensor *p = leaf_of(ctx, "fc.weight", MN_BF16, COUNT);
    mn_optimizer *sgd = plain_sgd(p, stochastic, 1);
    static double g[COUNT], before[COUNT], after[COUNT];
    int up = 0;
    for (int i = 0; i < COUNT; i++)
        g[i] = (double)(float)(0x1p-9 * sin(i));
    for (uint64_t step = 0; step < 3; step++) {
        mn_stream stream = mn_stream_open(SEED, MN_STREAM_ROUNDING, "optimizer.fc.weight", step);
        uint32_t words[4] = {0};
        read_all(p, before);
        step_with(sgd, p, 0, g);
        read_all(p, after);
        for (int i = 0; i < COUNT; i++) {
            const float value = (float)before[i] - (float)g[i];
            ck_assert_double_eq(after[i], (double)rounded_by_hand(value, &stream, words, i));
            up += after[i] > (double)value;
        }
    }
    ck_assert(up > COUNT && up < 2 * COUNT);
    close_all(ctx, sgd, p);
}
END_TEST

/* The mean of many elements is that of the f32 run within four standard deviations, after one step
 * and after all; nearest does not move at all. */
START_TEST(test_unbiased)
{
    enum { MANY = 4096, STEPS = 200 };
    const double unit = 0x1p-7, share = 0.3, lr = share * unit;
    mn_context *ctx = open_on("cpu", places[_i].kernels, 1);
    static double g[MANY], values[MANY];
    for (int i = 0; i < MANY; i++)
        g[i] = -1;
    for (int k = 0; k < 2; k++) {
        mn_tensor *p = leaf_of(ctx, "p", MN_BF16, MANY);
        mn_optimizer *sgd = plain_sgd(p, k ? stochastic : nearest, lr / STEPS);
        mn_tensor_fill(p, 1);
        double sum = 0, squares = 0;
        for (int step = 0; step < STEPS; step++)
            step_with(sgd, p, step, g);
        read_all(p, values);
        for (int i = 0; i < MANY; i++) {
            sum += (values[i] - 1) / unit;
            squares += pow((values[i] - 1) / unit, 2);
            ck_assert(values[i] >= 1 && values[i] <= 1 + 4 * unit);
        }
        if (k == 0) {
            ck_assert_double_eq(sum, 0);
        } else {
            /* Each step adds 1 with probability share / STEPS: nearly a Poisson variable. */
            ck_assert_double_eq_tol(sum / MANY, share, 4 * sqrt(share / MANY));
            ck_assert_double_eq_tol(squares / MANY, share + share * share, 0.06);
        }
        mn_optimizer_free(sgd);
        mn_release(p);
    }
    mn_check_done(ctx);
}
END_TEST

/* Infinities and NaN stay, the largest finite numbers do not turn into NaN, nothing moves without a
 * gradient. */
START_TEST(test_extremes)
{
    mn_context *ctx = open_on(places[_i].device, places[_i].kernels, 1);
    const double largest = 0x1.FEp127, inf = (double)INFINITY;
    const double start[8] = {inf, -inf, (double)NAN, largest, -largest, largest, 0x1p-133, 1};
    const double g[8] = {0, 0, 0, 0, 0, -0x1.FEp118, 0, inf}; /* 6: to the largest f32 */
    mn_tensor *p = leaf_of(ctx, "p", MN_BF16, 8);
    mn_optimizer *sgd = plain_sgd(p, stochastic, 1);
    for (int step = 0; step < 20; step++) {
        mn_tensor_write_f64(p, start, 8);
        step_with(sgd, p, step, g);
        ck_assert(mn_check_at(p, 0) == inf && mn_check_at(p, 1) == -inf);
        ck_assert(isnan(mn_check_at(p, 2)));
        ck_assert(mn_check_at(p, 3) == largest && mn_check_at(p, 4) == -largest);
        ck_assert(mn_check_at(p, 5) == largest || mn_check_at(p, 5) == inf);
        ck_assert(mn_check_at(p, 6) == 0x1p-133 && mn_check_at(p, 7) == -inf);
    }
    close_all(ctx, sgd, p);
}
END_TEST

/* ---- the same bits --------------------------------------------------------------------------- */

enum { LONG = 40000, SPLIT = 3, WHOLE = 6 };

/* A run of six steps and one that is skipped, stopped after three by way of a dictionary. */
static void run(const char *device, int threads, mn_rounding rounding, const char *name,
                bool stopped, double *values)
{
    mn_context *ctx = open_on(device, MN_KERNELS_AUTO, threads);
    mn_tensor *p = leaf_of(ctx, name, MN_BF16, LONG);
    mn_optimizer *adamw = optimizer_of(p, 2, rounding, 1e-3, 0.1);
    for (int step = 0; step < WHOLE; step++) {
        step_with(adamw, p, step, NULL);
        if (step + 1 == SPLIT) {
            static double before[LONG];
            mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
            mn_step_outcome outcome = MN_STEP_APPLIED;
            read_all(p, before);
            mn_scope scope = mn_scope_begin(ctx);
            mn_grad_scaler_backward(scaler, mn_check_total(p), 1);
            mn_scope_end(ctx, scope);
            mn_tensor_fill(mn_grad(p), (double)INFINITY);
            ck_assert_int_eq(mn_grad_scaler_step(scaler, adamw, &outcome), MN_OK);
            ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
            ck_assert_int_eq(mn_grad_scaler_update(scaler), MN_OK);
            mn_optimizer_zero_grad(adamw);
            mn_grad_scaler_free(scaler);
            read_all(p, values);
            ck_assert_mem_eq(before, values, sizeof before);
        }
        if (step + 1 != SPLIT || !stopped)
            continue;
        mn_state_dict *dict = mn_state_dict_create(ctx);
        mn_optimizer_save_state(adamw, dict);
        mn_state_dict_put_tensor(dict, "p", p, MN_LAYOUT_PLAIN);
        mn_optimizer_free(adamw);
        mn_tensor_fill(p, 9);
        adamw = optimizer_of(p, 2, rounding, 1e-3, 0.1);
        ck_assert_int_eq(mn_optimizer_load_state(adamw, dict), MN_OK);
        ck_assert_int_eq(mn_state_dict_get_tensor(dict, "p", p, MN_LAYOUT_PLAIN, true), MN_OK);
        mn_state_dict_free(dict);
    }
    read_all(p, values);
    close_all(ctx, adamw, p);
}

START_TEST(test_same_bits)
{
    static double once[LONG], other[LONG];
    const mn_rounding rounding = _i ? stochastic : master;
    run("cpu", 1, rounding, "p", false, once);
    run("cpu", 3, rounding, "p", false, other);
    ck_assert_mem_eq(once, other, sizeof once);
    run("cpu-deferred", 2, rounding, "p", false, other);
    ck_assert_mem_eq(once, other, sizeof once);
    run("cpu", 2, rounding, "p", true, other);
    ck_assert_mem_eq(once, other, sizeof once);
    run("cpu", 2, rounding, "q", false, other); /* another stream */
    ck_assert((memcmp(once, other, sizeof once) != 0) == (rounding == stochastic));
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(test_refusals)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "w", MN_F16), *q = mn_check_leaf(ctx, "q", MN_BF16);
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        ck_assert_ptr_null(optimizer_of(p, kind, stochastic, 1, 0));
        mn_check_expect(ctx, MN_ERR_DTYPE, "parameter 0 (w) is f16; stochastic rounding is for");
        ck_assert_ptr_null(optimizer_of(q, kind, (mn_rounding)3, 1, 0));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "there is no rounding 3");
    }
    mn_optimizer *sgd = plain_sgd(q, stochastic, 1);
    mn_optimizer_add_group(sgd, &p, 1, NULL);
    mn_check_expect(ctx, MN_ERR_DTYPE, "parameter 0 (w) is f16; stochastic");
    mn_optimizer *with = plain_sgd(q, master, 1);
    mn_state_dict *dict = mn_state_dict_create(ctx), *without = mn_state_dict_create(ctx);
    mn_state_entry entry;
    mn_optimizer_save_state(with, dict);
    mn_optimizer_save_state(sgd, without);
    ck_assert(mn_state_dict_find(dict, "optimizer.q.master", &entry) && entry.dtype == MN_F32);
    ck_assert(mn_state_dict_find(dict, "optimizer.q.master", &entry) &&
              ((const float *)entry.data)[1] == (float)mn_check_start[1]);
    mn_optimizer_load_state(sgd, dict);
    mn_check_expect(ctx, MN_ERR_MISMATCH, "\"optimizer.q.master\", which is not of sgd");
    mn_optimizer_load_state(with, without);
    mn_check_expect(ctx, MN_ERR_MISMATCH, "optimizer.q.master");
    mn_state_dict_free(dict), mn_state_dict_free(without);
    mn_optimizer_free(sgd), mn_optimizer_free(with);
    mn_release(q);
    close_all(ctx, NULL, p);
}
END_TEST

START_TEST(test_no_step_on_averages)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "w", MN_F32);
    mn_optimizer *sgd = plain_sgd(p, nearest, 1);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    mn_ema *ema = mn_ema_create(ctx, &p, 1, NULL), *second = mn_ema_create(ctx, &p, 1, NULL);
    mn_ema_swap(ema), mn_ema_swap(second), mn_ema_swap(second);
    mn_check_give_gradient(p, 0, NULL);
    mn_optimizer_step(sgd);
    mn_check_expect(ctx, MN_ERR_STATE, "parameter 0 (w) holds its average: call mn_ema_swap");
    mn_optimizer_zero_grad(sgd);
    mn_check_give_gradient(p, 0, scaler);
    mn_grad_scaler_step(scaler, sgd, NULL);
    mn_check_expect(ctx, MN_ERR_STATE, "holds its average");
    ck_assert_double_eq(mn_check_at(p, 0), mn_check_start[0]);
    mn_optimizer_zero_grad(sgd);
    ck_assert_int_eq(mn_grad_scaler_update(scaler), MN_OK);
    mn_ema_swap(ema);
    mn_check_give_gradient(p, 0, NULL);
    ck_assert_msg(mn_optimizer_step(sgd) == MN_OK, "%s", mn_error_message(ctx));
    mn_optimizer_zero_grad(sgd);
    mn_ema_swap(ema);
    mn_ema_free(ema); /* its values are the parameters' now */
    mn_check_give_gradient(p, 0, NULL);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    mn_ema_free(second);
    mn_grad_scaler_free(scaler);
    close_all(ctx, sgd, p);
}
END_TEST

/* Without weight decay an infinite parameter stays, as it does with PyTorch. */
START_TEST(test_infinite_parameter)
{
    mn_context *ctx = open_on(places[_i % PLACES].device, places[_i % PLACES].kernels, 1);
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    mn_optimizer *optimizer = optimizer_of(p, _i / PLACES, nearest, 0.1, 0);
    mn_optimizer *plain = plain_sgd(p, nearest, 0.1);
    mn_tensor_fill(p, -(double)INFINITY);
    for (int step = 0; step < 2; step++) {
        step_with(optimizer, p, step, NULL);
        step_with(plain, p, step, NULL);
        ck_assert(mn_check_at(p, 0) == -(double)INFINITY && mn_check_at(p, 2) < 0);
    }
    mn_optimizer_free(plain);
    close_all(ctx, optimizer, p);
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

static mn_module *model_of(mn_context *ctx, const char *name)
{
    mn_model_options options = mn_model_options_default();
    options.height = options.width = 12;
    return mn_model_create(ctx, name, &options);
}

/* One training step and an evaluation; the loss. */
static double train_once(mn_module *net, mn_dtype amp, mn_rounding rounding)
{
    mn_context *ctx = mn_module_context(net);
    const int64_t shape[4] = {2, 12, 12, 1}, rows[1] = {2};
    const int64_t labels[2] = {1, 3};
    int count = 0;
    double value = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_sgd_options options = mn_sgd_options_default();
    options.rounding = rounding;
    mn_optimizer *sgd = mn_sgd_create(ctx, parameters, count, &options);
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = mn_full(ctx, MN_F32, 4, shape, 0.5);
    mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, rows, labels);
    mn_autocast_begin(ctx, amp);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(net, x), y, NULL);
    mn_autocast_end(ctx);
    ck_assert_msg(mn_backward(loss, 1) == MN_OK, "%s", mn_error_message(ctx));
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(mn_tensor_dtype(mn_grad(parameters[i])), MN_F32);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    ck_assert_int_eq(mn_tensor_item(loss, &value), MN_OK);
    mn_module_set_training(net, false);
    ck_assert_ptr_nonnull(mn_module_forward(net, x));
    mn_scope_end(ctx, scope);
    mn_optimizer_free(sgd);
    return value;
}

/* Every model of the zoo, outside and inside of autocast. */
START_TEST(test_zoo)
{
    mn_context *ctx = mn_test_open();
    const char *name = mn_model_name(_i);
    mn_module *wide = model_of(ctx, name);
    double loss = train_once(wide, MN_F32, nearest);
    for (int k = 0; k < 2; k++) {
        mn_module *net = model_of(ctx, name);
        ck_assert_int_eq(mn_module_set_parameter_dtype(net, MN_BF16), MN_OK);
        double other = train_once(net, k ? MN_BF16 : MN_F32, k ? stochastic : master);
        ck_assert_double_eq_tol(other, loss, 0.2);
        mn_module_free(net);
    }
    mn_module_free(wide);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_parameter_dtype)
{
    mn_context *ctx = mn_test_open();
    mn_module *net = model_of(ctx, "cnn-small");
    mn_state_dict *before = mn_state_dict_create(ctx), *after = mn_state_dict_create(ctx);
    int count = 0;
    mn_tensor *first = mn_module_parameters(net, &count)[0];
    mn_module_save_state(net, before);
    const double value = mn_check_at(mn_module_parameters(net, NULL)[count - 1], 0);
    ck_assert_int_eq(mn_module_set_parameter_dtype(net, MN_BF16), MN_OK);
    ck_assert_ptr_eq(mn_module_parameters(net, NULL)[0], first);
    ck_assert_double_eq(mn_check_at(mn_module_parameters(net, NULL)[count - 1], 0),
                        (double)mn_bf16_to_f32(mn_bf16_from_f64(value)));
    mn_module_save_state(net, after);
    mn_state_entry a, b;
    for (int64_t i = 0; mn_state_dict_entry(before, i, &a); i++) {
        ck_assert(mn_state_dict_entry(after, i, &b));
        ck_assert_str_eq(a.name, b.name);
        ck_assert_int_eq(a.ndim, b.ndim);
        ck_assert(memcmp(a.shape, b.shape, (size_t)a.ndim * sizeof *a.shape) == 0);
        const bool buffer = strstr(a.name, "running") || a.dtype == MN_I64;
        ck_assert_int_eq(b.dtype, buffer ? a.dtype : MN_BF16);
    }
    ck_assert(mn_requires_grad(first) && first->layout == MN_LAYOUT_FILTER);
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    ck_assert_int_eq(mn_module_load_state(net, after), MN_OK);
    ck_assert_int_eq(mn_module_set_parameter_dtype(net, MN_F32), MN_OK);
    ck_assert_int_eq(mn_tensor_dtype(first), MN_F32);
    mn_module_set_parameter_dtype(net, MN_F64);
    mn_check_expect(ctx, MN_ERR_DTYPE, "can be f32, f16 or bf16, not f64");
    mn_module_set_parameter_dtype(net->children, MN_BF16);
    mn_check_expect(ctx, MN_ERR_STATE, "only of the root of a model");
    mn_ema *ema = mn_ema_create(ctx, &first, 1, NULL);
    mn_module_set_parameter_dtype(net, MN_BF16);
    mn_check_expect(ctx, MN_ERR_STATE, mn_tensor_name(first));
    ck_assert_int_eq(mn_module_set_parameter_dtype(NULL, MN_BF16), MN_ERR_ARGUMENT);
    mn_ema_free(ema);
    mn_module *bare = mn_sequential(ctx);
    mn_module_set_parameter_dtype(bare, MN_BF16);
    mn_check_expect(ctx, MN_ERR_STATE, "that mn_module_init has given parameters");
    mn_module_free(bare);
    mn_state_dict_free(before), mn_state_dict_free(after);
    mn_module_free(net);
    mn_check_done(ctx);
}
END_TEST

static void convert_and_optimize(mn_context *ctx)
{
    mn_module *net = mn_linear_layer(ctx, 3, 2, true);
    int count = 0;
    if (mn_module_init(net) == MN_OK && mn_module_set_parameter_dtype(net, MN_BF16) == MN_OK) {
        mn_tensor *const *parameters = mn_module_parameters(net, &count);
        mn_sgd_options sgd = mn_sgd_options_default();
        sgd.rounding = master;
        mn_optimizer_free(mn_sgd_create(ctx, parameters, count, &sgd));
    }
    mn_module_free(net);
}

START_TEST(test_out_of_memory)
{
    mn_test_exhaust(convert_and_optimize);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rounding");
    TCase *steps = tcase_create("steps"), *models = tcase_create("models");
    int zoo = 0;
    while (mn_model_name(zoo))
        zoo++;
    tcase_add_loop_test(steps, test_master_is_an_f32_run, 0, OPTIMIZERS * PLACES);
    tcase_add_loop_test(steps, test_master_follows_writes, 0, PLACES);
    tcase_add_loop_test(steps, test_draws, 0, PLACES);
    tcase_add_loop_test(steps, test_unbiased, 0, 3);
    tcase_add_loop_test(steps, test_extremes, 0, PLACES);
    tcase_add_loop_test(steps, test_same_bits, 0, 2);
    tcase_add_test(steps, test_refusals);
    tcase_add_test(steps, test_no_step_on_averages);
    tcase_add_loop_test(steps, test_infinite_parameter, 0, OPTIMIZERS * PLACES);
    tcase_set_timeout(models, 120);
    tcase_add_loop_test(models, test_zoo, 0, zoo);
    tcase_add_test(models, test_parameter_dtype);
    tcase_add_test(models, test_out_of_memory);
    suite_add_tcase(suite, steps);
    suite_add_tcase(suite, models);
    return mn_test_run(suite, CK_FORK);
}
