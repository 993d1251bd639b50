/* tests/support_ops.c: contexts and errors in tests of ops. */
#include "tests/support_ops.h"

#include <check.h>
#include <string.h>

mn_context *mn_test_op_context(const char *device, mn_kernel_set kernels)
{
    mn_context_options options = mn_context_options_default();
    mn_error error;
    options.device = device;
    options.kernels = kernels;
    options.threads = 1;
    mn_context *ctx = mn_context_create(&options, &error);
    ck_assert_msg(ctx != NULL, "%s", error.message);
    return ctx;
}

mn_context *mn_test_reference(void)
{
    return mn_test_op_context("cpu", MN_KERNELS_REFERENCE);
}

void mn_test_expect_ok(mn_context *ctx)
{
    ck_assert_msg(mn_error_status(ctx) == MN_OK, "%s", mn_error_message(ctx));
}

mn_tensor *mn_test_vector(mn_context *ctx, mn_dtype dtype, int64_t count, double value)
{
    return mn_full(ctx, dtype, 1, &count, value);
}

double mn_test_first(const mn_tensor *tensor)
{
    double values[64];
    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(mn_tensor_read_f64(tensor, values, mn_tensor_numel(tensor)), MN_OK);
    return values[0];
}
