/* What the tests of training share. */
#include "tests/support_context.h"

#include <check.h>
#include <string.h>

const char *const mn_test_devices[2] = {"cpu", "cpu-deferred"};

mn_context *mn_test_context(const char *device)
{
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.threads = 1;
    mn_error error = {.status = MN_OK};
    mn_context *context = mn_context_create(&options, &error);
    ck_assert_msg(context != NULL, "%s", error.message);
    return context;
}

void mn_test_done(mn_context *context)
{
    ck_assert_msg(mn_error_status(context) == MN_OK, "%s", mn_error_message(context));
    mn_context_free(context);
}

void mn_test_expect(mn_context *context, mn_status status, const char *part)
{
    ck_assert_msg(mn_error_status(context) == status, "status %d: %s",
                  (int)mn_error_status(context), mn_error_message(context));
    ck_assert_msg(strstr(mn_error_message(context), part) != NULL, "\"%s\" is not in \"%s\"", part,
                  mn_error_message(context));
    mn_error_clear(context);
}

double mn_test_at(const mn_tensor *x, int64_t index)
{
    double values[16];
    ck_assert_ptr_nonnull(x);
    ck_assert(index >= 0 && index < mn_tensor_numel(x) && mn_tensor_numel(x) <= 16);
    ck_assert_int_eq(mn_tensor_read_f64(x, values, mn_tensor_numel(x)), MN_OK);
    return values[index];
}

mn_tensor *mn_test_total(mn_tensor *x)
{
    return mn_sum(x, 0, NULL, false);
}
