/* Grad scaler: saving and loading, setters, options, and the disabled scaler; states of optimizers
 * of other kinds. The numbered cases of it are in test_amp_cases_steps.c. */
#include "amp/amp.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

START_TEST(test_setters)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    ck_assert_int_eq(mn_grad_scaler_set_scale(r.scaler, 256), MN_OK);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 256);
    const double bad[5] = {0, -1, (double)NAN, (double)INFINITY, 1e39};
    for (int i = 0; i < 5; i++) {
        mn_grad_scaler_set_scale(r.scaler, bad[i]);
        mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "scale");
    }
    mn_grad_scaler_set_growth_interval(r.scaler, 0);
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "growth_interval");
    mn_check_backward(&r, 1);
    mn_grad_scaler_unscale(r.scaler, r.sgd);
    mn_grad_scaler_set_scale(r.scaler, 128);
    mn_check_expect(r.ctx, MN_ERR_STATE, "between steps");
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    mn_grad_scaler_save_state(r.scaler, dict);
    mn_check_expect(r.ctx, MN_ERR_STATE, "update");
    mn_state_dict_free(dict);
    ck_assert_int_eq(mn_grad_scaler_step(NULL, r.sgd, NULL), MN_ERR_ARGUMENT);
    mn_grad_scaler_step(r.scaler, NULL, NULL);
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "NULL");
    mn_grad_scaler_backward(r.scaler, NULL, 1);
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "loss");
    mn_check_run_close(&r);
}
END_TEST

START_TEST(test_options)
{
    mn_context *ctx = mn_check_context("cpu");
    for (int i = 0; i < 8; i++) {
        mn_grad_scaler_options o = mn_grad_scaler_options_default();
        const char *text[8] = {
            "growth_factor", "backoff_factor", "backoff_factor", "growth_interval",
            "scale",         "min_scale",      "scale",          "size"};
        o.growth_factor = i == 0 ? 1 : o.growth_factor;
        o.backoff_factor = i == 1 ? 1 : i == 2 ? 0 : o.backoff_factor;
        o.growth_interval = i == 3 ? 0 : o.growth_interval;
        o.init_scale = i == 4 ? 0 : o.init_scale;
        o.min_scale = i == 5 ? -1 : i == 6 ? 1e6 : 0;
        o.size = i == 7 ? 3 : o.size;
        ck_assert_ptr_null(mn_grad_scaler_create(ctx, &o));
        mn_check_expect(ctx, MN_ERR_ARGUMENT, text[i]);
    }
    mn_grad_scaler_free(NULL);
    ck_assert(!mn_grad_scaler_is_enabled(NULL));
    mn_context_free(ctx);
}
END_TEST

START_TEST(test_disabled)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.enabled = false;
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], &options);
    mn_step_outcome outcome = MN_STEP_SKIPPED;
    ck_assert(!mn_grad_scaler_is_enabled(r.scaler));
    ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, mn_check_loss_of(r.w, 1), 0.5), MN_OK);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 0.5);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_PLAIN);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    ck_assert_int_eq(mn_clip_grad_norm(r.sgd, 10, NULL), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, &outcome), MN_OK);
    ck_assert_int_eq(outcome, MN_STEP_APPLIED);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 1);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    ck_assert_int_eq(mn_grad_scaler_save_state(r.scaler, dict), MN_OK);
    ck_assert_int_eq(mn_state_dict_count(dict), 0);
    mn_grad_scaler *enabled = mn_grad_scaler_create(r.ctx, NULL);
    mn_grad_scaler_save_state(enabled, dict);
    ck_assert_int_eq(mn_grad_scaler_load_state(r.scaler, dict), MN_OK);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 1);
    mn_grad_scaler_free(enabled);
    mn_state_dict_free(dict);
    mn_check_run_close(&r);
}
END_TEST

/* ---- gradients belong to the scale that they were multiplied by -------------------------------
 */

START_TEST(test_scale_of_gradients_is_known)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    mn_grad_scaler *other = mn_grad_scaler_create(r.ctx, NULL);
    mn_check_backward(&r, 1);
    mn_grad_scaler_unscale(other, r.sgd);
    mn_check_expect(r.ctx, MN_ERR_STATE, "another scaler");
    mn_grad_scaler_backward(other, mn_check_loss_of(r.w, 1), 1);
    mn_check_expect(r.ctx, MN_ERR_STATE, "another scale");
    ck_assert_int_eq(mn_grad_scaler_set_scale(r.scaler, 256), MN_OK);
    mn_grad_scaler_step(r.scaler, r.sgd, NULL);
    mn_check_expect(r.ctx, MN_ERR_STATE, "before the scale was changed");
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    ck_assert_int_eq(mn_optimizer_zero_grad(r.sgd), MN_OK);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_grad_scaler_free(other);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(test_optimizer_is_loaded_between_steps)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 64);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    mn_step_outcome outcome = MN_STEP_APPLIED;
    ck_assert_int_eq(mn_optimizer_save_state(r.sgd, dict), MN_OK);
    mn_check_backward(&r, (double)INFINITY);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    mn_optimizer_load_state(r.sgd, dict); /* would forget the overflow */
    mn_check_expect(r.ctx, MN_ERR_STATE, "between steps");
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, &outcome), MN_OK);
    ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    mn_state_dict_free(dict);
    mn_check_run_close(&r);
}
END_TEST

/* An error after unscale or after step, then zero_grad: the loop goes on. */
START_TEST(test_step_broken_off_by_an_error)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i % 2], 64);
    bool stepped = _i >= 2;
    mn_check_backward(&r, (double)INFINITY);
    ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
    if (stepped)
        ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    mn_reshape(r.w, 1, NULL);
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "reshape");
    ck_assert_int_eq(mn_optimizer_zero_grad(r.sgd), MN_OK);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    const mn_grad_scaler_stats stats = mn_check_stats_of(r.scaler);
    ck_assert_int_eq(stats.updates, stepped ? 2 : 1);
    ck_assert_int_eq(stats.backoffs, stepped ? 1 : 0);
    ck_assert_double_eq(stats.scale, stepped ? 32 : 64);
    mn_check_run_close(&r);
}
END_TEST

enum { KINDS = 5 };

/* Each kind, without and with momentum where it has one. */
static mn_optimizer *of_kind(mn_context *ctx, int kind, mn_tensor *const *p)
{
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    sgd.momentum = kind == 1 ? 0.9 : 0;
    rmsprop.momentum = kind == 4 ? 0.9 : 0;
    if (kind < 2)
        return mn_sgd_create(ctx, p, 1, &sgd);
    return kind == 2 ? mn_adam_create(ctx, p, 1, NULL) : mn_rmsprop_create(ctx, p, 1, &rmsprop);
}

/* States load into their own kind only, also where another kind's have the same name. */
START_TEST(test_states_of_other_kinds)
{
    static const char *const faults[KINDS][KINDS] = {
        {NULL, "w.momentum_buffer", "w.exp_avg", "w.square_avg", "w.square_avg"},
        {NULL, NULL, "w.exp_avg", "w.square_avg", "w.square_avg"},
        {"not of sgd", "w.momentum_buffer", NULL, "w.square_avg", "w.square_avg"},
        {"not of sgd", "w.momentum_buffer", "w.exp_avg", NULL, "w.momentum_buffer"},
        {"not of sgd", "not of sgd", "w.exp_avg", NULL, NULL},
    };
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *w = mn_check_parameter(ctx, "w", 2, (double[]){0.5, -1});
    for (int from = 0; from < KINDS; from++) {
        mn_state_dict *dict = mn_state_dict_create(ctx);
        mn_optimizer *saved = of_kind(ctx, from, &w);
        ck_assert_int_eq(mn_backward(mn_check_total(w), 1), MN_OK);
        ck_assert_int_eq(mn_optimizer_step(saved), MN_OK);
        ck_assert_int_eq(mn_optimizer_zero_grad(saved), MN_OK);
        ck_assert_int_eq(mn_optimizer_save_state(saved, dict), MN_OK);
        for (int to = 0; to < KINDS; to++) {
            mn_optimizer *loaded = of_kind(ctx, to, &w);
            mn_optimizer_stats stats;
            mn_optimizer_load_state(loaded, dict);
            if (faults[from][to])
                mn_check_expect(ctx, MN_ERR_MISMATCH, faults[from][to]);
            ck_assert_int_eq(mn_optimizer_stats_get(loaded, &stats), MN_OK);
            ck_assert_int_eq(stats.applied, !faults[from][to]);
            mn_optimizer_free(loaded);
        }
        mn_optimizer_free(saved);
        mn_state_dict_free(dict);
    }
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* ---- saving and loading -----------------------------------------------------------------------
 */

/* {saved enabled, disabled} x {loaded enabled, disabled}. */
START_TEST(test_enabled_or_not)
{
    const bool saved = _i & 1, loaded = _i & 2;
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.init_scale = 32;
    options.enabled = saved;
    mn_check_run r = mn_check_run_open(mn_check_devices[_i / 4], &options);
    mn_check_whole_step(&r, 0);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    ck_assert_int_eq(mn_grad_scaler_save_state(r.scaler, dict), MN_OK);
    ck_assert_int_eq(mn_state_dict_count(dict), saved ? 10 : 0);
    mn_grad_scaler_free(r.scaler);
    options.init_scale = 64;
    options.enabled = loaded;
    r.scaler = mn_grad_scaler_create(r.ctx, &options);
    ck_assert_int_eq(mn_grad_scaler_load_state(r.scaler, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_is_enabled(r.scaler), loaded);
    const mn_grad_scaler_stats stats = mn_check_stats_of(r.scaler);
    ck_assert_double_eq(stats.scale, !loaded ? 1 : saved ? 32 : 64);
    ck_assert_int_eq(stats.growth_tracker, saved && loaded);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_double_eq(mn_check_at(r.w, 0), -0.5);
    mn_state_dict_free(dict);
    mn_check_run_close(&r);
}
END_TEST

static mn_status put_i64(mn_state_dict *dict, const char *name, int64_t value)
{
    return mn_state_dict_put(dict, &(mn_state_entry){name, MN_I64, 0, NULL, &value, sizeof value});
}

static mn_status put_f64(mn_state_dict *dict, const char *name, double value)
{
    return mn_state_dict_put(dict, &(mn_state_entry){name, MN_F64, 0, NULL, &value, sizeof value});
}

/* PyTorch's five numbers, with a tracker past the interval: the next clean step grows. Without the
 * scale they are no state. */
START_TEST(test_tracker_past_interval)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 2);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    const float scale = 256;
    put_f64(dict, "scaler.growth_factor", 4);
    put_f64(dict, "scaler.backoff_factor", 0.25);
    put_i64(dict, "scaler.growth_interval", 100);
    put_i64(dict, "scaler._growth_tracker", 500);
    mn_grad_scaler_load_state(r.scaler, dict);
    mn_check_expect(r.ctx, MN_ERR_MISMATCH, "scaler.scale");
    mn_state_dict_put(dict, &(mn_state_entry){"scaler.scale", MN_F32, 0, NULL, &scale, 4});
    ck_assert_int_eq(mn_grad_scaler_load_state(r.scaler, dict), MN_OK);
    ck_assert_int_eq(mn_check_stats_of(r.scaler).growth_tracker, 500);
    mn_check_whole_step(&r, 1);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 1024);
    mn_check_whole_step(&r, (double)INFINITY);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 256);
    mn_state_dict_free(dict);
    mn_check_run_close(&r);
}
END_TEST

/* Everything that saves and loads, of one context. */
typedef struct savers {
    mn_context *ctx;
    mn_module *layer;
    mn_optimizer *adam;
    mn_ema *ema;
    mn_grad_scaler *scaler;
} savers;

static savers savers_open(int width)
{
    savers s = {.ctx = mn_check_context("cpu")};
    int count;
    s.layer = mn_linear_layer(s.ctx, width, 3, NULL);
    mn_module_init(s.layer);
    mn_tensor *const *p = mn_module_parameters(s.layer, &count);
    s.adam = mn_adam_create(s.ctx, p, count, NULL);
    s.ema = mn_ema_create(s.ctx, p, count, NULL);
    s.scaler = mn_grad_scaler_create(s.ctx, NULL);
    ck_assert_msg(s.scaler != NULL, "%s", mn_error_message(s.ctx));
    return s;
}

static void savers_close(savers *s)
{
    mn_grad_scaler_free(s->scaler);
    mn_ema_free(s->ema);
    mn_optimizer_free(s->adam);
    mn_module_free(s->layer);
    mn_check_done(s->ctx);
}

static mn_status save_part(const savers *s, int part, mn_state_dict *dict)
{
    return part == 0   ? mn_module_save_state(s->layer, dict)
           : part == 1 ? mn_optimizer_save_state(s->adam, dict)
           : part == 2 ? mn_ema_save_state(s->ema, dict)
                       : mn_grad_scaler_save_state(s->scaler, dict);
}

static mn_status load_part(const savers *s, int part, const mn_state_dict *dict)
{
    return part == 0   ? mn_module_load_state(s->layer, dict)
           : part == 1 ? mn_optimizer_load_state(s->adam, dict)
           : part == 2 ? mn_ema_load_state(s->ema, dict)
                       : mn_grad_scaler_load_state(s->scaler, dict);
}

/* A dictionary of another context can be loaded, whatever is pending there, and all errors are the
 * object's own context's. */
START_TEST(test_dictionary_of_another_context)
{
    savers from = savers_open(2), same = savers_open(2), wider = savers_open(4);
    mn_state_dict *dict = mn_state_dict_create(from.ctx), *bad = mn_state_dict_create(from.ctx);
    for (int part = 0; part < 4; part++)
        ck_assert_int_eq(save_part(&from, part, dict), MN_OK);
    put_f64(bad, "scaler._growth_tracker", 0.5);
    for (int part = 0; part < 4; part++) {
        save_part(&same, part, dict);
        mn_check_expect(same.ctx, MN_ERR_ARGUMENT, "the dictionary belongs to another context");
        load_part(&same, part, NULL);
        mn_check_expect(same.ctx, MN_ERR_ARGUMENT, "dict is NULL");
        load_part(&wider, part, part < 3 ? dict : bad);
        mn_check_expect(wider.ctx, MN_ERR_MISMATCH, "");
        ck_assert(mn_ok(from.ctx));
        mn_reshape(mn_full(from.ctx, MN_F32, 0, NULL, 1), -2, NULL);
        ck_assert_int_eq(load_part(&same, part, dict), MN_OK);
        mn_error_clear(from.ctx);
    }
    mn_state_dict_free(dict);
    mn_state_dict_free(bad);
    savers_close(&from);
    savers_close(&same);
    savers_close(&wider);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("amp state");
    TCase *tc = tcase_create("grad scaler");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_setters, 0, 2);
    tcase_add_test(tc, test_options);
    tcase_add_loop_test(tc, test_disabled, 0, 2);
    tcase_add_loop_test(tc, test_scale_of_gradients_is_known, 0, 2);
    tcase_add_loop_test(tc, test_optimizer_is_loaded_between_steps, 0, 2);
    tcase_add_loop_test(tc, test_step_broken_off_by_an_error, 0, 4);
    tcase_add_test(tc, test_states_of_other_kinds);
    tcase_add_loop_test(tc, test_enabled_or_not, 0, 8);
    tcase_add_loop_test(tc, test_tracker_past_interval, 0, 2);
    tcase_add_test(tc, test_dictionary_of_another_context);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
