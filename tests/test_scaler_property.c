/* tests/test_scaler_property.c: thousands of random sequences of calls, right ones and wrong ones,
 * to a grad scaler and two optimizers, against the model in support_scaler_model.c: the status of
 * every call, scale, counters, gradients, parameters. A sequence that fails prints its calls.
 * MINIM_SLOW_TESTS=1 runs ten times as many. */
#include "tests/support_scaler_model.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { LEAVES = MN_MODEL_LEAVES, ELEMENTS = MN_MODEL_ELEMENTS, CALLS = 40 };

typedef struct run {
    mn_context *ctx;
    mn_tensor *w[LEAVES];
    mn_optimizer *optimizer[MN_MODEL_OPTIMIZERS];
    mn_grad_scaler *scaler;
    mn_model m;
    mn_tensor *held; /* a scaled loss that backward has not gone through yet */
    mn_model_loss held_loss;
    mn_state_dict *scaler_dict, *optimizer_dict[MN_MODEL_OPTIMIZERS];
    mn_model saved_scaler, saved_optimizer[MN_MODEL_OPTIMIZERS];
    uint64_t seed, random;
    mn_status wanted, got; /* of the last call */
    struct {
        long status[MN_ERR_INTERNAL + 1], applied, skipped, backoffs, collapsed;
    } seen; /* in all sequences */
    int calls;
    char log[CALLS + 2][96];
} run;

static int draw(run *r, int count)
{
    r->random = r->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((r->random >> 33) % (uint64_t)count);
}

static mn_model_optimizer *model_of(run *r, int which)
{
    return &r->m.optimizer[which];
}

__attribute__((format(printf, 2, 3))) static void note(run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->log[r->calls], sizeof r->log[0], format, args);
    va_end(args);
}

static void fail_sequence(run *r, const char *what)
{
    printf("sequence %llu, scale %g:\n", (unsigned long long)r->seed, r->m.scaler.scale);
    for (int i = 0; i <= r->calls; i++)
        printf("  %s\n", r->log[i]);
    fflush(stdout);
    ck_abort_msg("sequence %llu, last call: %s; status %s, wanted %s (%s)",
                 (unsigned long long)r->seed, what, mn_status_name(r->got),
                 mn_status_name(r->wanted), mn_error_message(r->ctx));
}

/* ---- backward -------------------------------------------------------------------------------- */

/* One in twelve is infinite, NaN or so large that most scales make it infinite. */
static mn_model_number draw_factor(run *r, int leaf)
{
    static const double usual[8] = {1, -1, 0.5, 2, 3, -0.25, 0, 1};
    const int k = draw(r, 48);
    if (k == 0)
        return (mn_model_number){MN_NOT_A_NUMBER, 0};
    if (k <= 2)
        return (mn_model_number){MN_INFINITE, k == 1 ? 1 : -1};
    if (k == 3 && leaf < 2) /* its square would be infinite for Adam */
        return (mn_model_number){MN_FINITE, 0x1p100};
    return (mn_model_number){MN_FINITE, usual[k % 8]};
}

static mn_tensor *term(run *r, int leaf, const mn_model_loss *loss)
{
    static const int64_t shape[1] = {ELEMENTS};
    float c[ELEMENTS];
    for (int k = 0; k < ELEMENTS; k++) {
        const mn_model_number *x = &loss->c[leaf][k];
        c[k] = (float)mn_model_value(*x);
    }
    return mn_check_total(mn_mul(r->w[leaf], mn_tensor_from(r->ctx, MN_F32, 1, shape, c)));
}

/* sum_i w_i c_i over one to three leaves, those of `only` (an optimizer) or any (-1). */
static mn_tensor *draw_loss(run *r, mn_model_loss *loss, int only)
{
    mn_tensor *sum = NULL;
    const int mask = only == 0 ? 1 + draw(r, 3) : only == 1 ? 4 : 1 + draw(r, 7);
    *loss = (mn_model_loss){.factor = 1};
    for (int i = 0; i < LEAVES; i++) {
        loss->with[i] = mask >> i & 1;
        loss->version[i] = r->m.leaf[i].version;
        for (int k = 0; k < ELEMENTS && loss->with[i]; k++)
            loss->c[i][k] = draw_factor(r, i);
        if (!loss->with[i])
            continue;
        mn_tensor *one = term(r, i, loss);
        sum = sum ? mn_add(sum, one) : one;
    }
    return sum;
}

static void backward_into(run *r, int only)
{
    mn_model_loss loss;
    const double weight = ldexp(1, -draw(r, 3));
    mn_tensor *root = draw_loss(r, &loss, only);
    note(r, "scaled backward, weight %g, leaves %d%d%d, factors from %g (kind %d)", weight,
         loss.with[0], loss.with[1], loss.with[2], loss.c[0][0].value, (int)loss.c[0][0].kind);
    r->wanted = mn_model_scale(&r->m, &loss, weight, true);
    if (r->wanted == MN_OK)
        r->wanted = mn_model_backward(&r->m, &loss);
    r->got = mn_grad_scaler_backward(r->scaler, root, weight);
}

static void scaled_backward(run *r)
{
    backward_into(r, -1);
}

static void plain_backward(run *r)
{
    mn_model_loss loss;
    const double weight = ldexp(1, -draw(r, 3));
    mn_tensor *root = draw_loss(r, &loss, -1);
    note(r, "plain backward, weight %g, leaves %d%d%d", weight, loss.with[0], loss.with[1],
         loss.with[2]);
    loss.factor = weight;
    r->wanted = mn_model_backward(&r->m, &loss);
    mn_backward(root, weight);
    r->got = mn_error_status(r->ctx); /* without a root the call itself knows no context */
}

static void scale_now(run *r)
{
    mn_model_loss loss;
    const bool finite = draw(r, 4) != 0;
    const double weight =
        finite ? ldexp(1, -draw(r, 3)) : mn_model_value((mn_model_number){MN_INFINITE, 1});
    mn_tensor *root = draw_loss(r, &loss, -1);
    note(r, "scale and hold, %s weight", finite ? "finite" : "infinite");
    r->wanted = mn_model_scale(&r->m, &loss, finite ? weight : 1, finite);
    mn_tensor *scaled = mn_grad_scaler_scale(r->scaler, root, weight);
    r->got = mn_error_status(r->ctx);
    if ((r->got == MN_OK) != (scaled != NULL))
        fail_sequence(r, "a tensor and an error, or neither");
    if (!scaled)
        return;
    mn_release(r->held);
    r->held = mn_retain(scaled);
    r->held_loss = loss;
}

static void backward_of_held(run *r)
{
    note(r, "backward through the held loss%s", r->held ? "" : ": none");
    r->wanted = r->got = mn_error_status(r->ctx);
    if (!r->held)
        return;
    r->wanted = mn_model_backward(&r->m, &r->held_loss);
    r->got = mn_backward(r->held, 1);
    if (r->got != MN_OK)
        return;
    mn_release(r->held);
    r->held = NULL;
}

/* ---- step ------------------------------------------------------------------------------------ */

static void unscale_of(run *r, int which)
{
    note(r, "unscale %d", which);
    r->wanted = mn_model_unscale(&r->m, model_of(r, which));
    r->got = mn_grad_scaler_unscale(r->scaler, r->optimizer[which]);
}

static void unscale(run *r)
{
    unscale_of(r, draw(r, 2));
}

/* What clipping makes of infinities and NaN needs strict arithmetic. */
static bool can_clip(run *r, int which)
{
    bool strict = true;
#if defined(__FAST_MATH__)
    strict = false;
#endif
    const mn_model_optimizer *o = model_of(r, which);
    for (int i = o->first; i < o->end; i++)
        for (int k = 0; k < ELEMENTS && !strict && r->m.leaf[i].gradient != MN_NONE; k++)
            if (r->m.leaf[i].g[k].kind != MN_FINITE)
                return false;
    return true;
}

static void clip_of(run *r, int which)
{
    static const double limits[6] = {100, 1, 0.5, 0.125, 0, -1};
    const double limit = limits[draw(r, 6)];
    const bool by_value = draw(r, 2) == 0;
    r->wanted = r->got = r->m.pending;
    if (!can_clip(r, which))
        return;
    note(r, "clip %d by %s to %g", which, by_value ? "value" : "norm", limit);
    if (by_value) {
        r->wanted = mn_model_clip_value(&r->m, model_of(r, which), limit);
        r->got = mn_clip_grad_value(r->optimizer[which], limit);
        return;
    }
    r->wanted = mn_model_clip_norm(&r->m, model_of(r, which), limit);
    r->got = mn_clip_grad_norm(r->optimizer[which], limit, NULL);
}

static void clip(run *r)
{
    clip_of(r, draw(r, 2));
}

static void step_of(run *r, int which)
{
    mn_step_outcome outcome;
    const bool ask = draw(r, 2) == 0;
    note(r, "step %d%s", which, ask ? ", asking for the outcome" : "");
    r->wanted = mn_model_step(&r->m, model_of(r, which));
    r->got = mn_grad_scaler_step(r->scaler, r->optimizer[which], ask ? &outcome : NULL);
    if (ask && r->got == MN_OK && outcome != model_of(r, which)->outcome)
        fail_sequence(r, "outcome");
}

static void step(run *r)
{
    step_of(r, draw(r, 2));
}

static void plain_step(run *r)
{
    const int which = draw(r, 2);
    note(r, "step %d without the scaler", which);
    r->wanted = mn_model_plain_step(&r->m, model_of(r, which));
    r->got = mn_optimizer_step(r->optimizer[which]);
}

static void update(run *r)
{
    note(r, "update");
    r->wanted = mn_model_update(&r->m);
    r->got = mn_grad_scaler_update(r->scaler);
}

static void zero_grad_of(run *r, int which)
{
    note(r, "zero_grad %d", which);
    r->wanted = mn_model_zero_grad(&r->m, model_of(r, which));
    r->got = mn_optimizer_zero_grad(r->optimizer[which]);
}

static void zero_grad(run *r)
{
    zero_grad_of(r, draw(r, 2));
}

static void clear_error(run *r)
{
    note(r, "clear the error");
    mn_model_clear_error(&r->m);
    mn_error_clear(r->ctx);
    r->wanted = r->got = MN_OK;
}

/* ---- settings and state ---------------------------------------------------------------------- */

static void set_scale(run *r)
{
    static const double scales[8] = {1, 1024, 0x1p-100, 0x1p-127, 0x1p-128, 0x1p127, 0, -2};
    const int k = draw(r, 9);
    const bool finite = k < 8;
    const double scale = finite ? scales[k] : mn_model_value((mn_model_number){MN_INFINITE, 1});
    note(r, "set_scale %g", scale);
    r->wanted = mn_model_set_scale(&r->m, finite ? scale : 1, finite);
    r->got = mn_grad_scaler_set_scale(r->scaler, scale);
}

static void set_interval(run *r)
{
    const int interval = draw(r, 5);
    note(r, "set_growth_interval %d", interval);
    r->wanted = mn_model_set_interval(&r->m, interval);
    r->got = mn_grad_scaler_set_growth_interval(r->scaler, interval);
}

/* A dictionary that was saved into, and the model of then; on an error the ones before. */
static void keep(run *r, mn_state_dict *dict, mn_state_dict **place, mn_model *saved)
{
    mn_state_dict_free(r->got == MN_OK ? *place : dict);
    if (r->got != MN_OK)
        return;
    *place = dict;
    *saved = r->m;
}

static void save_scaler(run *r)
{
    mn_state_dict *dict = mn_state_dict_create(r->ctx);
    note(r, "save the scaler");
    r->wanted = r->m.scaler.options.enabled ? mn_model_idle(&r->m) : r->m.pending;
    r->got = mn_grad_scaler_save_state(r->scaler, dict);
    keep(r, dict, &r->scaler_dict, &r->saved_scaler);
}

static void load_scaler(run *r)
{
    note(r, "load the scaler%s", r->scaler_dict ? "" : ": nothing is saved");
    r->wanted = r->got = r->m.pending;
    if (!r->scaler_dict)
        return;
    r->got = mn_grad_scaler_load_state(r->scaler, r->scaler_dict);
    if (!r->m.scaler.options.enabled)
        return;
    r->wanted = mn_model_idle(&r->m);
    if (r->wanted == MN_OK)
        mn_model_load_scaler(&r->m, &r->saved_scaler.scaler);
}

static void save_optimizer(run *r)
{
    const int which = draw(r, 2);
    mn_state_dict *dict = mn_state_dict_create(r->ctx);
    note(r, "save optimizer %d", which);
    r->wanted = r->m.pending;
    r->got = mn_optimizer_save_state(r->optimizer[which], dict);
    keep(r, dict, &r->optimizer_dict[which], &r->saved_optimizer[which]);
}

static void load_optimizer(run *r)
{
    const int which = draw(r, 2);
    note(r, "load optimizer %d%s", which, r->optimizer_dict[which] ? "" : ": nothing is saved");
    r->wanted = r->got = r->m.pending;
    if (!r->optimizer_dict[which])
        return;
    r->wanted = mn_model_load_optimizer(&r->m, which, &r->saved_optimizer[which]);
    r->got = mn_optimizer_load_state(r->optimizer[which], r->optimizer_dict[which]);
}

static void nothing_given(run *r)
{
    const int k = draw(r, 3);
    note(r, "NULL as %s", k == 0 ? "loss" : k == 1 ? "optimizer" : "statistics");
    mn_model_loss loss;
    r->wanted =
        k == 0 ? mn_model_scale(&r->m, &loss, 1, false) : mn_model_fail(&r->m, MN_ERR_ARGUMENT);
    r->got = k == 0   ? mn_grad_scaler_backward(r->scaler, NULL, 1)
             : k == 1 ? mn_grad_scaler_step(r->scaler, NULL, NULL)
                      : mn_grad_scaler_stats_get(r->scaler, NULL);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Element k of a leaf's parameter or gradient. */
static void compare_element(run *r, const char *what, int k, mn_model_number wanted, double got,
                            double reach)
{
    if (mn_model_same(wanted, got, reach))
        return;
    printf("%s[%d] is %g, wanted %g (kind %d)\n", what, k, got, wanted.value, (int)wanted.kind);
    fail_sequence(r, what);
}

static void compare_leaf(run *r, int index)
{
    const mn_model_leaf *leaf = &r->m.leaf[index];
    static const mn_grad_state states[4] = {
        [MN_NONE] = MN_GRAD_NONE,
        [MN_PLAIN] = MN_GRAD_PLAIN,
        [MN_SCALED] = MN_GRAD_SCALED,
        [MN_UNSCALED] = MN_GRAD_UNSCALED,
    };
    double p[ELEMENTS], g[ELEMENTS];
    if (mn_grad_state_get(r->w[index]) != states[leaf->gradient])
        fail_sequence(r, "state of a gradient");
    mn_tensor_read_f64(r->w[index], p, ELEMENTS);
    if (leaf->gradient != MN_NONE)
        mn_tensor_read_f64(mn_grad(r->w[index]), g, ELEMENTS);
    for (int k = 0; k < ELEMENTS; k++) {
        compare_element(r, "parameter", k, leaf->p[k], p[k], leaf->reach);
        if (leaf->gradient != MN_NONE)
            compare_element(r, "gradient", k, leaf->g[k], g[k], fabs(leaf->g[k].value));
    }
}

static void compare(run *r)
{
    const mn_model_scaler *s = &r->m.scaler;
    mn_grad_scaler_stats stats;
    if (r->m.pending != MN_OK)
        return;
    if (mn_grad_scaler_stats_get(r->scaler, &stats) != MN_OK || stats.scale != s->scale ||
        stats.growth_tracker != s->tracker || stats.updates != s->updates ||
        stats.backoffs != s->backoffs || stats.collapsed != s->collapsed)
        fail_sequence(r, "statistics of the scaler");
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        const mn_model_optimizer *o = &r->m.optimizer[i];
        mn_optimizer_stats counts;
        if (mn_optimizer_stats_get(r->optimizer[i], &counts) != MN_OK ||
            counts.applied != o->applied || counts.skipped != o->skipped ||
            counts.nonfinite != o->nonfinite ||
            !mn_model_same(o->norm, counts.grad_norm, fabs(o->norm.value)))
            fail_sequence(r, "statistics of an optimizer");
    }
    for (int i = 0; i < LEAVES; i++)
        compare_leaf(r, i);
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* The next call of a training loop that does everything right. */
static void right_call(run *r)
{
    const mn_model *m = &r->m;
    if (m->pending != MN_OK) {
        clear_error(r);
        return;
    }
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        const mn_model_optimizer *o = &m->optimizer[i];
        const mn_model_leaf *leaf = &m->leaf[o->end - 1];
        if (o->broken_off || o->stage == MN_STEPPED)
            continue;
        if (leaf->consumed || leaf->gradient == MN_PLAIN)
            zero_grad_of(r, i);
        else if (leaf->gradient == MN_NONE)
            backward_into(r, i);
        else if (leaf->gradient == MN_SCALED && draw(r, 2) == 0)
            unscale_of(r, i);
        else if (leaf->gradient == MN_UNSCALED && draw(r, 2) == 0)
            clip_of(r, i);
        else
            step_of(r, i);
        return;
    }
    update(r);
}

static void (*const any_calls[])(run *) = {
    scaled_backward,  scaled_backward, plain_backward, scale_now,
    backward_of_held, unscale,         clip,           step,
    plain_step,       update,          zero_grad,      zero_grad,
    set_scale,        set_interval,    save_scaler,    load_scaler,
    save_optimizer,   load_optimizer,  nothing_given,  clear_error,
};
enum { ANY_CALLS = sizeof any_calls / sizeof *any_calls };

static void begin(run *r, uint64_t seed)
{
    static const char *const names[LEAVES] = {"w0", "w1", "w2"};
    const double start[ELEMENTS] = {0.5, 0.5};
    static const double scales[6] = {65536, 1, 1024, 0x1p120, 0x1p-126, 0x1p40};
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adam = mn_adam_options_default();
    *r = (run){.ctx = r->ctx,
               .seen = r->seen,
               .seed = seed,
               .random = seed * UINT64_C(0x9E3779B97F4A7C15)};
    options.enabled = draw(r, 8) != 0;
    options.init_scale = scales[draw(r, 6)];
    options.growth_interval = 1 + draw(r, 3);
    options.growth_factor = draw(r, 2) ? 2 : 4;
    options.backoff_factor = draw(r, 2) ? 0.5 : 0.125;
    options.min_scale = draw(r, 3) ? 0 : options.init_scale / 2;
    options.max_scale = draw(r, 3) ? options.max_scale : options.init_scale * 4;
    sgd.lr = 0.25;
    sgd.momentum = 0.5;
    adam.lr = 0.125;
    for (int i = 0; i < LEAVES; i++)
        r->w[i] = mn_check_parameter(r->ctx, names[i], ELEMENTS, start);
    r->optimizer[0] = mn_sgd_create(r->ctx, r->w, 2, &sgd);
    r->optimizer[1] = mn_adam_create(r->ctx, r->w + 2, 1, &adam);
    r->scaler = mn_grad_scaler_create(r->ctx, &options);
    ck_assert_msg(mn_ok(r->ctx), "%s", mn_error_message(r->ctx));
    mn_model_begin(&r->m, &options);
}

static void end(run *r)
{
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        r->seen.applied += r->m.optimizer[i].applied;
        r->seen.skipped += r->m.optimizer[i].skipped;
    }
    r->seen.backoffs += r->m.scaler.backoffs;
    r->seen.collapsed += r->m.scaler.collapsed;
    mn_release(r->held);
    mn_state_dict_free(r->scaler_dict);
    mn_grad_scaler_free(r->scaler);
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        mn_state_dict_free(r->optimizer_dict[i]);
        mn_optimizer_free(r->optimizer[i]);
    }
    for (int i = 0; i < LEAVES; i++)
        mn_release(r->w[i]);
}

/* Compares after every call, or now and then, which leaves work waiting on a deferred device. */
static void run_sequence(run *r, uint64_t seed)
{
    begin(r, seed);
    const int pace = draw(r, 2) ? 1 : 8, length = 8 + draw(r, CALLS - 8);
    for (; r->calls < length; r->calls++) {
        mn_scope scope = mn_scope_begin(r->ctx);
        if (draw(r, 3) > 0)
            right_call(r);
        else
            any_calls[draw(r, ANY_CALLS)](r);
        mn_scope_end(r->ctx, scope);
        if (r->got != r->wanted || mn_error_status(r->ctx) != r->m.pending)
            fail_sequence(r, r->log[r->calls]);
        r->seen.status[r->wanted]++;
        if (draw(r, pace) == 0)
            compare(r);
    }
    clear_error(r);
    compare(r);
    end(r);
}

/* The sequences have to reach what they are for. */
static void check_reach(const run *r, long count)
{
    static const mn_status wanted[] = {MN_ERR_STATE, MN_ERR_ARGUMENT, MN_ERR_NO_GRADIENT,
                                       MN_ERR_VERSION};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        ck_assert_msg(r->seen.status[wanted[i]] > count / 100, "%s: %ld times",
                      mn_status_name(wanted[i]), r->seen.status[wanted[i]]);
    ck_assert_int_gt(r->seen.applied, count);
    ck_assert_int_gt(r->seen.skipped, count / 4);
    ck_assert_int_gt(r->seen.backoffs, count / 4);
    ck_assert_int_gt(r->seen.collapsed, count / 100);
}

/* Subnormals of the caller: flushed, as a program linked with -ffast-math has them, or kept. */
static void flush_subnormals(bool flush)
{
#if defined(__SSE__)
    _mm_setcsr((_mm_getcsr() & ~0x8040U) | (flush ? 0x8040U : 0));
#endif
    (void)flush;
}

static bool flushes(void)
{
    volatile float smallest = FLT_MIN;
    volatile float half = smallest / 2;
    return half == 0;
}

/* On both devices, with subnormals kept and flushed: the library computes alike, and gives the mode
 * back. */
START_TEST(test_any_order_of_calls)
{
    const char *slow = getenv("MINIM_SLOW_TESTS");
    const uint64_t count = slow && strcmp(slow, "1") == 0 ? 20000 : 2000;
    static run r;
    flush_subnormals(_i >= 2);
    const bool flushed = flushes();
    r.ctx = mn_check_context(mn_check_devices[_i % 2]);
    for (uint64_t seed = 1; seed <= count; seed++) {
        run_sequence(&r, seed * 4 + (uint64_t)_i);
        ck_assert_int_eq(flushes(), flushed);
    }
    flush_subnormals(false);
    check_reach(&r, (long)count);
    mn_check_done(r.ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scaler property");
    TCase *tc = tcase_create("random sequences");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, test_any_order_of_calls, 0, 4);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
