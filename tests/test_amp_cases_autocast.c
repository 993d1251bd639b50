/* Cases of mixed precision, R32 to R45: regions and casts, dtypes, and custom ops. A number stands
 * for a fault that users of other frameworks have met. */
#include "amp/amp.h"
#include "include/minim_ext.h"
#include "tests/support_amp_cases.h"
#include "tests/support_training.h"

#include <math.h>

static const int64_t square[2] = {2, 2};
static const double values[4] = {1, 2, 3, 4};

static mn_tensor *matrix(mn_context *ctx, mn_dtype dtype)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 2, square);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, 4), MN_OK);
    return x;
}

static mn_tensor *weight(mn_context *ctx)
{
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 2, square, MN_LAYOUT_PLAIN);
    ck_assert_int_eq(mn_tensor_write_f64(w, values, 4), MN_OK);
    return w;
}

/* ---- F: regions and casts -------------------------------------------------------------------- */

static void forward_backward(mn_context *ctx, mn_tensor *w, bool evaluate_first)
{
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = matrix(ctx, MN_F32);
    mn_autocast_begin(ctx, MN_F16);
    if (evaluate_first) {
        mn_no_grad_begin(ctx);
        ck_assert(!mn_requires_grad(mn_matmul(x, w)));
        mn_no_grad_end(ctx);
    }
    mn_tensor *y = mn_matmul(x, w);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_backward(mn_check_total(mn_mul(y, y)), 1), MN_OK);
    mn_scope_end(ctx, scope);
}

START_TEST(R32_no_grad_first)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx), *v = weight(ctx);
    float with[4], without[4];
    forward_backward(ctx, w, true);
    forward_backward(ctx, v, false);
    mn_tensor_read(mn_grad(w), with, sizeof with);
    mn_tensor_read(mn_grad(v), without, sizeof without);
    ck_assert_mem_eq(with, without, sizeof with);
    ck_assert(with[0] != 0);
    mn_release(w);
    mn_release(v);
    mn_check_done(ctx);
}
END_TEST

/* Inside one long region each change of the weight is seen at once. */
START_TEST(R33_no_stale_weights)
{
    mn_context *ctx = mn_check_context("cpu");
    const int64_t one[2] = {1, 1};
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 2, one, MN_LAYOUT_PLAIN);
    mn_tensor_fill(w, 1);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 1;
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, 1, &options);
    mn_tensor *x = mn_full(ctx, MN_F32, 2, one, 1);
    const float three = 3;
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *y = mn_linear(x, w, NULL);
    ck_assert_double_eq(mn_check_at(y, 0), 1);
    mn_backward(mn_check_total(y), -1);
    mn_optimizer_step(sgd);
    ck_assert_double_eq(mn_check_at(mn_linear(x, w, NULL), 0), 2);
    mn_tensor_write(w, &three, sizeof three);
    mn_tensor *kept = mn_linear(x, w, NULL); /* its tape holds the shadow of 3 */
    ck_assert_double_eq(mn_check_at(kept, 0), 3);
    *(float *)mn_tensor_data_mut(w) = 4;
    ck_assert_double_eq(mn_check_at(mn_linear(x, w, NULL), 0), 4);
    float *raw = mn_tensor_data_mut(w);
    *raw = 5;
    ck_assert_double_eq(mn_check_at(mn_linear(x, w, NULL), 0), 5);
    *raw = 6;
    mn_tensor_mark_dirty(w);
    ck_assert_double_eq(mn_check_at(mn_linear(x, w, NULL), 0), 6);
    ck_assert_int_eq(mn_backward(mn_check_total(kept), 1), MN_OK);
    mn_autocast_end(ctx);
    mn_optimizer_free(sgd);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(R35_regions)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = matrix(ctx, MN_F32);
    ck_assert_int_eq(mn_autocast_end(ctx), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "without autocast_begin");
    mn_autocast_begin(ctx, MN_F16);
    mn_autocast_begin(ctx, MN_F32); /* disabled inside */
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, x)), MN_F32);
    mn_autocast_begin(ctx, MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, x)), MN_BF16);
    mn_autocast_end(ctx);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F16);
    mn_scope scope = mn_scope_begin(ctx);
    mn_autocast_begin(ctx, MN_BF16);
    mn_scope_begin(ctx);
    mn_autocast_begin(ctx, MN_F32);
    mn_scope_end(ctx, scope); /* an early return */
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F16);
    mn_autocast_begin(ctx, MN_I64);
    mn_autocast_end(ctx); /* of the refused one */
    mn_check_expect(ctx, MN_ERR_DTYPE, "i64");
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F16);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F32);
    mn_autocast_begin(ctx, MN_F16);
    mn_check_done(ctx); /* a region left open leaks nothing */
}
END_TEST

/* R37: there are no checkpoints of activations; what backward draws again instead of keeping it is
 * dropout's mask. It is forward's, whatever region backward is called in. */
START_TEST(R37_recomputed_mask)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t count = 16;
    for (int inside = 0; inside < 2; inside++) {
        mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 1, &count, MN_LAYOUT_PLAIN);
        mn_tensor_fill(w, 1);
        mn_autocast_begin(ctx, MN_BF16);
        mn_tensor *y = mn_dropout(mn_cast(w, MN_BF16), 0.5, true);
        mn_autocast_end(ctx);
        ck_assert_int_eq(mn_tensor_dtype(y), MN_BF16);
        if (inside)
            mn_autocast_begin(ctx, MN_F16);
        ck_assert_int_eq(mn_backward(mn_check_total(mn_cast(y, MN_F32)), 0x1p20), MN_OK);
        if (inside)
            mn_autocast_end(ctx);
        for (int i = 0; i < count; i++)
            ck_assert_double_eq(mn_check_at(mn_grad(w), i), 0x1p20 * mn_check_at(y, i));
        mn_release(w);
    }
    mn_check_done(ctx);
}
END_TEST

/* ---- G: dtypes and custom ops ---------------------------------------------------------------- */

static mn_status cube_infer(mn_infer *infer)
{
    infer->out[0] = infer->in[0];
    return MN_OK;
}

static void cube_reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = in[0][i] * in[0][i] * in[0][i];
}

/* Checks what it is given, and that a region does not touch what it applies. */
static mn_status cube_backward(mn_backward_call *call)
{
    mn_tensor *x = call->in[0], *g = call->grad_out[0];
    ck_assert_int_eq(mn_tensor_dtype(x), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(g), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, g)), MN_BF16);
    mn_tensor *three = mn_full(call->context, MN_BF16, 0, NULL, 3);
    call->grad_in[0] = mn_mul(mn_mul(three, mn_mul(x, x)), g);
    return mn_error_status(call->context);
}

static const mn_op cube = {
    .size = sizeof(mn_op),
    .name = "cube",
    .summary = "y = x x x",
    .min_inputs = 1,
    .max_inputs = 1,
    .outputs = 1,
    .differentiable = 1,
    .saves_inputs = 1,
    .rule = {MN_CAST_LOWER, MN_CAST_LOWER},
    .infer = cube_infer,
    .backward = cube_backward,
    .reference = cube_reference,
};

/* R38: backward, a custom op's too, runs in the dtypes of the forward pass, whatever region it is
 * called in. */
START_TEST(R38_backward_in_other_region)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    float results[2][4];
    for (int inside = 0; inside < 2; inside++) {
        mn_tensor *w = weight(ctx), *y;
        mn_autocast_begin(ctx, MN_BF16);
        ck_assert_int_eq(mn_apply(ctx, &cube, &w, 1, NULL, &y), MN_OK);
        ck_assert_int_eq(mn_tensor_dtype(y), MN_BF16);
        mn_tensor *loss = mn_check_total(mn_matmul(matrix(ctx, MN_F32), y));
        mn_autocast_end(ctx);
        if (inside)
            mn_autocast_begin(ctx, MN_F16);
        ck_assert_int_eq(mn_backward(loss, 1e5), MN_OK); /* f16 could not hold it */
        if (inside)
            mn_autocast_end(ctx);
        mn_tensor_read(mn_grad(w), results[inside], sizeof results[inside]);
        mn_release(w);
    }
    ck_assert_mem_eq(results[0], results[1], sizeof results[0]);
    ck_assert_double_eq_tol((double)results[0][3], 1e5 * 6 * 3 * 16, 3e5);
    mn_check_done(ctx);
}
END_TEST

START_TEST(R39_promotion)
{
    mn_context *ctx = mn_check_context("cpu");
    const int64_t two = 2;
    mn_tensor *half = mn_full(ctx, MN_F16, 1, &two, 2), *brain = mn_full(ctx, MN_BF16, 1, &two, 3);
    mn_tensor *full = mn_full(ctx, MN_F32, 1, &two, 4), *mixed[2] = {half, brain};
    for (int i = 0; i < 2; i++) {
        mn_autocast_begin(ctx, i ? MN_F16 : MN_BF16);
        mn_tensor *y = mn_dot(half, brain);
        ck_assert_int_eq(mn_tensor_dtype(y), MN_F32);
        ck_assert_double_eq(mn_check_at(y, 0), 12);
        y = mn_concat(mixed, 2, 0);
        ck_assert_int_eq(mn_tensor_dtype(y), MN_F32);
        ck_assert_double_eq(mn_check_at(y, 3), 3);
        ck_assert_int_eq(mn_tensor_dtype(mn_dot(half, half)), MN_F16);
        ck_assert_int_eq(mn_tensor_dtype(mn_dot(half, full)), MN_F32);
        mn_autocast_end(ctx);
    }
    mn_check_done(ctx);
}
END_TEST

/* A device belongs to a context. Tensors of two are told apart before any dtype is looked at. */
START_TEST(R40_tensors_of_two_devices)
{
    mn_context *ctx = mn_check_context("cpu-deferred"), *cpu = mn_check_context("cpu");
    mn_tensor *x = matrix(ctx, MN_F16), *w = weight(cpu);
    mn_autocast_begin(ctx, MN_F16);
    ck_assert_ptr_null(mn_linear(x, w, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT,
                    "linear: argument 2 belongs to another context, on cpu, not cpu-deferred");
    mn_autocast_end(ctx);
    ck_assert_uint_eq(mn_op_calls(cpu, MN_OP_cast), 0); /* the other context is left alone */
    mn_release(w);
    mn_check_done(cpu);
    mn_check_done(ctx);
}
END_TEST

/* A finite mask that f16 cannot hold is an error; one that it holds masks; and a row of which
 * nothing is left is uniform for finite masks, NaN for infinite ones, as the formula says. */
START_TEST(R42_masks)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t shape[2] = {1, 4}, before[2] = {0, 0}, after[2] = {0, 1};
    mn_tensor *x = mn_full(ctx, MN_F16, 2, shape, 0);
    ck_assert_ptr_null(mn_full(ctx, MN_F16, 2, shape, -1e9));
    mn_check_expect(ctx, MN_ERR_DTYPE, "-1000000000 does not fit f16");
    ck_assert_int_eq(mn_tensor_fill(x, -1e9), MN_ERR_DTYPE);
    mn_check_expect(ctx, MN_ERR_DTYPE, "-1000000000 does not fit f16");
    ck_assert_ptr_null(mn_pad(x, before, after, -1e9));
    mn_check_expect(ctx, MN_ERR_DTYPE, "-1000000000 does not fit f16");
    mn_autocast_begin(ctx, MN_F16);
    const double masks[2] = {-65504, (double)-INFINITY};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mn_tensor_fill(x, masks[i]), MN_OK);
        double alone = mn_check_at(mn_softmax(x, 1), 3);
        ck_assert(i ? isnan(alone) : alone == 0.25);
        mn_tensor *row = mn_pad(x, before, after, 1); /* one element is not masked */
        ck_assert_double_eq(mn_check_at(mn_softmax(row, 1), 4), 1);
        ck_assert_double_eq(mn_check_at(mn_softmax(row, 1), 0), 0);
    }
    mn_autocast_end(ctx);
    mn_check_done(ctx);
}
END_TEST

START_TEST(R43_binary_cross_entropy)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const int64_t four = 4;
    const double inf = (double)INFINITY;
    const double logits[4] = {-100, inf, -inf, -inf}, target[4] = {1, 1, 0, 1};
    const double losses[4] = {100, 0, 0, inf}, gradients[4] = {-1, 0, 0, -1};
    mn_tensor *p = mn_full(ctx, MN_F16, 1, &four, 0x1p-24),
              *one = mn_full(ctx, MN_F16, 1, &four, 1);
    mn_autocast_begin(ctx, MN_F16);
    ck_assert_ptr_null(mn_binary_cross_entropy(p, one, MN_REDUCTION_MEAN));
    mn_check_expect(ctx, MN_ERR_UNSUPPORTED, "use mn_binary_cross_entropy_with_logits");
    mn_tensor *x = mn_tensor_create(ctx, MN_F16, 1, &four);
    mn_tensor *t = mn_tensor_create(ctx, MN_F32, 1, &four);
    mn_tensor_write_f64(x, logits, 4);
    mn_tensor_write_f64(t, target, 4);
    mn_set_requires_grad(x, true);
    mn_tensor *loss = mn_binary_cross_entropy_with_logits(x, t, MN_REDUCTION_NONE);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_tensor_dtype(loss), MN_F32);
    ck_assert_int_eq(mn_backward(mn_check_total(loss), 1), MN_OK);
    for (int i = 0; i < 4; i++) {
        ck_assert_double_eq(mn_check_at(loss, i), losses[i]);
        ck_assert_double_eq(mn_check_at(mn_grad(x), i), gradients[i]);
    }
    mn_check_done(ctx);
}
END_TEST

static void count_warning(void *user, const char *message)
{
    ck_assert_ptr_nonnull(strstr(message, "mn_grad_scaler_backward"));
    ++*(int *)user;
}

/* Gradients of 1e-8 vanish in f16 without a scaler, which is warned of once, and which the monitor
 * counts: with one they are there, and mn_train always uses one for f16. */
START_TEST(R45_small_gradients_need_the_scaler)
{
    int warnings = 0;
    mn_context_options wanted = mn_context_options_default();
    wanted.device = mn_check_devices[_i];
    wanted.warn = count_warning;
    wanted.warn_user = &warnings;
    mn_context *ctx = mn_context_create(&wanted, NULL);
    for (int run = 0; run < 4; run++) {
        const int scaled = run % 2 == 0;
        mn_grad_scaler_options options = mn_grad_scaler_options_default();
        options.enabled = scaled;
        mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &options);
        mn_tensor *w = weight(ctx);
        mn_optimizer *sgd = mn_check_sgd_of(ctx, &w, 1);
        mn_monitor *monitor = mn_monitor_create(ctx, NULL);
        mn_autocast_begin(ctx, MN_F16);
        mn_tensor *loss = mn_check_total(mn_linear(matrix(ctx, MN_F32), w, NULL));
        mn_autocast_end(ctx);
        ck_assert_int_eq(mn_grad_scaler_backward(scaler, loss, 1e-8), MN_OK);
        ck_assert_int_eq(warnings, run > 0);
        ck_assert_int_eq(mn_grad_scaler_unscale(scaler, sgd), MN_OK);
        ck_assert_double_eq_tol(mn_check_at(mn_grad(w), 0), scaled ? 4e-8 : 0, 4e-11);
        ck_assert_int_eq(mn_monitor_collect(monitor), MN_OK);
        mn_monitor_totals totals = mn_monitor_totals_get(monitor);
        ck_assert_int_gt(totals.stored[MN_BACKWARD], 0);
        ck_assert_int_eq(totals.lost[MN_BACKWARD], scaled ? 0 : totals.stored[MN_BACKWARD]);
        mn_monitor_free(monitor);
        mn_optimizer_free(sgd);
        mn_grad_scaler_free(scaler);
        mn_release(w);
    }
    mn_check_done(ctx);
}
END_TEST

int main(void)
{
    const mn_amp_case cases[] = {
        {32, "R32_no_grad_first", R32_no_grad_first, 2},
        {33, "R33_no_stale_weights", R33_no_stale_weights, 1},
        {35, "R35_regions", R35_regions, 1},
        {37, "R37_recomputed_mask", R37_recomputed_mask, 2},
        {38, "R38_backward_in_other_region", R38_backward_in_other_region, 2},
        {39, "R39_promotion", R39_promotion, 1},
        {40, "R40_tensors_of_two_devices", R40_tensors_of_two_devices, 1},
        {42, "R42_masks", R42_masks, 2},
        {43, "R43_binary_cross_entropy", R43_binary_cross_entropy, 2},
        {45, "R45_small_gradients_need_the_scaler", R45_small_gradients_need_the_scaler, 2},
    };
    return mn_amp_cases_run("amp cases: autocast", cases, (int)(sizeof cases / sizeof *cases), 32,
                            45);
}
