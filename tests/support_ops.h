/* tests/support_ops.h: contexts and errors in tests of ops. */
#ifndef MINIM_TESTS_SUPPORT_OPS_H
#define MINIM_TESTS_SUPPORT_OPS_H

#include "minim.h"

/* A context with one thread on the device; fails the test if there is none. */
mn_context *mn_test_op_context(const char *device, mn_kernel_set kernels);
/* Such a context on the CPU with the reference kernels. */
mn_context *mn_test_reference(void);
void mn_test_expect_ok(mn_context *ctx);
/* A vector with all elements alike, and the first element of a tensor of at most 64. */
mn_tensor *mn_test_vector(mn_context *ctx, mn_dtype dtype, int64_t count, double value);
double mn_test_first(const mn_tensor *tensor);

#endif
