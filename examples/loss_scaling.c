/* FP16 without and with loss scaling. A net marks each pixel's texture; the loss is the mean over
 * 32768 pixels times 0.001, as an auxiliary loss may have it. No gradient of a logit exceeds 0.001
 * / 32768 = 3.05e-8, and FP16 rounds to 0 what is at most 2^-25 = 2.98e-8. Adam does not mind small
 * gradients, only such as are gone. Every step sees new images. */
#include <minim.h>
#include <stdio.h>

enum { BATCH = 8, SIDE = 64, PIXELS = BATCH * SIDE * SIDE, STEPS = 60, CHANNELS = 8 };

/* Noise with stripes down in one part of each image, label 1, and across in the other, label 0. */
static void make_batch(int step, float *images, int64_t *labels)
{
    unsigned state = (unsigned)step * 2654435761U + 1;
    for (int i = 0; i < PIXELS; i++) {
        int x = i % SIDE, y = i / SIDE % SIDE, n = i / (SIDE * SIDE);
        labels[i] = (n % 2 ? x : y) < 8 * n + 4;
        state = state * 1664525U + 1013904223U;
        images[i] = ((labels[i] ? x : y) % 2 ? 1.0F : -1.0F) + (float)(state >> 24) / 128.0F - 1;
    }
}

/* Percentage of zeros among the gradients. */
static double zeros(mn_tensor *const *parameters, int count)
{
    double zero = 0, all = 0, values[CHANNELS * 25] = {0};
    for (int i = 0; i < count; i++) {
        int64_t size = mn_tensor_numel(parameters[i]);
        mn_tensor_read_f64(mn_grad(parameters[i]), values, size);
        all += (double)size;
        while (size-- > 0)
            zero += values[size] == 0;
    }
    return 100 * zero / all;
}

static void train(mn_context *ctx, const char *name, mn_dtype amp, bool scaling)
{
    static float images[PIXELS];
    static int64_t labels[PIXELS];
    int count = 0;
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.out_channels = CHANNELS;
    conv.kernel[0] = conv.kernel[1] = 5, conv.padding[0] = conv.padding[1] = 2;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "conv", mn_conv2d_layer(ctx, &conv));
    mn_sequential_add(net, "relu", mn_relu_layer(ctx));
    mn_sequential_add(net, "classes", mn_linear_layer(ctx, CHANNELS, 2, true));
    mn_module_init(net);
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_optimizer *opt = mn_adam_create(ctx, parameters, count, NULL);
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.enabled = scaling;
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &options);
    mn_optimizer_set_lr(opt, 0, 0.01);
    for (int i = 1; i <= STEPS && mn_error_status(ctx) == MN_OK; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        make_batch(i, images, labels);
        mn_tensor *x = mn_tensor_from(ctx, MN_F32, 4, (int64_t[]){BATCH, SIDE, SIDE, 1}, images);
        mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, (int64_t[]){PIXELS}, labels);
        mn_autocast_begin(ctx, amp);
        mn_tensor *logits = mn_reshape(mn_module_forward(net, x), 2, (int64_t[]){PIXELS, 2});
        mn_tensor *loss = mn_cross_entropy(logits, y, NULL);
        mn_autocast_end(ctx);
        double value = 0, right = 0;
        mn_tensor *hits = mn_sum(mn_eq(mn_argmax(logits, 1), y), 0, NULL, false);
        mn_tensor_item(loss, &value), mn_tensor_item(hits, &right);
        mn_grad_scaler_backward(scaler, loss, 0.001);
        if (i == 1 || i == STEPS)
            printf("%-13s step %2d: loss %.4f, %.1f%% right, %.0f%% of the gradients are 0\n", name,
                   i, value, 100 * right / PIXELS, zeros(parameters, count));
        mn_grad_scaler_step(scaler, opt, NULL); /* just mn_optimizer_step if disabled */
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(opt);
        mn_scope_end(ctx, scope);
    }
    mn_grad_scaler_free(scaler), mn_optimizer_free(opt), mn_module_free(net);
}

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    train(ctx, "FP32", MN_F32, false), train(ctx, "BF16", MN_BF16, false);
    train(ctx, "FP16", MN_F16, false), train(ctx, "FP16, scaled", MN_F16, true);
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_context_free(ctx);
    return status != MN_OK;
}
