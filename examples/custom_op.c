/* An op of one's own: y = factor x^3, with the plain kernel in double, an f32 kernel on all threads
 * and its gradient 3 factor x^2 made of other ops; checked against central differences. */
#include <minim_ext.h>
#include <stdio.h>

#define BLOCK 4096

static mn_status infer(mn_infer *call)
{
    call->out[0] = call->in[0];
    if (mn_dtype_is_float(call->in[0].dtype))
        return MN_OK;
    return mn_infer_error(call, MN_ERR_DTYPE, "wants floating numbers");
}

static void reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = *(const double *)call->attributes.bytes * in[0][i] * in[0][i] * in[0][i];
}

static void cube_block(void *arg, int64_t index, int slot)
{
    const mn_call *call = arg;
    const float *x = call->in[0].data, factor = (float)*(const double *)call->attributes.bytes;
    float *y = call->out[0].data;
    (void)slot;
    for (int64_t i = index * BLOCK; i < (index + 1) * BLOCK && i < call->in[0].numel; i++)
        y[i] = factor * x[i] * x[i] * x[i];
}

static void run_f32(const mn_call *call)
{
    mn_call_parallel(call, (call->in[0].numel + BLOCK - 1) / BLOCK, cube_block, (void *)call);
}

static mn_status backward(mn_backward_call *call)
{
    mn_tensor *x = call->in[0];
    const double *factor = call->attributes;
    call->grad_in[0] = mn_mul(call->grad_out[0], mn_mul_scalar(mn_mul(x, x), 3 * *factor));
    return mn_error_status(call->context);
}

static const mn_op cube = {.size = sizeof(mn_op),
                           .name = "cube",
                           .summary = "y = factor x^3",
                           .min_inputs = 1,
                           .max_inputs = 1,
                           .outputs = 1,
                           .attribute_bytes = sizeof(double),
                           .differentiable = 1 << 0,
                           .saves_inputs = 1 << 0,
                           .infer = infer,
                           .backward = backward,
                           .reference = reference,
                           .kernels[MN_DEVICE_CPU] = {.dtypes = 1u << MN_F32, .run = run_f32}};

static mn_tensor *cube_of(mn_context *ctx, mn_tensor **inputs, int count, void *factor)
{
    mn_tensor *y;
    return mn_apply(ctx, &cube, inputs, count, factor, &y) == MN_OK ? y : NULL;
}

int main(void)
{
    double factor = 0.5, values[3] = {-2.0, 0.25, 3.0}, y[3] = {0.0, 0.0, 0.0};
    mn_context *ctx = mn_context_create(NULL, NULL);
    mn_tensor *x = mn_tensor_from(ctx, MN_F64, 1, (int64_t[]){3}, values);
    mn_set_requires_grad(x, true);
    mn_gradcheck(ctx, cube_of, &factor, &x, 1, NULL);
    x = mn_cast(x, MN_F32);
    mn_tensor_read_f64(cube_of(ctx, &x, 1, &factor), y, 3);
    bool good = mn_error_status(ctx) == MN_OK;
    printf("%s; y[2] = %g\n", good ? "gradient agrees" : mn_error_message(ctx), y[2]);
    mn_context_free(ctx);
    return !good;
}
