/* Runs: learning, windows, resume, identity, cancelling, evaluation, bench, and what is bad. */
#include "minim.h"
#include "tests/support_counting.h"
#include "train/train.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA "synthetic:12x12x1:4:120"

/* ---- help ------------------------------------------------------------------------------------ */

/* 108 images to train on, 12 held out: 7 windows of 16 an epoch, the last one of 12. */
static mn_train_options small_run(void)
{
    mn_train_options options = mn_train_options_default();
    options.data = DATA;
    options.batch = 16;
    options.epochs = 2;
    options.lr = 0.02;
    options.context.threads = 1;
    return options;
}

static mn_train_result *run_ok(const mn_train_options *options)
{
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(options, &error);
    ck_assert_msg(result != NULL, "%s: %s", mn_status_name(error.status), error.message);
    return result;
}

static void run_and_forget(const mn_train_options *options)
{
    mn_train_result_free(run_ok(options));
}

/* The run must fail with this status and all these words in its message. */
static void run_fails(const mn_train_options *options, mn_status status, const char *const *words)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_train(options, &error));
    ck_assert_msg(error.status == status, "%s: %s", mn_status_name(error.status), error.message);
    for (; *words; words++)
        ck_assert_msg(strstr(error.message, *words) != NULL, "\"%s\" not in: %s", *words,
                      error.message);
}

static const char *file_name(const char *name)
{
    static char paths[8][64];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "/tmp/minim-train-%ld-%s", (long)getpid(), name);
    return path;
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is not there", path);
    char *data = malloc(1 << 22);
    *size = fread(data, 1, 1 << 22, file);
    ck_assert_uint_lt(*size, 1 << 22);
    fclose(file);
    return data;
}

static void same_files(const char *a, const char *b)
{
    size_t size_a, size_b;
    char *data_a = read_file(a, &size_a), *data_b = read_file(b, &size_b);
    ck_assert_uint_gt(size_a, 1000);
    ck_assert_uint_eq(size_a, size_b);
    ck_assert_msg(memcmp(data_a, data_b, size_a) == 0, "%s and %s differ", a, b);
    free(data_a);
    free(data_b);
}

/* ---- learning -------------------------------------------------------------------------------- */

START_TEST(test_learns)
{
    static const mn_dtype kinds[] = {MN_F32, MN_BF16, MN_F16};
    mn_train_options options = small_run();
    options.data = "synthetic:12x12x1:4:300";
    options.epochs = 5;
    options.amp = kinds[_i];
    options.fp32_metrics = true;
    mn_train_result *result = run_ok(&options);
    ck_assert_str_eq(result->model, "lenet5");
    ck_assert_int_eq(result->epoch_count, 5);
    ck_assert_int_eq(result->step_count, 5 * 17);
    ck_assert_int_eq(result->total_steps, 5 * 17);
    ck_assert_int_gt(result->parameters, 10000);
    const mn_epoch_result *first = &result->epochs[0], *last = &result->epochs[4];
    ck_assert_double_lt(last->train_loss, 0.7 * first->train_loss);
    ck_assert_double_gt(last->test_accuracy, 0.5);
    ck_assert_double_gt(last->validation_accuracy, 0.5);
    ck_assert_double_eq_tol(last->test_accuracy_fp32, last->test_accuracy, 0.05);
    ck_assert_double_gt(last->images_per_s, 0.0);
    ck_assert_double_ge(last->data_wait_fraction, 0.0);
    ck_assert_uint_gt(last->peak_tensor_bytes, 100000);
    ck_assert_uint_gt(last->peak_rss_bytes, 1000000);
    ck_assert_int_eq(result->step_results[16].samples, 14);
    ck_assert_int_eq(result->step_results[17].epoch, 2);
    ck_assert_double_gt(result->step_results[0].grad_norm, 0.0);
    ck_assert_double_eq(result->step_results[0].lr, options.lr);
    mn_train_result_free(result);
}
END_TEST

START_TEST(test_windows_are_means)
{
    /* 64 images: windows of 30, 30 and 4, once in one batch each and once in up to three. */
    mn_train_options options = small_run();
    options.data = "synthetic:12x12x1:4:64";
    options.validation = 0.0;
    options.epochs = 2;
    options.batch = 30;
    mn_train_result *whole = run_ok(&options);
    options.batch = 10;
    options.accumulate = 3;
    mn_train_result *parts = run_ok(&options);
    ck_assert_int_eq(whole->step_count, 6);
    ck_assert_int_eq(parts->step_count, 6);
    for (int i = 0; i < 6; i++) {
        const mn_step_result *a = &whole->step_results[i], *b = &parts->step_results[i];
        ck_assert_int_eq(a->samples, i % 3 == 2 ? 4 : 30);
        ck_assert_int_eq(b->samples, a->samples);
        ck_assert_double_eq_tol(b->loss, a->loss, 1e-5 * fabs(a->loss));
        ck_assert_double_eq_tol(b->grad_norm, a->grad_norm, 1e-4 * a->grad_norm);
    }
    ck_assert(isnan(whole->epochs[0].validation_accuracy));
    mn_train_result_free(whole);
    mn_train_result_free(parts);
}
END_TEST

/* ---- resume ---------------------------------------------------------------------------------- */

/* In a process of its own, as a user would. */
static void run_in_child(const mn_train_options *options)
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

/* A whole run against one stopped at `stop` and gone on with on other threads. */
static void check_resume(mn_train_options options, int64_t stop, int threads)
{
    const char *whole = file_name("whole"), *half = file_name("half"), *rest = file_name("rest");
    options.checkpoint = whole;
    mn_train_result *once = run_ok(&options);
    options.checkpoint = half;
    options.stop_after = stop;
    run_in_child(&options);
    options.stop_after = 0;
    options.resume = half;
    options.checkpoint = rest;
    options.context.threads = threads;
    mn_train_result *second = run_ok(&options);
    same_files(whole, rest);
    ck_assert_int_eq(second->total_steps, once->total_steps);
    ck_assert_int_eq(second->step_count, once->step_count - stop);
    ck_assert_int_gt(second->epoch_count, 0);
    for (int64_t i = 1; i <= second->epoch_count; i++) {
        const mn_epoch_result *a = &once->epochs[once->epoch_count - i];
        const mn_epoch_result *b = &second->epochs[second->epoch_count - i];
        ck_assert_int_eq(a->epoch, b->epoch);
        ck_assert_double_eq(a->train_loss, b->train_loss);
        ck_assert_double_eq(a->validation_loss, b->validation_loss);
        ck_assert_double_eq(a->test_accuracy, b->test_accuracy);
        ck_assert_int_eq(a->skipped_steps, b->skipped_steps);
    }
    mn_train_result_free(once);
    mn_train_result_free(second);
    unlink(whole);
    unlink(half);
    unlink(rest);
}

START_TEST(test_resume_is_exact)
{
    static const struct {
        mn_dtype amp;
        int64_t stop;
        int threads;
        const char *optimizer, *parameters;
        mn_schedule_kind schedule;
        int64_t warmup;
    } cases[] = {{MN_F32, 3, 2, "sgd", "f32", MN_SCHEDULE_COSINE, 0},
                 {MN_F32, 7, 3, "adamw", NULL, MN_SCHEDULE_STEP, 2},
                 {MN_F32, 9, 5, "sgd", "bf16-master", MN_SCHEDULE_COSINE, 0},
                 {MN_BF16, 4, 3, "rmsprop", "bf16-stochastic", MN_SCHEDULE_ONE_CYCLE, 0},
                 {MN_BF16, 1, 2, "adamw", NULL, MN_SCHEDULE_COSINE, 3},
                 {MN_F16, 2, 5, "sgd", NULL, MN_SCHEDULE_COSINE, 0},
                 {MN_F16, 10, 2, "adam", "bf16-stochastic", MN_SCHEDULE_COSINE, 3}};
    mn_train_options options = small_run();
    options.amp = cases[_i].amp;
    options.optimizer = cases[_i].optimizer;
    options.schedule = cases[_i].schedule;
    options.warmup = cases[_i].warmup;
    options.parameters = cases[_i].parameters;
    options.step_size = options.schedule == MN_SCHEDULE_STEP ? 2 : 0;
    options.clip_norm = 1.0;
    options.scaler.init_scale = 1ll << 28; /* so large that the first steps are skipped */
    options.scaler.growth_interval = 3;
    check_resume(options, cases[_i].stop, cases[_i].threads);
}
END_TEST

START_TEST(test_resume_accumulated_batch_norm)
{
    mn_train_options options = small_run();
    options.model = "cnn-small";
    options.data = "synthetic:8x8x2:3:40";
    options.amp = _i ? MN_F16 : MN_F32;
    options.batch = 4;
    options.accumulate = 3;
    check_resume(options, 4, 3);
}
END_TEST

START_TEST(test_resume_ends_short_epoch)
{
    mn_train_options options = small_run();
    options.steps = 10; /* the second epoch ends after 3 of 7 */
    check_resume(options, 8, 1);
}
END_TEST

START_TEST(test_checkpoint_every)
{
    mn_train_options options = small_run();
    const char *a = file_name("every"), *b = file_name("stop");
    options.checkpoint = b;
    options.stop_after = 7;
    run_and_forget(&options);
    options.checkpoint = a;
    options.checkpoint_every = 7; /* at an epoch's end: evaluation comes first */
    options.stop_after = 9;
    run_and_forget(&options);
    options.resume = b;
    options.checkpoint = b;
    run_and_forget(&options);
    same_files(a, b);
    unlink(a);
    unlink(b);
}
END_TEST

START_TEST(test_deferred_device)
{
    mn_train_options options = small_run();
    const char *a = file_name("cpu"), *b = file_name("deferred");
    options.amp = _i ? MN_F16 : MN_F32;
    options.checkpoint = a;
    mn_train_result *first = run_ok(&options);
    options.checkpoint = b;
    options.context.device = "cpu-deferred";
    mn_train_result *second = run_ok(&options);
    same_files(a, b);
    ck_assert_int_eq(first->step_count, second->step_count);
    for (int64_t i = 0; i < first->step_count; i++) {
        ck_assert_int_eq(second->step_results[i].step, i + 1);
        ck_assert_double_eq(first->step_results[i].loss, second->step_results[i].loss);
        ck_assert_double_eq(first->step_results[i].lr, second->step_results[i].lr);
    }
    mn_train_result_free(first);
    mn_train_result_free(second);
    unlink(a);
    unlink(b);
}
END_TEST

/* ---- identity -------------------------------------------------------------------------------- */

static char noticed[2048];

static void notice(void *user, const char *line)
{
    (void)user;
    snprintf(noticed, sizeof noticed, "%s", line);
}

START_TEST(test_identity)
{
    const char *path = file_name("identity");
    mn_train_options options = small_run();
    options.schedule = MN_SCHEDULE_STEP, options.step_size = 2;
    options.checkpoint = path;
    options.stop_after = 3;
    run_and_forget(&options);
    options.resume = path;
    options.checkpoint = NULL;
    options.notice = notice;
    options.lr = 0.1;
    options.gamma = 0.3;
    options.batch = 8;
    options.rules = "softmax=LOWER";
    run_fails(&options, MN_ERR_MISMATCH,
              (const char *const[]){"belongs to another run", "--lr 0.02 there, 0.1 here",
                                    "--gamma 0.1 there, 0.3 here", "--batch 16 there, 8 here",
                                    "planned steps", "rules", NULL});
    options.resume_anyway = true;
    run_and_forget(&options);
    ck_assert_ptr_nonnull(strstr(noticed, "--lr 0.02 there"));
    options.model = "cnn-small";
    run_fails(&options, MN_ERR_MISMATCH, (const char *const[]){"conv1", NULL});
    options = small_run();
    options.resume = path;
    options.data = "synthetic:12x12x1:4:121";
    run_fails(&options, MN_ERR_MISMATCH, (const char *const[]){"fingerprint", NULL});
    unlink(path);
}
END_TEST

START_TEST(test_other_precision)
{
    static const mn_dtype kinds[] = {MN_F32, MN_BF16, MN_F16};
    const char *path = file_name("precision");
    mn_train_options options = small_run();
    options.checkpoint = path;
    options.stop_after = 3;
    options.amp = kinds[_i / 3];
    options.scaler.init_scale = 1024;
    run_and_forget(&options);
    options.resume = path;
    options.checkpoint = NULL;
    options.stop_after = 5;
    options.notice = notice;
    options.amp = kinds[_i % 3];
    noticed[0] = '\0';
    mn_train_result *result = run_ok(&options);
    ck_assert_int_eq(noticed[0] != '\0', _i / 3 != _i % 3);
    ck_assert_int_eq(result->step_results[0].step, 4);
    ck_assert_double_eq(result->step_results[0].scale, options.amp == MN_F16 ? 1024.0 : 1.0);
    mn_train_result_free(result);
    unlink(path);
}
END_TEST

START_TEST(test_bad_checkpoints)
{
    const char *path = file_name("bad");
    size_t size;
    mn_error error = {MN_OK, ""};
    mn_train_options options = small_run();
    options.checkpoint = path;
    options.stop_after = 2;
    run_and_forget(&options);
    char *data = read_file(path, &size);
    options.checkpoint = NULL;
    options.resume = path;
    for (size_t cut = 0; cut < size; cut += size / 9) {
        FILE *file = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(data, 1, cut, file), cut);
        fclose(file);
        ck_assert_ptr_null(mn_train(&options, &error));
        ck_assert_int_ne(error.status, MN_OK);
    }
    free(data);
    unlink(path);
    run_fails(&options, MN_ERR_IO, (const char *const[]){path, NULL});
    options.resume = NULL;
    options.checkpoint = "/nowhere/at/all";
    run_fails(&options, MN_ERR_IO, (const char *const[]){"/nowhere/at/all", NULL});
}
END_TEST

/* ---- cancelling and callbacks ---------------------------------------------------------------- */

static bool cancel_at(void *user)
{
    int *left = user;
    return --*left == 0;
}

START_TEST(test_cancel)
{
    const char *whole = file_name("whole"), *part = file_name("part");
    int left = 3;
    mn_train_options options = small_run();
    options.checkpoint = whole;
    run_and_forget(&options);
    options.checkpoint = part;
    options.user = &left;
    options.cancel = cancel_at;
    mn_train_result *result = run_ok(&options);
    ck_assert(result->cancelled);
    ck_assert_int_eq(result->step_count, 3);
    ck_assert_int_eq(result->epoch_count, 0);
    mn_train_result_free(result);
    options.cancel = NULL;
    options.resume = part;
    result = run_ok(&options);
    ck_assert(!result->cancelled);
    mn_train_result_free(result);
    same_files(whole, part);
    unlink(whole);
    unlink(part);
}
END_TEST

static mn_status waiting_step(mn_step *step, void *user)
{
    uint64_t *waits = user;
    waits[step->step] = step->context->device->synchronizations;
    mn_status status = mn_step_default(step, NULL);
    ck_assert_uint_eq(step->context->device->synchronizations, waits[step->step]);
    return status;
}

/* On a device that works later no step waits, and the host reads results every few steps only. */
START_TEST(test_no_step_waits)
{
    uint64_t waits[16] = {0};
    mn_train_options options = small_run();
    options.data = "synthetic:12x12x1:4:192";
    options.validation = 0.0;
    options.epochs = 1;
    options.step = waiting_step;
    options.step_user = waits;
    options.amp = _i ? MN_F16 : MN_F32;
    options.context.device = "cpu-deferred";
    run_and_forget(&options);
    ck_assert_uint_eq(waits[1], waits[MN_WARMUP_STEPS]);
    ck_assert_uint_eq(waits[6], waits[8]);
    ck_assert_uint_lt(waits[8], waits[9]);
    ck_assert_uint_eq(waits[9], waits[12]);
}
END_TEST

static mn_status failing_step(mn_step *step, void *user)
{
    (void)user;
    return step->step == 3 ? MN_ERR_UNSUPPORTED : mn_step_default(step, NULL);
}

START_TEST(test_diverging_and_failing)
{
    mn_train_options options = small_run();
    options.lr = 1e30;
    mn_train_result *result = run_ok(&options);
    ck_assert(!isfinite(result->epochs[1].train_loss));
    ck_assert_int_gt(result->epochs[1].nonfinite, 0);
    ck_assert_int_eq(result->epochs[1].skipped_steps, 0);
    mn_train_result_free(result);
    options = small_run();
    options.step = failing_step;
    run_fails(&options, MN_ERR_UNSUPPORTED, (const char *const[]){"step 3", NULL});
}
END_TEST

START_TEST(test_collapsed_scale)
{
    mn_train_options options = small_run();
    options.amp = MN_F16;
    options.epochs = 20;
    options.scaler.init_scale = 1ll << 40;
    options.scaler.min_scale = 1ll << 38;
    run_fails(&options, MN_ERR_COLLAPSED, (const char *const[]){"loss scale", NULL});
}
END_TEST

/* ---- options and memory ---------------------------------------------------------------------- */

START_TEST(test_bad_options)
{
    mn_train_options o = small_run();
    o.batch = 0;
    run_fails(&o, MN_ERR_ARGUMENT,
              (const char *const[]){"--batch must be at least 1, got 0", NULL});
    o = small_run();
    o.accumulate = INT64_MAX;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--accumulate", NULL});
    o = small_run();
    o.optimizer = "lion";
    run_fails(&o, MN_ERR_UNSUPPORTED, (const char *const[]){"lion", "sgd", "adamw", NULL});
    o = small_run();
    o.lr = (double)INFINITY;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--lr", NULL});
    o = small_run();
    o.validation = 1.0;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--validation", NULL});
    o = small_run();
    o.amp = MN_I64;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--amp", "i64", NULL});
    o = small_run();
    o.epochs = 0;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--epochs", NULL});
    o = small_run();
    o.checkpoint_every = 5;
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"--checkpoint-every", NULL});
    o = small_run();
    o.model = "resnet1000";
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"resnet1000", NULL});
    o = small_run();
    o.rules = "nosuchop=LOWER";
    run_fails(&o, MN_ERR_ARGUMENT, (const char *const[]){"nosuchop", NULL});
    ck_assert_ptr_null(mn_train(&o, NULL));
}
END_TEST

START_TEST(test_out_of_memory)
{
    const char *path = file_name("memory");
    mn_test_counter counter = {0};
    mn_train_options options = small_run();
    options.data = "synthetic:12x12x1:4:40";
    options.epochs = 1;
    options.checkpoint = path;
    options.context.allocator = mn_test_counting(&counter);
    run_and_forget(&options);
    long calls = counter.calls;
    ck_assert_int_eq(counter.blocks, 0);
    ck_assert_int_gt(calls, 100);
    for (long k = 1; k <= calls; k += k < 60 ? 1 : 7) {
        mn_error error = {MN_OK, ""};
        counter = (mn_test_counter){.fail_at = k};
        options.context.allocator = mn_test_counting(&counter);
        mn_train_result *result = mn_train(&options, &error);
        ck_assert_msg(result || error.status == MN_ERR_MEMORY, "call %ld: %s: %s", k,
                      mn_status_name(error.status), error.message);
        mn_train_result_free(result);
        ck_assert_msg(counter.blocks == 0, "call %ld: %ld blocks left", k, counter.blocks);
    }
    unlink(path);
}
END_TEST

/* ---- the suite ------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("train");
    TCase *learn = tcase_create("learn"), *resume = tcase_create("resume");
    TCase *rest = tcase_create("rest");
    tcase_set_timeout(learn, 120);
    tcase_set_timeout(resume, 120);
    tcase_set_timeout(rest, 120);
    tcase_add_loop_test(learn, test_learns, 0, 3);
    tcase_add_test(learn, test_windows_are_means);
    tcase_add_loop_test(resume, test_resume_is_exact, 0, 7);
    tcase_add_loop_test(resume, test_resume_accumulated_batch_norm, 0, 2);
    tcase_add_test(resume, test_resume_ends_short_epoch);
    tcase_add_test(resume, test_checkpoint_every);
    tcase_add_loop_test(resume, test_deferred_device, 0, 2);
    tcase_add_test(rest, test_identity);
    tcase_add_loop_test(rest, test_other_precision, 0, 9);
    tcase_add_test(rest, test_bad_checkpoints);
    tcase_add_test(rest, test_cancel);
    tcase_add_loop_test(rest, test_no_step_waits, 0, 2);
    tcase_add_test(rest, test_diverging_and_failing);
    tcase_add_test(rest, test_collapsed_scale);
    tcase_add_test(rest, test_bad_options);
    tcase_add_test(rest, test_out_of_memory);
    suite_add_tcase(suite, learn);
    suite_add_tcase(suite, resume);
    suite_add_tcase(suite, rest);
    return mn_test_run(suite, CK_FORK_GETENV);
}
