/* Cases of mixed precision, R20 to R31: skipped steps and checkpoints. A number stands for a fault
 * that users of other frameworks have met. */
#include "amp/amp.h"
#include "tests/support_amp_cases.h"
#include "tests/support_state.h"
#include "tests/support_training.h"
#include "train/train.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- D: skipped steps ------------------------------------------------------------------------ */

START_TEST(R20_schedule_follows_applied)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 0.5;
    options.momentum = 0.9;
    options.schedule = (mn_schedule){.kind = MN_SCHEDULE_COSINE, .total_steps = 4};
    mn_optimizer_free(r.sgd);
    r.sgd = mn_sgd_create(r.ctx, &r.w, 1, &options);
    ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
    ck_assert_double_eq(mn_check_at(r.w, 0), 0.5);
    ck_assert_double_eq(mn_check_at(r.sgd->states[0][0], 0), 0);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    mn_optimizer_stats stats;
    mn_optimizer_stats_get(r.sgd, &stats);
    ck_assert_int_eq(stats.applied, 2);
    ck_assert_int_eq(stats.skipped, 1);
    ck_assert_int_eq(stats.nonfinite, 1);
    ck_assert_double_eq_tol(stats.lr, 0.25, 1e-12);
    mn_check_run_close(&r);
}
END_TEST

static mn_optimizer *adam_of(mn_context *ctx, mn_tensor **parameters, int count)
{
    mn_adam_options options = mn_adam_options_default();
    options.lr = 0.125;
    mn_optimizer *adam = mn_adam_create(ctx, parameters, count, &options);
    ck_assert_msg(adam != NULL, "%s", mn_error_message(ctx));
    return adam;
}

/* Parameter, m and v after a step, as bytes. */
static void bytes_of(const mn_check_run *r, float bytes[6])
{
    mn_tensor_read(r->w, bytes, 2 * sizeof(float));
    for (int i = 0; i < 2; i++)
        mn_tensor_read(r->sgd->states[i][0], bytes + 2 + 2 * (size_t)i, 2 * sizeof(float));
}

/* Adam is one fused op that is always entered: the device decides, and tells. Its t, m and v do not
 * know of the step that was skipped. */
START_TEST(R21_fused_step_skips)
{
    float before[6], after[6], clean[6];
    for (int overflow = 1; overflow >= 0; overflow--) {
        mn_check_run r = mn_check_run_scale(mn_check_devices[_i], overflow ? 1024 : 512);
        mn_optimizer_free(r.sgd);
        r.sgd = adam_of(r.ctx, &r.w, 1);
        bytes_of(&r, before);
        if (overflow)
            ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
        bytes_of(&r, after);
        ck_assert_mem_eq(before, after, sizeof before);
        ck_assert_int_eq(mn_check_whole_step(&r, 3), MN_STEP_APPLIED);
        ck_assert_int_eq(mn_check_whole_step(&r, -1), MN_STEP_APPLIED);
        bytes_of(&r, overflow ? clean : after);
        mn_optimizer_stats stats;
        ck_assert_int_eq(mn_optimizer_stats_get(r.sgd, &stats), MN_OK);
        ck_assert_int_eq(stats.applied, 2);
        ck_assert_int_eq(stats.skipped, overflow);
        mn_check_run_close(&r);
    }
    ck_assert_mem_eq(clean, after, sizeof clean);
}
END_TEST

typedef struct normed {
    mn_context *ctx;
    mn_tensor *p[3];       /* weight of a 1x1 convolution, batch norm's weight and bias */
    mn_tensor *running[3]; /* mean, var, count */
} normed;

static normed normed_open(const char *device)
{
    const int64_t ones[4] = {1, 1, 1, 1};
    normed n = {.ctx = mn_check_context(device)};
    for (int i = 0; i < 3; i++) {
        const char *names[3] = {"conv.weight", "bn.weight", "bn.bias"};
        n.p[i] = mn_parameter_create(n.ctx, names[i], MN_F32, i ? 1 : 4, ones, MN_LAYOUT_PLAIN);
        mn_tensor_fill(n.p[i], 2 - i);
        n.running[i] = mn_full(n.ctx, i < 2 ? MN_F32 : MN_I64, i < 2, ones, i == 1);
    }
    return n;
}

static mn_tensor *normed_forward(const normed *n, const double values[4], bool training)
{
    const int64_t shape[4] = {1, 2, 2, 1};
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = training;
    mn_tensor *x = mn_tensor_create(n->ctx, MN_F32, 4, shape);
    mn_tensor_write_f64(x, values, 4);
    mn_autocast_begin(n->ctx, MN_F16);
    x = mn_batch_norm(mn_conv2d(x, n->p[0], NULL, NULL), n->p[1], n->p[2], n->running, &options);
    mn_autocast_end(n->ctx);
    ck_assert_int_eq(mn_tensor_dtype(x), MN_F16);
    return x;
}

START_TEST(R22_skipped_step_keeps_running_statistics)
{
    const double large[4] = {60000, 60000, 60000, 60000}, good[4] = {1, 2, 3, 4};
    normed n = normed_open(mn_check_devices[_i]);
    mn_optimizer *sgd = mn_check_sgd_of(n.ctx, n.p, 3);
    mn_grad_scaler *scaler = mn_grad_scaler_create(n.ctx, NULL);
    mn_step_outcome outcome;
    mn_tensor *y = normed_forward(&n, large, true);
    ck_assert(!isfinite(mn_check_at(y, 0)));
    mn_grad_scaler_backward(scaler, mn_check_total(mn_mul(y, y)), 1);
    ck_assert_int_eq(mn_grad_scaler_step(scaler, sgd, &outcome), MN_OK);
    ck_assert_int_eq(outcome, MN_STEP_SKIPPED);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(mn_check_at(n.running[i], 0), i == 1);
    ck_assert_double_eq(mn_check_at(n.p[0], 0), 2);
    normed_forward(&n, good, true); /* of 2, 4, 6, 8: mean 5, variance 20 / 3 */
    ck_assert_double_eq_tol(mn_check_at(n.running[0], 0), 0.5, 1e-6);
    ck_assert_double_eq_tol(mn_check_at(n.running[1], 0), 0.9 + 2 / 3.0, 1e-6);
    ck_assert_double_eq(mn_check_at(n.running[2], 0), 1);
    y = normed_forward(&n, good, false);
    ck_assert_double_eq_tol(mn_check_at(y, 3), (8 - 0.5) / sqrt(0.9 + 2 / 3.0), 4e-3);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(sgd);
    for (int i = 0; i < 3; i++)
        mn_release(n.p[i]);
    mn_check_done(n.ctx);
}
END_TEST

/* Of n calls with k skips n - k are applied; all of it can be read, and is saved. */
START_TEST(R23_counters)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    for (int i = 0; i < 5; i++)
        mn_check_whole_step(&r, i % 3 == 0 ? (double)INFINITY : 1);
    ck_assert_int_eq(mn_optimizer_save_state(r.sgd, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_save_state(r.scaler, dict), MN_OK);
    mn_check_run other = mn_check_run_scale(mn_check_devices[_i], 2);
    ck_assert_int_eq(mn_optimizer_load_state(other.sgd, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_load_state(other.scaler, dict), MN_OK);
    for (int i = 0; i < 2; i++) {
        mn_optimizer_stats stats;
        mn_grad_scaler_stats scaler = mn_check_stats_of(i ? other.scaler : r.scaler);
        mn_optimizer_stats_get(i ? other.sgd : r.sgd, &stats);
        ck_assert_int_eq(stats.applied, 3);
        ck_assert_int_eq(stats.skipped, 2);
        ck_assert_int_eq(scaler.updates, 5);
        ck_assert_int_eq(scaler.backoffs, 2);
        ck_assert_double_eq(scaler.scale, 256);
    }
    mn_state_dict_free(dict);
    mn_check_run_close(&other);
    mn_check_run_close(&r);
}
END_TEST

/* A skip every `every` steps, after so many of warm-up; the troubles that a run would warn of. */
static unsigned troubles_of(int warmup, int every, double scale)
{
    const mn_grad_scaler_options options = mn_grad_scaler_options_default();
    mn_skips skips = {.applied = 0};
    unsigned troubles = 0;
    for (int i = 0; i < 200; i++) {
        mn_step_result r = {.scale = scale, .skipped = i < warmup || i % every == every - 1};
        troubles |= mn_skips_take(&skips, &r, &options);
    }
    ck_assert_int_eq(skips.warmup, warmup);
    return troubles;
}

/* The scaler is silent; what tells first skips from a fault are numbers, and a latch that is set
 * only where the scale cannot shrink any further. It stays when the scale recovers. A run warns by
 * how many of the last 100 steps were skipped, and of overflow where scaling is not the reason. */
START_TEST(R26_first_skips_are_no_fault)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.min_scale = 1;
    options.growth_interval = 1;
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], &options);
    for (int i = 1; i <= 20; i++) {
        ck_assert_int_eq(mn_check_whole_step(&r, (double)INFINITY), MN_STEP_SKIPPED);
        mn_grad_scaler_stats stats = mn_check_stats_of(r.scaler);
        ck_assert_double_eq(stats.scale, i < 16 ? ldexp(1, 16 - i) : 1);
        ck_assert_int_eq(stats.updates, i);
        ck_assert_int_eq(stats.backoffs, i);
        ck_assert_int_eq(stats.collapsed, i > 16);
    }
    ck_assert_int_eq(mn_check_whole_step(&r, 1), MN_STEP_APPLIED);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 2);
    ck_assert(mn_check_stats_of(r.scaler).collapsed);
    mn_check_run_close(&r);
    ck_assert_uint_eq(troubles_of(4, 1000, 4096), 0);
    ck_assert_uint_eq(troubles_of(4, 10, 4096), 0);
    ck_assert_uint_eq(troubles_of(4, 9, 4096), MN_TROUBLE_RATE);
    ck_assert_uint_eq(troubles_of(0, 100, 0.5), MN_TROUBLE_LOW);
}
END_TEST

/* ---- E: checkpoints -------------------------------------------------------------------------- */

typedef struct learner {
    mn_context *ctx;
    mn_module *model;
    mn_optimizer *adam;
    mn_grad_scaler *scaler;
} learner;

static learner learner_open(const char *device)
{
    learner l = {.ctx = mn_check_context(device)};
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.growth_interval = 3;
    l.model = mn_sequential(l.ctx);
    mn_sequential_add(l.model, "first", mn_linear_layer(l.ctx, 4, 6, true));
    mn_sequential_add(l.model, "dropout", mn_dropout_layer(l.ctx, 0.5));
    mn_sequential_add(l.model, "last", mn_linear_layer(l.ctx, 6, 2, true));
    ck_assert_int_eq(mn_module_init(l.model), MN_OK);
    int count;
    mn_tensor *parameters[4];
    mn_tensor *const *all = mn_module_parameters(l.model, &count);
    ck_assert_int_eq(count, 4);
    memcpy(parameters, all, sizeof parameters);
    l.adam = adam_of(l.ctx, parameters, count);
    l.scaler = mn_grad_scaler_create(l.ctx, &options);
    return l;
}

/* Steps from `first` on. The loss is so large that the first ones are skipped. */
static void learn(learner *l, int first, int count)
{
    const int64_t shape[2] = {3, 4};
    for (int step = first; step < first + count; step++) {
        mn_scope scope = mn_scope_begin(l->ctx);
        double values[12];
        for (int i = 0; i < 12; i++)
            values[i] = 20 * sin(1.3 * i + step);
        mn_tensor *x = mn_tensor_create(l->ctx, MN_F32, 2, shape);
        mn_tensor_write_f64(x, values, 12);
        mn_random_position(l->ctx, step, 0);
        mn_autocast_begin(l->ctx, MN_F16);
        mn_tensor *y = mn_module_forward(l->model, x);
        mn_autocast_end(l->ctx);
        y = mn_cast(y, MN_F32);
        mn_grad_scaler_backward(l->scaler, mn_check_total(mn_mul(y, y)), 1);
        mn_grad_scaler_step(l->scaler, l->adam, NULL);
        mn_grad_scaler_update(l->scaler);
        mn_optimizer_zero_grad(l->adam);
        mn_scope_end(l->ctx, scope);
    }
    ck_assert_msg(mn_ok(l->ctx), "%s", mn_error_message(l->ctx));
}

static mn_state_dict *learner_state(learner *l)
{
    mn_state_dict *dict = mn_state_dict_create(l->ctx);
    ck_assert_int_eq(mn_module_save_state(l->model, dict), MN_OK);
    ck_assert_int_eq(mn_optimizer_save_state(l->adam, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_save_state(l->scaler, dict), MN_OK);
    return dict;
}

static void learner_close(learner *l)
{
    mn_grad_scaler_free(l->scaler);
    mn_optimizer_free(l->adam);
    mn_module_free(l->model);
    mn_check_done(l->ctx);
}

/* 10 steps, and 5, a file, and 5 in a new context: the same bits, parameters and all. */
START_TEST(R27_resumed_run_is_the_same)
{
    mn_test_state_open();
    learner whole = learner_open(mn_check_devices[_i]);
    learn(&whole, 0, 10);
    mn_state_dict *expected = learner_state(&whole), *dict;
    learner l = learner_open(mn_check_devices[_i]);
    learn(&l, 0, 5);
    dict = learner_state(&l);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    mn_state_dict_free(dict);
    learner_close(&l);
    l = learner_open(mn_check_devices[_i]);
    mn_seed(l.ctx, 1);
    dict = mn_state_dict_read(l.ctx, mn_test_state_path);
    mn_state_entry entry;
    ck_assert(mn_state_dict_find(dict, "first.weight", &entry));
    ck_assert_int_eq(entry.dtype, MN_F32);
    ck_assert_int_eq(mn_module_load_state(l.model, dict), MN_OK);
    ck_assert_int_eq(mn_optimizer_load_state(l.adam, dict), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_load_state(l.scaler, dict), MN_OK);
    mn_state_dict_free(dict);
    ck_assert_int_ge(mn_check_stats_of(l.scaler).backoffs, 1);
    learn(&l, 5, 5);
    dict = learner_state(&l);
    ck_assert(mn_test_state_same(expected, dict));
    mn_state_dict_free(dict);
    mn_state_dict_free(expected);
    learner_close(&whole);
    learner_close(&l);
    mn_test_state_close();
}
END_TEST

START_TEST(R28_tracker_is_saved)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.growth_interval = 4;
    options.init_scale = 64;
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], &options);
    for (int i = 0; i < 3; i++)
        mn_check_whole_step(&r, 1);
    mn_state_dict *dict = mn_state_dict_create(r.ctx);
    ck_assert_int_eq(mn_grad_scaler_save_state(r.scaler, dict), MN_OK);
    mn_state_entry entry;
    ck_assert(mn_state_dict_find(dict, "scaler.scale", &entry));
    ck_assert_int_eq(entry.dtype, MN_F32);
    mn_grad_scaler_free(r.scaler);
    r.scaler = mn_grad_scaler_create(r.ctx, NULL);
    ck_assert_int_eq(mn_grad_scaler_load(r.scaler, dict, false), MN_OK);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 65536);
    ck_assert_int_eq(mn_grad_scaler_load_state(r.scaler, dict), MN_OK);
    ck_assert_int_eq(mn_check_stats_of(r.scaler).updates, 3);
    ck_assert_int_eq(mn_check_stats_of(r.scaler).growth_tracker, 3);
    mn_check_whole_step(&r, 1);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 128);
    mn_state_dict *empty = mn_state_dict_create(r.ctx);
    ck_assert_int_eq(mn_grad_scaler_load_state(r.scaler, empty), MN_OK);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 128);
    float scale = 32;
    mn_state_entry half = {"scaler.scale", MN_F32, 0, NULL, &scale, sizeof scale};
    mn_state_dict_put(empty, &half);
    mn_grad_scaler_load_state(r.scaler, empty);
    mn_check_expect(r.ctx, MN_ERR_MISMATCH, "scaler.growth_factor");
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 128);
    mn_state_dict_free(dict);
    mn_state_dict_free(empty);
    mn_check_run_close(&r);
}
END_TEST

/* The state of an optimizer is the same with and without a scaler, and loads either way. */
START_TEST(R30_optimizer_state_with_and_without_scaler)
{
    for (int scaled_first = 0; scaled_first < 2; scaled_first++) {
        mn_check_run r[2];
        float results[2][6];
        for (int i = 0; i < 2; i++) {
            mn_grad_scaler_options options = mn_grad_scaler_options_default();
            options.enabled = i != scaled_first;
            r[i] = mn_check_run_open(mn_check_devices[_i], &options);
            mn_optimizer_free(r[i].sgd);
            r[i].sgd = adam_of(r[i].ctx, &r[i].w, 1);
        }
        mn_state_dict *saved = mn_state_dict_create(r[0].ctx);
        void *data;
        size_t bytes;
        mn_check_whole_step(&r[0], 3);
        mn_optimizer_save_state(r[0].sgd, saved);
        ck_assert_int_eq(mn_state_dict_to_buffer(saved, &data, &bytes), MN_OK);
        mn_state_dict *loaded = mn_state_dict_from_buffer(r[1].ctx, data, bytes);
        mn_tensor_read(r[0].w, results[0], 2 * sizeof(float));
        mn_tensor_write(r[1].w, results[0], 2 * sizeof(float));
        ck_assert_int_eq(mn_optimizer_load_state(r[1].sgd, loaded), MN_OK);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(mn_check_whole_step(&r[i], -1), MN_STEP_APPLIED);
            bytes_of(&r[i], results[i]);
        }
        ck_assert_mem_eq(results[0], results[1], sizeof results[0]);
        mn_buffer_free(r[0].ctx, data, bytes);
        mn_state_dict_free(saved);
        mn_state_dict_free(loaded);
        mn_check_run_close(&r[0]);
        mn_check_run_close(&r[1]);
    }
}
END_TEST

START_TEST(R31_lowered_interval)
{
    mn_check_run r = mn_check_run_scale("cpu", 64);
    for (int i = 0; i < 50; i++)
        mn_check_whole_step(&r, 0);
    ck_assert_int_eq(mn_grad_scaler_set_growth_interval(r.scaler, 10), MN_OK);
    mn_check_whole_step(&r, 0);
    ck_assert_double_eq(mn_check_stats_of(r.scaler).scale, 128);
    ck_assert_int_eq(mn_check_stats_of(r.scaler).growth_tracker, 0);
    mn_check_run_close(&r);
}
END_TEST

int main(void)
{
    const mn_amp_case cases[] = {
        {20, "R20_schedule_follows_applied", R20_schedule_follows_applied, 2},
        {21, "R21_fused_step_skips", R21_fused_step_skips, 2},
        {22, "R22_skipped_step_keeps_running_statistics", R22_skipped_step_keeps_running_statistics,
         2},
        {23, "R23_counters", R23_counters, 2},
        {26, "R26_first_skips_are_no_fault", R26_first_skips_are_no_fault, 2},
        {27, "R27_resumed_run_is_the_same", R27_resumed_run_is_the_same, 2},
        {28, "R28_tracker_is_saved", R28_tracker_is_saved, 2},
        {30, "R30_optimizer_state_with_and_without_scaler",
         R30_optimizer_state_with_and_without_scaler, 2},
        {31, "R31_lowered_interval", R31_lowered_interval, 1},
    };
    return mn_amp_cases_run("amp cases: steps", cases, (int)(sizeof cases / sizeof *cases), 20, 31);
}
