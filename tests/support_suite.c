/* What all test programs share. */
#include "tests/support_suite.h"

#include <string.h>

int mn_test_run(Suite *suite, enum fork_status fork)
{
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, fork);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

mn_context *mn_test_open(void)
{
    mn_error error;
    mn_context *context = mn_context_create(NULL, &error);
    ck_assert_msg(context != NULL, "%s", error.message);
    return context;
}

void mn_test_expect(mn_context *context, mn_status status, const char *text)
{
    ck_assert_msg(mn_error_status(context) == status, "status %s, wanted %s for \"%s\": %s",
                  mn_status_name(mn_error_status(context)), mn_status_name(status), text,
                  mn_error_message(context));
    ck_assert_msg(strstr(mn_error_message(context), text) != NULL, "\"%s\" is not in \"%s\"", text,
                  mn_error_message(context));
    mn_error_clear(context);
}

mn_context *mn_test_open_with(mn_kernel_set kernels, bool fusion)
{
    mn_context_options options = mn_context_options_default();
    options.kernels = kernels;
    options.threads = 2;
    options.fusion = fusion;
    mn_context *context = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(context);
    return context;
}

void mn_test_same_bits(const mn_tensor *a, const mn_tensor *b, const char *what, int which)
{
    ck_assert_msg(a != NULL && b != NULL, "%s %d: there is none", what, which);
    ck_assert_uint_eq(mn_tensor_bytes(a), mn_tensor_bytes(b));
    ck_assert_msg(mn_tensor_numel(a) == 0 ||
                      memcmp(mn_tensor_data(a), mn_tensor_data(b), mn_tensor_bytes(a)) == 0,
                  "%s %d differs", what, which);
}
