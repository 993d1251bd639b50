/* Batch norm, ReLU and pooling as one op against the ops alone, in every dtype and kernel set: the
 * same bits but for gradients, whose sums are made in another order; and where layers run it. */
#include "ops/ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct problem {
    mn_dtype dtype;
    int64_t images[4];
    bool training;
    int spoil; /* 1: NaN in the tail; 2: infinity */
} problem;

/* Multiples of 1/8, so that many results are 0 or the same. */
static mn_tensor *draw(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                       int which, int spoil)
{
    mn_tensor *x = mn_tensor_create(context, dtype, ndim, shape);
    const int64_t count = mn_tensor_numel(x);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    uint32_t state = (uint32_t)(which + 7) * 2654435761U;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (double)(state >> 27) / 8 - 2;
        if (which == 4)
            values[i] = 0.5 + fabs(values[i]);
    }
    if (spoil && count > 0)
        values[count - 1] = spoil == 1 ? (double)NAN : (double)INFINITY;
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    free(values);
    return x;
}

/* Result, gradients of x, weight and bias, running mean and variance, into out. */
static void solve(mn_context *context, const problem *p, bool fused, mn_tensor *out[6])
{
    mn_batch_norm_options options = mn_batch_norm_options_default();
    const mn_dtype wide = p->dtype == MN_F64 ? MN_F64 : MN_F32;
    const int64_t *images = p->images;
    const int64_t pooled[4] = {images[0], images[1] / 2, images[2] / 2, images[3]};
    mn_tensor *in[5], *y;
    options.training = p->training;
    for (int i = 0; i < 5; i++) {
        in[i] = i == 0 ? draw(context, p->dtype, 4, images, i, p->spoil)
                       : draw(context, wide, 1, &images[3], i, 0);
        if (i < 3)
            ck_assert_int_eq(mn_set_requires_grad(in[i], true), MN_OK);
    }
    mn_tensor *const running[3] = {in[3], in[4], NULL};
    if (fused)
        y = mn_batch_norm_of(in[0], in[1], in[2], running, NULL, NULL, MN_NORM_RELU_POOL, &options);
    else
        y = mn_max_pool2d(mn_relu(mn_batch_norm(in[0], in[1], in[2], running, &options)), NULL);
    ck_assert_msg(y != NULL, "%s", mn_error_message(context));
    mn_tensor *g = draw(context, p->dtype, 4, pooled, 6, 0);
    mn_tensor *loss = mn_sum(mn_mul(y, g), 0, NULL, false);
    ck_assert_msg(mn_backward(loss, 1.0) == MN_OK, "%s", mn_error_message(context));
    out[0] = y;
    for (int i = 0; i < 3; i++)
        out[1 + i] = mn_grad(in[i]);
    out[4] = in[3];
    out[5] = in[4];
}

/* What is not finite is so in both. */
static void nearly(const mn_tensor *a, const mn_tensor *b, mn_dtype dtype, int which)
{
    const double bound = dtype == MN_F64   ? 1e-14
                         : dtype == MN_F32 ? 2e-6
                         : dtype == MN_F16 ? 1e-3
                                           : 8e-3;
    const int64_t count = mn_tensor_numel(a);
    double *x = malloc((size_t)(2 * count + 1) * sizeof *x), off = 0, all = 0;
    ck_assert_int_eq(mn_tensor_read_f64(a, x, count), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(b, x + count, count), MN_OK);
    for (int64_t i = 0; i < count; i++) {
        const double got = x[i], want = x[count + i];
        ck_assert_msg(isfinite(got) == isfinite(want), "problem %d: %g, not %g", which, got, want);
        off = isfinite(got) ? fmax(off, fabs(got - want)) : off;
        all = isfinite(got) ? fmax(all, fabs(want)) : all;
    }
    free(x);
    ck_assert_msg(off <= bound * all, "problem %d: off by %g of %g", which, off, all);
}

START_TEST(pooling_of_a_batch_norm)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    /* Odd sides, channels that leave lanes empty or are more than a strip, long rows; nothing. */
    static const int64_t shapes[][4] = {{1, 2, 2, 1},   {3, 5, 7, 3},    {2, 4, 3, 16},
                                        {5, 9, 8, 33},  {2, 6, 9, 64},   {2, 3, 4, 200},
                                        {2, 5, 3, 521}, {1, 2, 1201, 5}, {9, 6, 6, 48},
                                        {0, 4, 4, 3},   {2, 4, 4, 0}};
    const mn_kernel_set kernels = (mn_kernel_set)_i;
    if (!mn_cpu_has_kernels(kernels))
        return;
    mn_context *contexts[3] = {
        mn_test_open_with(kernels, true), mn_test_open_with(kernels, true),
        mn_test_open_with(kernels == MN_KERNELS_AVX512 ? MN_KERNELS_AVX2 : kernels, true)};
    for (size_t i = 0; i < COUNT(shapes) * COUNT(dtypes) * 6; i++) {
        const int64_t *shape = shapes[i / 6 / COUNT(dtypes)];
        const problem p = {dtypes[i / 6 % COUNT(dtypes)],
                           {shape[0], shape[1], shape[2], shape[3]},
                           i % 2 == 0,
                           (int)(i / 2 % 3)};
        mn_tensor *out[3][6];
        mn_scope scopes[3];
        for (int k = 0; k < 3; k++) {
            scopes[k] = mn_scope_begin(contexts[k]);
            solve(contexts[k], &p, k != 1, out[k]);
        }
        for (int k = 0; k < 6; k++) {
            if (p.training && k >= 1 && k <= 3)
                nearly(out[0][k], out[1][k], k == 1 || p.dtype == MN_F64 ? p.dtype : MN_F32,
                       (int)i);
            else
                mn_test_same_bits(out[0][k], out[1][k], "problem", (int)i);
            if (!p.spoil)
                mn_test_same_bits(out[0][k], out[2][k], "kernel set", (int)i);
        }
        for (int k = 0; k < 3; k++)
            mn_scope_end(contexts[k], scopes[k]);
    }
    for (int k = 0; k < 3; k++)
        mn_context_free(contexts[k]);
}
END_TEST

/* Only the largest of two by two pixels side by side, by the same rule of casts; and one that
 * cannot be is told of by the pooling. */
START_TEST(poolings_that_stay_apart)
{
    static const struct {
        int kernel[2], stride[2], padding[2];
        bool fused;
    } ways[] = {{{2, 2}, {0, 0}, {0, 0}, true},  {{2, 2}, {2, 2}, {0, 0}, true},
                {{2, 2}, {2, 1}, {0, 0}, false}, {{3, 2}, {2, 2}, {0, 0}, false},
                {{2, 2}, {2, 2}, {0, 1}, false}, {{2, 2}, {2, 2}, {0, 0}, false}};
    mn_context *context = mn_test_open_with(MN_KERNELS_AUTO, true);
    uint64_t fused = 0;
    for (size_t i = 0; i < COUNT(ways); i++) {
        mn_pool2d_options o = mn_pool2d_options_default();
        mn_module *net = mn_sequential(context);
        memcpy(o.kernel, ways[i].kernel, sizeof o.kernel);
        memcpy(o.stride, ways[i].stride, sizeof o.stride);
        memcpy(o.padding, ways[i].padding, sizeof o.padding);
        mn_sequential_add(net, "bn", mn_batch_norm_layer(context, 3));
        mn_sequential_add(net, "relu", mn_relu_layer(context));
        mn_sequential_add(net, "pool", mn_max_pool2d_layer(context, &o));
        ck_assert_int_eq(mn_module_init(net), MN_OK);
        if (i + 1 == COUNT(ways))
            ck_assert_int_eq(mn_autocast_set_rules(context, "max_pool2d=FP32"), MN_OK);
        ck_assert_ptr_nonnull(
            mn_module_forward(net, mn_full(context, MN_F32, 4, (const int64_t[]){2, 4, 5, 3}, 1)));
        fused += ways[i].fused;
        ck_assert_uint_eq(mn_op_calls(context, MN_OP_batch_norm_relu_pool), fused);
        mn_module_forward(net, mn_full(context, MN_F32, 4, (const int64_t[]){2, 4, 0, 3}, 1));
        ck_assert_ptr_nonnull(strstr(mn_error_message(context), "pool"));
        mn_error_clear(context);
        mn_module_free(net);
    }
    mn_context_free(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fusion_pool");
    TCase *tests = tcase_create("fusion_pool");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, pooling_of_a_batch_norm, MN_KERNELS_REFERENCE,
                        MN_KERNELS_AVX512 + 1);
    tcase_add_test(tests, poolings_that_stay_apart);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
