/* tests/test_retry.c: windows that are run again after an overflow, and copies of buffers. */
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- help ------------------------------------------------------------------------------------ */

/* Batch norm and dropout; 40 images: windows of 12 in three batches, the last one of 4. */
static mn_status dropping_step(mn_step *step, void *user)
{
    mn_name_push(step->context, "input");
    step->images = mn_dropout(step->images, 0.2, true);
    mn_name_pop(step->context);
    return mn_step_default(step, user);
}

static mn_train_options retried_run(void)
{
    mn_train_options o = mn_train_options_default();
    o.model = "cnn-small";
    o.data = "synthetic:8x8x2:3:40";
    o.validation = 0.0;
    o.batch = 4;
    o.accumulate = 3;
    o.epochs = 3;
    o.lr = 0.005;
    o.amp = MN_F16;
    o.scaler.init_scale = 0x1p34;
    o.retry = 40;
    o.step = dropping_step;
    o.context.threads = 1;
    return o;
}

static mn_train_result *run_ok(const mn_train_options *options)
{
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

static const char *file_name(const char *name)
{
    static char paths[4][64];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "/tmp/minim-retry-%ld-%s", (long)getpid(), name);
    return path;
}

/* The bytes are the same, or with `model_only` the tensors of model and momentum. */
static void same_files(const char *a, const char *b, bool model_only)
{
    mn_context *ctx = mn_test_open();
    mn_state_dict *left = mn_state_dict_read(ctx, a), *right = mn_state_dict_read(ctx, b);
    mn_state_entry x, y;
    void *bytes[2];
    size_t sizes[2];
    int64_t compared = 0;
    ck_assert(left && right);
    for (int64_t i = 0; mn_state_dict_entry(left, i, &x); i++) {
        if (strncmp(x.name, "scaler.", 7) == 0 || strncmp(x.name, "progress.", 9) == 0 ||
            strcmp(x.name, "optimizer.skipped") == 0 || strcmp(x.name, "optimizer.nonfinite") == 0)
            continue;
        ck_assert_msg(mn_state_dict_find(right, x.name, &y) && x.bytes == y.bytes &&
                          memcmp(x.data, y.data, x.bytes) == 0,
                      "%s differs", x.name);
        compared++;
    }
    ck_assert_int_gt(compared, 20);
    ck_assert_int_eq(mn_state_dict_to_buffer(left, &bytes[0], &sizes[0]), MN_OK);
    ck_assert_int_eq(mn_state_dict_to_buffer(right, &bytes[1], &sizes[1]), MN_OK);
    ck_assert(model_only || (sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0));
    mn_buffer_free(ctx, bytes[0], sizes[0]);
    mn_buffer_free(ctx, bytes[1], sizes[1]);
    mn_state_dict_free(left);
    mn_state_dict_free(right);
    mn_context_free(ctx);
}

/* ---- what a retried run is ------------------------------------------------------------------- */

/* Each window at the scale that another run has come to. */
typedef struct lower {
    const mn_step_result *like;
    int64_t at;
} lower;

static mn_status scaled_step(mn_step *step, void *user)
{
    lower *l = user;
    if (l->at != step->step)
        MN_TRY(mn_grad_scaler_set_scale(step->scaler, l->like[step->step - 1].scale));
    l->at = step->step;
    return dropping_step(step, NULL);
}

/* As a run that had the lower scale at once; with growth, again and again. */
START_TEST(as_with_the_lower_scale)
{
    const char *high = file_name("high"), *low = file_name("low");
    mn_train_options o = retried_run();
    if (_i & 1)
        o.scaler.growth_interval = 3;
    o.context.device = _i & 2 ? "cpu-deferred" : "cpu";
    o.checkpoint = high;
    mn_train_result *a = run_ok(&o);
    lower l = {a->step_results, 0};
    double scale = a->step_results[0].scale;
    ck_assert_double_lt(scale, o.scaler.init_scale);
    o.retry = 0;
    o.step = scaled_step;
    o.step_user = &l;
    o.context.device = "cpu";
    o.checkpoint = low;
    mn_train_result *b = run_ok(&o);
    same_files(high, low, true);
    int64_t retries = 0;
    ck_assert_int_eq(a->step_count, 12);
    for (int i = 0; i < 12; i++) {
        const mn_step_result *x = &a->step_results[i], *y = &b->step_results[i];
        ck_assert(!x->skipped && !y->skipped && !x->nonfinite && y->retries == 0);
        ck_assert(x->loss == y->loss && x->grad_norm == y->grad_norm && x->scale == y->scale);
        ck_assert_int_eq(x->samples, y->samples);
        ck_assert_int_eq(x->step, i + 1);
        retries += x->retries;
    }
    ck_assert_int_eq(a->step_results[0].retries, (int64_t)log2(0x1p34 / scale));
    ck_assert_int_eq(a->retries, retries);
    ck_assert_int_eq(retries > a->step_results[0].retries, _i & 1);
    ck_assert(a->skipped_steps == 0 && a->skipped_warmup == 0 && b->retries == 0);
    ck_assert_int_eq(a->epochs[a->epoch_count - 1].retries, retries);
    mn_train_result_free(a);
    mn_train_result_free(b);
    unlink(high);
    unlink(low);
}
END_TEST

typedef struct seen {
    int64_t step, retry, micro, attempts;
    double masks[3], images[3];
} seen;

/* Every attempt drops the same of the same images. */
static mn_status seeing_step(mn_step *step, void *user)
{
    seen *s = user;
    double image, mask;
    if (step->step != s->step || step->retry != s->retry) {
        s->micro = 0;
        s->attempts++;
    }
    s->step = step->step;
    s->retry = step->retry;
    mn_tensor *powers = mn_mul(step->images, step->images);
    mn_tensor_item(mn_sum(powers, 0, NULL, false), &image);
    MN_TRY(dropping_step(step, NULL));
    mn_tensor_item(mn_sum(step->images, 0, NULL, false), &mask);
    int64_t i = s->micro++;
    ck_assert_int_lt(i, 3);
    if (step->retry > 0)
        ck_assert(s->images[i] == image && s->masks[i] == mask);
    s->images[i] = image;
    s->masks[i] = mask;
    return mn_error_status(step->context);
}

START_TEST(same_images_and_masks)
{
    seen s = {.step = 0};
    mn_train_options o = retried_run();
    o.scaler.growth_interval = 3;
    o.step = seeing_step;
    o.step_user = &s;
    mn_train_result *result = run_ok(&o);
    ck_assert_int_eq(s.attempts, result->step_count + result->retries);
    ck_assert_int_gt(result->retries, 5);
    mn_train_result_free(result);
}
END_TEST

/* Once, and without a trace in the buffers. */
START_TEST(attempts_are_capped)
{
    const char *path = file_name("capped");
    mn_train_options o = retried_run();
    o.scaler.init_scale = 0x1p60;
    o.retry = 2;
    o.stop_after = 2;
    o.checkpoint = path;
    mn_train_result *result = run_ok(&o);
    ck_assert_int_eq(result->step_count, 2);
    for (int i = 0; i < 2; i++) {
        ck_assert(result->step_results[i].skipped && result->step_results[i].nonfinite);
        ck_assert_int_eq(result->step_results[i].retries, 2);
        ck_assert_double_eq(result->step_results[i].scale, i ? 0x1p55 : 0x1p58);
        ck_assert_int_eq(result->step_results[i].samples, 12);
    }
    ck_assert_int_eq(result->skipped_steps, 2);
    ck_assert_int_eq(result->skipped_warmup, 2);
    ck_assert_int_eq(result->retries, 4);
    mn_train_result_free(result);
    mn_context *ctx = mn_test_open();
    mn_state_dict *dict = mn_state_dict_read(ctx, path);
    mn_state_entry entry;
    int counts = 0;
    for (int64_t i = 0; mn_state_dict_entry(dict, i, &entry); i++) {
        if (!strstr(entry.name, "num_batches_tracked"))
            continue;
        ck_assert_int_eq(*(const int64_t *)entry.data, 0);
        counts++;
    }
    ck_assert_int_gt(counts, 1);
    mn_state_dict_free(dict);
    mn_context_free(ctx);
    unlink(path);
}
END_TEST

START_TEST(collapse_ends_the_attempts)
{
    seen s = {.step = 0};
    mn_error error = {MN_OK, ""};
    mn_train_options o = retried_run();
    o.scaler.init_scale = 0x1p60;
    o.scaler.min_scale = 0x1p58;
    o.step = seeing_step;
    o.step_user = &s;
    ck_assert_ptr_null(mn_train(&o, &error));
    ck_assert_int_eq(error.status, MN_ERR_COLLAPSED);
    ck_assert_int_eq(s.attempts, 3);
    ck_assert_int_eq(s.step, 1);
}
END_TEST

/* Without a scaler there is nothing to try again, and nothing is waited for. */
static mn_status waiting_step(mn_step *step, void *user)
{
    uint64_t *waits = user;
    waits[step->step] = step->context->device->synchronizations;
    return mn_step_default(step, NULL);
}

START_TEST(only_with_a_scaler)
{
    uint64_t waits[16] = {0};
    mn_train_options o = retried_run();
    o.amp = _i == 0 ? MN_F32 : _i == 1 ? MN_BF16 : MN_F16;
    o.retry = _i == 2 ? 0 : 3;
    o.context.device = "cpu-deferred";
    o.step = waiting_step;
    o.step_user = waits;
    mn_train_result *result = run_ok(&o);
    ck_assert_int_eq(result->retries, 0);
    ck_assert_int_eq(result->skipped_steps > 0, _i == 2);
    ck_assert_uint_eq(waits[1], waits[4]);
    mn_train_result_free(result);
}
END_TEST

/* ---- stops in between ------------------------------------------------------------------------ */

static void in_child(const mn_train_options *options)
{
    int status = 0;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        mn_train_result *result = mn_train(options, NULL);
        mn_train_result_free(result);
        _exit(result ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Stopped after a step that was retried and applied, retried and skipped, or neither. */
START_TEST(resume_is_exact)
{
    const char *whole = file_name("whole"), *half = file_name("half");
    mn_train_options o = retried_run();
    o.retry = 4;
    o.scaler.growth_interval = 3;
    o.checkpoint = whole;
    mn_train_result *once = run_ok(&o);
    ck_assert_int_gt(once->skipped_warmup, 0);
    ck_assert_int_gt(once->retries, once->skipped_steps * 4);
    o.checkpoint = half;
    o.stop_after = 1 + 2 * _i;
    in_child(&o);
    o.stop_after = 0;
    o.resume = half;
    o.context.threads = 3;
    mn_train_result *rest = run_ok(&o);
    same_files(whole, half, false);
    ck_assert_int_eq(rest->retries, once->retries);
    ck_assert_int_eq(rest->skipped_warmup, once->skipped_warmup);
    mn_train_result_free(once);
    mn_train_result_free(rest);
    o.retry = 5;
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_train(&o, &error));
    ck_assert_msg(strstr(error.message, "--retry 4 there, 5 here") != NULL, "%s", error.message);
    unlink(whole);
    unlink(half);
}
END_TEST

/* From a version that kept nothing of retries and kinds of skips. */
START_TEST(older_checkpoint)
{
    const char *path = file_name("older");
    mn_train_options o = retried_run();
    o.retry = _i;
    o.checkpoint = path;
    o.stop_after = 2;
    mn_train_result_free(run_ok(&o));
    mn_context *ctx = mn_test_open();
    mn_state_dict *now = mn_state_dict_read(ctx, path), *then = mn_state_dict_create(ctx);
    mn_state_entry entry;
    const char *key, *value;
    for (int64_t i = 0; mn_state_dict_entry(now, i, &entry); i++)
        if (strncmp(entry.name, "progress.skips.", 15) != 0 &&
            strcmp(entry.name, "progress.retries") != 0)
            mn_state_dict_put(then, &entry);
    for (int64_t i = 0; mn_state_dict_string(now, i, &key, &value); i++)
        if (strcmp(key, "retry") != 0)
            mn_state_dict_set_string(then, key, value);
    ck_assert_int_eq(mn_state_dict_write(then, path), MN_OK);
    mn_state_dict_free(now);
    mn_state_dict_free(then);
    mn_context_free(ctx);
    o.resume = path;
    o.stop_after = 0;
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(&o, &error);
    ck_assert_msg((result != NULL) == (_i == 0), "%s", error.message);
    ck_assert(result || strstr(error.message, "--retry 0 there, 1 here"));
    mn_train_result_free(result);
    unlink(path);
}
END_TEST

static bool cancel_at_once(void *user)
{
    return ++*(int *)user == 1;
}

/* The window is settled first. */
START_TEST(cancel_waits_for_the_window)
{
    int asked = 0;
    const char *whole = file_name("whole"), *part = file_name("part");
    mn_train_options o = retried_run();
    o.checkpoint = whole;
    mn_train_result_free(run_ok(&o));
    o.checkpoint = part;
    o.cancel = cancel_at_once;
    o.user = &asked;
    mn_train_result *result = run_ok(&o);
    ck_assert(result->cancelled && result->step_count == 1 && asked == 1);
    ck_assert(!result->step_results[0].skipped && result->step_results[0].retries > 5);
    mn_train_result_free(result);
    o.resume = part;
    mn_train_result_free(run_ok(&o));
    ck_assert_int_eq(asked, 12);
    same_files(whole, part, false);
    unlink(whole);
    unlink(part);
}
END_TEST

typedef struct exhaustion {
    mn_test_counter *counter;
    long after;
} exhaustion;

/* Memory runs out so many requests after the second attempt has begun. */
static mn_status exhausted_step(mn_step *step, void *user)
{
    const exhaustion *e = user;
    if (step->retry == 1 && e->counter->fail_at == 0) {
        mn_memory_trim(step->context);
        e->counter->fail_at = e->counter->calls + e->after;
    }
    return mn_step_default(step, NULL);
}

START_TEST(out_of_memory)
{
    mn_test_counter counter = {0};
    mn_train_options o = retried_run();
    o.stop_after = 1;
    o.retry = 3;
    o.step = NULL;
    o.context.allocator = mn_test_counting(&counter);
    mn_train_result_free(run_ok(&o));
    long calls = counter.calls;
    for (long k = 1; k <= calls; k += 1 + calls / 40) {
        mn_error error = {MN_OK, ""};
        counter = (mn_test_counter){.fail_at = k};
        mn_train_result *result = mn_train(&o, &error);
        ck_assert_msg(result || error.status == MN_ERR_MEMORY, "call %ld: %s", k, error.message);
        mn_train_result_free(result);
        ck_assert_msg(counter.blocks == 0, "call %ld: %ld blocks left", k, counter.blocks);
    }
    exhaustion e = {&counter, 1};
    mn_train_result *result = NULL;
    o.step = exhausted_step;
    o.step_user = &e;
    for (; !result; e.after += 13) {
        mn_error error = {MN_OK, ""};
        counter = (mn_test_counter){.for_good = true};
        result = mn_train(&o, &error);
        ck_assert_int_eq(error.status, result ? MN_OK : MN_ERR_MEMORY);
        mn_train_result_free(result);
        ck_assert_int_eq(counter.blocks, 0);
    }
    ck_assert_int_gt(e.after, 30);
}
END_TEST

/* ---- copies of buffers ----------------------------------------------------------------------- */

static double buffer_at(mn_module *norm, const char *name)
{
    double value = (double)NAN;
    mn_state_entry entry;
    mn_state_dict *dict = mn_state_dict_create(mn_module_context(norm));
    if (mn_module_save_state(norm, dict) == MN_OK && mn_state_dict_find(dict, name, &entry))
        value = entry.dtype == MN_I64 ? (double)*(const int64_t *)entry.data
                                      : (double)*(const float *)entry.data;
    mn_state_dict_free(dict);
    return value;
}

static void see(mn_module *norm, double value)
{
    const int64_t shape[4] = {2, 1, 1, 1};
    mn_context *ctx = mn_module_context(norm);
    mn_scope scope = mn_scope_begin(ctx);
    mn_module_forward(norm, mn_full(ctx, MN_F32, 4, shape, value));
    mn_scope_end(ctx, scope);
}

static void keep_buffers(mn_context *ctx)
{
    mn_module *norm = mn_batch_norm_layer(ctx, 1);
    mn_module_init(norm);
    mn_module_buffers *buffers = mn_module_buffers_create(norm);
    see(norm, 10);
    if (mn_module_buffers_restore(buffers) == MN_OK)
        ck_assert(buffer_at(norm, "running_mean") == 0 || !mn_ok(ctx));
    see(norm, 20);
    if (mn_module_buffers_save(buffers) == MN_OK) {
        see(norm, 30);
        mn_module_buffers_restore(buffers);
        ck_assert(fabs(buffer_at(norm, "running_mean") - 2) < 1e-6 || !mn_ok(ctx));
        ck_assert(buffer_at(norm, "num_batches_tracked") == 1 || !mn_ok(ctx));
    }
    mn_module_free(norm);
    mn_module_buffers_restore(buffers);
    mn_module_buffers_free(buffers);
}

/* docs/embedding.md: retries in a loop of one's own. */
START_TEST(own_loop)
{
    const int64_t shape[4] = {2, 1, 1, 1};
    mn_context *ctx = mn_test_open();
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    int count = 0, attempts = 0;
    scaling.init_scale = 0x1p127;
    mn_module *net = mn_batch_norm_layer(ctx, 1);
    mn_module_init(net);
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_optimizer *opt = mn_sgd_create(ctx, parameters, count, NULL);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, &scaling);
    mn_module_buffers *before = mn_module_buffers_create(net);
    for (mn_step_outcome outcome = MN_STEP_SKIPPED; outcome == MN_STEP_SKIPPED; attempts++) {
        mn_scope scope = mn_scope_begin(ctx);
        if (attempts > 0)
            mn_module_buffers_restore(before);
        mn_tensor *y = mn_module_forward(net, mn_full(ctx, MN_F32, 4, shape, 10));
        mn_tensor *loss = mn_sum(y, 0, NULL, false);
        mn_grad_scaler_backward(scaler, loss, 1);
        mn_grad_scaler_step(scaler, opt, &outcome);
        mn_grad_scaler_update(scaler);
        mn_optimizer_zero_grad(opt);
        mn_scope_end(ctx, scope);
        ck_assert_int_eq(mn_error_status(ctx), MN_OK);
    }
    ck_assert_int_gt(attempts, 1);
    ck_assert_double_eq(buffer_at(net, "num_batches_tracked"), 1);
    ck_assert_double_eq_tol(buffer_at(net, "running_mean"), 1, 1e-6);
    mn_module_buffers_free(before);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(opt);
    mn_module_free(net);
    mn_context_free(ctx);
}
END_TEST

START_TEST(buffers)
{
    mn_test_exhaust(keep_buffers);
    mn_context *ctx = mn_test_open();
    mn_module *norm = mn_batch_norm_layer(ctx, 1), *none = mn_relu_layer(ctx);
    ck_assert_ptr_null(mn_module_buffers_create(norm));
    mn_test_expect(ctx, MN_ERR_STATE, "mn_module_init");
    ck_assert_ptr_null(mn_module_buffers_create(NULL));
    ck_assert_int_eq(mn_module_buffers_save(NULL), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_module_buffers_restore(NULL), MN_ERR_ARGUMENT);
    mn_module_buffers_free(NULL);
    mn_module_buffers *empty = mn_module_buffers_create(none);
    ck_assert_int_eq(mn_module_buffers_restore(empty), MN_OK);
    mn_module_buffers_free(empty);
    mn_module_free(norm);
    mn_module_free(none);
    mn_context_free(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("retry");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, as_with_the_lower_scale, 0, 4);
    tcase_add_test(tests, same_images_and_masks);
    tcase_add_test(tests, attempts_are_capped);
    tcase_add_test(tests, collapse_ends_the_attempts);
    tcase_add_loop_test(tests, only_with_a_scaler, 0, 3);
    tcase_add_loop_test(tests, resume_is_exact, 0, 5);
    tcase_add_loop_test(tests, older_checkpoint, 0, 2);
    tcase_add_test(tests, cancel_waits_for_the_window);
    tcase_add_test(tests, out_of_memory);
    tcase_add_test(tests, own_loop);
    tcase_add_test(tests, buffers);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
