/* An op of one's own: y = factor x^3, with the plain kernel in double, an f32 kernel on all threads
 * and its gradient 3 factor x^2 made of other ops. mn_op_check tries it in every dtype, on every
 * device and in autocast regions; finds the fault of a copy with a wrong backward; and a record of
 * the check counts as long as nothing that it was made with has changed. */
#include <minim_ext.h>
#include <stdio.h>

#define BLOCK 4096

static mn_status infer(mn_infer *call)
{
    call->out[0] = call->in[0]; /* with rule FP32 always f32 in a region */
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
                           .rule = {MN_CAST_FP32, MN_CAST_FP32}, /* x^3 is soon too much for f16 */
                           .infer = infer,
                           .backward = backward,
                           .reference = reference,
                           .kernels[MN_DEVICE_CPU] = {.dtypes = 1u << MN_F32, .run = run_f32}};

static mn_status wrong_backward(mn_backward_call *call)
{
    call->grad_in[0] = mn_mul(call->grad_out[0], mn_mul(call->in[0], call->in[0]));
    return mn_error_status(call->context);
}

static mn_status check(mn_context *ctx, const mn_op *op, mn_op_check_report *report)
{
    const double factor = 0.5, values[4] = {-2.1, 0.3, 2.9, 1.7};
    mn_op_check_options options = mn_op_check_options_default();
    mn_tensor *x = mn_tensor_from(ctx, MN_F64, 1, (int64_t[]){4}, values);
    options.attributes = &factor;
    return mn_op_check(ctx, op, &x, 1, &options, report);
}

static void print(const mn_op_check_report *report)
{
    static const char *const served[] = {"not served", "its kernel", "the reference", "widening"};
    for (int i = 0; i < 4; i++) {
        const mn_op_check_dtype *found = &report->dtypes[i];
        printf("%-5s %-14s error %-8.2g gradient's %-8.2g%s\n", mn_dtype_name((mn_dtype)i),
               served[found->served], found->forward, found->backward,
               found->nan_lost ? " NaN is lost" : "");
    }
    printf("gradient against differences: error %.2g\n", report->gradient);
    printf("same bits: %s; autocast: %s\n", report->same_bits ? "yes" : "no",
           report->autocast ? "as the rule says" : "no");
}

int main(void)
{
    mn_op_check_report report, faulty;
    mn_error error;
    mn_op copy = cube;
    mn_context_options options = mn_context_options_default();
    mn_context *ctx = mn_context_create(NULL, NULL);
    if (check(ctx, &cube, &report) == MN_OK)
        print(&report);
    copy.backward = wrong_backward;
    bool found = check(ctx, &copy, &faulty) == MN_ERR_MISMATCH;
    printf("wrong backward: %s\n", faulty.failure.message);
    mn_error_clear(ctx);

    /* The record would be kept in a file beside the op. */
    printf("%s\n", report.record);
    bool counts = mn_op_check_current(ctx, &cube, report.record, NULL) == MN_OK;
    options.kernels = MN_KERNELS_REFERENCE;
    mn_context *other = mn_context_create(&options, NULL);
    bool stale = mn_op_check_current(other, &cube, report.record, &error) == MN_ERR_MISMATCH;
    printf("with other kernels: %s\n", stale ? error.message : "");
    bool good = report.failure.status == MN_OK && found && counts && stale;
    printf("%s\n", good ? "checked" : report.failure.message);
    mn_context_free(other);
    mn_context_free(ctx);
    return !good;
}
