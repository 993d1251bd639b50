/* Optimizers: SGD against loops by hand, schedules, clipping, shadows, state, refusals. */
#include "optim/optim.h"
#include "core/state_dict.h"
#include "tests/support_training.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static mn_tensor *parameter(mn_context *ctx, const char *name, mn_dtype dtype, int64_t count,
                            const double *values)
{
    mn_tensor *p = mn_parameter_create(ctx, name, dtype, 1, &count, MN_LAYOUT_PLAIN);
    ck_assert_int_eq(mn_tensor_write_f64(p, values, count), MN_OK);
    return p;
}

/* Makes the parameter's gradient equal to values. */
static void give_gradient(mn_tensor *p, const double *values)
{
    mn_context *ctx = mn_tensor_context(p);
    mn_scope scope = mn_scope_begin(ctx);
    int64_t count = mn_tensor_numel(p);
    mn_tensor *g = mn_tensor_create(ctx, mn_tensor_dtype(p), 1, &count);
    mn_tensor_write_f64(g, values, count);
    ck_assert_int_eq(mn_backward(mn_sum(mn_mul(p, g), 0, NULL, false), 1), MN_OK);
    mn_scope_end(ctx, scope);
}

static const double start[3] = {0.5, -1.25, 2};

static double gradient_at(int step, int i)
{
    return sin(0.7 * step + 1.3 * i) * (1 + i);
}

/* ---- SGD ------------------------------------------------------------------------------------- */

typedef struct sgd_case {
    double lr, momentum, weight_decay;
    bool nesterov;
} sgd_case;

static const sgd_case sgd_cases[] = {
    {0.1, 0, 0, false},       {0.1, 0.9, 0, false},   {0.05, 0, 0.01, false},
    {0.05, 0.9, 5e-4, false}, {0.05, 0.9, 0.1, true}, {0, 0.5, 0.1, true},
};
#define SGD_CASES ((int)(sizeof sgd_cases / sizeof sgd_cases[0]))

static void step_by_hand(const sgd_case *c, int step, double p[3], double v[3])
{
    for (int i = 0; i < 3; i++) {
        double g = gradient_at(step, i) + c->weight_decay * p[i];
        v[i] = step == 0 ? g : c->momentum * v[i] + g;
        double along = c->momentum == 0 ? g : c->nesterov ? g + c->momentum * v[i] : v[i];
        p[i] -= c->lr * along;
    }
}

static void run_sgd(const sgd_case *c, const char *device, mn_dtype dtype, double tolerance)
{
    mn_context *ctx = mn_check_context(device);
    mn_tensor *p = parameter(ctx, "p", dtype, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = c->lr;
    options.momentum = c->momentum;
    options.weight_decay = c->weight_decay;
    options.nesterov = c->nesterov;
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    double hand[3], v[3] = {0}, g[3];
    memcpy(hand, start, sizeof hand);
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < 3; i++)
            g[i] = gradient_at(step, i);
        give_gradient(p, g);
        uint64_t waits = ctx->device->synchronizations;
        ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
        ck_assert_int_eq(mn_optimizer_zero_grad(sgd), MN_OK);
        ck_assert_uint_eq(ctx->device->synchronizations, waits);
        step_by_hand(c, step, hand, v);
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq_tol(mn_check_at(p, i), hand[i], tolerance);
    }
    mn_optimizer_stats stats;
    ck_assert_int_eq(mn_optimizer_stats_get(sgd, &stats), MN_OK);
    ck_assert_int_eq(stats.applied, 20);
    ck_assert_int_eq(stats.skipped, 0);
    ck_assert_double_eq(stats.lr, c->lr);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}

START_TEST(test_sgd)
{
    const sgd_case *c = &sgd_cases[_i % SGD_CASES];
    const char *device = mn_check_devices[_i / SGD_CASES];
    run_sgd(c, device, MN_F64, 1e-14);
    run_sgd(c, device, MN_F32, 2e-5);
}
END_TEST

/* Parameters without a gradient are left alone, whatever their momentum or weight decay. */
START_TEST(test_partial)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = parameter(ctx, "p", MN_F32, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.momentum = 0.9;
    options.weight_decay = 0.1;
    mn_optimizer *sgd = mn_sgd_create(ctx, p, 3, &options);
    give_gradient(p[1], start);
    uint64_t version = mn_tensor_version(p[0]);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    ck_assert_double_eq(mn_check_at(p[0], 1), start[1]);
    ck_assert_double_eq(mn_check_at(p[2], 2), start[2]);
    ck_assert_double_ne(mn_check_at(p[1], 1), start[1]);
    ck_assert_uint_eq(mn_tensor_version(p[0]), version);
    mn_optimizer_zero_grad(sgd);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_ERR_NO_GRADIENT);
    mn_check_expect(ctx, MN_ERR_NO_GRADIENT,
                    "0 of 3 parameters have a gradient: is the loss connected");
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(sgd, &stats);
    ck_assert_int_eq(stats.applied, 1);
    mn_optimizer_free(sgd);
    for (int i = 0; i < 3; i++)
        mn_release(p[i]);
    mn_check_done(ctx);
}
END_TEST

/* The optimizer keeps its parameters alive. */
START_TEST(test_ownership)
{
    mn_context *ctx = mn_check_context("cpu");
    uint64_t before = mn_memory_stats_get(ctx).live_bytes;
    mn_tensor *p = parameter(ctx, "p", MN_F32, 3, start);
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, NULL);
    give_gradient(p, start);
    mn_release(p);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    mn_optimizer_free(sgd);
    mn_optimizer_free(NULL);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, before);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_cosine)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p = parameter(ctx, "p", MN_F64, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.3;
    options.schedule = (mn_schedule){.kind = MN_SCHEDULE_COSINE, .total_steps = 10};
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    const double ones[3] = {1, 1, 1};
    double hand = start[0], pi = acos(-1.0);
    for (int t = 0; t < 13; t++) {
        double lr = 0.3 * (1 + cos(pi * fmin(t, 10) / 10)) / 2;
        mn_optimizer_stats stats;
        ck_assert_int_eq(mn_optimizer_stats_get(sgd, &stats), MN_OK);
        ck_assert_double_eq_tol(stats.lr, lr, 1e-15);
        give_gradient(p, ones);
        mn_optimizer_step(sgd);
        mn_optimizer_zero_grad(sgd);
        hand -= lr;
        ck_assert_double_eq_tol(mn_check_at(p, 0), hand, 1e-13);
    }
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* Without zero_grad gradients add up, as in PyTorch. */
START_TEST(test_without_zero_grad)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = parameter(ctx, "p", MN_F64, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 1;
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    const double ones[3] = {1, 1, 1};
    give_gradient(p, ones);
    mn_optimizer_step(sgd);
    give_gradient(p, ones);
    mn_optimizer_step(sgd);
    ck_assert_double_eq(mn_check_at(p, 0), start[0] - 3);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

START_TEST(test_clip_norm)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const double three[1] = {3}, four[1] = {4};
    mn_tensor *p[2] = {parameter(ctx, "a", MN_F32, 1, start),
                       parameter(ctx, "b", MN_F32, 1, start)};
    mn_optimizer *sgd = mn_sgd_create(ctx, p, 2, NULL);
    double norm = 0;
    for (int i = 0; i < 2; i++) {
        give_gradient(p[0], three);
        give_gradient(p[1], four);
        ck_assert_int_eq(mn_clip_grad_norm(sgd, (double)INFINITY, &norm), MN_OK);
        ck_assert_double_eq_tol(norm, 5, 1e-12);
        ck_assert_double_eq(mn_check_at(mn_grad(p[0]), 0), 3);
        uint64_t waits = ctx->device->synchronizations;
        ck_assert_int_eq(mn_clip_grad_norm(sgd, 1, NULL), MN_OK);
        ck_assert_uint_eq(ctx->device->synchronizations, waits);
        ck_assert_double_eq_tol(mn_check_at(mn_grad(p[0]), 0), 0.59999988, 6e-8);
        ck_assert_double_eq_tol(mn_check_at(mn_grad(p[1]), 0), 0.79999984, 6e-8);
        mn_optimizer_stats stats;
        mn_optimizer_stats_get(sgd, &stats);
        ck_assert_double_eq_tol(stats.grad_norm, 5, 1e-12);
        mn_optimizer_zero_grad(sgd);
    }
    mn_clip_grad_norm(sgd, 1, NULL);
    mn_check_expect(ctx, MN_ERR_NO_GRADIENT, "0 of 2");
    give_gradient(p[0], three); /* a norm below the limit changes nothing */
    mn_clip_grad_norm(sgd, 3.5, &norm);
    ck_assert_double_eq(mn_check_at(mn_grad(p[0]), 0), 3);
    for (int i = 0; i < 2; i++) {
        mn_clip_grad_norm(sgd, i ? (double)NAN : 0, NULL);
        mn_check_expect(ctx, MN_ERR_ARGUMENT, "max_norm");
    }
    mn_optimizer_free(sgd);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_check_done(ctx);
}
END_TEST

/* A norm that is not finite is counted; without a scaler the step is applied all the same. */
START_TEST(test_nonfinite_norm)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    const double bad[3] = {1, (double)INFINITY, 1};
    mn_tensor *p = parameter(ctx, "p", MN_F32, 3, start);
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, NULL);
    mn_optimizer_stats stats;
    give_gradient(p, bad);
    mn_clip_grad_norm(sgd, (double)INFINITY, NULL);
    mn_optimizer_step(sgd);
    mn_optimizer_stats_get(sgd, &stats);
    ck_assert_int_eq(stats.applied, 1);
    ck_assert_int_eq(stats.nonfinite, 1);
    ck_assert(isinf(stats.grad_norm));
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- shadows --------------------------------------------------------------------------------- */

/* Gives p a shadow of the given kind, as autocast would have. */
static mn_storage *give_shadow(mn_tensor *p, int kind)
{
    mn_cast_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.dtype = kind == 0 ? MN_F16 : MN_BF16;
    mn_scope scope = mn_scope_begin(p->context);
    mn_tensor *cast = mn_dispatch1(p->context, MN_OP_cast, &p, 1, &attributes);
    cast->storage->references++;
    p->leaf->shadow[kind] = (mn_shadow){cast->storage, p->storage->version};
    mn_scope_end(p->context, scope);
    return p->leaf->shadow[kind].storage;
}

static void check_shadow(mn_tensor *p, int kind)
{
    mn_shadow *shadow = &p->leaf->shadow[kind];
    mn_tensor *view = mn_tensor_view(shadow->storage, 0, kind == 0 ? MN_F16 : MN_BF16, 1, p->shape);
    ck_assert_uint_eq(shadow->version, p->storage->version);
    for (int i = 0; i < 3; i++) {
        float exact = (float)mn_check_at(p, i);
        float low = kind == 0 ? mn_f16_to_f32(mn_f16_from_f32(exact))
                              : mn_bf16_to_f32(mn_bf16_from_f32(exact));
        ck_assert_double_eq(mn_check_at(view, i), (double)low);
    }
}

START_TEST(test_shadows)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p = parameter(ctx, "p", MN_F32, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.37;
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    mn_storage *low = give_shadow(p, 1);
    give_gradient(p, start);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    ck_assert_ptr_eq(p->leaf->shadow[1].storage, low); /* rewritten in place */
    ck_assert_ptr_null(p->leaf->shadow[0].storage);
    mn_scope scope = mn_scope_begin(ctx);
    check_shadow(p, 1);
    mn_scope_end(ctx, scope);
    /* The second is held by somebody, who keeps the old values. */
    mn_storage *half = give_shadow(p, 0);
    scope = mn_scope_begin(ctx);
    mn_tensor *holder = mn_tensor_view(half, 0, MN_F16, 1, p->shape);
    double before = mn_check_at(holder, 1);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
    ck_assert_ptr_ne(p->leaf->shadow[0].storage, half);
    ck_assert_double_eq(mn_check_at(holder, 1), before);
    check_shadow(p, 0);
    check_shadow(p, 1);
    mn_scope_end(ctx, scope);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuse_options(mn_context *ctx, mn_tensor *p, mn_sgd_options options, const char *text)
{
    ck_assert_ptr_null(mn_sgd_create(ctx, &p, 1, &options));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, text);
}

START_TEST(test_options)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = parameter(ctx, "p", MN_F32, 3, start);
    const double bad_lr[3] = {-1, (double)NAN, (double)INFINITY},
                 bad_momentum[3] = {-0.1, 1, (double)NAN};
    mn_sgd_options o = mn_sgd_options_default();
    for (int i = 0; i < 3; i++) {
        o.lr = bad_lr[i];
        refuse_options(ctx, p, o, "lr");
        o = mn_sgd_options_default();
        o.weight_decay = bad_lr[i];
        refuse_options(ctx, p, o, "weight_decay");
        o = mn_sgd_options_default();
        o.momentum = bad_momentum[i];
        refuse_options(ctx, p, o, "momentum");
        o = mn_sgd_options_default();
    }
    o.nesterov = true;
    refuse_options(ctx, p, o, "nesterov");
    o = mn_sgd_options_default();
    o.schedule.kind = MN_SCHEDULE_COSINE;
    refuse_options(ctx, p, o, "total_steps");
    o.schedule.kind = (mn_schedule_kind)7;
    refuse_options(ctx, p, o, "schedule");
    o = mn_sgd_options_default();
    o.size = 1;
    refuse_options(ctx, p, o, "size");
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_parameters)
{
    mn_context *ctx = mn_check_context("cpu"), *other = mn_check_context("cpu");
    mn_tensor *p = parameter(ctx, "p", MN_F32, 3, start);
    mn_tensor *twice[2] = {p, p}, *none[2] = {p, NULL};
    mn_tensor *integer = mn_full(ctx, MN_I64, 0, NULL, 1), *result = mn_mul(p, p);
    ck_assert_ptr_null(mn_sgd_create(ctx, twice, 2, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "parameters 0 and 1 are the same (p)");
    ck_assert_ptr_null(mn_sgd_create(ctx, none, 2, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "parameter 1 is NULL");
    ck_assert_ptr_null(mn_sgd_create(ctx, &integer, 1, NULL));
    mn_check_expect(ctx, MN_ERR_DTYPE, "i64");
    ck_assert_ptr_null(mn_sgd_create(ctx, &result, 1, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "not a leaf");
    ck_assert_ptr_null(mn_sgd_create(ctx, &p, 0, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "no parameters");
    ck_assert_ptr_null(mn_sgd_create(other, &p, 1, NULL));
    mn_check_expect(other, MN_ERR_ARGUMENT, "another context");
    ck_assert_int_eq(mn_optimizer_step(NULL), MN_ERR_ARGUMENT);
    mn_release(p);
    mn_check_done(ctx);
    mn_check_done(other);
}
END_TEST

START_TEST(test_scaled_gradients)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = parameter(ctx, "conv.weight", MN_F32, 3, start);
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, NULL);
    mn_tensor *loss = mn_sum(p, 0, NULL, false);
    mn_backward_from(loss, mn_full(ctx, MN_F32, 0, NULL, 1024), MN_GRAD_SCALED);
    ck_assert_int_eq(mn_optimizer_step(sgd), MN_ERR_STATE);
    mn_check_expect(ctx, MN_ERR_STATE, "gradients are still scaled: step through the grad scaler");
    mn_clip_grad_norm(sgd, 1, NULL);
    mn_check_expect(ctx, MN_ERR_STATE, "mn_grad_scaler_unscale");
    ck_assert_double_eq(mn_check_at(p, 0), start[0]);
    ck_assert_double_eq(mn_check_at(mn_grad(p), 0), 1024);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- state ----------------------------------------------------------------------------------- */

typedef struct run {
    mn_context *ctx;
    mn_tensor *p;
    mn_optimizer *sgd;
} run;

static run run_open(const char *device)
{
    run r = {.ctx = mn_check_context(device)};
    r.p = parameter(r.ctx, "fc.weight", MN_F32, 3, start);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.2;
    options.momentum = 0.9;
    options.weight_decay = 0.01;
    options.schedule = (mn_schedule){.kind = MN_SCHEDULE_COSINE, .total_steps = 9};
    r.sgd = mn_sgd_create(r.ctx, &r.p, 1, &options);
    return r;
}

static void run_steps(run *r, int from, int to)
{
    for (int step = from; step < to; step++) {
        double g[3];
        for (int i = 0; i < 3; i++)
            g[i] = gradient_at(step, i);
        give_gradient(r->p, g);
        ck_assert_int_eq(mn_optimizer_step(r->sgd), MN_OK);
        mn_optimizer_zero_grad(r->sgd);
    }
}

static void run_close(run *r)
{
    mn_optimizer_free(r->sgd);
    mn_release(r->p);
    mn_check_done(r->ctx);
}

/* Four steps, save, load elsewhere, four more: the same bits as eight, learning rate included. */
START_TEST(test_resume)
{
    run whole = run_open(mn_check_devices[_i]), first = run_open(mn_check_devices[_i]),
        second = run_open(mn_check_devices[_i]);
    run_steps(&whole, 0, 8);
    run_steps(&first, 0, 4);
    mn_state_dict *saved = mn_state_dict_create(first.ctx);
    ck_assert_int_eq(mn_optimizer_save_state(first.sgd, saved), MN_OK);
    mn_state_entry entry;
    ck_assert(mn_state_dict_find(saved, "optimizer.fc.weight.momentum_buffer", &entry));
    ck_assert(mn_state_dict_find(saved, "optimizer.applied", &entry));
    ck_assert_int_eq(*(const int64_t *)entry.data, 4);
    mn_state_dict *dict = mn_state_dict_create(second.ctx);
    for (int64_t i = 0; mn_state_dict_entry(saved, i, &entry); i++)
        mn_state_dict_put(dict, &entry);
    float weights[3], resumed[3];
    mn_tensor_read(first.p, weights, sizeof weights);
    mn_tensor_write(second.p, weights, sizeof weights);
    ck_assert_int_eq(mn_optimizer_load(second.sgd, dict, false), MN_OK);
    mn_optimizer_stats before, after;
    mn_optimizer_stats_get(second.sgd, &before);
    ck_assert_int_eq(before.applied, 0); /* the dry run has changed nothing */
    ck_assert_int_eq(mn_optimizer_load_state(second.sgd, dict), MN_OK);
    mn_optimizer_stats_get(first.sgd, &before);
    mn_optimizer_stats_get(second.sgd, &after);
    ck_assert_int_eq(after.applied, 4);
    ck_assert_double_eq(after.lr, before.lr);
    run_steps(&second, 4, 8);
    mn_tensor_read(whole.p, weights, sizeof weights);
    mn_tensor_read(second.p, resumed, sizeof resumed);
    ck_assert_mem_eq(weights, resumed, sizeof weights);
    mn_state_dict_free(saved);
    mn_state_dict_free(dict);
    run_close(&whole);
    run_close(&first);
    run_close(&second);
}
END_TEST

START_TEST(test_load_refusals)
{
    run r = run_open("cpu");
    run_steps(&r, 0, 2);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    mn_state_dict_put_i64(dict, "optimizer.applied", 7);
    mn_state_dict_put_i64(dict, "optimizer.skipped", 1);
    mn_optimizer_load_state(r.sgd, dict);
    mn_check_expect(r.ctx, MN_ERR_MISMATCH, "optimizer.nonfinite");
    mn_state_dict_put_i64(dict, "optimizer.nonfinite", 1);
    mn_optimizer_load_state(r.sgd, dict);
    mn_check_expect(r.ctx, MN_ERR_MISMATCH, "optimizer.fc.weight.momentum_buffer");
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(r.sgd, &stats);
    ck_assert_int_eq(stats.applied, 2);
    ck_assert_int_eq(mn_optimizer_load_state(r.sgd, NULL), MN_ERR_ARGUMENT);
    mn_error_clear(r.ctx);
    mn_state_dict_free(dict);
    run_close(&r);
}
END_TEST

/* ---- memory exhaustion ----------------------------------------------------------------------- */

static void try_run(mn_context *ctx)
{
    int64_t count = 3;
    mn_sgd_options options = mn_sgd_options_default();
    options.momentum = 0.9;
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *p = mn_parameter_create(ctx, "p", MN_F32, 1, &count, MN_LAYOUT_PLAIN);
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    mn_backward(mn_sum(p, 0, NULL, false), 1);
    mn_clip_grad_norm(sgd, 1, NULL);
    mn_optimizer_step(sgd);
    mn_optimizer_zero_grad(sgd);
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_scope_end(ctx, scope);
}

START_TEST(test_memory_exhaustion)
{
    mn_test_exhaust(try_run);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("optim");
    TCase *tc = tcase_create("optim");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_sgd, 0, 2 * SGD_CASES);
    tcase_add_loop_test(tc, test_partial, 0, 2);
    tcase_add_test(tc, test_ownership);
    tcase_add_loop_test(tc, test_cosine, 0, 2);
    tcase_add_test(tc, test_without_zero_grad);
    tcase_add_loop_test(tc, test_clip_norm, 0, 2);
    tcase_add_loop_test(tc, test_nonfinite_norm, 0, 2);
    tcase_add_loop_test(tc, test_shadows, 0, 2);
    tcase_add_test(tc, test_options);
    tcase_add_test(tc, test_parameters);
    tcase_add_test(tc, test_scaled_gradients);
    tcase_add_loop_test(tc, test_resume, 0, 2);
    tcase_add_test(tc, test_load_refusals);
    tcase_add_test(tc, test_memory_exhaustion);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
