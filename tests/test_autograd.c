/* Autograd: values, states of gradients, refusals that touch nothing, life times, gradient check.
 */
#include "autograd/autograd.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static mn_tensor *vector(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &count);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    return x;
}

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = vector(ctx, dtype, count, values);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    return x;
}

static const double one_two[2] = {1, 2}, three_four[2] = {3, 4};

/* ---- values ---------------------------------------------------------------------------------- */

/* d(2 sum(a b + a a))/da = 2 (b + 2 a): a diamond, and a weight. */
START_TEST(test_values)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, three_four);
    mn_tensor *y = mn_check_total(mn_add(mn_mul(a, b), mn_mul(a, a)));
    ck_assert(mn_requires_grad(y));
    uint64_t waits = ctx->device->synchronizations;
    ck_assert_int_eq(mn_backward(y, 2), MN_OK);
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    ck_assert_double_eq(mn_check_at(mn_grad(a), 0), 10);
    ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 16);
    ck_assert_double_eq(mn_check_at(mn_grad(b), 0), 2);
    ck_assert_double_eq(mn_check_at(mn_grad(b), 1), 4);
    ck_assert_int_eq(mn_grad_state_get(a), MN_GRAD_PLAIN);
    mn_check_done(ctx);
}
END_TEST

/* Sums at forks, in place or not: what add gives to both of its inputs stays as it is. */
START_TEST(test_forks)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = leaf(ctx, MN_F32, 2, one_two), *w = leaf(ctx, MN_F32, 2, three_four);
    mn_tensor *h = mn_mul(x, x), *sum = mn_add(mn_mul(h, w), mn_add(h, h));
    mn_backward(mn_check_total(mn_add(mn_add(sum, mn_relu(h)), mn_mul(h, h))), 1);
    ck_assert_double_eq(mn_check_at(mn_grad(x), 0), 16); /* 2 x (w + 3 + 2 h) */
    ck_assert_double_eq(mn_check_at(mn_grad(x), 1), 60);
    for (int after = 0; after < 2; after++) {
        mn_zero_grad(x);
        mn_zero_grad(w);
        mn_tensor *p = mn_mul(x, w), *q = mn_mul(x, x);
        mn_tensor *before = after ? NULL : mn_relu(p), *both = mn_add(p, q);
        mn_backward(mn_check_total(mn_add(both, after ? mn_relu(p) : before)), 1);
        ck_assert_double_eq(mn_check_at(mn_grad(x), 0), 8); /* 2 w + 2 x */
        ck_assert_double_eq(mn_check_at(mn_grad(x), 1), 12);
        ck_assert_double_eq(mn_check_at(mn_grad(w), 1), 4);
    }
    mn_check_done(ctx);
}
END_TEST

/* Gradients add up in one place until zero_grad; then its memory is free. */
START_TEST(test_accumulation)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    ck_assert_ptr_null(mn_grad(a));
    const uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    mn_tensor *buffer = NULL;
    for (int i = 1; i <= 3; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_backward(mn_check_total(mn_mul(a, a)), 1);
        mn_scope_end(ctx, scope);
        ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 4.0 * i);
        ck_assert(i == 1 || mn_grad(a) == buffer);
        buffer = mn_grad(a);
    }
    ck_assert_uint_gt(mn_memory_stats_get(ctx).live_bytes, live);
    ck_assert_int_eq(mn_zero_grad(a), MN_OK);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
    ck_assert_ptr_null(mn_grad(a));
    ck_assert_int_eq(mn_grad_state_get(a), MN_GRAD_NONE);
    mn_backward(mn_check_total(a), 1);
    ck_assert_double_eq(mn_check_at(mn_grad(a), 0), 1);
    mn_check_done(ctx);
}
END_TEST

/* An interior gradient is summed in its tensor's dtype. */
START_TEST(test_interior_dtype)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const double one[1] = {1};
    mn_tensor *w = leaf(ctx, MN_F32, 1, one);
    mn_tensor *half = mn_cast(w, MN_F16);
    mn_tensor *y = mn_add(mn_cast(half, MN_F32), mn_cast(half, MN_F32));
    mn_backward(y, 40000);
    ck_assert(isinf(mn_check_at(mn_grad(w), 0)));
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_root_is_leaf)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = leaf(ctx, MN_F32, 1, one_two);
    ck_assert_int_eq(mn_backward(x, 3), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(x), 0), 3);
    mn_check_done(ctx);
}
END_TEST

/* ---- what is recorded ------------------------------------------------------------------------ */

START_TEST(test_no_grad)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    mn_no_grad_begin(ctx);
    mn_no_grad_begin(ctx);
    mn_no_grad_end(ctx);
    ck_assert(!mn_requires_grad(mn_mul(a, a)));
    mn_no_grad_end(ctx);
    ck_assert(mn_requires_grad(mn_mul(a, a)));
    mn_scope scope = mn_scope_begin(ctx);
    mn_no_grad_begin(ctx);
    ck_assert(!mn_is_recording(ctx));
    mn_scope_begin(ctx);
    mn_scope_end(ctx, scope); /* an early return ends the section too */
    ck_assert(mn_is_recording(ctx));
    mn_no_grad_end(ctx);
    mn_check_expect(ctx, MN_ERR_STATE, "mn_no_grad_begin");
    mn_check_done(ctx);
}
END_TEST

/* begin and end stay in pairs around an error. */
START_TEST(test_no_grad_while_pending)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_no_grad_begin(ctx);
    mn_fail(ctx, MN_ERR_ARGUMENT, "made up");
    mn_no_grad_begin(ctx);
    mn_no_grad_end(ctx);
    ck_assert(!mn_is_recording(ctx));
    mn_no_grad_begin(ctx); /* never ended: its function has returned on the error */
    mn_error_clear(ctx);
    mn_no_grad_end(ctx);
    ck_assert(mn_is_recording(ctx));
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_detach)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    mn_tensor *y = mn_mul(a, a);
    mn_tensor *d = mn_detach(y);
    ck_assert(!mn_requires_grad(d));
    mn_backward(mn_check_total(mn_mul(y, d)), 1);
    ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 16); /* 2 a d, without d's own share */
    ck_assert_int_eq(mn_tensor_mark_dirty(d), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(y), 1);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_requires_grad)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *labels = mn_full(ctx, MN_I64, 0, NULL, 1);
    ck_assert_int_eq(mn_set_requires_grad(labels, true), MN_ERR_DTYPE);
    mn_check_expect(ctx, MN_ERR_DTYPE, "i64");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    mn_set_requires_grad(mn_mul(a, a), false);
    mn_check_expect(ctx, MN_ERR_STATE, "mn_detach");
    ck_assert(!mn_requires_grad(mn_argmax(a, 0)));
    ck_assert(!mn_requires_grad(mn_cast(a, MN_I32)));
    ck_assert_int_eq(mn_set_requires_grad(a, false), MN_OK);
    ck_assert(!mn_requires_grad(mn_mul(a, a)));
    ck_assert_int_eq(mn_set_requires_grad(NULL, true), MN_ERR_ARGUMENT);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_bad_roots)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    ck_assert_int_eq(mn_backward(mn_full(ctx, MN_F32, 0, NULL, 1), 1), MN_ERR_NO_GRADIENT);
    mn_check_expect(ctx, MN_ERR_NO_GRADIENT, "depends on nothing");
    mn_backward(mn_mul(a, a), 1);
    mn_check_expect(ctx, MN_ERR_SHAPE, "[2] f32");
    mn_backward(mn_check_total(a), (double)NAN);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "weight");
    ck_assert_int_eq(mn_backward(NULL, 1), MN_ERR_ARGUMENT);
    mn_tensor *loss = mn_check_total(a);
    mn_fail(ctx, MN_ERR_IO, "made up");
    ck_assert_int_eq(mn_backward(loss, 1), MN_ERR_IO);
    ck_assert_ptr_null(mn_detach(a));
    ck_assert_int_eq(mn_zero_grad(a), MN_ERR_IO);
    mn_error_clear(ctx);
    ck_assert_ptr_null(mn_grad(a));
    mn_check_done(ctx);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(test_version)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, three_four);
    mn_name_push(ctx, "conv9");
    mn_tensor *y = mn_mul(a, b);
    mn_name_pop(ctx);
    mn_tensor *loss = mn_check_total(mn_add(y, a));
    mn_tensor_write_f64(b, one_two, 2);
    ck_assert_int_eq(mn_backward(loss, 1), MN_ERR_VERSION);
    ck_assert_ptr_nonnull(strstr(mn_error_message(ctx), "conv9"));
    ck_assert_ptr_nonnull(strstr(mn_error_message(ctx), "mul: input 1"));
    mn_check_expect(ctx, MN_ERR_VERSION, "(version 2, saved 1)");
    ck_assert_ptr_null(mn_grad(a));
    ck_assert(mn_is_recording(ctx));
    /* An output that was saved, changed through a view. */
    mn_tensor *r = mn_relu(a);
    mn_tensor_mark_dirty(mn_detach(r));
    mn_backward(mn_check_total(r), 1);
    mn_check_expect(ctx, MN_ERR_VERSION, "relu: output 0");
    /* add saves nothing, so that this is fine. */
    mn_tensor *s = mn_check_total(mn_add(a, b));
    mn_tensor_mark_dirty(a);
    ck_assert_int_eq(mn_backward(s, 1), MN_OK);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_second_backward)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, one_two);
    mn_tensor *trunk = mn_mul(a, a);
    mn_tensor *first = mn_check_total(trunk), *second = mn_check_total(mn_mul(trunk, b));
    ck_assert_int_eq(mn_backward(first, 1), MN_OK);
    ck_assert_int_eq(mn_backward(first, 1), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "second backward");
    mn_backward(second, 1);
    mn_check_expect(ctx, MN_ERR_STATE, "second backward");
    ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 4);
    ck_assert_ptr_null(mn_grad(b));
    mn_check_done(ctx);
}
END_TEST

static mn_status scaled_backward(mn_tensor *root)
{
    mn_tensor *seed = mn_full(root->context, root->dtype, 0, NULL, 8);
    return mn_backward_from(root, seed, MN_GRAD_SCALED);
}

/* Every mix of states is refused before any leaf is touched. */
START_TEST(test_states)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *b = leaf(ctx, MN_F32, 2, one_two);
    ck_assert_int_eq(scaled_backward(mn_check_total(b)), MN_OK);
    ck_assert_int_eq(mn_grad_state_get(b), MN_GRAD_SCALED);
    mn_backward(mn_check_total(mn_add(a, b)), 1);
    mn_check_expect(ctx, MN_ERR_STATE, "plain backward into scaled");
    ck_assert_ptr_null(mn_grad(a));
    mn_backward(mn_check_total(a), 1);
    scaled_backward(mn_check_total(mn_add(b, a)));
    mn_check_expect(ctx, MN_ERR_STATE, "scaled backward into plain");
    ck_assert_double_eq(mn_check_at(mn_grad(b), 0), 8);
    b->leaf->state = MN_GRAD_UNSCALED;
    scaled_backward(mn_check_total(b));
    mn_check_expect(ctx, MN_ERR_STATE, "scaled backward into unscaled gradients");
    mn_backward(mn_check_total(b), 1);
    mn_check_expect(ctx, MN_ERR_STATE, "plain backward into unscaled gradients");
    b->leaf->consumed = true;
    scaled_backward(mn_check_total(b));
    mn_check_expect(ctx, MN_ERR_STATE,
                    "left over from a finished step: call mn_optimizer_zero_grad");
    a->leaf->consumed = true; /* as PyTorch, without a scaler */
    ck_assert_int_eq(mn_backward(mn_check_total(a), 1), MN_OK);
    mn_zero_grad(b);
    ck_assert_int_eq(scaled_backward(mn_check_total(b)), MN_OK);
    ck_assert_int_eq(scaled_backward(mn_check_total(b)), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(b), 0), 16);
    mn_check_done(ctx);
}
END_TEST

/* ---- custom ops ------------------------------------------------------------------------------ */

static mn_status square_infer(mn_infer *infer)
{
    infer->out[0] = infer->in[0];
    return MN_OK;
}

static void square_reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = in[0][i] * in[0][i];
}

/* factor x g: right for factor 2. A factor of 0 reports an error, -1 gives a wrong shape. */
static mn_status square_backward(mn_backward_call *call)
{
    double factor;
    memcpy(&factor, call->attributes, sizeof factor);
    if (factor == 0)
        return mn_fail(call->context, MN_ERR_UNSUPPORTED, "no backward today");
    mn_tensor *x = call->in[0];
    mn_tensor *two = mn_full(call->context, x->dtype, 0, NULL, factor);
    call->grad_in[0] = mn_mul(mn_mul(x, two), call->grad_out[0]);
    if (factor < 0)
        call->grad_in[0] = mn_check_total(call->grad_in[0]);
    ck_assert(!mn_requires_grad(call->grad_in[0]));
    return mn_error_status(call->context);
}

static const mn_op square_op = {
    .size = sizeof(mn_op),
    .name = "square",
    .summary = "y = x x",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .attribute_bytes = sizeof(double),
    .differentiable = 1,
    .saves_inputs = 1,
    .infer = square_infer,
    .backward = square_backward,
    .reference = square_reference,
};

static mn_tensor *square(mn_context *ctx, mn_tensor *x, double factor)
{
    mn_tensor *y;
    mn_apply(ctx, &square_op, &x, 1, &factor, &y);
    return y;
}

static mn_tensor *square_function(mn_context *ctx, mn_tensor **inputs, int count, void *user)
{
    ck_assert_int_eq(count, 2);
    return mn_add(mn_mul(inputs[0], inputs[1]), square(ctx, inputs[1], *(double *)user));
}

START_TEST(test_gradcheck)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const double x[3] = {0.1, -1.7, 3.3}, y[3] = {2.5, 1e-3, 0.7};
    mn_tensor *inputs[2] = {leaf(ctx, MN_F64, 3, x), leaf(ctx, MN_F64, 3, y)};
    double factor = 2, worst = 7;
    mn_gradcheck_options options = mn_gradcheck_options_default();
    options.worst = &worst;
    ck_assert_int_eq(mn_gradcheck(ctx, square_function, &factor, inputs, 2, &options), MN_OK);
    ck_assert(worst > 0 && worst < 1e-7);
    factor = 2.0001;
    ck_assert_int_eq(mn_gradcheck(ctx, square_function, &factor, inputs, 2, &options),
                     MN_ERR_MISMATCH);
    ck_assert(worst > 1e-5 && worst < 1e-3);
    mn_check_expect(ctx, MN_ERR_MISMATCH, "input 1, element 0");
    factor = 0; /* a failure on the way */
    mn_gradcheck(ctx, square_function, &factor, inputs, 2, NULL);
    mn_check_expect(ctx, MN_ERR_UNSUPPORTED, "no backward today");
    double back[3];
    mn_tensor_read_f64(inputs[0], back, 3);
    ck_assert_mem_eq(back, x, sizeof x);
    mn_tensor_read_f64(inputs[1], back, 3);
    ck_assert_mem_eq(back, y, sizeof y);
    ck_assert_ptr_null(mn_grad(inputs[0]));
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *fails_late(mn_context *ctx, mn_tensor **inputs, int count, void *user)
{
    int *calls = user;
    (void)count;
    if (++*calls == 4)
        mn_fail(ctx, MN_ERR_IO, "the fourth call fails");
    return mn_mul(inputs[0], inputs[0]);
}

/* Inputs come back exactly also when the function fails half-way. */
START_TEST(test_gradcheck_restores)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const double x[3] = {0.1, -1.7, 3.3};
    double back[3];
    int calls = 0;
    mn_tensor *input = leaf(ctx, MN_F64, 3, x);
    ck_assert_int_eq(mn_gradcheck(ctx, fails_late, &calls, &input, 1, NULL), MN_ERR_IO);
    ck_assert_int_eq(mn_gradcheck(ctx, fails_late, &calls, &input, 1, NULL), MN_ERR_IO);
    ck_assert_int_eq(calls, 4); /* it refuses to start with an error pending */
    mn_error_clear(ctx);
    mn_tensor_read_f64(input, back, 3);
    ck_assert_mem_eq(back, x, sizeof x);
    mn_tensor *single = leaf(ctx, MN_F32, 3, x);
    mn_gradcheck(ctx, fails_late, &calls, &single, 1, NULL);
    mn_check_expect(ctx, MN_ERR_DTYPE, "f32, not f64");
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *network(mn_context *ctx, mn_tensor **in, int count, void *user)
{
    (void)ctx;
    (void)count;
    (void)user;
    mn_tensor *hidden = mn_relu(mn_linear(in[0], in[1], in[2]));
    return mn_cross_entropy(mn_matmul(hidden, in[3]), in[4], NULL);
}

START_TEST(test_gradcheck_network)
{
    mn_context *ctx = mn_check_context("cpu");
    static const int64_t shapes[4][2] = {{3, 4}, {5, 4}, {5}, {5, 2}};
    static const int ndims[4] = {2, 2, 1, 2};
    const int64_t labels[3] = {1, 0, 1}, rows = 3;
    mn_tensor *in[5];
    double values[20];
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 20; i++)
            values[i] = sin(1.0 + 7 * i + 31 * k);
        in[k] = mn_tensor_create(ctx, MN_F64, ndims[k], shapes[k]);
        mn_tensor_write_f64(in[k], values, mn_tensor_numel(in[k]));
        mn_set_requires_grad(in[k], true);
    }
    in[4] = mn_tensor_from(ctx, MN_I64, 1, &rows, labels);
    ck_assert_msg(mn_gradcheck(ctx, network, NULL, in, 5, NULL) == MN_OK, "%s",
                  mn_error_message(ctx));
    mn_check_done(ctx);
}
END_TEST

/* Errors of backward functions carry the layer's path; the engine checks what they return. */
START_TEST(test_backward_errors)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two);
    mn_name_push(ctx, "layer1");
    mn_name_push(ctx, "conv2");
    mn_tensor *bad = mn_check_total(square(ctx, a, 0)), *shape = mn_check_total(square(ctx, a, -1));
    mn_name_pop(ctx);
    mn_name_pop(ctx);
    ck_assert_int_eq(mn_backward(bad, 1), MN_ERR_UNSUPPORTED);
    mn_check_expect(ctx, MN_ERR_UNSUPPORTED, "backward of layer1.conv2: no backward today");
    ck_assert_str_eq(mn_name_path(ctx), "");
    mn_backward(shape, 1);
    mn_check_expect(ctx, MN_ERR_SHAPE, "square: the gradient of input 0 is [] f32, not [2] f32");
    ck_assert(!ctx->in_backward);
    ck_assert_int_eq(mn_backward(mn_check_total(square(ctx, a, 2)), 1), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 4);
    mn_check_done(ctx);
}
END_TEST

static mn_tensor *kept;

/* The gradient of 0.5 x x, if kept is x, is a tensor that others have. */
static mn_status half_square_backward(mn_backward_call *call)
{
    call->grad_in[0] = kept ? kept : call->in[0];
    return MN_OK;
}

/* A leaf never takes over, and then adds to, what is not the backward's alone: a tensor of the
 * caller's, in a scope or not, and one that the leaf's storage holds. */
START_TEST(test_given_gradients_stay)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    mn_op op = square_op;
    op.backward = half_square_backward;
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *other = vector(ctx, MN_F32, 2, one_two);
    const double factor = 1;
    kept = _i / 2 == 0 ? NULL : other;
    if (_i / 2 == 2) {
        mn_retain(other);
        mn_retain(a);
        mn_scope_end(ctx, scope);
        scope = mn_scope_begin(ctx);
    }
    for (int i = 1; i <= 3; i++) {
        mn_tensor *y;
        ck_assert_int_eq(mn_apply(ctx, &op, &a, 1, &factor, &y), MN_OK);
        ck_assert_int_eq(mn_backward(mn_check_total(y), 1), MN_OK);
        ck_assert_double_eq(mn_check_at(mn_grad(a), 1), 2 * i);
        ck_assert_double_eq(mn_check_at(a, 1), 2);
        ck_assert_double_eq(mn_check_at(other, 1), 2);
    }
    mn_scope_end(ctx, scope);
    if (_i / 2 == 2) {
        mn_release(other);
        mn_release(a);
    }
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_apply_checks)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *a = leaf(ctx, MN_F32, 2, one_two), *y = a;
    mn_tensor *inputs[2] = {a, a};
    mn_apply(ctx, &square_op, inputs, 2, NULL, &y);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "square");
    ck_assert_ptr_null(y);
    mn_tensor *interior = mn_mul(a, a);
    mn_value_attributes fill = {.value = 1};
    ck_assert_int_eq(mn_apply(ctx, &mn_ops[MN_OP_fill], &interior, 1, &fill, NULL), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "part of a graph");
    mn_check_done(ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("autograd");
    TCase *tc = tcase_create("autograd");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_values, 0, 2);
    tcase_add_loop_test(tc, test_forks, 0, 2);
    tcase_add_loop_test(tc, test_accumulation, 0, 2);
    tcase_add_loop_test(tc, test_interior_dtype, 0, 2);
    tcase_add_loop_test(tc, test_root_is_leaf, 0, 2);
    tcase_add_test(tc, test_no_grad);
    tcase_add_test(tc, test_no_grad_while_pending);
    tcase_add_test(tc, test_detach);
    tcase_add_test(tc, test_requires_grad);
    tcase_add_test(tc, test_bad_roots);
    tcase_add_loop_test(tc, test_version, 0, 2);
    tcase_add_test(tc, test_second_backward);
    tcase_add_loop_test(tc, test_states, 0, 2);
    tcase_add_loop_test(tc, test_gradcheck, 0, 2);
    tcase_add_loop_test(tc, test_gradcheck_restores, 0, 2);
    tcase_add_test(tc, test_gradcheck_network);
    tcase_add_test(tc, test_backward_errors);
    tcase_add_loop_test(tc, test_given_gradients_stay, 0, 6);
    tcase_add_test(tc, test_apply_checks);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
