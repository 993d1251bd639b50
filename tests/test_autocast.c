/* Autocast: regions, rules, casts on shadows of parameters, and whole training steps in half
 * precision. The numbered cases of it are in test_amp_cases_autocast.c. */
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
    mn_autocast_set_rules(ctx, "relu=FP32_OUT");
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "relu has no f32 result");
    mn_autocast_set_rule(ctx, "sum", (mn_cast_rule)6);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "no rule 6");
    mn_autocast_set_rule(ctx, "nothing", MN_CAST_KEEP);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "\"nothing\"");
    mn_check_done(ctx);
}
END_TEST

/* What an op writes in place is never replaced by a cast, nor what else an in-place op reads. */
START_TEST(test_mutated_inputs)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *inputs[2] = {matrix(ctx, MN_F32), matrix(ctx, MN_F32)};
    const mn_blend_attributes sum = {1, 1};
    mn_autocast_set_rule(ctx, "blend", MN_CAST_LOWER);
    mn_tensor_write_f64(inputs[1], (const double[]){1, 2, 3, 4.0009765625}, 4);
    mn_autocast_begin(ctx, MN_BF16);
    ck_assert_int_eq(mn_apply(ctx, &mn_ops[MN_OP_blend], inputs, 2, &sum, NULL), MN_OK);
    mn_autocast_end(ctx);
    ck_assert_double_eq(mn_check_at(inputs[0], 3), 8.0009765625);
    mn_check_done(ctx);
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
    tcase_add_test(tc, test_overrides);
    tcase_add_loop_test(tc, test_mutated_inputs, 0, 2);
    tcase_add_loop_test(tc, test_shadow_is_shared, 0, 2);
    tcase_add_loop_test(tc, test_steps, 0, 6);
    tcase_add_test(tc, test_memory_exhaustion);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
