/* Clipping gradients by norm belongs between unscale and step. Before unscale it would see them
 * times the loss scale: it always clips, and the limit is really max_norm / scale. The library
 * refuses that order; what it would do is shown with that limit in the right one. */
#include <math.h>
#include <minim.h>
#include <stdio.h>

enum { FEATURES = 16, SAMPLES = 64, STEPS = 100 };

static mn_tensor *forward(mn_context *ctx, mn_tensor *w)
{
    static float x[SAMPLES * FEATURES], y[SAMPLES];
    unsigned state = 1;
    for (int n = 0; n < SAMPLES; n++) {
        y[n] = 0;
        for (int i = 0; i < FEATURES; i++) {
            state = state * 1664525U + 1013904223U;
            x[n * FEATURES + i] = (float)(state >> 24) / 128.0F - 1.0F;
            y[n] += x[n * FEATURES + i] * (i % 2 ? 1.0F : -1.0F);
        }
    }
    mn_tensor *inputs = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){SAMPLES, FEATURES}, x);
    mn_tensor *targets = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){SAMPLES, 1}, y);
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *loss = mn_mse_loss(mn_linear(inputs, w, NULL), targets, MN_REDUCTION_MEAN);
    mn_autocast_end(ctx);
    return loss;
}

/* Trains with gradients clipped to max_norm after unscaling; prints every 25th step. */
static void train(mn_context *ctx, double max_norm)
{
    mn_tensor *w =
        mn_parameter_create(ctx, "w", MN_F32, 2, (int64_t[]){1, FEATURES}, MN_LAYOUT_PLAIN);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.2;
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, &options);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.init_scale = 1024;
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &scaling);
    for (int i = 0; i <= STEPS && mn_error_status(ctx) == MN_OK; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        double norm = 0, value = 0;
        mn_tensor *loss = forward(ctx, w);
        mn_grad_scaler_backward(scaler, loss, 1);
        mn_grad_scaler_unscale(scaler, sgd);
        mn_clip_grad_norm(sgd, max_norm, &norm);
        mn_grad_scaler_step(scaler, sgd, NULL);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(sgd);
        if (mn_tensor_item(loss, &value) == MN_OK && i % 25 == 0)
            printf("  step %3d: loss %.5f, norm %.4f, applied %.4g\n", i, value, norm,
                   norm * fmin(1, max_norm / (norm + 1e-6)));
        mn_scope_end(ctx, scope);
    }
    mn_grad_scaler_free(scaler), mn_optimizer_free(sgd), mn_release(w);
}

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    mn_tensor *w =
        mn_parameter_create(ctx, "w", MN_F32, 2, (int64_t[]){1, FEATURES}, MN_LAYOUT_PLAIN);
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, NULL);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    mn_grad_scaler_backward(scaler, forward(ctx, w), 1);
    bool refused = mn_clip_grad_norm(sgd, 1, NULL) == MN_ERR_STATE;
    printf("clip before unscale: %s\n", mn_error_message(ctx));
    mn_grad_scaler_free(scaler), mn_optimizer_free(sgd), mn_release(w);
    if (!refused)
        return 1;
    mn_error_clear(ctx);
    printf("unscale, then clip to 1:\n");
    train(ctx, 1);
    printf("what clipping to 1 at scale 1024 would do:\n");
    train(ctx, 1.0 / 1024);
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_context_free(ctx);
    return status != MN_OK;
}
