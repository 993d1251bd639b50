/* Updates that 16-bit parameters swallow. A weight that climbs by 2^-9 a step stops where that is
 * half of the distance to the next number or less; with an f32 weight, lowered anew in each step,
 * it goes on, and so does a bf16 weight with an f32 master or with stochastic rounding. Then the
 * same ways of training a regression to its end. */
#include <minim.h>
#include <stdio.h>

static const char *const names[] = {"", "master", "stochastic"};

enum { FEATURES = 16, SAMPLES = 64, STEPS = 400 };

/* 1024 steps of SGD with gradient -1 and rate 2^-9: exact arithmetic ends at start + 2. */
static double climb(mn_context *ctx, mn_dtype dtype, mn_rounding rounding, double start)
{
    mn_tensor *w = mn_parameter_create(ctx, "w", dtype, 0, NULL, MN_LAYOUT_PLAIN);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0x1p-9;
    options.rounding = rounding;
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, &options);
    double value = 0;
    mn_tensor_fill(w, start);
    for (int i = 0; i < 1024; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_backward(mn_neg(w), 1);
        mn_optimizer_step(sgd);
        mn_optimizer_zero_grad(sgd);
        mn_scope_end(ctx, scope);
    }
    mn_tensor_item(w, &value);
    mn_optimizer_free(sgd), mn_release(w);
    return value;
}

/* Least squares whose solution is 1, 1.01, 1.02, ...; prints the loss at intervals. All products
 * are made in bf16; `dtype` is that of the parameters, which the optimizer writes. */
static void regress(mn_context *ctx, mn_dtype dtype, mn_rounding rounding)
{
    static float x[SAMPLES * FEATURES], y[SAMPLES];
    unsigned state = 1;
    for (int n = 0; n < SAMPLES; n++) {
        y[n] = 0;
        for (int i = 0; i < FEATURES; i++) {
            state = state * 1664525U + 1013904223U;
            x[n * FEATURES + i] = (float)(state >> 24) / 128.0F - 1.0F; /* exact in bf16 */
            y[n] += x[n * FEATURES + i] * (1.0F + 0.01F * (float)i);
        }
    }
    mn_scope run = mn_scope_begin(ctx);
    mn_tensor *inputs = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){SAMPLES, FEATURES}, x);
    mn_tensor *targets = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){SAMPLES, 1}, y);
    mn_tensor *w =
        mn_parameter_create(ctx, "w", dtype, 2, (int64_t[]){1, FEATURES}, MN_LAYOUT_PLAIN);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.05;
    options.rounding = rounding;
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, &options);
    printf("%-4s %-10s parameters: loss", mn_dtype_name(dtype), names[rounding]);
    for (int i = 0; i <= STEPS; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        double value = 0;
        mn_autocast_begin(ctx, MN_BF16);
        mn_tensor *loss = mn_mse_loss(mn_linear(inputs, w, NULL), targets, MN_REDUCTION_MEAN);
        mn_autocast_end(ctx);
        mn_backward(loss, 1);
        mn_optimizer_step(sgd);
        mn_optimizer_zero_grad(sgd);
        if (i % 100 == 0 && mn_tensor_item(loss, &value) == MN_OK)
            printf(" %.2e", value);
        mn_scope_end(ctx, scope);
    }
    printf("\n");
    mn_optimizer_free(sgd), mn_release(w);
    mn_scope_end(ctx, run);
}

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    static const mn_dtype dtypes[] = {MN_BF16, MN_F16, MN_F32};
    static const double starts[] = {0.25, 1, 3};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            printf("%-4s %g + 1024 x 2^-9 = %g\n", mn_dtype_name(dtypes[i]), starts[k],
                   climb(ctx, dtypes[i], MN_ROUNDING_NEAREST, starts[k]));
    for (int r = MN_ROUNDING_MASTER; r <= MN_ROUNDING_STOCHASTIC; r++)
        printf("bf16 %-10s 1 + 1024 x 2^-9 = %g\n", names[r],
               climb(ctx, MN_BF16, (mn_rounding)r, 1));
    for (int r = 0; r <= MN_ROUNDING_STOCHASTIC; r++)
        regress(ctx, MN_BF16, (mn_rounding)r);
    regress(ctx, MN_F32, MN_ROUNDING_NEAREST);
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_context_free(ctx);
    return status != MN_OK;
}
