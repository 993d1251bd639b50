/* Trains a small CNN on synthetic images in FP16: autocast, loss scaling, one error check. */
#include <minim.h>
#include <stdio.h>

int main(void)
{
    mn_error error = {MN_OK, ""};
    mn_context *ctx = mn_context_create(NULL, &error);
    mn_dataset *data = mn_dataset_open("synthetic:28x28x1:10", true, NULL, &error);
    mn_loader *loader = data != NULL ? mn_loader_create(data, NULL, &error) : NULL;
    mn_module *net = mn_model_create(ctx, "cnn-small", NULL);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.lr = 0.002, sgd.momentum = 0.9;
    mn_optimizer *opt = mn_sgd_create(ctx, parameters, count, &sgd);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    mn_status status = loader != NULL ? mn_loader_start(loader, 0, 0, &error) : error.status;
    mn_batch b = {.count = 1};
    for (int i = 1; !status && mn_loader_next(loader, &b, &error) == MN_OK && b.count; i++) {
        mn_scope scope = mn_scope_begin(ctx); /* frees the step's tensors */
        mn_tensor *x = mn_tensor_from(ctx, MN_F32, 4, (int64_t[]){b.count, 28, 28, 1}, b.images);
        mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, &b.count, b.labels);
        mn_autocast_begin(ctx, MN_F16);
        mn_tensor *loss = mn_cross_entropy(mn_module_forward(net, x), y, NULL);
        mn_autocast_end(ctx);
        mn_grad_scaler_backward(scaler, loss, 1.0);
        mn_grad_scaler_step(scaler, opt, NULL); /* unscales; skips non-finite gradients */
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(opt);
        double value = 0.0;
        status = mn_tensor_item(loss, &value); /* the first error of the step, if any */
        printf("step %2d: loss %.4f\n", i, value);
        mn_scope_end(ctx, scope);
    }
    if (ctx == NULL || mn_error_status(ctx) != MN_OK || error.status != MN_OK)
        printf("%s\n", error.status != MN_OK ? error.message : mn_error_message(ctx));
    mn_grad_scaler_free(scaler), mn_optimizer_free(opt), mn_module_free(net);
    mn_loader_free(loader), mn_dataset_free(data), mn_context_free(ctx);
    return status != MN_OK || error.status != MN_OK;
}
