/* A forward pass that overflows in FP16, where no loss scale helps. The net takes raw 12-bit
 * pixels, filters them and compares the filters' energies: means of squares far beyond 65504. BF16
 * trains it. In FP16 no gradient is finite, every step is skipped, and the scale falls until it has
 * collapsed: at min_scale, or without one as far as f32 reaches. What helps is to multiply in FP32:
 * a few steps are skipped until the scale fits, then it trains. */
#include <math.h>
#include <minim.h>
#include <stdio.h>

enum { BATCH = 32, SIDE = 16, FILTERS = 4, STEPS = 150 };

/* Stripes down or across of random brightness, 0 to 4095. */
static void make_batch(int step, float *images, int64_t *labels)
{
    unsigned state = (unsigned)step * 2654435761U + 1;
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) {
        int x = i % SIDE, y = i / SIDE % SIDE, n = i / (SIDE * SIDE);
        labels[n] = n % 2;
        state = state * 1664525U + 1013904223U;
        images[i] = (float)(state >> 21) + ((n % 2 ? x : y) % 2 ? 2048.0F : 0.0F);
    }
}

/* net: the root, which owns the two others, filters and classes. */
static void train(mn_context *ctx, mn_module *const net[3], const char *title, mn_dtype amp,
                  double min_scale)
{
    float images[BATCH * SIDE * SIDE];
    int64_t labels[BATCH] = {0};
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net[0], &count);
    mn_optimizer *opt = mn_adam_create(ctx, parameters, count, NULL);
    mn_optimizer_set_lr(opt, 0, 0.03);
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.enabled = amp == MN_F16, options.min_scale = min_scale;
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &options);
    mn_grad_scaler_stats stats = {.scale = 1};
    for (int i = 1; i <= STEPS && !stats.collapsed && mn_error_status(ctx) == MN_OK; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        make_batch(i, images, labels);
        mn_tensor *x = mn_tensor_from(ctx, MN_F32, 4, (int64_t[]){BATCH, SIDE, SIDE, 1}, images);
        mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, (int64_t[]){BATCH}, labels);
        mn_autocast_begin(ctx, amp);
        mn_tensor *filtered = mn_module_forward(net[1], x);
        mn_tensor *energy = mn_mean(mn_mul(filtered, filtered), 2, (int[]){1, 2}, false);
        mn_tensor *logits = mn_module_forward(net[2], mn_log(mn_add_scalar(energy, 1)));
        mn_tensor *loss = mn_cross_entropy(logits, y, NULL);
        mn_autocast_end(ctx);
        double value = 0, largest = 0;
        mn_grad_scaler_backward(scaler, loss, 1);
        mn_grad_scaler_step(scaler, opt, NULL);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(opt);
        mn_tensor_item(loss, &value), mn_tensor_item(mn_amax(energy, 0, NULL, false), &largest);
        mn_grad_scaler_stats_get(scaler, &stats);
        if (i == 1 || i % 50 == 0 || stats.collapsed)
            printf("%-16s step %3d: loss %.3f, largest energy %.3g, %d skipped, scale %g%s\n",
                   title, i, fabs(value), largest, (int)stats.backoffs, stats.scale,
                   stats.collapsed ? ": collapsed" : "");
        mn_scope_end(ctx, scope);
    }
    mn_grad_scaler_free(scaler), mn_optimizer_free(opt);
}

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.out_channels = FILTERS, conv.bias = false, conv.kernel[0] = conv.kernel[1] = 3;
    mn_module *const net[3] = {mn_sequential(ctx), mn_conv2d_layer(ctx, &conv),
                               mn_linear_layer(ctx, FILTERS, 2, true)};
    mn_sequential_add(net[0], "filters", net[1]);
    mn_sequential_add(net[0], "classes", net[2]);
    mn_module_init(net[0]);
    train(ctx, net, "BF16", MN_BF16, 0);
    train(ctx, net, "FP16 min_scale 1", MN_F16, 1);
    train(ctx, net, "FP16 min_scale 0", MN_F16, 0);
    mn_autocast_set_rule(ctx, "mul", MN_CAST_FP32);
    train(ctx, net, "FP16 mul in FP32", MN_F16, 1);
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_module_free(net[0]), mn_context_free(ctx);
    return status != MN_OK;
}
