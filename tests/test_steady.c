/* A steady state: after the first step of each shape, training asks the system for no memory. */
#include "tests/support_suite.h"
#include "train/train.h"

#include <string.h>
#include <sys/resource.h>

typedef struct steady {
    uint64_t requests[64];
    long faults[64]; /* of pages, of a step */
} steady;

static long page_faults(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt + usage.ru_majflt;
}

static mn_status counting_step(mn_step *step, void *user)
{
    steady *counts = user;
    const long before = page_faults();
    mn_status status = mn_step_default(step, NULL);
    counts->faults[step->step] = page_faults() - before;
    counts->requests[step->step] = mn_memory_stats_get(step->context).system_requests;
    return status;
}

/* 7 windows of 16 an epoch, the last one of 12. */
START_TEST(steps_ask_for_nothing)
{
    static const char *const models[] = {"lenet5", "resnet8"};
    static steady counts; /* in memory already: its pages are no step's */
    mn_train_options options = mn_train_options_default();
    mn_error error = {MN_OK, ""};
    memset(&counts, 0xff, sizeof counts);
    options.model = models[_i / 2];
    options.data = "synthetic:12x12x1:4:120";
    options.batch = 16;
    options.epochs = 4;
    options.lr = 0.02;
    options.context.threads = 2;
    options.step = counting_step;
    options.step_user = &counts;
    options.amp = _i % 2 ? MN_BF16 : MN_F32;
    mn_train_result *result = mn_train(&options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    mn_train_result_free(result);
    ck_assert_uint_gt(counts.requests[8], 0);
    ck_assert_uint_eq(counts.requests[27], counts.requests[8]);
    long faults = 0;
    for (int i = 9; i <= 27; i++)
        faults += counts.faults[i];
#if !defined(MN_TEST_SANITIZED)
    ck_assert_int_lt(faults, 20); /* the first step alone has hundreds */
#endif
    (void)faults;
}
END_TEST

static Suite *steady_suite(void)
{
    Suite *suite = suite_create("steady");
    TCase *tests = tcase_create("steady");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, steps_ask_for_nothing, 0, 4);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return mn_test_run(steady_suite(), CK_FORK_GETENV);
}
