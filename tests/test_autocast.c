/* Autocast: regions, rules, casts on shadows of parameters, and whole training steps in half
 * precision. Names with r<number> are cases of faults that users of other frameworks have met. */
#include "amp/amp.h"
#include "tests/support_training.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- rules ----------------------------------------------------------------------------------- */

START_TEST(test_rules)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = matrix(ctx, MN_F32), *wide = matrix(ctx, MN_F64);
    const mn_dtype low = _i ? MN_BF16 : MN_F16;
    mn_autocast_begin(ctx, low);
    mn_tensor *y = mn_matmul(x, x);
    ck_assert_int_eq(mn_tensor_dtype(y), low);                     /* LOWER */
    ck_assert_int_eq(mn_tensor_dtype(mn_linear(x, y, NULL)), low); /* mixed inputs */
    ck_assert_int_eq(mn_tensor_dtype(mn_relu(y)), low);            /* KEEP */
    ck_assert_int_eq(mn_tensor_dtype(mn_relu(x)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_mean(y, 0, NULL, false)), low);
    ck_assert_int_eq(mn_tensor_dtype(mn_add(x, y)), MN_F32);     /* promoted by the op */
    ck_assert_int_eq(mn_tensor_dtype(mn_softmax(y, 1)), MN_F32); /* FP32_OUT */
    ck_assert_int_eq(mn_tensor_dtype(mn_check_total(y)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(wide, wide)), MN_F64); /* not eligible */
    ck_assert_int_eq(mn_tensor_dtype(mn_softmax(wide, 1)), MN_F64);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_tensor_dtype(mn_softmax(y, 1)), low);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, x)), MN_F32);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_r39_promotion)
{
    mn_context *ctx = mn_check_context("cpu");
    const int64_t two = 2;
    mn_tensor *half = mn_full(ctx, MN_F16, 1, &two, 2), *brain = mn_full(ctx, MN_BF16, 1, &two, 3);
    mn_tensor *full = mn_full(ctx, MN_F32, 1, &two, 4);
    for (int i = 0; i < 2; i++) {
        mn_autocast_begin(ctx, i ? MN_F16 : MN_BF16);
        mn_tensor *mixed = mn_dot(half, brain);
        ck_assert_int_eq(mn_tensor_dtype(mixed), MN_F32);
        ck_assert_double_eq(mn_check_at(mixed, 0), 12);
        ck_assert_int_eq(mn_tensor_dtype(mn_dot(half, half)), MN_F16);
        ck_assert_int_eq(mn_tensor_dtype(mn_dot(half, full)), MN_F32);
        mn_autocast_end(ctx);
    }
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_overrides)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = matrix(ctx, MN_F32), *half = matrix(ctx, MN_F16);
    char text[100];
    ck_assert_int_eq(mn_autocast_set_rule(ctx, "relu", MN_CAST_FP32), MN_OK);
    ck_assert_int_eq(mn_autocast_set_rule(ctx, "matmul", MN_CAST_KEEP), MN_OK);
    ck_assert_int_eq(mn_autocast_rules_text(ctx, text, sizeof text), MN_OK);
    ck_assert_str_eq(text, "relu=FP32,matmul=KEEP");
    mn_autocast_begin(ctx, MN_F16);
    ck_assert_int_eq(mn_tensor_dtype(mn_relu(half)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, x)), MN_F32);
    mn_autocast_set_rule(ctx, "matmul", MN_CAST_REFUSE);
    ck_assert_ptr_null(mn_matmul(x, x));
    mn_check_expect(ctx, MN_ERR_UNSUPPORTED, "matmul is unsafe inside an autocast region");
    mn_autocast_reset_rules(ctx);
    ck_assert_int_eq(mn_tensor_dtype(mn_matmul(x, x)), MN_F16);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_autocast_set_rules(ctx, "linear=FP32,sum=KEEP"), MN_OK);
    mn_autocast_rules_text(ctx, text, sizeof text);
    ck_assert_str_eq(text, "linear=FP32,sum=KEEP");
    mn_autocast_set_rules(ctx, "linear=LOWER,sum=SLOW");
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "sum=SLOW");
    mn_autocast_set_rules(ctx, "line=LOWER");
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "line=LOWER");
    mn_autocast_rules_text(ctx, text, sizeof text); /* unchanged */
    ck_assert_str_eq(text, "linear=FP32,sum=KEEP");
    mn_autocast_rules_text(ctx, text, 12);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "12 bytes");
    mn_autocast_set_rule(ctx, "nothing", MN_CAST_KEEP);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "\"nothing\"");
    mn_check_done(ctx);
}
END_TEST

/* What an op writes in place is never replaced by a cast. */
START_TEST(test_mutated_inputs)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *inputs[2] = {matrix(ctx, MN_F32), matrix(ctx, MN_F32)};
    const mn_blend_attributes sum = {1, 1};
    mn_autocast_set_rule(ctx, "blend", MN_CAST_LOWER);
    mn_autocast_begin(ctx, MN_BF16);
    ck_assert_int_eq(mn_apply(ctx, &mn_ops[MN_OP_blend], inputs, 2, &sum, NULL), MN_OK);
    mn_autocast_end(ctx);
    ck_assert_double_eq(mn_check_at(inputs[0], 3), 8);
    mn_check_done(ctx);
}
END_TEST

/* ---- regions --------------------------------------------------------------------------------- */

START_TEST(test_r35_regions)
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

/* ---- shadows --------------------------------------------------------------------------------- */

/* One cast per version of a parameter, one node per use. */
START_TEST(test_shadow_is_shared)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx), *x = matrix(ctx, MN_F32);
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *y = mn_matmul(x, w);
    mn_storage *shadow = w->leaf->shadow[0].storage;
    ck_assert_ptr_nonnull(shadow);
    mn_tensor *z = mn_matmul(x, w);
    ck_assert_ptr_eq(w->leaf->shadow[0].storage, shadow);
    ck_assert_ptr_null(w->leaf->shadow[1].storage);
    mn_autocast_end(ctx);
    /* Each use's gradient is 4 * 16000 < 65504 in f16; their sum is made in f32. */
    ck_assert_int_eq(mn_backward(mn_add(mn_check_total(y), mn_check_total(z)), 16000), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(w), 0), 2 * 4 * 16000.0);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

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

START_TEST(test_r32_no_grad_first)
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
START_TEST(test_r33_no_stale_weights)
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

/* R38: backward runs in the dtypes of the forward pass, whatever region it is called in. */
START_TEST(test_r38_backward_in_other_region)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx), *v = weight(ctx);
    float outside[4], inside[4];
    for (int i = 0; i < 2; i++) {
        mn_autocast_begin(ctx, MN_BF16);
        mn_tensor *loss = mn_check_total(mn_matmul(matrix(ctx, MN_F32), i ? v : w));
        mn_autocast_end(ctx);
        if (i)
            mn_autocast_begin(ctx, MN_F16);
        ck_assert_int_eq(mn_backward(loss, 1e5), MN_OK); /* f16 could not hold it */
        if (i)
            mn_autocast_end(ctx);
    }
    mn_tensor_read(mn_grad(w), outside, sizeof outside);
    mn_tensor_read(mn_grad(v), inside, sizeof inside);
    ck_assert_mem_eq(outside, inside, sizeof inside);
    ck_assert(isfinite(outside[0]));
    mn_release(w);
    mn_release(v);
    mn_check_done(ctx);
}
END_TEST

/* Casts of R53's kind, through the op. */
START_TEST(test_r53_casts)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const float in[8] = {65519.996f, 65520, 0x1p-25f, 0x1.000002p-25f, 2049, 2051, NAN, -1e9f};
    const uint16_t half[8] = {0x7bff, 0x7c00, 0, 1, 0x6800, 0x6802, 0x7e00, 0xfc00};
    const float wide[4] = {257, 259, 0.2691408770292272f, INFINITY};
    const uint16_t brain[4] = {0x4380, 0x4382, 0x3e8a, 0x7f80};
    const int64_t counts[2] = {8, 4};
    uint16_t out[8];
    mn_tensor *y = mn_cast(mn_tensor_from(ctx, MN_F32, 1, &counts[0], in), MN_F16);
    mn_tensor_read(y, out, sizeof half);
    ck_assert_int_eq(out[6] & 0x7c00, 0x7c00);
    ck_assert_int_ne(out[6] & 0x3ff, 0);
    out[6] = half[6];
    ck_assert_mem_eq(out, half, sizeof half);
    y = mn_cast(mn_tensor_from(ctx, MN_F32, 1, &counts[1], wide), MN_BF16);
    mn_tensor_read(y, out, sizeof brain);
    ck_assert_mem_eq(out, brain, sizeof brain);
    mn_check_done(ctx);
}
END_TEST

/* ---- whole steps ----------------------------------------------------------------------------- */

typedef struct trainer {
    mn_context *ctx;
    mn_tensor *p[4];
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
    mn_tensor *x, *labels;
} trainer;

static void trainer_free(trainer *t)
{
    mn_grad_scaler_free(t->scaler);
    mn_optimizer_free(t->sgd);
    for (int i = 0; i < 4; i++)
        mn_release(t->p[i]);
    mn_release(t->x);
    mn_release(t->labels);
}

static mn_tensor *random_tensor(mn_context *ctx, mn_tensor *tensor, int seed)
{
    double data[128];
    int64_t count = mn_tensor_numel(tensor);
    (void)ctx;
    for (int64_t i = 0; i < count; i++)
        data[i] = 0.5 * sin((double)(i + 1) * 1.7 + seed);
    mn_tensor_write_f64(tensor, data, count);
    return tensor;
}

static bool trainer_make(trainer *t, mn_context *ctx)
{
    static const int64_t shapes[4][2] = {{7, 5}, {7}, {3, 7}, {3}};
    static const int ndims[4] = {2, 1, 2, 1};
    static const int64_t input[2] = {6, 5}, rows = 6, labels[6] = {0, 2, 1, 1, 0, 2};
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.5;
    options.momentum = 0.9;
    *t = (trainer){.ctx = ctx};
    for (int i = 0; i < 4; i++) {
        char name[3] = {'p', (char)('0' + i), 0};
        t->p[i] = mn_parameter_create(ctx, name, MN_F32, ndims[i], shapes[i], MN_LAYOUT_PLAIN);
        random_tensor(ctx, t->p[i], i);
    }
    t->sgd = mn_sgd_create(ctx, t->p, 4, &options);
    t->scaler = mn_grad_scaler_create(ctx, NULL);
    mn_scope scope = mn_scope_begin(ctx);
    t->x = random_tensor(ctx, mn_retain(mn_tensor_create(ctx, MN_F32, 2, input)), 9);
    t->labels = mn_retain(mn_tensor_from(ctx, MN_I64, 1, &rows, labels));
    mn_scope_end(ctx, scope);
    return mn_ok(ctx);
}

static mn_status train_step(trainer *t, mn_dtype dtype, double *loss_value)
{
    mn_scope scope = mn_scope_begin(t->ctx);
    mn_autocast_begin(t->ctx, dtype);
    mn_tensor *hidden = mn_relu(mn_linear(t->x, t->p[0], t->p[1]));
    mn_tensor *loss = mn_cross_entropy(mn_linear(hidden, t->p[2], t->p[3]), t->labels, NULL);
    mn_autocast_end(t->ctx);
    mn_grad_scaler_backward(t->scaler, loss, 1);
    mn_grad_scaler_unscale(t->scaler, t->sgd);
    mn_clip_grad_norm(t->sgd, 1, NULL);
    mn_grad_scaler_step(t->scaler, t->sgd, NULL);
    mn_grad_scaler_update(t->scaler);
    mn_optimizer_zero_grad(t->sgd);
    if (loss_value)
        mn_tensor_item(loss, loss_value);
    mn_scope_end(t->ctx, scope);
    return mn_error_status(t->ctx);
}

/* No wait for the device in a step, no growth of memory, and it learns. */
START_TEST(test_steps)
{
    const mn_dtype dtypes[3] = {MN_F16, MN_BF16, MN_F32};
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    trainer t;
    double first = 0, last = 0;
    ck_assert(trainer_make(&t, ctx));
    const mn_dtype dtype = dtypes[_i / 2];
    train_step(&t, dtype, &first);
    train_step(&t, dtype, NULL);
    uint64_t live = mn_memory_stats_get(ctx).live_bytes, waits = ctx->device->synchronizations;
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(train_step(&t, dtype, NULL), MN_OK);
        ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
    }
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    train_step(&t, dtype, &last);
    ck_assert_double_lt(last, 0.3 * first);
    trainer_free(&t);
    mn_check_done(ctx);
}
END_TEST

/* The k-th request for memory fails: an error or success, no leak, and afterwards it works. */
START_TEST(test_memory_exhaustion)
{
    bool succeeded = false;
    for (long k = 1; k < 5000 && !succeeded; k++) {
        mn_test_counter counter = {.fail_at = 0};
        mn_context_options options = mn_context_options_default();
        options.threads = 1;
        options.allocator = mn_test_counting(&counter);
        mn_context *ctx = mn_context_create(&options, NULL);
        trainer t;
        double loss = (double)NAN;
        counter.fail_at = counter.calls + k;
        if (trainer_make(&t, ctx))
            train_step(&t, MN_F16, NULL);
        ck_assert_msg(mn_ok(ctx) || mn_error_status(ctx) == MN_ERR_MEMORY, "%ld: %s", k,
                      mn_error_message(ctx));
        succeeded = counter.calls < counter.fail_at;
        counter.fail_at = 0;
        trainer_free(&t);
        mn_error_clear(ctx);
        ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F32);
        ck_assert(trainer_make(&t, ctx));
        ck_assert_int_eq(train_step(&t, MN_F16, &loss), MN_OK);
        ck_assert(isfinite(loss));
        trainer_free(&t);
        mn_context_free(ctx);
        ck_assert_int_eq(counter.blocks, 0);
    }
    ck_assert(succeeded);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("autocast");
    TCase *tc = tcase_create("autocast");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_rules, 0, 2);
    tcase_add_test(tc, test_r39_promotion);
    tcase_add_test(tc, test_overrides);
    tcase_add_loop_test(tc, test_mutated_inputs, 0, 2);
    tcase_add_test(tc, test_r35_regions);
    tcase_add_loop_test(tc, test_shadow_is_shared, 0, 2);
    tcase_add_loop_test(tc, test_r32_no_grad_first, 0, 2);
    tcase_add_test(tc, test_r33_no_stale_weights);
    tcase_add_loop_test(tc, test_r38_backward_in_other_region, 0, 2);
    tcase_add_loop_test(tc, test_r53_casts, 0, 2);
    tcase_add_loop_test(tc, test_steps, 0, 6);
    tcase_add_test(tc, test_memory_exhaustion);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
