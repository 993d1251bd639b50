/* Grad scalers and optimizers against PyTorch's: golden/scaler.inc and golden/optimizers.inc. */
#include "tests/support_golden.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- grad scaler ----------------------------------------------------------------------------- */

typedef struct scaler_state {
    double scale;
    int tracker, applied; /* bit i of applied: optimizer i stepped */
} scaler_state;
typedef struct scaler_case {
    const char *name;
    int optimizers;
    double scale, growth, backoff;
    int interval, enabled;
    const char *events; /* see generate.py */
    int count;
    scaler_state states[24];
} scaler_case;
static const scaler_case scaler_cases[] = {
#include "tests/golden/scaler.inc"
};
enum { SCALER_CASES = (int)(sizeof scaler_cases / sizeof scaler_cases[0]) };

/* Where minim differs on purpose: steps of a case from which on it is not compared. */
typedef struct scaler_difference {
    const char *name;
    int step;
    const char *reason;
} scaler_difference;
static const scaler_difference scaler_differences[] = {
    {"lowered interval", 3, "the tracker is past the interval: PyTorch never grows again"},
    {"smallest", 3, "1 / scale overflows: PyTorch steps by infinities, minim skips and backs off"},
    {"vanishing", 3, "the same of a scale of 0"},
};
enum { DIFFERENCES = (int)(sizeof scaler_differences / sizeof scaler_differences[0]) };

static int compared_steps(const scaler_case *c)
{
    for (int i = 0; i < DIFFERENCES; i++)
        if (strcmp(scaler_differences[i].name, c->name) == 0)
            return scaler_differences[i].step;
    return c->count;
}

static mn_grad_scaler *make_scaler(mn_context *ctx, const scaler_case *c, double scale)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.enabled = c->enabled;
    options.init_scale = scale;
    options.growth_factor = c->growth;
    options.backoff_factor = c->backoff;
    options.growth_interval = c->interval;
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &options);
    ck_assert_msg(scaler != NULL, "%s", mn_error_message(ctx));
    return scaler;
}

typedef struct scaler_run {
    mn_context *ctx;
    mn_grad_scaler *scaler;
    mn_tensor *w[2];
    mn_optimizer *sgd[2];
} scaler_run;

static scaler_run run_open(const scaler_case *c)
{
    const double start[2] = {0.5, -1};
    scaler_run r = {.ctx = mn_check_context("cpu")};
    r.scaler = make_scaler(r.ctx, c, c->scale);
    for (int i = 0; i < c->optimizers; i++) {
        r.w[i] = mn_check_parameter(r.ctx, "w", 2, start);
        r.sgd[i] = mn_check_sgd_of(r.ctx, &r.w[i], 1);
    }
    return r;
}

static void run_close(scaler_run *r)
{
    mn_grad_scaler_free(r->scaler);
    for (int i = 0; i < 2; i++) {
        mn_optimizer_free(r->sgd[i]);
        mn_release(r->w[i]);
    }
    mn_check_done(r->ctx);
}

static void run_step(scaler_run *r, const scaler_case *c, const double *gradients, bool unscale,
                     int step)
{
    int applied = 0;
    mn_scope scope = mn_scope_begin(r->ctx);
    for (int i = 0; i < c->optimizers; i++) {
        mn_optimizer_zero_grad(r->sgd[i]);
        mn_grad_scaler_backward(r->scaler, mn_check_loss_of(r->w[i], gradients[i]), 1);
    }
    mn_scope_end(r->ctx, scope);
    for (int i = 0; i < c->optimizers; i++) {
        mn_step_outcome outcome = MN_STEP_SKIPPED;
        if (unscale)
            mn_grad_scaler_unscale(r->scaler, r->sgd[i]);
        mn_grad_scaler_step(r->scaler, r->sgd[i], &outcome);
        applied |= (outcome == MN_STEP_APPLIED) << i;
    }
    mn_grad_scaler_update(r->scaler);
    ck_assert_msg(mn_error_status(r->ctx) == MN_OK, "%s, step %d: %s", c->name, step,
                  mn_error_message(r->ctx));
    const mn_grad_scaler_stats stats = mn_check_stats_of(r->scaler);
    const scaler_state *s = &c->states[step];
    const bool same = stats.scale == s->scale && stats.growth_tracker == s->tracker;
    ck_assert_msg(same && applied == s->applied, "%s, step %d: %a %d %d, expected %a %d %d",
                  c->name, step, stats.scale, (int)stats.growth_tracker, applied, s->scale,
                  s->tracker, s->applied);
}

static void reload(scaler_run *r, const scaler_case *c)
{
    mn_state_dict *dict = mn_state_dict_create(r->ctx);
    ck_assert_int_eq(mn_grad_scaler_save_state(r->scaler, dict), MN_OK);
    mn_grad_scaler_free(r->scaler);
    r->scaler = make_scaler(r->ctx, c, 8);
    ck_assert_int_eq(mn_grad_scaler_load_state(r->scaler, dict), MN_OK);
    mn_state_dict_free(dict);
}

static double gradient_of(char event)
{
    return event == 'f' ? 1 : event == 'o' ? 1e36 : event == 'n' ? (double)NAN : (double)INFINITY;
}

START_TEST(test_scaler)
{
    const scaler_case *c = &scaler_cases[_i];
    const int steps = compared_steps(c);
    scaler_run r = run_open(c);
    double gradients[2] = {0, 0};
    bool unscale = false;
    int known = 0, step = 0;
    for (const char *event = c->events; *event != 0 && step < steps; event++) {
        if (*event == 'L')
            reload(&r, c);
        else if (*event == 'S')
            ck_assert_int_eq(mn_grad_scaler_set_scale(r.scaler, 1024), MN_OK);
        else if (*event == 'P')
            ck_assert_int_eq(mn_grad_scaler_set_growth_interval(r.scaler, 2), MN_OK);
        else if (*event == 'u')
            unscale = true;
        else
            gradients[known++] = gradient_of(*event);
        if (known < c->optimizers)
            continue;
        run_step(&r, c, gradients, unscale, step++);
        unscale = false;
        known = 0;
    }
    ck_assert_int_eq(step, steps);
    run_close(&r);
}
END_TEST

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { STEPS = 20, ELEMENTS = 7 };
typedef struct optimizer_case {
    const char *kind;
    double lr, rate[2], eps, weight_decay;
    int nesterov;
    float p[STEPS * ELEMENTS]; /* after each step */
} optimizer_case;
static const optimizer_case optimizer_cases[] = {
#include "tests/golden/optimizers.inc"
};
enum { OPTIMIZER_CASES = (int)(sizeof optimizer_cases / sizeof optimizer_cases[0]) };

static mn_optimizer *make_sgd(mn_context *ctx, mn_tensor **p, const optimizer_case *c)
{
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = c->lr;
    options.momentum = c->rate[0];
    options.weight_decay = c->weight_decay;
    options.nesterov = c->nesterov;
    return mn_sgd_create(ctx, p, 1, &options);
}

static mn_optimizer *make_rmsprop(mn_context *ctx, mn_tensor **p, const optimizer_case *c)
{
    mn_rmsprop_options options = mn_rmsprop_options_default();
    options.lr = c->lr;
    options.alpha = c->rate[0];
    options.momentum = c->rate[1];
    options.eps = c->eps;
    options.weight_decay = c->weight_decay;
    return mn_rmsprop_create(ctx, p, 1, &options);
}

static mn_optimizer *make_adam(mn_context *ctx, mn_tensor **p, const optimizer_case *c)
{
    const bool decoupled = strcmp(c->kind, "adamw") == 0;
    mn_adam_options options = decoupled ? mn_adamw_options_default() : mn_adam_options_default();
    options.lr = c->lr;
    options.beta1 = c->rate[0];
    options.beta2 = c->rate[1];
    options.eps = c->eps;
    options.weight_decay = c->weight_decay;
    return mn_adam_create(ctx, p, 1, &options);
}

START_TEST(test_optimizer)
{
    const optimizer_case *c = &optimizer_cases[_i];
    mn_context *ctx = mn_check_context("cpu");
    double values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = 2 * mn_golden_value(i, 0);
    mn_tensor *p = mn_check_parameter(ctx, "p", ELEMENTS, values);
    mn_optimizer *optimizer = c->kind[0] == 's'   ? make_sgd(ctx, &p, c)
                              : c->kind[0] == 'r' ? make_rmsprop(ctx, &p, c)
                                                  : make_adam(ctx, &p, c);
    for (int step = 1; step <= STEPS; step++) {
        mn_scope scope = mn_scope_begin(ctx);
        const int64_t count = ELEMENTS;
        mn_tensor *g = mn_tensor_create(ctx, MN_F32, 1, &count);
        for (int i = 0; i < ELEMENTS; i++)
            values[i] = mn_golden_value(i, step);
        mn_tensor_write_f64(g, values, ELEMENTS);
        mn_backward(mn_dot(p, g), 1);
        mn_scope_end(ctx, scope);
        ck_assert_int_eq(mn_optimizer_step(optimizer), MN_OK);
        mn_optimizer_zero_grad(optimizer);
        char text[64];
        snprintf(text, sizeof text, "%s, case %d, step %d", c->kind, _i, step);
        mn_golden_compare(p, c->p + (size_t)(step - 1) * ELEMENTS, 1e-5, -1, text);
    }
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("golden");
    TCase *tc = tcase_create("golden");
    tcase_add_loop_test(tc, test_scaler, 0, SCALER_CASES);
    tcase_add_loop_test(tc, test_optimizer, 0, OPTIMIZER_CASES);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
