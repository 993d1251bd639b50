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
