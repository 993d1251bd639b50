/* tests/support_amp_cases.h: the numbered cases, faults that users of mixed precision in other
 * frameworks met, as tests: a table per program from which its suite is made. */
#ifndef MN_TESTS_SUPPORT_AMP_CASES_H
#define MN_TESTS_SUPPORT_AMP_CASES_H

#include <check.h>

typedef struct mn_amp_case {
    int number;
    const char *name; /* begins with "R<number>_", as the test's does */
    const TTest *test;
    int loops; /* 2: on each of mn_check_devices */
} mn_amp_case;

/* Runs the cases, and a check that those from number `first` to `last` are all among them, once
 * each, and no others; names every case that passed. The program's exit status. */
int mn_amp_cases_run(const char *title, const mn_amp_case *cases, int count, int first, int last);

#endif
