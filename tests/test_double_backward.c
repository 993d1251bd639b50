/* Gradients of gradients: values and states of mn_gradients, what it keeps and frees, what it
 * refuses, higher orders. */
#include "autograd/autograd.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double one_two[2] = {1, 2}, three_four[2] = {3, 4};

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &count);
    mn_tensor_write_f64(x, values, count);
    mn_set_requires_grad(x, true);
    return x;
}

static mn_tensor *gradient_of(mn_tensor *root, mn_tensor *input, bool create_graph)
{
    mn_tensor *gradient;
    mn_status status = mn_gradients(root, &input, 1, create_graph, &gradient);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(mn_tensor_context(root)));
    return gradient;
}

/* ---- first order ----------------------------------------------------------------------------- */

/* root = sum(a b a): leaves, an interior result and the root itself, one of them twice. */
START_TEST(test_values)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, three_four);
    mn_backward(mn_check_total(b), 7);
    mn_tensor *product = mn_mul(a, b);
    mn_tensor *root = mn_check_total(mn_mul(product, a)), *g[5];
    mn_tensor *const inputs[5] = {a, product, b, root, a};
    uint64_t waits = ctx->device->synchronizations;
    ck_assert_int_eq(mn_gradients(root, inputs, 5, false, g), MN_OK);
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    const double wanted[5] = {16, 2, 4, 1, 16}; /* 2 a b, a, a a, 1 */
    for (int i = 0; i < 5; i++) {
        ck_assert_double_eq(mn_check_at(g[i], mn_tensor_numel(g[i]) - 1), wanted[i]);
        ck_assert(!mn_requires_grad(g[i]));
    }
    ck_assert_ptr_null(mn_grad(a));
    ck_assert_double_eq(mn_check_at(mn_grad(b), 0), 7);
    ck_assert_int_eq(mn_gradients(root, inputs, 5, false, g), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "second backward");
    ck_assert_ptr_null(g[0]);
    mn_tensor *single = leaf(ctx, MN_F32, 1, three_four); /* a root that is a leaf */
    ck_assert_double_eq(mn_check_at(gradient_of(single, single, true), 0), 1);
    mn_check_done(ctx);
}
END_TEST

/* Only what lies between root and the inputs is run and freed. */
START_TEST(test_pruned)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, three_four);
    mn_tensor *trunk = mn_mul(a, b);
    mn_tensor *branch = mn_relu(trunk), *root = mn_check_total(mn_mul(branch, b));
    uint64_t masks = mn_op_calls(ctx, MN_OP_relu_backward);
    ck_assert_double_eq(mn_check_at(gradient_of(root, branch, false), 0), 3);
    ck_assert_uint_eq(mn_op_calls(ctx, MN_OP_relu_backward), masks);
    ck_assert_int_eq(mn_backward(mn_check_total(branch), 1), MN_OK); /* still whole */
    ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 4);
    mn_check_done(ctx);
}
END_TEST

/* Gradients of 16-bit inputs have their dtype. */
START_TEST(test_dtypes)
{
    static const mn_dtype dtypes[4] = {MN_F64, MN_F32, MN_F16, MN_BF16};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    for (int i = 0; i < 4; i++) {
        mn_tensor *x = leaf(ctx, dtypes[i], 2, one_two);
        mn_tensor *cube = mn_cast(mn_mul(mn_mul(x, x), x), MN_F32);
        mn_tensor *g = gradient_of(mn_check_total(cube), x, true);
        ck_assert_int_eq(mn_tensor_dtype(g), dtypes[i]);
        ck_assert_double_eq(mn_check_at(g, 1), 12);
        mn_tensor *second = gradient_of(mn_check_total(mn_cast(g, MN_F32)), x, false);
        ck_assert_int_eq(mn_tensor_dtype(second), dtypes[i]);
        ck_assert_double_eq(mn_check_at(second, 1), 12);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- higher orders --------------------------------------------------------------------------- */

/* x^4 in a product chain, four times differentiated; the graph stays whole on the way. */
START_TEST(test_orders)
{
    static const double wanted[4] = {32, 48, 48, 24};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two);
    mn_tensor *square = mn_mul(x, x), *root = mn_check_total(mn_mul(square, square)), *g = root;
    for (int order = 0; order < 4; order++) {
        g = gradient_of(mn_check_total(g), x, true);
        ck_assert_double_eq(mn_check_at(g, 1), wanted[order]);
    }
    ck_assert_int_eq(mn_backward(root, 1), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(x), 1), 32);
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *second_of_products(mn_context *ctx, mn_tensor **in, int count, void *user)
{
    (void)user;
    mn_tensor *first[2], *second[2], *y = mn_matmul(mn_mul(in[0], in[0]), in[1]);
    y = mn_mul(mn_matmul(y, in[0]), y);
    mn_tensor *root = mn_sum(mn_mul(y, y), 0, NULL, false);
    mn_gradients(root, in, count, true, first);
    for (int i = 0; i < 2; i++)
        root = mn_add(root, mn_sum(mn_mul(first[i], first[i]), 0, NULL, false));
    mn_gradients(root, in, count, true, second);
    (void)ctx;
    return mn_add(second[0], mn_mul(second[1], second[0]));
}

START_TEST(test_third_order_of_products)
{
    const double a[4] = {0.3, -0.4, 0.2, 0.5}, b[4] = {0.1, 0.6, -0.3, 0.25};
    const int64_t shape[2] = {2, 2};
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *in[2] = {mn_tensor_from(ctx, MN_F64, 2, shape, a),
                        mn_tensor_from(ctx, MN_F64, 2, shape, b)};
    for (int i = 0; i < 2; i++)
        mn_set_requires_grad(in[i], true);
    mn_status status = mn_gradcheck(ctx, second_of_products, NULL, in, 2, NULL);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(ctx));
    mn_check_done(ctx);
}
END_TEST

/* d(a b)/da = b itself is part of the graph: its gradient is d(root)/db at second order. */
START_TEST(test_interior_inputs)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two);
    mn_tensor *a = mn_mul(x, x), *b = mn_mul(a, x); /* b = x^3 lies behind a */
    mn_tensor *const inputs[2] = {b, a};
    mn_tensor *g[2], *root = mn_check_total(mn_mul(b, b));
    ck_assert_int_eq(mn_gradients(root, inputs, 2, true, g), MN_OK);
    ck_assert_double_eq(mn_check_at(g[0], 1), 16); /* 2 b */
    ck_assert_double_eq(mn_check_at(g[1], 1), 32); /* 2 b x */
    mn_tensor *h = gradient_of(mn_check_total(mn_add(g[0], g[1])), x, false);
    ck_assert_double_eq(mn_check_at(h, 1), 24 + 64); /* of 2 x^3 + 2 x^4 */
    mn_check_done(ctx);
}
END_TEST

/* The derivative of relu's mask is zero, not missing. */
START_TEST(test_zeros)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two), *w = leaf(ctx, MN_F32, 2, three_four);
    mn_tensor *g = gradient_of(mn_check_total(mn_mul(mn_relu(x), w)), x, true);
    mn_tensor *const inputs[2] = {x, w};
    mn_tensor *h[2];
    ck_assert_int_eq(mn_gradients(mn_check_total(g), inputs, 2, false, h), MN_OK);
    ck_assert_double_eq(mn_check_at(h[0], 1), 0);
    ck_assert_double_eq(mn_check_at(h[1], 1), 1);
    mn_check_done(ctx);
}
END_TEST

static mn_status exp_infer(mn_infer *infer)
{
    infer->out[0] = infer->in[0];
    return MN_OK;
}

static void exp_reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = exp(in[0][i]);
}

static mn_status exp_backward(mn_backward_call *call)
{
    mn_argmax(call->out[0], 0); /* is let be: nothing floating comes of it */
    call->grad_in[0] = mn_mul(call->grad_out[0], call->out[0]);
    return mn_error_status(call->context);
}

static const mn_op exp_op = {.size = sizeof(mn_op),
                             .name = "own_exp",
                             .summary = "y = exp(x)",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .outputs = 1,
                             .differentiable = 1,
                             .saves_outputs = 1,
                             .infer = exp_infer,
                             .backward = exp_backward,
                             .reference = exp_reference};

/* An op's saved output is part of the graph too; a custom op made of ops needs nothing more. */
START_TEST(test_saved_output)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = leaf(ctx, MN_F64, 2, one_two), *y;
    mn_apply(ctx, &exp_op, &x, 1, NULL, &y);
    for (int order = 0; order < 3; order++) {
        y = gradient_of(mn_check_total(y), x, true);
        ck_assert_double_eq_tol(mn_check_at(y, 1), exp(2), 1e-14);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_failure(mn_tensor *root, mn_tensor *const *inputs, int count, mn_status status,
                           const char *part)
{
    mn_context *ctx = mn_tensor_context(inputs[0]);
    mn_tensor *g[2] = {root, root};
    ck_assert_int_eq(mn_gradients(root, inputs, count, true, g), status);
    mn_check_expect(ctx, status, part);
    ck_assert_ptr_null(g[0]);
    ck_assert_ptr_null(g[1]);
    ck_assert(mn_is_recording(ctx));
}

START_TEST(test_refusals)
{
    mn_context *ctx = mn_check_context("cpu"), *other = mn_check_context("cpu");
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two), *y = leaf(ctx, MN_F32, 2, one_two);
    mn_tensor *constant = mn_detach(x), *g[2] = {x, x};
    mn_tensor *square = mn_mul(x, x), *root = mn_check_total(square);
    mn_tensor *const unrelated[2] = {x, y}, *const behind[2] = {x, mn_mul(square, square)};
    mn_tensor *const none[2] = {x, constant}, *const missing[2] = {x, NULL};
    mn_tensor *const foreign[2] = {x, leaf(other, MN_F32, 2, one_two)};
    expect_failure(root, unrelated, 2, MN_ERR_NO_GRADIENT, "does not depend on input 1");
    expect_failure(root, behind, 2, MN_ERR_NO_GRADIENT, "does not depend on input 1");
    expect_failure(root, none, 2, MN_ERR_NO_GRADIENT, "input 1 does not require");
    expect_failure(root, missing, 2, MN_ERR_ARGUMENT, "input is NULL");
    expect_failure(root, foreign, 2, MN_ERR_ARGUMENT, "another context");
    expect_failure(square, unrelated, 2, MN_ERR_SHAPE, "[2] f32");
    ck_assert_int_eq(mn_gradients(root, NULL, 1, true, g), MN_ERR_ARGUMENT);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "are NULL");
    ck_assert_int_eq(mn_gradients(root, unrelated, 1, true, NULL), MN_ERR_ARGUMENT);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "are NULL");
    ck_assert_int_eq(mn_gradients(root, unrelated, 0, true, g), MN_ERR_ARGUMENT);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "no inputs");
    ck_assert_int_eq(mn_gradients(NULL, unrelated, 1, true, g), MN_ERR_ARGUMENT);
    ck_assert_ptr_null(g[0]);
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_gradients(root, unrelated, 1, true, g), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "no-grad section");
    ck_assert_int_eq(mn_gradients(root, unrelated, 1, false, g), MN_OK);
    mn_no_grad_end(ctx);
    ck_assert_double_eq(mn_check_at(g[0], 1), 4);
    mn_tensor *written = mn_check_total(mn_mul(x, y));
    mn_tensor_write_f64(y, three_four, 2);
    expect_failure(written, unrelated, 2, MN_ERR_VERSION, "mul: input 1");
    mn_check_done(ctx);
    mn_check_done(other);
}
END_TEST

/* The op is named with its layer, and only where a gradient would have to flow through. */
START_TEST(test_not_twice)
{
    const int64_t shape[2] = {1, 2}, rows[1] = {1}, zero[1] = {0};
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *w = leaf(ctx, MN_F32, 2, one_two),
              *labels = mn_tensor_from(ctx, MN_I64, 1, rows, zero);
    mn_name_push(ctx, "head");
    mn_tensor *loss = mn_cross_entropy(mn_reshape(w, 2, shape), labels, NULL), *g = NULL;
    mn_name_pop(ctx);
    mn_gradients(loss, &w, 1, true, &g);
    ck_assert_ptr_nonnull(strstr(mn_error_message(ctx), "head: the backward of cross_entropy"));
    mn_check_expect(ctx, MN_ERR_UNSUPPORTED, "cannot be differentiated");
    ck_assert_ptr_null(g);
    g = gradient_of(loss, w, false); /* a refused pass leaves the graph whole */
    ck_assert_double_eq_tol(mn_check_at(g, 0), -0.7310586, 1e-6);
    mn_check_done(ctx);
}
END_TEST

static mn_status fails(mn_backward_call *call)
{
    mn_mul(call->grad_out[0], call->in[0]);
    return MN_ERR_IO;
}

/* An error inside of a backward function leaves nothing behind. */
START_TEST(test_error_inside)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_op op = mn_ops[MN_OP_dot];
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two), *y, *g;
    mn_tensor *const inputs[2] = {x, x};
    op.backward = fails;
    mn_apply(ctx, &op, inputs, 2, NULL, &y);
    mn_gradients(mn_check_total(mn_mul(y, x)), &x, 1, true, &g);
    mn_check_expect(ctx, MN_ERR_IO, "backward failed");
    ck_assert_ptr_null(g);
    ck_assert(mn_is_recording(ctx));
    ck_assert_double_eq(mn_check_at(gradient_of(mn_check_total(mn_mul(x, x)), x, true), 1), 4);
    mn_check_done(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("double backward");
    TCase *tc = tcase_create("gradients");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_values, 0, 2);
    tcase_add_test(tc, test_pruned);
    tcase_add_loop_test(tc, test_dtypes, 0, 2);
    tcase_add_loop_test(tc, test_orders, 0, 2);
    tcase_add_test(tc, test_third_order_of_products);
    tcase_add_loop_test(tc, test_interior_inputs, 0, 2);
    tcase_add_test(tc, test_zeros);
    tcase_add_loop_test(tc, test_saved_output, 0, 2);
    tcase_add_test(tc, test_refusals);
    tcase_add_test(tc, test_not_twice);
    tcase_add_test(tc, test_error_inside);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
