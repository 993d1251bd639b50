/* Tests of the public functions of ops: their own checks, promotion, empty tensors, integers, and
 * the op table as users see it. */
#include "ops/internal.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static mn_tensor *filled(mn_context *ctx, mn_dtype dtype, int ndim, const int64_t *shape)
{
    return mn_full(ctx, dtype, ndim, shape, 1);
}

static void expect_shape(const mn_tensor *t, mn_dtype dtype, int ndim, const int64_t *shape)
{
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(mn_tensor_dtype(t), dtype);
    ck_assert_int_eq(mn_tensor_ndim(t), ndim);
    for (int i = 0; i < ndim; i++)
        ck_assert_int_eq(mn_tensor_shape(t)[i], shape[i]);
}

START_TEST(reshape_and_permute)
{
    static const int64_t in[] = {2, 6}, unknown[] = {3, -1, 2}, want[] = {3, 2, 2}, back[] = {6, 2};
    static const int64_t two[] = {-1, -1}, no_fit[] = {5, -1}, empty[] = {0, -1};
    static const int axes[] = {1, 0}, wrong[] = {0, 2};
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = filled(ctx, MN_F32, 2, in);
    mn_tensor *y = mn_reshape(x, 3, unknown);
    expect_shape(y, MN_F32, 3, want);
    ck_assert_ptr_eq(y->storage, x->storage);
    expect_shape(mn_permute(x, 2, axes), MN_F32, 2, back);
    ck_assert_ptr_null(mn_reshape(x, 2, two));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "reshape: [-1,-1] has more than one -1");
    ck_assert_ptr_null(mn_reshape(x, 2, no_fit));
    mn_test_expect(ctx, MN_ERR_SHAPE, "reshape: 12 elements do not fit [5,-1]");
    ck_assert_ptr_null(mn_reshape(x, 2, empty));
    mn_test_expect(ctx, MN_ERR_SHAPE, "do not fit [0,-1]");
    ck_assert_ptr_null(mn_reshape(x, 7, in));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "7 axes (at most 6)");
    ck_assert_ptr_null(mn_reshape(x, 2, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "is NULL");
    ck_assert_ptr_null(mn_permute(x, 3, axes));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "permute: 3 axes given, the input has 2");
    ck_assert_ptr_null(mn_permute(x, 2, wrong));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "permute: [0,2] is not a permutation");
    mn_context_free(ctx);
}
END_TEST

START_TEST(axes)
{
    static const int64_t shape[] = {2, 3, 4}, middle[] = {2, 1, 4}, first_two[] = {2, 3};
    static const int minus_two[] = {-2}, last[] = {2}, repeated[] = {0, -3}, far[] = {3};
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = filled(ctx, MN_F32, 3, shape);
    mn_tensor *y = mn_sum(x, 1, minus_two, true);
    expect_shape(y, MN_F32, 3, middle);
    ck_assert_double_eq(mn_test_first(y), 3);
    expect_shape(mn_mean(x, 1, last, false), MN_F32, 2, first_two);
    y = mn_sum(x, 0, NULL, false);
    expect_shape(y, MN_F32, 0, NULL);
    ck_assert_double_eq(mn_test_first(y), 24);
    expect_shape(mn_softmax(x, -1), MN_F32, 3, shape);
    expect_shape(mn_argmax(x, -1), MN_I64, 2, first_two);
    ck_assert_ptr_null(mn_sum(x, 2, repeated, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "sum: axis -3 is given twice");
    ck_assert_ptr_null(mn_mean(x, 1, far, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "mean: axis 3 is out of range for 3 axes");
    ck_assert_ptr_null(mn_log_softmax(x, -4));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "log_softmax: axis -4 is out of range");
    ck_assert_ptr_null(mn_softmax(mn_full(ctx, MN_F32, 0, NULL, 1), 0));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "axis 0 is out of range for 0 axes");
    mn_context_free(ctx);
}
END_TEST

START_TEST(promoting)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *half = mn_test_vector(ctx, MN_F16, 2, 1.5);
    mn_tensor *brain = mn_test_vector(ctx, MN_BF16, 2, 2);
    mn_tensor *sum = mn_add(half, brain);
    ck_assert_int_eq(mn_tensor_dtype(sum), MN_F32);
    ck_assert_double_eq(mn_test_first(sum), 3.5);
    mn_tensor *scaled = mn_mul(half, mn_full(ctx, MN_F64, 0, NULL, 3));
    ck_assert_int_eq(mn_tensor_dtype(scaled), MN_F16);
    ck_assert_double_eq(mn_test_first(scaled), 4.5);
    /* bytes wrap */
    mn_tensor *byte = mn_test_vector(ctx, MN_U8, 2, 200);
    ck_assert_double_eq(mn_test_first(mn_add(byte, byte)), 144);
    ck_assert_double_eq(mn_test_first(mn_sum(byte, 0, NULL, false)), 400);
    ck_assert_double_eq(mn_test_first(mn_cast(mn_test_vector(ctx, MN_F32, 1, -1.75), MN_I32)), -1);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(empty_tensors)
{
    static const int64_t rows[] = {0, 3}, no_images[] = {0, 4, 4, 2}, filter[] = {5, 3, 3, 2};
    static const int64_t result[] = {0, 2, 2, 5}, weight[] = {7, 3}, out[] = {0, 7}, sums[] = {3};
    static const int over_rows[] = {0};
    static const mn_kernel_set sets[] = {MN_KERNELS_REFERENCE, MN_KERNELS_AUTO};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *x = filled(ctx, MN_F32, 2, rows);
    ck_assert_double_eq(mn_test_first(mn_sum(x, 0, NULL, false)), 0);
    ck_assert(isnan(mn_test_first(mn_mean(x, 0, NULL, false))));
    mn_tensor *columns = mn_sum(x, 1, over_rows, false);
    expect_shape(columns, MN_F32, 1, sums);
    ck_assert_double_eq(mn_test_first(columns), 0);
    ck_assert(isnan(mn_test_first(mn_cross_entropy(x, mn_test_vector(ctx, MN_I64, 0, 0), NULL))));
    expect_shape(mn_linear(x, filled(ctx, MN_F32, 2, weight), NULL), MN_F32, 2, out);
    expect_shape(mn_softmax(x, 1), MN_F32, 2, rows);
    expect_shape(mn_relu(x), MN_F32, 2, rows);
    expect_shape(mn_argmax(x, 1), MN_I64, 1, rows);
    mn_tensor *images = filled(ctx, MN_F32, 4, no_images);
    expect_shape(mn_conv2d(images, filled(ctx, MN_F32, 4, filter), NULL, NULL), MN_F32, 4, result);
    ck_assert_ptr_nonnull(mn_max_pool2d(images, NULL));
    ck_assert_ptr_nonnull(mn_global_avg_pool2d(images));
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(batch_norm_modes)
{
    static const int64_t shape[] = {4, 2};
    mn_context *ctx = mn_test_reference();
    mn_batch_norm_options options = mn_batch_norm_options_default();
    mn_tensor *x = filled(ctx, MN_F32, 2, shape);
    mn_tensor *weight = mn_test_vector(ctx, MN_F32, 2, 1),
              *bias = mn_test_vector(ctx, MN_F32, 2, 3);
    mn_tensor *running[3] = {mn_test_vector(ctx, MN_F32, 2, 0), mn_test_vector(ctx, MN_F32, 2, 1),
                             mn_full(ctx, MN_I64, 0, NULL, 0)};
    uint64_t version = mn_tensor_version(running[0]);
    ck_assert_double_eq_tol(mn_test_first(mn_batch_norm(x, weight, bias, running, &options)), 4,
                            1e-4);
    ck_assert_uint_eq(mn_tensor_version(running[0]), version);
    options.training = true;
    ck_assert_double_eq_tol(mn_test_first(mn_batch_norm(x, weight, bias, running, &options)), 3,
                            1e-6);
    ck_assert_uint_eq(mn_tensor_version(running[0]), version + 1);
    ck_assert_double_eq_tol(mn_test_first(running[0]), 0.1, 1e-7);
    ck_assert_double_eq(mn_test_first(running[2]), 1);
    running[2] = NULL;
    ck_assert_ptr_nonnull(mn_batch_norm(x, weight, bias, running, &options));
    ck_assert_ptr_null(mn_batch_norm(x, weight, bias, NULL, &options));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "batch_norm: argument 4 is NULL");
    running[1] = running[0];
    ck_assert_ptr_null(mn_batch_norm(x, weight, bias, running, &options));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "shares memory");
    options.size = sizeof options + 1;
    ck_assert_ptr_null(mn_batch_norm(x, weight, bias, running, &options));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "options.size");
    mn_context_free(ctx);
}
END_TEST

/* A count that was loaded may be any. */
START_TEST(batch_norm_count_ends)
{
    static const int64_t shape[] = {4, 2};
    mn_context_options context = mn_context_options_default();
    context.kernels = (mn_kernel_set)_i;
    mn_context *ctx = mn_context_create(&context, NULL);
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    const int64_t last = INT64_MAX;
    int64_t count = 0;
    mn_tensor *ones = mn_test_vector(ctx, MN_F32, 2, 1);
    mn_tensor *running[3] = {mn_test_vector(ctx, MN_F32, 2, 0), mn_test_vector(ctx, MN_F32, 2, 1),
                             mn_tensor_from(ctx, MN_I64, 0, NULL, &last)};
    ck_assert_ptr_nonnull(
        mn_batch_norm(filled(ctx, MN_F32, 2, shape), ones, ones, running, &options));
    ck_assert_int_eq(mn_tensor_read(running[2], &count, sizeof count), MN_OK);
    ck_assert_int_eq(count, INT64_MAX);
    mn_context_free(ctx);
}
END_TEST

START_TEST(nothing_happens_while_an_error_is_pending)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *a = mn_test_vector(ctx, MN_F32, 3, 1), *b = mn_test_vector(ctx, MN_F32, 4, 1);
    ck_assert_ptr_null(mn_add(a, b));
    ck_assert_ptr_null(mn_relu(a));
    ck_assert_ptr_null(mn_relu(NULL));
    ck_assert_int_eq(mn_tensor_copy(a, a), MN_ERR_SHAPE);
    mn_test_expect(ctx, MN_ERR_SHAPE, "add: shapes [3] and [4] do not broadcast");
    ck_assert_ptr_nonnull(mn_relu(a));
    mn_context_free(ctx);
}
END_TEST

START_TEST(table)
{
    mn_op_info info;
    ck_assert_int_eq(mn_op_count(), MN_OP_COUNT);
    ck_assert(!mn_op_info_get(-1, &info) && !mn_op_info_get(MN_OP_COUNT, &info));
    ck_assert(!mn_op_info_get(0, NULL));
    for (int i = 0; i < mn_op_count(); i++) {
        const mn_op *op = &mn_ops[i];
        ck_assert(mn_op_info_get(i, &info));
        ck_assert_str_eq(info.name, op->name);
        ck_assert_uint_gt(strlen(info.summary), 0);
        ck_assert_int_eq(info.differentiable, op->backward != NULL);
        ck_assert_int_eq(info.rule_cpu, info.rule_cuda);
        /* a view, or some kernel for every op */
        ck_assert(op->flags & MN_OP_VIEW || info.reference_dtypes != 0);
        ck_assert_int_eq(info.cpu_dtypes != 0, op->kernels[MN_DEVICE_CPU].run != NULL);
        ck_assert_int_le(op->min_inputs, op->max_inputs);
    }
    ck_assert(mn_op_info_get(MN_OP_cross_entropy, &info));
    ck_assert_int_eq(info.rule_cpu, MN_CAST_FP32_OUT);
    ck_assert_str_eq(mn_cast_rule_name(MN_CAST_KEEP), "KEEP");
    ck_assert_str_eq(mn_cast_rule_name(MN_CAST_FP32_OUT), "FP32_OUT");
    ck_assert_str_eq(mn_cast_rule_name(MN_CAST_REFUSE), "REFUSE");
    ck_assert_str_eq(mn_cast_rule_name((mn_cast_rule)17), "unknown");
}
END_TEST

/* reference_dtypes is what the shape rules let through: a try for elementwise ops. */
START_TEST(integer_dtypes)
{
    mn_context *ctx = mn_test_reference();
    for (int d = 0; d < MN_DTYPE_COUNT; d++) {
        mn_tensor *x = mn_test_vector(ctx, (mn_dtype)d, 3, 1);
        mn_tensor *const two[2] = {x, x};
        static const mn_op_id ids[] = {MN_OP_add,     MN_OP_mul,    MN_OP_relu,    MN_OP_sub,
                                       MN_OP_div,     MN_OP_pow,    MN_OP_abs,     MN_OP_maximum,
                                       MN_OP_compare, MN_OP_dot,    MN_OP_softmax, MN_OP_sum,
                                       MN_OP_mean,    MN_OP_argmax, MN_OP_copy};
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
            mn_op_info info;
            mn_tensor *y = mn_dispatch1(ctx, ids[i], two, mn_ops[ids[i]].min_inputs, NULL);
            mn_op_info_get((int)ids[i], &info);
            ck_assert_msg((y != NULL) == (info.reference_dtypes >> d & 1u), "%s %s: %s", info.name,
                          mn_dtype_name((mn_dtype)d), mn_error_message(ctx));
            mn_error_clear(ctx);
        }
    }
    mn_context_free(ctx);
}
END_TEST

/* Of ops that serve several functions, or one of another name, errors name the function. */
START_TEST(errors_name_the_function)
{
    typedef mn_tensor *(*comparison)(mn_tensor *, mn_tensor *);
    static const comparison compare[] = {mn_eq, mn_ne, mn_lt, mn_le, mn_gt, mn_ge};
    static const char *const names[] = {"eq: ", "ne: ", "lt: ", "le: ", "gt: ", "ge: "};
    const int64_t axis[1] = {INT64_MAX};
    mn_context *ctx = mn_test_reference(), *other = mn_test_reference();
    mn_tensor *x = mn_test_vector(ctx, MN_I32, 3, 1), *y = mn_test_vector(ctx, MN_I32, 2, 1);
    mn_tensor *h = mn_test_vector(ctx, MN_F16, 3, 1);
    mn_name_push(ctx, "head");
    for (int i = 0; i < 6; i++) {
        compare[i](x, y);
        mn_test_expect(ctx, MN_ERR_SHAPE, names[i]);
        compare[i](NULL, y);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, names[i]);
    }
    mn_neg(x);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.neg: ");
    mn_add_scalar(x, 1);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.add_scalar: ");
    mn_mul_scalar(x, 1);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.mul_scalar: ");
    mn_one_hot(h, 3, MN_F32);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.one_hot: ");
    mn_tensor_copy(x, y);
    mn_test_expect(ctx, MN_ERR_SHAPE, "head.tensor_copy: ");
    mn_tensor_copy(NULL, y);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "head.tensor_copy: ");
    mn_tensor_copy(x, mn_test_vector(other, MN_I32, 3, 1));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "head.tensor_copy: ");
    mn_tensor_add(x, x, 1);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.tensor_add: ");
    mn_tensor_add(h, h, 1e300);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head: tensor_add: the value 1");
    mn_tensor_scale(x, 1, 1);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.tensor_scale: ");
    mn_tensor_scale(h, 1, 1e300);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head: tensor_scale: the value 1");
    mn_tensor_clamp(x, 0, 1);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head.tensor_clamp: ");
    mn_tensor_fill(h, 1e9);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head: tensor_fill: the value 1");
    mn_full(ctx, MN_U8, 0, NULL, 256);
    mn_test_expect(ctx, MN_ERR_DTYPE, "head: full: the value 256");
    mn_pad(h, axis, NULL, 0);
    mn_test_expect(ctx, MN_ERR_SHAPE, "head: pad: ");
    mn_scatter_add(h, 0, NULL, h);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "head: scatter_add: argument 2 is NULL");
    mn_name_pop(ctx);
    mn_neg(h);
    mn_slice(h, 0, 0, 1);
    mn_clone(h);
    ck_assert_str_eq(mn_name_path(ctx), "");
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
    mn_context_free(other);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ops_api");
    TCase *tc = tcase_create("ops_api");
    tcase_add_test(tc, reshape_and_permute);
    tcase_add_test(tc, axes);
    tcase_add_test(tc, promoting);
    tcase_add_loop_test(tc, empty_tensors, 0, 2);
    tcase_add_test(tc, batch_norm_modes);
    tcase_add_loop_test(tc, batch_norm_count_ends, MN_KERNELS_AUTO, MN_KERNELS_PORTABLE + 1);
    tcase_add_test(tc, nothing_happens_while_an_error_is_pending);
    tcase_add_test(tc, table);
    tcase_add_test(tc, errors_name_the_function);
    tcase_add_test(tc, integer_dtypes);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
