/* Calls of kernels built by hand, and CPU kernels compared with the reference kernels: every kernel
 * set, several numbers of threads (which must not change a bit). Operands are allocated to size, so
 * that sanitizers see any step beyond.
 *
 * Bound: |y - r| <= u |r| + tiny + k 2^-24 s with r the f64 result, u half a unit in the last place
 * of the result's type (2^-24, 2^-11, 2^-8), tiny half of its smallest subnormal, s the largest
 * finite magnitude among inputs and results, at least 1, and k the kernel's allowance for its own
 * f32 arithmetic: one rounding of the exact result, and what the sums before it cost. */
#ifndef MN_TESTS_SUPPORT_KERNELS_H
#define MN_TESTS_SUPPORT_KERNELS_H

#include "core/core.h"
#include "core/philox.h"
#include "ops/kernels.h"
#include "ops/ops.h"

typedef struct kernel {
    const mn_op *op;
    double k;
} kernel;

/* A call, its operands' first content, and their f64 images. Inputs and outputs are appended. */
typedef struct fixture {
    mn_call call;
    void *original[MN_MAX_INPUTS];
    double *in[MN_MAX_INPUTS], *out[MN_MAX_OUTPUTS];
    mn_fault fault;
    mn_stream stream;
} fixture;

/* f32, f16, bf16. */
extern const mn_dtype mn_lowp[3];

double mn_view_get(const mn_view *view, int64_t i);
void mn_view_put(const mn_view *view, int64_t i, double value);
size_t mn_view_bytes(const mn_view *view);
/* NaN as the last and infinity as the element before. */
void mn_view_poison(mn_view *view);

void mn_fixture_start(fixture *f, const void *attributes, size_t bytes);
/* An input of normal values (for integers, of 0 to 6). */
mn_view *mn_fixture_input(fixture *f, mn_dtype dtype, int ndim, const int64_t *shape);
mn_view *mn_fixture_output(fixture *f, mn_dtype dtype, int ndim, const int64_t *shape);
void mn_fixture_absent(fixture *f);
void mn_fixture_free(fixture *f);
/* A CPU with 1, 2, 3 or 5 threads for pool 0 to 3; they end in the teardown of the test case. */
mn_cpu mn_fixture_cpu(mn_kernel_set set, int pool);
void mn_fixture_teardown(void);
/* Runs the reference; compares the kernels of a set, or of all sets that this processor can run,
 * with it. */
void mn_fixture_reference(fixture *f, const kernel *k);
void mn_fixture_check_set(fixture *f, const kernel *k, mn_kernel_set set);
void mn_fixture_check_sets(fixture *f, const kernel *k);
/* All of it, and frees. */
void mn_fixture_check(fixture *f, const kernel *k);

#define KERNEL(name, k)                                                                            \
    {                                                                                              \
        &mn_ops[MN_OP_##name], k                                                                   \
    }
#define DIMS(...)                                                                                  \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[])                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
