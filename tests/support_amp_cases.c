/* tests/support_amp_cases.c: see the header. */
#include "tests/support_amp_cases.h"
#include "tests/support_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that there are; the numbering has gaps. */
static const int numbers[] = {1,  2,  3,  4,  5,  6,  8,  11, 12, 13, 14, 15, 16, 18,
                              19, 20, 21, 22, 23, 26, 27, 28, 30, 31, 32, 33, 35, 37,
                              38, 39, 40, 42, 43, 45, 46, 50, 51, 52, 53, 56, 58, 59};

static struct {
    const mn_amp_case *cases;
    int count, first, last;
} table;

START_TEST(every_number_is_here)
{
    int at = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i] < table.first || numbers[i] > table.last)
            continue;
        ck_assert_msg(at < table.count && table.cases[at].number == numbers[i], "no case R%d",
                      numbers[i]);
        const mn_amp_case *c = &table.cases[at++];
        char prefix[16];
        int length = snprintf(prefix, sizeof prefix, "R%d_", c->number);
        ck_assert_msg(strncmp(c->name, prefix, (size_t)length) == 0, "%s is not %s", c->name,
                      prefix);
        ck_assert_str_eq(c->name, c->test->name);
    }
    ck_assert_int_eq(at, table.count);
}
END_TEST

int mn_amp_cases_run(const char *title, const mn_amp_case *cases, int count, int first, int last)
{
    Suite *suite = suite_create(title);
    TCase *tc = tcase_create(title);
    tcase_set_timeout(tc, 60);
    for (int i = 0; i < count; i++)
        tcase_add_loop_test(tc, cases[i].test, 0, cases[i].loops);
    tcase_add_test(tc, every_number_is_here);
    suite_add_tcase(suite, tc);
    table.cases = cases;
    table.count = count;
    table.first = first;
    table.last = last;
    setenv("CK_VERBOSITY", "verbose", 0);
    return mn_test_run(suite, CK_FORK_GETENV);
}
