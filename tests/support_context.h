/* Contexts on both CPU devices, and checks that the tests of training share. */
#ifndef MN_TESTS_SUPPORT_CONTEXT_H
#define MN_TESTS_SUPPORT_CONTEXT_H

#include "minim.h"

/* "cpu" and "cpu-deferred": index of a loop test. */
extern const char *const mn_test_devices[2];

/* A context with one thread. */
mn_context *mn_test_context(const char *device);
/* Nothing is pending; frees the context. */
void mn_test_done(mn_context *context);
/* The pending error has this status, and part is in its message; clears it. */
void mn_test_expect(mn_context *context, mn_status status, const char *part);
/* Element `index` of a small tensor. */
double mn_test_at(const mn_tensor *x, int64_t index);
/* Sum of all elements. */
mn_tensor *mn_test_total(mn_tensor *x);

#endif
