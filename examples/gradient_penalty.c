/* Trains a small CNN in FP16 with a penalty on the squared norm of each image's gradient: the
 * scaled loss is differentiated in a way that is recorded, the scale is taken out again, and one
 * scaled backward runs through loss and penalty. */
#include <minim.h>
#include <stdio.h>

enum { BATCH = 16, SIDE = 8, STEPS = 20, CHANNELS = 8 };

/* Stripes along one axis or the other, and which: target -1 or 1. */
static void make_batch(int step, float *images, float *target)
{
    unsigned state = (unsigned)step * 2654435761U + 1;
    for (int n = 0; n < BATCH; n++) {
        int across = n % 2;
        target[n] = across ? 1.0F : -1.0F;
        for (int i = 0; i < SIDE * SIDE; i++) {
            state = state * 1664525U + 1013904223U;
            int at = across ? i % SIDE : i / SIDE;
            images[n * SIDE * SIDE + i] = (at % 2 ? 1.0F : -1.0F) + (float)(state >> 24) / 256.0F;
        }
    }
}

static mn_module *make_net(mn_context *ctx)
{
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.in_channels = 1, conv.out_channels = CHANNELS;
    conv.kernel[0] = conv.kernel[1] = 3;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "conv", mn_conv2d_layer(ctx, &conv));
    mn_sequential_add(net, "relu", mn_relu_layer(ctx));
    mn_sequential_add(net, "pool", mn_global_avg_pool2d_layer(ctx));
    mn_sequential_add(net, "fc", mn_linear_layer(ctx, CHANNELS, 1, true));
    mn_module_init(net);
    return net;
}

/* Of ops that can be differentiated twice; mn_mse_loss cannot. */
static mn_tensor *mean_square(mn_tensor *x)
{
    return mn_mean(mn_mul(x, x), 0, NULL, false);
}

int main(void)
{
    static float images[BATCH * SIDE * SIDE], target[BATCH];
    mn_error error = {MN_OK, ""};
    mn_context *ctx = mn_context_create(NULL, &error);
    mn_module *net = make_net(ctx);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.lr = 0.05, sgd.momentum = 0.9;
    mn_optimizer *opt = mn_sgd_create(ctx, parameters, count, &sgd);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    for (int i = 1; i <= STEPS && ctx != NULL && mn_error_status(ctx) == MN_OK; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        make_batch(i, images, target);
        mn_tensor *x = mn_tensor_from(ctx, MN_F32, 4, (int64_t[]){BATCH, SIDE, SIDE, 1}, images);
        mn_tensor *t = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){BATCH, 1}, target);
        mn_set_requires_grad(x, true);
        mn_autocast_begin(ctx, MN_F16);
        mn_tensor *y = mn_module_forward(net, x);
        mn_autocast_end(ctx);
        mn_tensor *loss = mean_square(mn_sub(mn_cast(y, MN_F32), t));
        mn_tensor *g = NULL; /* 1 / BATCH times that of each image's loss */
        mn_gradients(mn_grad_scaler_scale(scaler, loss, 1.0), &x, 1, true, &g);
        g = mn_mul_scalar(mn_grad_scaler_unscale_tensor(scaler, g), BATCH);
        mn_tensor *norm = mn_norm(g, 2.0, 3, (int[]){1, 2, 3}, false); /* [BATCH] */
        mn_tensor *penalty = mn_mul_scalar(mean_square(norm), 2.0);
        mn_grad_scaler_backward(scaler, mn_add(loss, penalty), 1.0);
        mn_grad_scaler_step(scaler, opt, NULL); /* skips steps whose gradient overflows */
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(opt);
        double values[2] = {0.0};
        mn_grad_scaler_stats stats = {.scale = 0.0};
        mn_tensor_item(loss, &values[0]);
        mn_tensor_item(penalty, &values[1]);
        if (mn_grad_scaler_stats_get(scaler, &stats) == MN_OK)
            printf("step %2d: loss %.4f, penalty %.4f, scale %g\n", i, values[0], values[1],
                   stats.scale);
        mn_scope_end(ctx, scope);
    }
    mn_status status = ctx != NULL ? mn_error_status(ctx) : error.status;
    if (status != MN_OK)
        printf("%s\n", ctx != NULL ? mn_error_message(ctx) : error.message);
    mn_grad_scaler_free(scaler), mn_optimizer_free(opt), mn_module_free(net), mn_context_free(ctx);
    return status != MN_OK;
}
