/* Adam, AdamW and RMSprop against loops by hand; groups and schedules; saving, loading and refusals
 * of all that; training with each. */
#include "optim/optim.h"
#include "core/state_dict.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <string.h>

static void step_once(mn_optimizer *optimizer, mn_tensor *p, int step)
{
    mn_check_give_gradient(p, step, NULL);
    ck_assert_int_eq(mn_optimizer_step(optimizer), MN_OK);
    ck_assert_int_eq(mn_optimizer_zero_grad(optimizer), MN_OK);
}

/* ---- trajectories ---------------------------------------------------------------------------- */

typedef enum kind { ADAM, ADAMW, RMSPROP } kind;

/* first, second: beta1 and beta2, or alpha and momentum. */
typedef struct recipe {
    kind kind;
    double lr, first, second, eps, weight_decay;
} recipe;

/* These six were compared with PyTorch 1.13's results as well. */
static const recipe recipes[] = {
    {ADAM, 0.1, 0.9, 0.999, 1e-8, 0},    {ADAM, 0.05, 0.8, 0.99, 1e-3, 0.1},
    {ADAMW, 0.1, 0.9, 0.999, 1e-8, 0.2}, {RMSPROP, 0.05, 0.99, 0, 1e-8, 0},
    {RMSPROP, 0.05, 0.9, 0, 1e-4, 0.1},  {RMSPROP, 0.02, 0.9, 0.8, 1e-8, 0.05},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static mn_optimizer *create(const recipe *r, mn_tensor *const *p, int count, mn_schedule schedule)
{
    mn_context *ctx = mn_tensor_context(p[0]);
    mn_adam_options adam = r->kind == ADAM ? mn_adam_options_default() : mn_adamw_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    adam.lr = rmsprop.lr = r->lr;
    adam.eps = rmsprop.eps = r->eps;
    adam.weight_decay = rmsprop.weight_decay = r->weight_decay;
    adam.schedule = rmsprop.schedule = schedule;
    adam.beta1 = rmsprop.alpha = r->first;
    adam.beta2 = rmsprop.momentum = r->second;
    return r->kind == RMSPROP ? mn_rmsprop_create(ctx, p, count, &rmsprop)
                              : mn_adam_create(ctx, p, count, &adam);
}

typedef struct state {
    double p[3], a[3], b[3];
} state;

static double adam_by_hand(const recipe *r, int t, double g, double *a, double *b)
{
    *a += (1 - r->first) * (g - *a);
    *b = r->second * *b + (1 - r->second) * g * g;
    const double root = sqrt(*b) / sqrt(1 - pow(r->second, t));
    return r->lr / (1 - pow(r->first, t)) * *a / (root + r->eps);
}

static double rmsprop_by_hand(const recipe *r, double g, double *a, double *b)
{
    *a = r->first * *a + (1 - r->first) * g * g;
    *b = r->second * *b + g / (sqrt(*a) + r->eps);
    return r->lr * *b;
}

static void step_by_hand(const recipe *r, int step, int t, state *s)
{
    for (int i = 0; i < 3; i++) {
        double g =
            mn_check_gradient_at(step, i) + (r->kind == ADAMW ? 0 : r->weight_decay * s->p[i]);
        if (r->kind == ADAMW)
            s->p[i] *= 1 - r->lr * r->weight_decay;
        s->p[i] -= r->kind == RMSPROP ? rmsprop_by_hand(r, g, &s->a[i], &s->b[i])
                                      : adam_by_hand(r, t, g, &s->a[i], &s->b[i]);
    }
}

static void check_trajectory(const recipe *r, const char *device, mn_dtype dtype, double tolerance)
{
    mn_context *ctx = mn_check_context(device);
    mn_tensor *p = mn_check_leaf(ctx, "p", dtype);
    mn_optimizer *optimizer = create(r, &p, 1, (mn_schedule){.kind = MN_SCHEDULE_CONSTANT});
    state hand = {{mn_check_start[0], mn_check_start[1], mn_check_start[2]}, {0}, {0}};
    for (int step = 0; step < 20; step++) {
        uint64_t waits = ctx->device->synchronizations;
        mn_check_give_gradient(p, step, NULL);
        waits = ctx->device->synchronizations;
        ck_assert_int_eq(mn_optimizer_step(optimizer), MN_OK);
        ck_assert_int_eq(mn_optimizer_zero_grad(optimizer), MN_OK);
        ck_assert_uint_eq(ctx->device->synchronizations, waits);
        step_by_hand(r, step, step + 1, &hand);
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq_tol(mn_check_at(p, i), hand.p[i], tolerance);
    }
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}

START_TEST(test_trajectories)
{
    const recipe *r = &recipes[_i % RECIPES];
    const char *device = mn_check_devices[_i / RECIPES];
    check_trajectory(r, device, MN_F64, 1e-14);
    check_trajectory(r, device, MN_F32, 2e-5);
    check_trajectory(r, device, MN_BF16, 0.1); /* the state is f32 */
}
END_TEST

START_TEST(test_defaults)
{
    const mn_adam_options adam = mn_adam_options_default(), adamw = mn_adamw_options_default();
    const mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    ck_assert(adam.lr == 1e-3 && adam.beta1 == 0.9 && adam.beta2 == 0.999 && adam.eps == 1e-8 &&
              adam.weight_decay == 0 && !adam.decoupled);
    ck_assert(adamw.lr == 1e-3 && adamw.weight_decay == 1e-2 && adamw.decoupled);
    ck_assert(rmsprop.lr == 1e-2 && rmsprop.alpha == 0.99 && rmsprop.eps == 1e-8 &&
              rmsprop.momentum == 0 && rmsprop.weight_decay == 0);
    ck_assert(mn_ema_options_default().decay == 0.999);
}
END_TEST

/* A skipped step changes nothing, and does not count in Adam's t. */
START_TEST(test_skipped)
{
    const recipe *r = &recipes[_i % RECIPES];
    mn_context *ctx = mn_check_context(mn_check_devices[_i / RECIPES]);
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F64);
    mn_optimizer *optimizer = create(r, &p, 1, (mn_schedule){.kind = MN_SCHEDULE_CONSTANT});
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    state hand = {{mn_check_start[0], mn_check_start[1], mn_check_start[2]}, {0}, {0}};
    for (int step = 0, t = 1; step < 6; step++) {
        mn_step_outcome outcome;
        mn_check_give_gradient(p, step, scaler);
        if (step % 2)
            ck_assert_int_eq(mn_tensor_scale(mn_grad(p), (double)INFINITY, 0), MN_OK);
        ck_assert_int_eq(mn_grad_scaler_step(scaler, optimizer, &outcome), MN_OK);
        ck_assert_int_eq(outcome, step % 2 ? MN_STEP_SKIPPED : MN_STEP_APPLIED);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(optimizer);
        if (step % 2 == 0)
            step_by_hand(r, step, t++, &hand);
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq_tol(mn_check_at(p, i), hand.p[i], 1e-7); /* f32 1/scale */
    }
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- groups ---------------------------------------------------------------------------------- */

START_TEST(test_groups)
{
    const recipe *r = &recipes[2];
    const mn_schedule halves = {.kind = MN_SCHEDULE_STEP, .step_size = 1, .gamma = 0.5};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p[4];
    for (int i = 0; i < 4; i++)
        p[i] = mn_check_leaf(ctx, i == 3 ? "" : &"a\0b\0c"[2 * i], MN_F64);
    mn_optimizer *optimizer = create(r, p, 1, halves);
    mn_param_group_options group = mn_param_group_options_default();
    group.lr = 0.3;
    ck_assert_int_eq(mn_optimizer_add_group(optimizer, p + 1, 1, &group), MN_OK);
    group = mn_param_group_options_default();
    group.weight_decay = 0;
    ck_assert_int_eq(mn_optimizer_add_group(optimizer, p + 2, 2, &group), MN_OK);
    recipe used[4] = {*r, *r, *r, *r};
    used[1].lr = 0.3;
    used[2].weight_decay = used[3].weight_decay = 0;
    state hand[4];
    for (int i = 0; i < 4; i++)
        hand[i] = (state){{mn_check_start[0], mn_check_start[1], mn_check_start[2]}, {0}, {0}};
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 4; i++)
            mn_check_give_gradient(p[i], step, NULL);
        ck_assert_int_eq(mn_optimizer_step(optimizer), MN_OK);
        mn_optimizer_zero_grad(optimizer);
        for (int i = 0; i < 4; i++) {
            step_by_hand(&used[i], step, step + 1, &hand[i]);
            for (int k = 0; k < 3; k++)
                ck_assert_double_eq_tol(mn_check_at(p[i], k), hand[i].p[k], 1e-14);
            used[i].lr *= 0.5;
        }
        mn_optimizer_stats stats;
        mn_optimizer_stats_get(optimizer, &stats);
        ck_assert_double_eq_tol(stats.lr, used[0].lr, 1e-16);
        if (step == 0)
            ck_assert_int_eq(mn_optimizer_set_lr(optimizer, 2, 0.7), MN_OK);
        if (step == 0)
            used[2].lr = used[3].lr = 0.7 * 0.5;
    }
    ck_assert_int_eq(mn_optimizer_set_lr(optimizer, 0, 0.8), MN_OK);
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(optimizer, &stats);
    ck_assert_double_eq(stats.lr, 0.8 * 0.125);
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    ck_assert_int_eq(mn_optimizer_save_state(optimizer, dict), MN_OK);
    ck_assert(mn_state_dict_entry(dict, 3, &entry));
    ck_assert_str_eq(entry.name, "optimizer.b.exp_avg_sq");
    ck_assert(mn_state_dict_find(dict, "optimizer.3.exp_avg", &entry));
    mn_state_dict_free(dict);
    mn_optimizer_free(optimizer);
    for (int i = 0; i < 4; i++)
        mn_release(p[i]);
    mn_check_done(ctx);
}
END_TEST

static void refuse_group(mn_optimizer *optimizer, mn_tensor *p, const mn_param_group_options *group,
                         mn_status status, const char *text)
{
    ck_assert_int_eq(mn_optimizer_add_group(optimizer, &p, 1, group), status);
    mn_check_expect(optimizer->context, status, text);
    ck_assert_int_eq(optimizer->count, 3);
}

START_TEST(test_group_refusals)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p[4];
    for (int i = 0; i < 4; i++)
        p[i] = mn_check_leaf(ctx, &"abcd"[i], MN_F32);
    mn_optimizer *optimizer = mn_adam_create(ctx, p, 1, NULL);
    mn_param_group_options group = mn_param_group_options_default();
    ck_assert_int_eq(mn_optimizer_add_group(optimizer, p + 1, 2, NULL), MN_OK);
    refuse_group(optimizer, p[2], NULL, MN_ERR_ARGUMENT,
                 "parameter 0 (cd) of group 2 is in group 1 already");
    refuse_group(optimizer, NULL, NULL, MN_ERR_ARGUMENT, "parameter 0 is NULL");
    group.lr = -1;
    refuse_group(optimizer, p[3], &group, MN_ERR_ARGUMENT, "lr of a group is -1");
    group = mn_param_group_options_default();
    group.weight_decay = (double)INFINITY;
    refuse_group(optimizer, p[3], &group, MN_ERR_ARGUMENT, "weight_decay of a group is inf");
    mn_optimizer_set_lr(optimizer, 2, 1);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "no group 2 of 2");
    mn_optimizer_set_lr(optimizer, -1, 1);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "no group -1");
    mn_optimizer_set_lr(optimizer, 0, (double)NAN);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "lr of a group is nan");
    ck_assert_int_eq(mn_optimizer_add_group(NULL, p, 1, NULL), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_optimizer_set_lr(NULL, 0, 1), MN_ERR_ARGUMENT);
    step_once(optimizer, p[0], 0);
    refuse_group(optimizer, p[3], NULL, MN_ERR_STATE, "before the first step");
    mn_optimizer_free(optimizer);
    for (int i = 0; i < 4; i++)
        mn_release(p[i]);
    mn_check_done(ctx);
}
END_TEST

/* ---- schedules ------------------------------------------------------------------------------- */

typedef struct schedule_case {
    mn_schedule schedule;
    int count;
    double factors[11]; /* the last one stays */
} schedule_case;

#define HALF_ROOT_2 0.70710678118654752
/* PyTorch 1.13's OneCycleLR, divided by its maximum of 0.3, for 10 and 3 steps; the rest by hand:
 * cosines of multiples of 45 degrees. */
static const schedule_case schedule_cases[] = {
    {{.kind = MN_SCHEDULE_CONSTANT, .warmup_steps = 3}, 5, {0.25, 0.5, 0.75, 1, 1}},
    {{.kind = MN_SCHEDULE_COSINE, .total_steps = 6, .warmup_steps = 2},
     8,
     {1. / 3, 2. / 3, 1, 0.5 + HALF_ROOT_2 / 2, 0.5, 0.5 - HALF_ROOT_2 / 2, 0, 0}},
    {{.kind = MN_SCHEDULE_STEP, .step_size = 2}, 7, {1, 1, 0.1, 0.1, 0.01, 0.01, 0.001}},
    {{.kind = MN_SCHEDULE_STEP, .step_size = 3, .gamma = 0.5, .warmup_steps = 1},
     8,
     {0.5, 1, 1, 1, 0.5, 0.5, 0.5, 0.25}},
    {{.kind = MN_SCHEDULE_ONE_CYCLE, .total_steps = 10},
     11,
     {0.012000000000000011 / 0.3, 0.156 / 0.3, 1, 0.28514538960404212 / 0.3,
      0.24352369618492894 / 0.3, 0.18337860658088678 / 0.3, 0.11662259341911323 / 0.3,
      0.056477503815071092 / 0.3, 0.014855810395957887 / 0.3, 1.2e-06 / 0.3, 1.2e-06 / 0.3}},
    {{.kind = MN_SCHEDULE_ONE_CYCLE, .total_steps = 3},
     4,
     {0.29832463063527354 / 0.3, 0.13879113080009253 / 0.3, 1.2e-06 / 0.3, 1.2e-06 / 0.3}},
    {{.kind = MN_SCHEDULE_ONE_CYCLE, .total_steps = 1}, 2, {4e-6, 4e-6}},
};
enum { SCHEDULES = sizeof schedule_cases / sizeof *schedule_cases };

START_TEST(test_schedules)
{
    const schedule_case *c = &schedule_cases[_i / 2];
    mn_context *ctx = mn_check_context(mn_check_devices[_i % 2]);
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F64);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.3;
    options.schedule = c->schedule;
    mn_optimizer *sgd = mn_sgd_create(ctx, &p, 1, &options);
    ck_assert_msg(sgd != NULL, "%s", mn_error_message(ctx));
    double hand = mn_check_start[1];
    for (int t = 0; t < c->count; t++) {
        mn_optimizer_stats stats;
        ck_assert_int_eq(mn_optimizer_stats_get(sgd, &stats), MN_OK);
        ck_assert_double_eq_tol(stats.lr, 0.3 * c->factors[t], 1e-15);
        step_once(sgd, p, t);
        hand -= 0.3 * c->factors[t] * mn_check_gradient_at(t, 1);
        ck_assert_double_eq_tol(mn_check_at(p, 1), hand, 1e-14);
    }
    mn_optimizer_free(sgd);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_bad_schedules)
{
    static const struct {
        mn_schedule schedule;
        const char *text;
    } bad[] = {
        {{.kind = MN_SCHEDULE_STEP}, "step_size > 0, not 0"},
        {{.kind = MN_SCHEDULE_STEP, .step_size = 1, .gamma = -1}, "gamma of the schedule is -1"},
        {{.kind = MN_SCHEDULE_ONE_CYCLE}, "one-cycle schedule needs total_steps > 0, not 0"},
        {{.kind = MN_SCHEDULE_ONE_CYCLE, .total_steps = 9, .warmup_steps = 1}, "warms up itself"},
        {{.kind = MN_SCHEDULE_COSINE, .total_steps = 9, .warmup_steps = 9}, "> 9, not 9"},
        {{.warmup_steps = -1}, "warmup_steps is -1, must be at least 0"},
        {{.kind = (mn_schedule_kind)4}, "no schedule 4"},
        {{.kind = (mn_schedule_kind)-1}, "no schedule -1"},
    };
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_ptr_null(create(&recipes[0], &p, 1, bad[i].schedule));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, bad[i].text);
    }
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* Each member of the options out of its range, by its text. */
START_TEST(test_bad_options)
{
    static const struct {
        recipe recipe;
        const char *text;
    } bad[] = {
        {{ADAM, -1, 0.9, 0.9, 1, 0}, "adam: lr is -1"},
        {{ADAM, 1, 1, 0.9, 1, 0}, "adam: beta1 is 1"},
        {{ADAM, 1, 0.9, -0.1, 1, 0}, "adam: beta2 is -0.1"},
        {{ADAM, 1, 0.9, 0.9, -1, 0}, "adam: eps is -1"},
        {{ADAMW, 1, 0.9, 0.9, 1, -1}, "adam: weight_decay is -1"},
        {{RMSPROP, 1, 1, 0, 1, 0}, "rmsprop: alpha is 1"},
        {{RMSPROP, 1, 0.9, 1, 1, 0}, "rmsprop: momentum is 1"},
        {{RMSPROP, 1, 0.9, 0, (double)INFINITY, 0}, "rmsprop: eps is inf"},
    };
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_ptr_null(create(&bad[i].recipe, &p, 1, (mn_schedule){.kind = 0}));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, bad[i].text);
    }
    ck_assert_ptr_null(mn_adam_create(ctx, &p, 0, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "adam: there are no parameters");
    ck_assert_ptr_null(mn_rmsprop_create(NULL, &p, 1, NULL));
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

/* ---- state ----------------------------------------------------------------------------------- */

/* Three steps, save, load elsewhere, three more: the same bits as six. */
START_TEST(test_resume)
{
    static const char *const names[] = {"optimizer.p.exp_avg_sq", "optimizer.p.square_avg",
                                        "optimizer.p.momentum_buffer"};
    const recipe *r = &recipes[_i % RECIPES];
    const mn_schedule schedule = {.kind = MN_SCHEDULE_COSINE, .total_steps = 9, .warmup_steps = 2};
    mn_context *ctx = mn_check_context(mn_check_devices[_i / RECIPES]);
    mn_tensor *p[2] = {mn_check_leaf(ctx, "p", MN_F32), mn_check_leaf(ctx, "p", MN_F32)};
    mn_optimizer *whole = create(r, &p[0], 1, schedule), *second = create(r, &p[1], 1, schedule);
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    float a[3], b[3];
    for (int step = 0; step < 3; step++)
        step_once(whole, p[0], step);
    mn_optimizer_load_state(second, dict);
    mn_check_expect(ctx, MN_ERR_MISMATCH, "optimizer.applied");
    ck_assert_int_eq(mn_optimizer_save_state(whole, dict), MN_OK);
    ck_assert(mn_state_dict_find(dict, names[r->kind == RMSPROP], &entry));
    ck_assert(mn_state_dict_find(dict, names[2], &entry) == (_i % RECIPES == 5));
    mn_tensor_read(p[0], a, sizeof a);
    mn_tensor_write(p[1], a, sizeof a);
    ck_assert_int_eq(mn_optimizer_load_state(second, dict), MN_OK);
    for (int step = 3; step < 6; step++) {
        step_once(whole, p[0], step);
        step_once(second, p[1], step);
    }
    mn_tensor_read(p[0], a, sizeof a);
    mn_tensor_read(p[1], b, sizeof b);
    ck_assert_mem_eq(a, b, sizeof a);
    mn_optimizer_add_group(second, p, 1, NULL);
    mn_check_expect(ctx, MN_ERR_STATE, "before the first step");
    mn_state_dict_free(dict);
    mn_optimizer_free(whole);
    mn_optimizer_free(second);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_check_done(ctx);
}
END_TEST

/* ---- memory exhaustion ----------------------------------------------------------------------- */

static void try_run(mn_context *ctx)
{
    mn_scope scope = mn_scope_begin(ctx);
    const int64_t count = 3;
    mn_tensor *p[2];
    for (int i = 0; i < 2; i++)
        p[i] = mn_parameter_create(ctx, i ? "b" : "a", MN_F64, 1, &count, MN_LAYOUT_PLAIN);
    mn_optimizer *adam = mn_adam_create(ctx, p, 1, NULL);
    mn_optimizer_add_group(adam, p + 1, 1, NULL);
    mn_ema *ema = mn_ema_create(ctx, p, 2, NULL);
    mn_backward(mn_check_total(mn_add(p[0], p[1])), 1);
    mn_clip_grad_value(adam, 1);
    mn_optimizer_step(adam);
    mn_optimizer_zero_grad(adam);
    mn_ema_update(ema, adam);
    mn_ema_swap(ema);
    mn_ema_swap(ema);
    mn_ema_free(ema);
    mn_optimizer_free(adam);
    mn_release(p[0]);
    mn_release(p[1]);
    mn_scope_end(ctx, scope);
}

START_TEST(test_memory_exhaustion)
{
    mn_test_exhaust(try_run);
}
END_TEST

/* ---- training -------------------------------------------------------------------------------- */

static void refuse_training(const mn_train_options *options, const char *text)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_train(options, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    ck_assert_msg(strstr(error.message, text) != NULL, "%s", error.message);
}

START_TEST(test_training_options)
{
    mn_train_options o = mn_train_options_default();
    o.data = "synthetic:12x12x1:4:40";
    o.steps = 14;
    o.schedule = MN_SCHEDULE_STEP;
    refuse_training(&o, "--step-size must be at least 1");
    o.schedule = MN_SCHEDULE_COSINE;
    o.warmup = 14;
    refuse_training(&o, "--warmup 14 must be below the planned steps, 14");
    o.schedule = MN_SCHEDULE_ONE_CYCLE;
    refuse_training(&o, "--warmup is not for --schedule onecycle");
    o.schedule = (mn_schedule_kind)4;
    refuse_training(&o, "--schedule must be constant, step");
    o.schedule = MN_SCHEDULE_CONSTANT;
    o.resume_anyway = true;
    refuse_training(&o, "--resume-anyway needs --resume");
    o.resume_anyway = false;
    o.retry = -1;
    refuse_training(&o, "--retry must be at least 0, got -1");
    o.retry = 0;
    o.gamma = 0.1;
    refuse_training(&o, "--gamma is of --schedule step, not of constant");
    o.gamma = (double)NAN;
    o.step_size = 1;
    refuse_training(&o, "--step-size is of --schedule step, not of constant");
    o.schedule = MN_SCHEDULE_STEP;
    o.gamma = -1;
    refuse_training(&o, "--gamma must be");
    o.gamma = 0.1;
    o.warmup = 0;
    o.momentum = 1;
    refuse_training(&o, "--momentum must be below 1");
    o.momentum = 0.9;
    o.scaler.init_scale = 0;
    refuse_training(&o, "--init-scale must be above 0");
    o.scaler.init_scale = 65536;
    for (int i = 0; i < 4; i++) { /* the optimizers' own learning rates */
        o.optimizer = (const char *const[]){"sgd", "adam", "adamw", "rmsprop"}[i];
        o.steps = 1;
        mn_train_result *result = mn_train(&o, NULL);
        ck_assert_ptr_nonnull(result);
        ck_assert_double_eq(result->step_results[0].lr, i == 0 ? 0.05 : 1e-3);
        mn_train_result_free(result);
    }
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("optimizers");
    TCase *tc = tcase_create("optimizers");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_trajectories, 0, 2 * RECIPES);
    tcase_add_test(tc, test_defaults);
    tcase_add_loop_test(tc, test_skipped, 0, 2 * RECIPES);
    tcase_add_loop_test(tc, test_groups, 0, 2);
    tcase_add_test(tc, test_group_refusals);
    tcase_add_loop_test(tc, test_schedules, 0, 2 * SCHEDULES);
    tcase_add_test(tc, test_bad_schedules);
    tcase_add_test(tc, test_bad_options);
    tcase_add_loop_test(tc, test_resume, 0, 2 * RECIPES);
    tcase_add_test(tc, test_memory_exhaustion);
    tcase_add_test(tc, test_training_options);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
