/* Cases of mixed precision, R46 to R59: reductions, convolutions, conversions, optimizers and
 * speed. A number stands for a fault that users of other frameworks have met. */
#include "optim/optim.h"
#include "tests/support_amp_cases.h"
#include "tests/support_training.h"

#include <math.h>
#include <string.h>

/* ---- H: reductions and convolutions ---------------------------------------------------------- */

/* Means of many f16 are summed in f32, and so are the gradients of one pixel that became many. */
START_TEST(R46_average_pooling)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t small[4] = {1, 64, 64, 1}, large[4] = {1, 256, 256, 1}, pixel[4] = {1, 1, 1, 1};
    mn_tensor *x = mn_full(ctx, MN_F16, 4, small, 1), *y = mn_full(ctx, MN_F16, 4, large, 1.5);
    mn_pool2d_options whole = mn_pool2d_options_default();
    whole.kernel[0] = whole.kernel[1] = 64;
    mn_upsample2d_options options = mn_upsample2d_options_default();
    options.height = options.width = 64;
    for (int region = 0; region < 2; region++) {
        if (region)
            mn_autocast_begin(ctx, MN_F16);
        ck_assert_double_eq(mn_check_at(mn_global_avg_pool2d(x), 0), 1);
        ck_assert_double_eq(mn_check_at(mn_global_avg_pool2d(y), 0), 1.5);
        ck_assert_double_eq(mn_check_at(mn_avg_pool2d(x, &whole), 0), 1);
        ck_assert_double_eq(mn_check_at(mn_avg_pool2d(y, &whole), 15), 1.5);
        mn_tensor *one = mn_full(ctx, MN_F16, 4, pixel, 1);
        mn_set_requires_grad(one, true);
        mn_tensor *spread = mn_upsample2d(one, &options);
        ck_assert_int_eq(mn_backward(mn_check_total(mn_cast(spread, MN_F32)), 1), MN_OK);
        ck_assert_double_eq(mn_check_at(mn_grad(one), 0), 4096);
        if (region)
            mn_autocast_end(ctx);
    }
    mn_check_done(ctx);
}
END_TEST

/* 0.5 sin(1.7 i + seed). */
static mn_tensor *waves(mn_tensor *x, int seed)
{
    double wave[2048];
    int64_t count = mn_tensor_numel(x);
    ck_assert(count <= 2048);
    for (int64_t i = 0; i < count; i++)
        wave[i] = 0.5 * sin(1.7 * (double)i + seed);
    mn_tensor_write_f64(x, wave, count);
    return x;
}

/* Channels that are no multiples of 8 are convolved as any others, in half precision. */
static mn_module *small_net(mn_context *ctx)
{
    mn_conv2d_layer_options options = mn_conv2d_layer_options_default();
    options.in_channels = 3;
    options.out_channels = 10;
    options.kernel[0] = options.kernel[1] = 3;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "conv", mn_conv2d_layer(ctx, &options));
    mn_sequential_add(net, "bn", mn_batch_norm_layer(ctx, 10));
    mn_sequential_add(net, "relu", mn_relu_layer(ctx));
    mn_sequential_add(net, "pool", mn_global_avg_pool2d_layer(ctx));
    mn_sequential_add(net, "fc", mn_linear_layer(ctx, 10, 4, true));
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    return net;
}

static mn_tensor *images(mn_context *ctx)
{
    const int64_t shape[4] = {8, 8, 8, 3};
    return waves(mn_tensor_create(ctx, MN_F32, 4, shape), 3);
}

/* What ran in half: each layer's own op, forward, by a kernel of its own. */
static void expect_half(const mn_trace *trace)
{
    const struct {
        const char *layer, *op;
    } ran[3] = {{"conv", "conv2d_moments"}, {"bn", "batch_norm_relu"}, {"fc", "linear"}};
    for (int i = 0; i < 3; i++) {
        mn_trace_entry e;
        int found = 0;
        for (int64_t at = 0; mn_trace_get(trace, at, &e); at++)
            if (strcmp(e.layer, ran[i].layer) == 0 && strcmp(e.op, ran[i].op) == 0 &&
                e.outputs[0].dtype == MN_F16 && e.served == MN_SERVED_KERNEL)
                found++;
        ck_assert_msg(found == 1, "%s: %d", ran[i].op, found);
    }
}

START_TEST(R50_half_precision_from_the_first_step)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t labels[8] = {0, 1, 2, 3, 0, 1, 2, 3}, eight = 8;
    mn_module *net = small_net(ctx);
    int count;
    mn_tensor *parameters[8];
    mn_tensor *const *all = mn_module_parameters(net, &count);
    memcpy(parameters, all, (size_t)count * sizeof *all);
    mn_optimizer *sgd = mn_check_sgd_of(ctx, parameters, count);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    double first = 0, last = 0;
    for (int step = 0; step < 20; step++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *target = mn_tensor_from(ctx, MN_I64, 1, &eight, labels);
        mn_trace *trace = mn_trace_begin(ctx, NULL);
        mn_autocast_begin(ctx, MN_F16);
        mn_tensor *logits = mn_module_forward(net, images(ctx));
        ck_assert_int_eq(mn_tensor_dtype(logits), MN_F16);
        expect_half(trace);
        mn_trace_free(trace);
        mn_tensor *loss = mn_cross_entropy(logits, target, NULL);
        mn_autocast_end(ctx);
        mn_grad_scaler_backward(scaler, loss, 1);
        mn_grad_scaler_step(scaler, sgd, NULL);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(sgd);
        mn_tensor_item(loss, step ? &last : &first);
        ck_assert(isfinite(step ? last : first));
        mn_scope_end(ctx, scope);
    }
    ck_assert_double_lt(last, first);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(sgd);
    mn_module_free(net);
    mn_check_done(ctx);
}
END_TEST

/* R51: no descriptors to get wrong; products of f16 are summed in f32, as in 9 x 512 ones. */
START_TEST(R51_convolution_sums_in_f32)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t image[4] = {1, 3, 3, 512}, filter[4] = {2, 3, 3, 512};
    mn_tensor *x = mn_full(ctx, MN_F32, 4, image, 1), *w = mn_full(ctx, MN_F32, 4, filter, 1);
    const mn_dtype dtypes[2] = {MN_F16, MN_BF16};
    for (int i = 0; i < 2; i++) {
        mn_autocast_begin(ctx, dtypes[i]);
        mn_tensor *y = mn_conv2d(x, w, NULL, NULL);
        mn_autocast_end(ctx);
        ck_assert_int_eq(mn_tensor_dtype(y), dtypes[i]);
        ck_assert_double_eq(mn_check_at(y, 1), 4608);
    }
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *shadow_loss(mn_context *ctx, int64_t batch, void *net)
{
    const int64_t labels[8] = {0, 1, 2, 3, 0, 1, 2, 3}, eight = 8;
    (void)batch;
    return mn_cross_entropy(mn_module_forward(net, images(ctx)),
                            mn_tensor_from(ctx, MN_I64, 1, &eight, labels), NULL);
}

/* The check to make at start-up: one's own model at its own batch size, in both precisions, by hand
 * and, op by op, as mn_shadow_check does it. */
START_TEST(R52_same_results_as_f32)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_module *net = small_net(ctx);
    double f32[32], low[32], largest = 0;
    const mn_dtype dtypes[2] = {MN_F16, MN_BF16};
    mn_no_grad_begin(ctx);
    mn_module_set_training(net, false);
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(net, images(ctx)), f32, 32), MN_OK);
    for (int i = 0; i < 32; i++)
        largest = fmax(largest, fabs(f32[i]));
    for (int d = 0; d < 2; d++) {
        mn_autocast_begin(ctx, dtypes[d]);
        mn_tensor *y = mn_module_forward(net, images(ctx));
        mn_autocast_end(ctx);
        ck_assert_int_eq(mn_tensor_read_f64(y, low, 32), MN_OK);
        for (int i = 0; i < 32; i++)
            ck_assert_double_lt(fabs(low[i] - f32[i]), 1e-2 * largest); /* false for NaN */
    }
    mn_no_grad_end(ctx);
    mn_module_set_training(net, true);
    for (int d = 0; d < 2; d++) {
        mn_shadow_options options = mn_shadow_options_default();
        options.dtype = dtypes[d];
        options.tolerance = 1e-2;
        options.backward = false; /* sums that nearly cancel, as the images are alike */
        mn_shadow_report *report = mn_shadow_check(ctx, shadow_loss, net, &options);
        ck_assert_msg(report != NULL, "%s", mn_error_message(ctx));
        ck_assert(report->first == -1 && report->unmatched == 0 && report->row_count >= 5);
        for (int64_t i = 0; i < report->row_count; i++)
            ck_assert_int_eq(report->rows[i].nonfinite, 0);
        ck_assert_double_lt(fabs(report->loss - report->loss_fp32), 1e-2 * report->loss_fp32);
        mn_shadow_report_free(report);
    }
    mn_module_free(net);
    mn_check_done(ctx);
}
END_TEST

/* ---- I to K: conversions, optimizers, speed -------------------------------------------------- */

/* Ties, ends of the ranges and NaN, through the op; and every bf16 there and back. */
START_TEST(R53_casts)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const float in[8] = {65519.996f, 65520, 0x1p-25f, 0x1.000002p-25f, 2049, 2051, NAN, -1e9f};
    const uint16_t half[8] = {0x7bff, 0x7c00, 0, 1, 0x6800, 0x6802, 0x7e00, 0xfc00};
    const float wide[4] = {257, 259, 0.2691408770292272f, INFINITY};
    const uint16_t brain[4] = {0x4380, 0x4382, 0x3e8a, 0x7f80};
    const int64_t counts[2] = {8, 4};
    uint16_t out[8];
    mn_tensor *y = mn_cast(mn_tensor_from(ctx, MN_F32, 1, &counts[0], in), MN_F16);
    mn_tensor_read(y, out, sizeof half);
    ck_assert_int_eq(out[6] & 0x7c00, 0x7c00);
    ck_assert_int_ne(out[6] & 0x3ff, 0);
    out[6] = half[6];
    ck_assert_mem_eq(out, half, sizeof half);
    y = mn_cast(mn_tensor_from(ctx, MN_F32, 1, &counts[1], wide), MN_BF16);
    mn_tensor_read(y, out, sizeof brain);
    ck_assert_mem_eq(out, brain, sizeof brain);
    static uint16_t all[65536], back[65536];
    const int64_t every = 65536;
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    y = mn_cast(mn_tensor_from(ctx, MN_BF16, 1, &every, all), MN_F32);
    mn_tensor_read(mn_cast(y, MN_BF16), back, sizeof back);
    for (int i = 0; i < 65536; i++)
        ck_assert(back[i] == i || ((i & 0x7fff) > 0x7f80 && (back[i] & 0x7fff) > 0x7f80));
    mn_check_done(ctx);
}
END_TEST

/* The state of a 16-bit parameter is f32: eps does not vanish, and 0 / (0 + eps) is 0. */
START_TEST(R56_adam_of_half_parameters)
{
    const int64_t four = 4;
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F16, 1, &four, MN_LAYOUT_PLAIN);
    mn_tensor_fill(w, 1.5);
    mn_optimizer *adam = mn_adam_create(ctx, &w, 1, NULL);
    for (int step = 0; step < 3; step++) {
        ck_assert_int_eq(mn_backward(mn_check_total(mn_cast(w, MN_F32)), 0), MN_OK);
        ck_assert_int_eq(mn_optimizer_step(adam), MN_OK);
        mn_optimizer_zero_grad(adam);
        for (int i = 0; i < 4; i++)
            ck_assert_double_eq(mn_check_at(w, i), 1.5);
    }
    ck_assert_int_eq(mn_tensor_dtype(adam->states[1][0]), MN_F32);
    mn_optimizer_free(adam);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

static mn_bench_result bench(mn_dtype amp)
{
    mn_bench_options options = mn_bench_options_default();
    mn_bench_result result;
    mn_error error = {MN_OK, ""};
    options.batch = 32;
    options.steps = 8;
    options.warmup = 2;
    options.amp = amp;
    options.context.threads = 1;
    ck_assert_msg(mn_bench(&options, &result, &error) == MN_OK, "%s", error.message);
    return result;
}

/* Whether an op works on f32 records or gradients alone, whatever the region. */
static bool is_f32_only(const mn_op *op)
{
    static const char *const names[] = {"grad_", "sgd_step", "optimizer_", "scaler_",
                                        "cross_entropy"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        found = found || strncmp(op->name, names[i], strlen(names[i])) == 0;
    return found;
}

/* bf16 was 90 times slower than f32 where a reference path served it. Here every op of a step has
 * a kernel of its own that widens as it reads; bench/ tells the times. */
START_TEST(R58_bf16_has_kernels_of_its_own)
{
    mn_check_run r = mn_check_run_open("cpu", NULL);
    const int64_t shape[4] = {2, 28, 28, 1}, labels[2] = {3, 7}, rows[1] = {2};
    mn_module *net = mn_model_create(r.ctx, "cnn-small", NULL);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_optimizer *sgd = mn_sgd_create(r.ctx, parameters, count, NULL);
    mn_autocast_begin(r.ctx, MN_BF16);
    mn_tensor *y = mn_module_forward(net, mn_full(r.ctx, MN_F32, 4, shape, 0.5));
    mn_tensor *loss = mn_cross_entropy(y, mn_tensor_from(r.ctx, MN_I64, 1, rows, labels), NULL);
    mn_autocast_end(r.ctx);
    ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, loss, 1), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, sgd, NULL), MN_OK);
    ck_assert_uint_gt(mn_op_calls(r.ctx, MN_OP_conv2d_moments), 0);
    ck_assert_uint_eq(mn_widened_calls(r.ctx), 0);
    for (int op = 0; op < MN_OP_COUNT; op++)
        if (mn_op_calls(r.ctx, (mn_op_id)op) > 0 && !is_f32_only(&mn_ops[op]))
            ck_assert_msg(mn_op_served_by(r.ctx, &mn_ops[op], MN_BF16) == MN_SERVED_KERNEL,
                          "%s has no kernel for bf16", mn_ops[op].name);
    mn_optimizer_free(sgd);
    mn_module_free(net);
    mn_check_run_close(&r);
}
END_TEST

/* Step times and memory of both precisions can be compared before a run is begun. What minim bench
 * says of them, casts and the gain over FP32, is tested in check_cli.sh. */
START_TEST(R59_benchmark_tells)
{
    const mn_dtype dtypes[3] = {MN_F32, MN_F16, MN_BF16};
    mn_bench_result results[3];
    for (int i = 0; i < 3; i++) {
        results[i] = bench(dtypes[i]);
        ck_assert_double_gt(results[i].step_ms_min, 0);
        ck_assert_double_ge(results[i].step_ms_max, results[i].step_ms_median);
        ck_assert_double_eq(results[i].gflop_per_step, results[0].gflop_per_step);
    }
    ck_assert_uint_lt(results[1].peak_tensor_bytes, results[0].peak_tensor_bytes);
}
END_TEST

int main(void)
{
    const mn_amp_case cases[] = {
        {46, "R46_average_pooling", R46_average_pooling, 2},
        {50, "R50_half_precision_from_the_first_step", R50_half_precision_from_the_first_step, 2},
        {51, "R51_convolution_sums_in_f32", R51_convolution_sums_in_f32, 2},
        {52, "R52_same_results_as_f32", R52_same_results_as_f32, 2},
        {53, "R53_casts", R53_casts, 2},
        {56, "R56_adam_of_half_parameters", R56_adam_of_half_parameters, 2},
        {58, "R58_bf16_has_kernels_of_its_own", R58_bf16_has_kernels_of_its_own, 1},
        {59, "R59_benchmark_tells", R59_benchmark_tells, 1},
    };
    return mn_amp_cases_run("amp cases: numerics", cases, (int)(sizeof cases / sizeof *cases), 46,
                            59);
}
