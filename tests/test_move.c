/* Ops that cut, join and index elements, and reductions to extremes, norms and variance: what the
 * op cases do not show: exact results, ties, NaN, infinities, errors. */
#include "ops/ops.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <string.h>

static const mn_kernel_set sets[2] = {MN_KERNELS_REFERENCE, MN_KERNELS_AUTO};
enum { SETS = 2 };

static mn_tensor *vector(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &count);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    return x;
}

static mn_tensor *counting(mn_context *ctx, mn_dtype dtype, int64_t rows, int64_t columns)
{
    double values[64];
    const int64_t shape[2] = {rows, columns};
    for (int i = 0; i < 64; i++)
        values[i] = i;
    return mn_reshape(vector(ctx, dtype, rows * columns, values), 2, shape);
}

static void expect(mn_context *ctx, const mn_tensor *y, int64_t count, const double *want)
{
    double got[64];
    ck_assert_msg(y != NULL, "%s", mn_error_message(ctx));
    ck_assert_int_eq(mn_tensor_numel(y), count);
    ck_assert_int_eq(mn_tensor_read_f64(y, got, count), MN_OK);
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])),
                      "element %lld is %g, not %g", (long long)i, got[i], want[i]);
}

/* ---- slice, pad, concat ---------------------------------------------------------------------- */

START_TEST(slices)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i % SETS]);
    const mn_dtype dtype = (mn_dtype)(_i / SETS);
    mn_tensor *x = counting(ctx, dtype, 3, 4);
    expect(ctx, mn_slice(x, 1, 1, 3), 6, (double[]){1, 2, 5, 6, 9, 10});
    expect(ctx, mn_slice(x, -1, -1, INT64_MAX), 3, (double[]){3, 7, 11});
    expect(ctx, mn_slice(x, 0, INT64_MIN, -2), 4, (double[]){0, 1, 2, 3});
    expect(ctx, mn_slice(x, 0, 2, 1), 0, NULL);
    expect(ctx, mn_slice(x, 0, 9, 12), 0, NULL);
    const int64_t before[2] = {1, -1}, after[2] = {0, -2};
    expect(ctx, mn_pad(x, before, after, 7), 4, (double[]){7, 1, 5, 9});
    expect(ctx, mn_pad(x, NULL, NULL, 7), 12, (double[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    expect(ctx, mn_pad(mn_full(ctx, dtype, 0, NULL, 3), before, after, 7), 1, (double[]){3});
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(slice_errors)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = counting(ctx, MN_F16, 3, 4);
    const int64_t much[2] = {-2, 0}, more[2] = {-2, 0}, huge[2] = {INT64_MAX, 0};
    ck_assert_ptr_null(mn_slice(x, 2, 0, 1));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "slice: axis 2 is out of range for 2 axes");
    ck_assert_ptr_null(mn_pad(x, much, more, 0));
    mn_test_expect(ctx, MN_ERR_SHAPE, "pad: -2 elements before and -2 after axis 0");
    ck_assert_ptr_null(mn_pad(x, huge, huge, 0));
    mn_test_expect(ctx, MN_ERR_SHAPE, "do not give an axis");
    ck_assert_ptr_null(mn_pad(x, NULL, NULL, 1e6));
    mn_test_expect(ctx, MN_ERR_DTYPE, "pad: the value 1000000 does not fit f16");
    ck_assert_ptr_null(mn_slice(NULL, 0, 0, 1));
    ck_assert_ptr_null(mn_pad(NULL, much, more, 0));
    mn_context_free(ctx);
}
END_TEST

START_TEST(concat)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *half = counting(ctx, MN_F16, 2, 2), *brain = counting(ctx, MN_BF16, 2, 1);
    mn_tensor *both[2] = {half, brain}, *many[9];
    mn_tensor *y = mn_concat(both, 2, -1);
    expect(ctx, y, 6, (double[]){0, 1, 0, 2, 3, 1});
    ck_assert_int_eq(mn_tensor_dtype(y), MN_F32);
    both[0] = counting(ctx, MN_U8, 1, 1);
    y = mn_concat(both, 1, 0);
    ck_assert_int_eq(mn_tensor_dtype(y), MN_U8);
    both[0] = half;
    ck_assert_ptr_null(mn_concat(both, 2, 0));
    mn_test_expect(ctx, MN_ERR_SHAPE, "concat: tensor 1 does not fit tensor 0");
    ck_assert_ptr_null(mn_concat(both, 2, 2));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "concat: axis 2 is out of range");
    both[1] = NULL;
    ck_assert_ptr_null(mn_concat(both, 2, 0));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "concat: argument 2 is NULL");
    for (int i = 0; i < 9; i++)
        many[i] = half;
    ck_assert_ptr_nonnull(mn_concat(many, 8, 1));
    ck_assert_ptr_null(mn_concat(many, 9, 1));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "concat: 9 tensors, must be 1 to 8");
    ck_assert_ptr_null(mn_concat(many, 0, 1));
    ck_assert_int_eq(mn_error_status(ctx), MN_OK); /* no tensor, so no context to report into */
    ck_assert_ptr_null(mn_concat(NULL, 2, 1));
    mn_context_free(ctx);
}
END_TEST

/* ---- indices --------------------------------------------------------------------------------- */

static const int64_t two_by_three[2] = {2, 3};

START_TEST(indices)
{
    static const double picks[6] = {2, 0, 1, 1, 1, 2};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i % SETS]);
    const mn_dtype dtype = (mn_dtype)(_i / SETS);
    mn_tensor *x = counting(ctx, dtype, 3, 3);
    mn_tensor *index = mn_reshape(vector(ctx, MN_I64, 6, picks), 2, two_by_three);
    expect(ctx, mn_gather(x, 0, index), 6, (double[]){6, 1, 5, 3, 4, 8});
    expect(ctx, mn_gather(x, 1, index), 6, (double[]){2, 0, 1, 4, 4, 5});
    mn_tensor *y = mn_scatter_add(x, 1, index, counting(ctx, dtype, 2, 3));
    expect(ctx, y, 9, (double[]){1, 3, 2, 3, 11, 10, 6, 7, 8});
    y = mn_one_hot(mn_slice(vector(ctx, MN_I64, 6, picks), 0, 0, 2), 3, dtype);
    expect(ctx, y, 6, (double[]){0, 0, 1, 1, 0, 0});
    ck_assert_int_eq(mn_tensor_dtype(y), dtype);
    ck_assert_int_eq(mn_tensor_ndim(mn_one_hot(mn_full(ctx, MN_I64, 0, NULL, 1), 3, dtype)), 1);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* Sums of 16 bit must not be rounded on the way: 2049 is no f16. */
START_TEST(scatter_rounds_once)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *ones = mn_test_vector(ctx, MN_F16, 3, 1), *none = mn_test_vector(ctx, MN_I64, 3, 0);
    mn_tensor *x = mn_test_vector(ctx, MN_F16, 1, 2048);
    expect(ctx, mn_scatter_add(x, 0, none, ones), 1, (double[]){2052}); /* 2051, to even */
    mn_tensor *wide = mn_scatter_add(mn_test_vector(ctx, MN_F32, 1, 0), 0, none, ones);
    ck_assert_int_eq(mn_tensor_dtype(wide), MN_F32);
    mn_context_free(ctx);
}
END_TEST

START_TEST(index_faults)
{
    static const double wrong[6] = {2, 0, -1, 1, 7, 2};
    for (int deferred = 0; deferred < 2; deferred++) {
        mn_context *ctx = mn_test_op_context(deferred ? "cpu-deferred" : "cpu", sets[_i]);
        mn_tensor *x = counting(ctx, MN_F32, 3, 3);
        mn_tensor *index = mn_reshape(vector(ctx, MN_I64, 6, wrong), 2, two_by_three);
        mn_gather(x, 1, index);
        mn_synchronize(ctx);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, "gather: index -1 is not in [0, 3)");
        mn_scatter_add(x, 0, index, counting(ctx, MN_F32, 2, 3));
        mn_synchronize(ctx);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, "scatter_add: index -1 is not in [0, 3)");
        mn_one_hot(mn_test_vector(ctx, MN_I64, 2, 5), 5, MN_F32);
        mn_synchronize(ctx);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, "index 5 is not in [0, 5)");
        mn_context_free(ctx);
    }
}
END_TEST

START_TEST(index_errors)
{
    static const int64_t deep[6] = {1, 1, 1, 1, 1, 1};
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = counting(ctx, MN_F32, 3, 2);
    mn_tensor *index = mn_full(ctx, MN_I64, 2, two_by_three, 0);
    ck_assert_ptr_null(mn_gather(x, 0, index));
    mn_test_expect(ctx, MN_ERR_SHAPE, "longer than the input along axis 1: 3 > 2");
    ck_assert_ptr_null(mn_gather(x, -3, index));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "gather: axis -3 is out of range");
    ck_assert_ptr_null(mn_gather(x, 1, x));
    mn_test_expect(ctx, MN_ERR_DTYPE, "dtype of the index is f32, must be i64");
    ck_assert_ptr_null(mn_gather(x, 1, mn_test_vector(ctx, MN_I64, 2, 0)));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the index must have 2 axes");
    ck_assert_ptr_null(mn_gather(x, 1, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "gather: argument 2 is NULL");
    ck_assert_ptr_null(mn_scatter_add(x, 1, index, x));
    mn_test_expect(ctx, MN_ERR_SHAPE, "scatter_add: shape of the source is [3,2]");
    ck_assert_ptr_null(mn_scatter_add(x, 1, x, x));
    mn_test_expect(ctx, MN_ERR_DTYPE, "must be i64");
    ck_assert_ptr_null(mn_one_hot(index, 0, MN_F32));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "one_hot");
    ck_assert_ptr_null(mn_one_hot(mn_full(ctx, MN_I64, 6, deep, 0), 2, MN_F32));
    mn_test_expect(ctx, MN_ERR_SHAPE, "one_hot: 6 axes of labels (at most 5)");
    ck_assert_ptr_null(mn_one_hot(x, 2, MN_F32));
    mn_test_expect(ctx, MN_ERR_DTYPE, "one_hot: scatter_add: dtype of the index is f32");
    ck_assert_str_eq(mn_name_path(ctx), "");
    mn_context_free(ctx);
}
END_TEST

/* ---- reductions ------------------------------------------------------------------------------ */

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = vector(ctx, dtype, count, values);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    return x;
}

static void expect_gradient(mn_context *ctx, mn_tensor *y, const mn_tensor *x, const double *want)
{
    ck_assert_int_eq(mn_backward(y, 6), MN_OK);
    expect(ctx, mn_grad(x), mn_tensor_numel(x), want);
}

START_TEST(ties_and_nan)
{
    static const double ties[5] = {2, -2, 2, 2, -2}, odd[5] = {2, (double)NAN, 5, (double)NAN, 1};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i % SETS]);
    const mn_dtype dtype = (mn_dtype)(_i / SETS);
    mn_tensor *x = leaf(ctx, dtype, 5, ties);
    expect_gradient(ctx, mn_amax(x, 0, NULL, false), x, (double[]){2, 0, 2, 2, 0});
    x = leaf(ctx, dtype, 5, ties);
    expect_gradient(ctx, mn_amin(x, 0, NULL, false), x, (double[]){0, 3, 0, 0, 3});
    x = leaf(ctx, dtype, 3, ties);
    expect_gradient(ctx, mn_norm(x, (double)INFINITY, 0, NULL, false), x, (double[]){2, -2, 2});
    x = leaf(ctx, dtype, 5, odd);
    mn_tensor *y = mn_amax(x, 0, NULL, false);
    expect(ctx, y, 1, (double[]){(double)NAN});
    expect_gradient(ctx, y, x, (double[]){0, 3, 0, 3, 0});
    expect(ctx, mn_amin(x, 0, NULL, false), 1, (double[]){(double)NAN});
    expect(ctx, mn_norm(x, 1, 0, NULL, false), 1, (double[]){(double)NAN});
    expect(ctx, mn_norm(x, 2, 0, NULL, false), 1, (double[]){(double)NAN});
    expect(ctx, mn_norm(x, (double)INFINITY, 0, NULL, false), 1, (double[]){(double)NAN});
    expect(ctx, mn_var(x, 1, 0, NULL, false), 1, (double[]){(double)NAN});
    mn_context_free(ctx);
}
END_TEST

START_TEST(norm_at_zero)
{
    static const double zeros[3] = {0, 0, 0};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    for (int p = 1; p <= 3; p++) {
        mn_tensor *x = leaf(ctx, MN_F32, 3, zeros);
        mn_tensor *y = mn_norm(x, p == 3 ? (double)INFINITY : p, 0, NULL, false);
        expect(ctx, y, 1, zeros);
        expect_gradient(ctx, y, x, zeros);
    }
    mn_tensor *lost = mn_full(ctx, MN_F32, 0, NULL, (double)NAN), *x = leaf(ctx, MN_F32, 3, zeros);
    mn_tensor *y = mn_mul(mn_norm(x, 2, 0, NULL, false), lost); /* NaN comes through all the same */
    expect_gradient(ctx, y, x, (double[]){(double)NAN, (double)NAN, (double)NAN});
    mn_context_free(ctx);
}
END_TEST

/* Squares of these leave f32's range, or even f16's sum does. */
START_TEST(norm_does_not_overflow)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *y = mn_norm(mn_test_vector(ctx, MN_BF16, 4, 0x1p100), 2, 0, NULL, false);
    expect(ctx, y, 1, (double[]){0x1p101});
    y = mn_norm(mn_test_vector(ctx, MN_F32, 16, 0x1p-120), 2, 0, NULL, false);
    expect(ctx, y, 1, (double[]){0x1p-118});
    y = mn_norm(mn_test_vector(ctx, MN_F16, 16, 60000), 2, 0, NULL, false);
    expect(ctx, y, 1, (double[]){(double)INFINITY});
    mn_autocast_begin(ctx, MN_F16);
    y = mn_norm(mn_test_vector(ctx, MN_F16, 16, 60000), 2, 0, NULL, false);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_tensor_dtype(y), MN_F32);
    expect(ctx, y, 1, (double[]){240000});
    mn_context_free(ctx);
}
END_TEST

START_TEST(variance)
{
    static const double values[4] = {1e4 + 1, 1e4 + 2, 1e4 + 3, 1e4 + 6};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *x = vector(ctx, MN_F32, 4, values);
    expect(ctx, mn_var(x, 0, 0, NULL, false), 1, (double[]){3.5});
    expect(ctx, mn_var(x, 2, 0, NULL, true), 1, (double[]){7});
    expect(ctx, mn_var(x, 4, 0, NULL, false), 1, (double[]){(double)INFINITY});
    expect(ctx, mn_var(x, 9, 0, NULL, false), 1, (double[]){(double)INFINITY});
    expect(ctx, mn_var(mn_slice(x, 0, 0, 1), 1, 0, NULL, false), 1, (double[]){(double)NAN});
    expect(ctx, mn_var(mn_slice(x, 0, 0, 0), 0, 0, NULL, false), 1, (double[]){(double)NAN});
    mn_context_free(ctx);
}
END_TEST

/* As many as fit an i64, with nothing in them: there is nothing to do. */
START_TEST(empty_lines)
{
    static const int64_t shape[2] = {INT64_C(1) << 50, 0};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *x = mn_tensor_create(ctx, MN_F64, 2, shape);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    mn_tensor *y = mn_add(mn_softmax(x, 1), mn_log_softmax(x, 1));
    ck_assert_int_eq(mn_backward(mn_sum(y, 0, NULL, false), 1), MN_OK);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(reduction_errors)
{
    static const int twice[2] = {0, -2}, far[1] = {2}, first[1] = {0};
    static const int64_t empty[2] = {0, 3};
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = counting(ctx, MN_F32, 2, 3), *whole = counting(ctx, MN_I32, 2, 3);
    mn_tensor *none = mn_full(ctx, MN_F32, 2, empty, 0);
    ck_assert_ptr_null(mn_amax(x, 2, twice, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "amax: axis -2 is given twice");
    ck_assert_ptr_null(mn_amin(x, 1, far, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "amin: axis 2 is out of range for 2 axes");
    ck_assert_ptr_null(mn_amax(none, 1, first, false));
    mn_test_expect(ctx, MN_ERR_SHAPE, "amax: axis 0 is empty");
    ck_assert_ptr_null(mn_norm(none, (double)INFINITY, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_SHAPE, "norm: axis 0 is empty");
    ck_assert_ptr_null(mn_norm(x, 3, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "norm: p is 3, must be 1, 2 or INFINITY");
    ck_assert_ptr_null(mn_norm(x, (double)NAN, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "norm: p is");
    ck_assert_ptr_null(mn_norm(whole, 2, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_DTYPE, "norm: dtype of the input is i32, must be floating");
    ck_assert_ptr_null(mn_var(whole, 1, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_DTYPE, "var: dtype of the input is i32");
    ck_assert_ptr_null(mn_var(x, (double)NAN, 0, NULL, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "var: the correction");
    expect(ctx, mn_amax(whole, 0, NULL, false), 1, (double[]){5});
    expect(ctx, mn_amin(whole, 1, first, true), 3, (double[]){0, 1, 2});
    mn_context_free(ctx);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("move");
    TCase *tc = tcase_create("move");
    tcase_add_loop_test(tc, slices, 0, SETS * MN_DTYPE_COUNT);
    tcase_add_test(tc, slice_errors);
    tcase_add_loop_test(tc, concat, 0, SETS);
    tcase_add_loop_test(tc, indices, 0, SETS * MN_DTYPE_COUNT);
    tcase_add_loop_test(tc, scatter_rounds_once, 0, SETS);
    tcase_add_loop_test(tc, index_faults, 0, SETS);
    tcase_add_test(tc, index_errors);
    tcase_add_loop_test(tc, ties_and_nan, 0, SETS * 4);
    tcase_add_loop_test(tc, norm_at_zero, 0, SETS);
    tcase_add_loop_test(tc, norm_does_not_overflow, 0, SETS);
    tcase_add_loop_test(tc, variance, 0, SETS);
    tcase_add_loop_test(tc, empty_lines, 0, SETS);
    tcase_add_test(tc, reduction_errors);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
