/* tests/support_suite.h: what all test programs share: running a suite, a context with the default
 * options, and the error that a test expects. */
#ifndef MN_TESTS_SUPPORT_SUITE_H
#define MN_TESTS_SUPPORT_SUITE_H

#include "include/minim.h"

#include <check.h>

/* Sanitizers' own memory, pages and time spoil what a test counts. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MN_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MN_TEST_SANITIZED 1
#endif
#endif

/* Runs and frees the suite (fork CK_NOFORK: in this process); the program's exit status. */
int mn_test_run(Suite *suite, enum fork_status fork);
mn_context *mn_test_open(void);
/* With two threads. */
mn_context *mn_test_open_with(mn_kernel_set kernels, bool fusion);
/* Fails unless both are there and equal; named by what and which. */
void mn_test_same_bits(const mn_tensor *a, const mn_tensor *b, const char *what, int which);
/* Fails unless this is pending and its text has the part; clears it. */
void mn_test_expect(mn_context *context, mn_status status, const char *part);

#endif
