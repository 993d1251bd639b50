/* Inputs and comparison of the tests against golden files (tests/golden). */
#ifndef MN_TESTS_SUPPORT_GOLDEN_H
#define MN_TESTS_SUPPORT_GOLDEN_H

#include "include/minim.h"

/* The number in [-1, 1] that tests/golden/generate.py makes in the same way. */
double mn_golden_value(int64_t index, int64_t salt);
/* Fails unless x's elements, but for the one to skip (-1: none), are those expected, up to the
 * bound times their largest finite magnitude; NaN is NaN. The text says what they are. */
void mn_golden_compare(const mn_tensor *x, const float *expected, double bound, int64_t skip,
                       const char *text);
/* The call of that name in support_golden_ops.c, of one input or two. */
mn_tensor *mn_golden_call(const char *name, mn_tensor *const *inputs);

#endif
