/* tests/test_train_monitor.c: the numerics monitor in training runs: what the log and the result
 * say, that it changes no result and no timing, and that it is freed on every way out. */
#include "tests/support_counting.h"
#include "tests/support_report.h"
#include "tests/support_suite.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DATA "synthetic:12x12x1:4:120"
enum { STEPS = 7, MOST_LINES = 32 }; /* of an epoch with batch 16 */

static char lines[MOST_LINES][1024];
static int line_count;

static void keep_line(void *user, const char *line)
{
    (void)user;
    ck_assert_int_lt(line_count, MOST_LINES);
    ck_assert_uint_lt(strlen(line), sizeof lines[0]);
    ck_assert_str_eq(mn_json_skip(line), "");
    strcpy(lines[line_count++], line);
}

static mn_train_options run_of(mn_dtype amp, int64_t monitor)
{
    mn_train_options options = mn_train_options_default();
    options.data = DATA;
    options.batch = 16;
    options.epochs = 1;
    options.lr = 0.02;
    options.amp = amp;
    options.monitor = monitor;
    options.context.threads = 1;
    options.log = keep_line;
    line_count = 0;
    return options;
}

static mn_train_result *train(const mn_train_options *options)
{
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

/* The index-th event of a kind; NULL if there is none. */
static const char *event_at(const char *kind, int index)
{
    char start[32];
    snprintf(start, sizeof start, "{\"event\":\"%s\"", kind);
    for (int i = 0; i < line_count; i++)
        if (strncmp(lines[i], start, strlen(start)) == 0 && index-- == 0)
            return lines[i];
    return NULL;
}

static const char *const devices[] = {"cpu", "cpu-deferred"};

/* A scale of 1e9 overflows where backward begins, in every step until it is small enough; the
 * monitor has seen steps 1, 3, 5 and 7 of them. */
START_TEST(overflows_are_named)
{
    static const char *const values[][2] = {{"op", "\"cross_entropy\""},
                                            {"ran", "\"cross_entropy_backward\""},
                                            {"layer", "\"\""},
                                            {"direction", "\"backward\""},
                                            {"dtype", "\"f16\""},
                                            {"cause", "\"backward\""},
                                            {"max_abs", "0"},
                                            {"parameter", "\"\""}};
    mn_train_options options = run_of(MN_F16, 2);
    options.context.device = devices[_i];
    options.scaler.init_scale = 1e9;
    mn_train_result *result = train(&options);
    const mn_train_monitor *m = result->monitor;
    ck_assert_int_eq(m->steps, 4);
    ck_assert_int_ge(m->overflow_count, 2);
    ck_assert_int_eq(m->totals.overflows, m->overflow_count);
    int logged = 0;
    for (int step = 1; step <= STEPS; step++) {
        const bool seen = step % 2 == 1 && result->step_results[step - 1].nonfinite;
        const char *line = event_at("overflow", logged);
        char number[8];
        if (!seen)
            continue;
        ck_assert_ptr_nonnull(line);
        snprintf(number, sizeof number, "%d", step);
        mn_json_check(line, "step", number);
        ck_assert_int_eq(m->overflows[logged++].step, step);
    }
    ck_assert_int_eq(logged, m->overflow_count);
    ck_assert_ptr_null(event_at("overflow", logged));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        mn_json_check(event_at("overflow", 0), values[i][0], values[i][1]);
    ck_assert_ptr_nonnull(strstr(event_at("overflow", 0), "a lower loss scale may mend that"));
    mn_train_result_free(result);
}
END_TEST

/* From step 3 on conv2's weights are so large that its sums leave FP16, but not the weights. */
static mn_status plant(mn_step *step, void *user)
{
    int count;
    mn_tensor *const *parameters = mn_module_parameters(step->model, &count);
    for (int i = 0; i < count && step->step >= 3; i++)
        if (strcmp(mn_tensor_name(parameters[i]), "conv2.weight") == 0)
            mn_tensor_fill(parameters[i], 30000.0);
    return mn_step_default(step, user);
}

START_TEST(a_planted_overflow_is_named)
{
    mn_train_options options = run_of(MN_F16, 1);
    options.step = plant;
    options.steps = 4;
    mn_train_result *result = train(&options);
    const char *line = event_at("overflow", 0);
    ck_assert_ptr_nonnull(line);
    mn_json_check(line, "step", "3");
    mn_json_check(line, "op", "\"conv2d_relu\"");
    mn_json_check(line, "layer", "\"conv2\"");
    mn_json_check(line, "direction", "\"forward\"");
    mn_json_check(line, "cause", "\"forward\"");
    ck_assert_ptr_nonnull(strstr(line, "no loss scale can mend that"));
    ck_assert_str_eq(result->monitor->overflows[0].row->layer, "conv2");
    ck_assert_int_eq(result->monitor->overflow_count, 2);
    mn_train_result_free(result);
}
END_TEST

/* More attempts at one step than the monitor keeps overflows between collects: a scale of 1e35
 * takes some hundred halvings. */
START_TEST(every_attempt_is_kept)
{
    mn_train_options options = run_of(MN_F16, 1);
    options.log = NULL;
    options.steps = 2;
    options.scaler.init_scale = 1e35;
    options.retry = 150;
    mn_train_result *result = train(&options);
    const mn_train_monitor *m = result->monitor;
    ck_assert_int_gt(result->step_results[0].retries, 64);
    ck_assert(m->steps == 2 && m->overflow_count == result->retries);
    ck_assert_int_eq(m->totals.overflows, m->overflow_count);
    ck_assert_int_eq(m->overflows[0].step, 1);
    mn_train_result_free(result);
}
END_TEST

/* Without a monitor there is nothing; with one, shares of what is stored in 16 bit. */
START_TEST(shares_are_measured_or_null)
{
    static const char *const fields[] = {"underflow_fraction", "underflow_forward",
                                         "underflow_backward"};
    static const struct {
        mn_dtype amp;
        int64_t monitor;
    } cases[] = {{MN_F16, 0}, {MN_F32, 1}, {MN_F16, 1}, {MN_BF16, 3}};
    mn_train_options options = run_of(cases[_i].amp, cases[_i].monitor);
    options.scaler.init_scale = 1.0; /* so that much is lost */
    mn_train_result *result = train(&options);
    const mn_train_monitor *m = result->monitor;
    ck_assert(!!m == (cases[_i].monitor > 0));
    for (int i = 0; i < 3; i++) {
        const char *at = mn_json_at(event_at("epoch", 0), fields[i]);
        ck_assert_ptr_nonnull(at);
        ck_assert((strncmp(at, "null", 4) == 0) == (_i < 2));
    }
    if (m) {
        ck_assert_int_gt(m->totals.updates, 0);
        ck_assert_double_eq(m->updates_lost,
                            (double)m->totals.updates_lost / (double)m->totals.updates);
    }
    if (_i == 2) {
        ck_assert_double_gt(m->underflow_backward, 0.0);
        ck_assert_double_eq(m->underflow_fraction, result->epochs[0].underflow_fraction);
        ck_assert_ptr_nonnull(m->worst_layer);
        ck_assert_double_ge(m->worst_underflow, m->underflow_fraction);
    }
    mn_train_result_free(result);
}
END_TEST

static void check_same_files(const char *a, const char *b)
{
    char command[256];
    snprintf(command, sizeof command, "cmp -s %s %s", a, b);
    ck_assert_int_eq(system(command), 0);
}

/* Also where a run was resumed, which looks on at the steps that it runs. */
START_TEST(results_do_not_depend_on_it)
{
    static const mn_dtype amps[] = {MN_F32, MN_BF16, MN_F16};
    char plain[64], watched[64];
    snprintf(plain, sizeof plain, "/tmp/minim-plain-%ld", (long)getpid());
    snprintf(watched, sizeof watched, "/tmp/minim-watched-%ld", (long)getpid());
    mn_train_options options = run_of(amps[_i / 2], 0);
    options.log = NULL;
    options.context.device = devices[_i % 2];
    options.checkpoint = plain;
    mn_train_result_free(train(&options));
    options.checkpoint = watched;
    options.monitor = 1 + _i % 2;
    mn_train_result_free(train(&options));
    check_same_files(plain, watched);
    options.stop_after = 4;
    mn_train_result_free(train(&options));
    options.stop_after = 0;
    options.resume = watched;
    mn_train_result *result = train(&options);
    check_same_files(plain, watched);
    ck_assert_int_eq(result->monitor->steps, _i % 2 ? 2 : 3);
    mn_train_result_free(result);
    unlink(plain);
    unlink(watched);
}
END_TEST

/* Steps 1, 4, 7, ... take long, which the rate must not show. */
static mn_status slow_third(mn_step *step, void *user)
{
    const struct timespec pause = {0, 150000000};
    if (step->step % 3 == 1)
        nanosleep(&pause, NULL);
    return mn_step_default(step, user);
}

START_TEST(its_steps_are_not_timed)
{
    mn_train_options options = run_of(MN_F32, 3);
    options.epochs = 3;
    options.step = slow_third;
    mn_train_result *result = train(&options);
    /* With the pauses it would be below 48 images in 0.15 s. */
    ck_assert_double_gt(result->epochs[2].images_per_s, 48.0 / 0.15);
    ck_assert_uint_gt(result->epochs[2].peak_tensor_bytes, 0);
    mn_train_result_free(result);
    options = run_of(MN_F32, 1);
    options.epochs = 2;
    result = train(&options);
    ck_assert(isnan(result->epochs[1].images_per_s));
    ck_assert(isnan(result->epochs[1].data_wait_fraction));
    ck_assert_uint_eq(result->epochs[1].peak_tensor_bytes, 0);
    mn_train_result_free(result);
    options.monitor = -1;
    mn_error error;
    ck_assert_ptr_null(mn_train(&options, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "--monitor-every"));
}
END_TEST

START_TEST(memory_runs_out)
{
    mn_test_counter counter = {.fail_at = 0};
    long failures = 0;
    mn_train_options options = run_of(MN_F16, 1);
    options.steps = 2;
    options.scaler.init_scale = 1e9;
    options.context.allocator = mn_test_counting(&counter);
    for (long k = 1;; k++) {
        mn_error error = {MN_OK, ""};
        counter.calls = 0;
        counter.fail_at = k;
        line_count = 0;
        mn_train_result *result = mn_train(&options, &error);
        ck_assert_msg(result || error.status == MN_ERR_MEMORY, "%s", error.message);
        mn_train_result_free(result);
        ck_assert_int_eq(counter.blocks, 0);
        if (counter.calls < k)
            break;
        failures += !result;
    }
    ck_assert_int_gt(failures, 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train-monitor");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, overflows_are_named, 0, 2);
    tcase_add_test(tests, a_planted_overflow_is_named);
    tcase_add_test(tests, every_attempt_is_kept);
    tcase_add_loop_test(tests, shares_are_measured_or_null, 0, 4);
    tcase_add_loop_test(tests, results_do_not_depend_on_it, 0, 6);
    tcase_add_test(tests, its_steps_are_not_timed);
    tcase_add_test(tests, memory_runs_out);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
