/* tests/test_train_events.c: the JSON writer and a run's log lines, read back by a small strict
 * parser; evaluation of models and checkpoints; bench. */
#include "minim.h"
#include "train/train.h"
#include "tests/support_suite.h"

#include <check.h>
#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "synthetic:12x12x1:4:120"

/* ---- a strict JSON parser that only accepts or refuses ----------------------------------------
 */

static const char *value(const char *at);

static const char *string(const char *at)
{
    if (!at || *at++ != '"')
        return NULL;
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at != '\\')
            continue;
        if (*++at == '\0' || !strchr("\"\\/bfnrtu", *at))
            return NULL;
        if (*at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") < 4)
            return NULL;
    }
    return at + 1;
}

static const char *digits(const char *at)
{
    if (!at || !isdigit((unsigned char)*at))
        return NULL;
    while (isdigit((unsigned char)*at))
        at++;
    return at;
}

static const char *number(const char *at)
{
    at += *at == '-';
    at = *at == '0' ? at + 1 : digits(at);
    if (at && *at == '.')
        at = digits(at + 1);
    if (at && (*at == 'e' || *at == 'E')) {
        at++;
        at = digits(at + (*at == '+' || *at == '-'));
    }
    return at;
}

static const char *members(const char *at, char close)
{
    if (*at == close)
        return at + 1;
    for (;;) {
        if (close == '}') {
            at = string(at);
            if (!at || *at++ != ':')
                return NULL;
        }
        at = value(at);
        if (!at || (*at != ',' && *at != close))
            return NULL;
        if (*at++ == close)
            return at;
    }
}

static const char *value(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};
    if (!at)
        return NULL;
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return at + strlen(words[i]);
    switch (*at) {
    case '"':
        return string(at);
    case '{':
        return members(at + 1, '}');
    case '[':
        return members(at + 1, ']');
    default:
        return number(at);
    }
}

static bool is_json(const char *text)
{
    const char *end = value(text);
    return end && *end == '\0';
}

/* The text of a member, up to the next comma or brace. */
static const char *member(const char *line, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    return at ? at + strlen(quoted) : NULL;
}

START_TEST(test_parser_refuses)
{
    static const char *const bad[] = {"",      "{",        "{\"a\"}", "[1,]",     "01", "1.",
                                      "nan",   "{1:2}",    "\"\n\"",  "{}x",      "-",  "\"\\x\"",
                                      "[1 2]", "{\"a\":}", "1e",      "\"\\u12\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!is_json(bad[i]), "accepted: %s", bad[i]);
}
END_TEST

/* ---- the writer ------------------------------------------------------------------------------ */

START_TEST(test_writer)
{
    mn_json_out json;
    mn_out_init(&json, NULL);
    mn_out_begin(&json, NULL, '{');
    mn_out_string(&json, "a\"b", "\x01\n\\ \xc3\xa9 \xff \xed\xa0\x80");
    mn_out_begin(&json, "list", '[');
    mn_out_integer(&json, NULL, INT64_MIN);
    mn_out_unsigned(&json, NULL, UINT64_MAX);
    mn_out_begin(&json, NULL, '{');
    mn_out_end(&json, '}');
    mn_out_boolean(&json, NULL, true);
    mn_out_number(&json, NULL, (double)NAN);
    mn_out_number(&json, NULL, -(double)INFINITY);
    mn_out_measured(&json, NULL, (double)NAN);
    mn_out_measured(&json, NULL, (double)INFINITY);
    mn_out_string(&json, NULL, NULL);
    mn_out_end(&json, ']');
    mn_out_end(&json, '}');
    ck_assert_str_eq(mn_out_text(&json),
                     "{\"a\\\"b\":\"\\u0001\\u000a\\\\ \xc3\xa9 \xef\xbf\xbd "
                     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",\"list\":[-9223372036854775808,"
                     "18446744073709551615,{},true,\"nan\",\"-inf\",null,\"inf\",null]}");
    ck_assert(is_json(mn_out_text(&json)));
    mn_out_reset(&json);
    for (int i = 0; i < 5000; i++)
        mn_out_integer(&json, NULL, i); /* grows */
    ck_assert_uint_gt(strlen(mn_out_text(&json)), 20000);
    mn_out_free(&json);
}
END_TEST

START_TEST(test_numbers)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.1, "0.1"},       {65536, "65536"},  {1.0 / 3, "0.3333333333333333"},   {-0.0, "-0"},
        {5e-324, "5e-324"}, {1e300, "1e+300"}, {0.1 + 0.2, "0.30000000000000004"}};
    char text[MN_NUMBER_TEXT];
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8"))
        setlocale(LC_NUMERIC, "C");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_number_text(cases[i].value, text);
        ck_assert_str_eq(text, cases[i].text);
        ck_assert(is_json(text));
    }
    setlocale(LC_NUMERIC, "C");
    for (int i = 0; i < 20000; i++) {
        double x = ldexp((double)rand() / RAND_MAX - 0.5, rand() % 400 - 200);
        mn_number_text(x, text);
        ck_assert_double_eq(strtod(text, NULL), x);
    }
}
END_TEST

/* ---- the log of a run ------------------------------------------------------------------------ */

#define LINES_MAX 64

typedef struct log_lines {
    char *lines[LINES_MAX];
    int count;
} log_lines;

static void keep_line(void *user, const char *line)
{
    log_lines *log = user;
    ck_assert_int_lt(log->count, LINES_MAX);
    ck_assert_ptr_null(strchr(line, '\n'));
    ck_assert_msg(is_json(line), "no JSON: %s", line);
    log->lines[log->count++] = strdup(line);
}

static void free_lines(log_lines *log)
{
    for (int i = 0; i < log->count; i++)
        free(log->lines[i]);
    log->count = 0;
}

static void has_keys(const char *line, const char *event, const char *const *keys)
{
    char start[64];
    snprintf(start, sizeof start, "{\"event\":\"%s\",", event);
    ck_assert_msg(strncmp(line, start, strlen(start)) == 0, "not %s: %s", event, line);
    for (; *keys; keys++)
        ck_assert_msg(member(line, *keys) != NULL, "no %s in %s", *keys, line);
}

static mn_train_options logged_run(log_lines *log)
{
    mn_train_options options = mn_train_options_default();
    options.data = DATA;
    options.batch = 16;
    options.epochs = 2;
    options.lr = 0.02;
    options.context.threads = 1;
    options.log = keep_line;
    options.user = log;
    return options;
}

static void run_logged(const mn_train_options *options)
{
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    mn_train_result_free(result);
}

static const char *const start_keys[] = {"version",    "device", "cpu",  "threads", "model",
                                         "parameters", "amp",    "seed", "config",  NULL};
static const char *const step_keys[] = {"step",    "epoch",     "loss",    "lr", "scale",
                                        "skipped", "grad_norm", "retries", NULL};
static const char *const epoch_keys[] = {"epoch",
                                         "steps",
                                         "train_loss",
                                         "validation_loss",
                                         "validation_accuracy",
                                         "test_loss",
                                         "test_accuracy",
                                         "images_per_s",
                                         "data_wait_fraction",
                                         "skipped_steps",
                                         "skipped_warmup",
                                         "skipped_growth",
                                         "retries",
                                         "scale",
                                         "nonfinite",
                                         "peak_tensor_bytes",
                                         "peak_rss_bytes",
                                         NULL};
static const char *const end_keys[] = {"epochs", "steps", "test_accuracy", "seconds", NULL};

START_TEST(test_log)
{
    log_lines log = {.count = 0};
    mn_train_options options = logged_run(&log);
    options.amp = MN_F16;
    run_logged(&options);
    /* 7 windows an epoch. */
    ck_assert_int_eq(log.count, 1 + 2 * (7 + 1) + 1);
    has_keys(log.lines[0], "start", start_keys);
    ck_assert_int_eq(strncmp(member(log.lines[0], "amp"), "\"fp16\"", 6), 0);
    ck_assert_int_eq(atoi(member(log.lines[0], "batch")), 16);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int i = 0; i < 7; i++) {
            const char *line = log.lines[1 + 8 * epoch + i];
            has_keys(line, "step", step_keys);
            ck_assert_int_eq(atoi(member(line, "step")), 7 * epoch + i + 1);
            ck_assert_int_eq(atoi(member(line, "epoch")), epoch + 1);
        }
        has_keys(log.lines[8 + 8 * epoch], "epoch", epoch_keys);
        ck_assert_int_eq(atoi(member(log.lines[8 + 8 * epoch], "steps")), 7 * (epoch + 1));
    }
    has_keys(log.lines[17], "end", end_keys);
    ck_assert_double_ge(atof(member(log.lines[17], "test_accuracy")), 0.0);
    ck_assert_int_ne(*member(log.lines[17], "test_accuracy"), 'n');
    free_lines(&log);
}
END_TEST

START_TEST(test_log_without_validation)
{
    log_lines log = {.count = 0};
    mn_train_options options = logged_run(&log);
    options.validation = 0.0;
    options.lr = 1e30;
    run_logged(&options);
    const char *line = log.lines[log.count - 2];
    has_keys(line, "epoch", epoch_keys);
    ck_assert_int_eq(strncmp(member(line, "validation_loss"), "null", 4), 0);
    ck_assert_int_eq(strncmp(member(line, "validation_accuracy"), "null", 4), 0);
    /* Measured, but not a number. */
    ck_assert_int_eq(strncmp(member(line, "train_loss"), "\"nan\"", 5), 0);
    ck_assert_int_eq(strncmp(member(line, "test_loss"), "\"nan\"", 5), 0);
    free_lines(&log);
}
END_TEST

START_TEST(test_log_of_stopped_run)
{
    log_lines log = {.count = 0};
    mn_train_options options = logged_run(&log);
    options.stop_after = 3;
    run_logged(&options);
    ck_assert_int_eq(log.count, 1 + 3 + 1);
    ck_assert_int_eq(strncmp(member(log.lines[4], "test_accuracy"), "null", 4), 0);
    ck_assert_int_eq(atoi(member(log.lines[4], "steps")), 3);
    free_lines(&log);
}
END_TEST

static void check_progress(void *user, const mn_progress *progress)
{
    int64_t *steps = user;
    ck_assert_int_eq(progress->last.step, ++*steps);
    ck_assert_int_eq(progress->steps, *steps);
    ck_assert_int_eq(progress->total_steps, 14);
    ck_assert_int_eq(progress->epochs, 2);
    ck_assert(isfinite(progress->loss));
}

START_TEST(test_progress)
{
    int64_t steps = 0;
    mn_train_options options = logged_run(NULL);
    options.log = NULL;
    options.user = &steps;
    options.progress = check_progress;
    run_logged(&options);
    ck_assert_int_eq(steps, 14);
}
END_TEST

/* ---- evaluation ------------------------------------------------------------------------------ */

static void train_checkpoint(const char *path, const char *parameters, mn_epoch_result *last)
{
    mn_error error = {MN_OK, ""};
    mn_train_options options = mn_train_options_default();
    options.data = DATA;
    options.batch = 16;
    options.epochs = 2;
    options.parameters = parameters;
    options.context.threads = 1;
    options.checkpoint = path;
    mn_train_result *result = mn_train(&options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    *last = result->epochs[1];
    mn_train_result_free(result);
}

START_TEST(test_eval_checkpoint)
{
    char path[64];
    const char *model = NULL;
    mn_epoch_result last;
    mn_metrics metrics;
    mn_error error = {MN_OK, ""};
    snprintf(path, sizeof path, "/tmp/minim-eval-%ld", (long)getpid());
    train_checkpoint(path, _i ? "bf16-stochastic" : NULL, &last);
    mn_eval_options options = mn_eval_options_default();
    options.checkpoint = path;
    options.batch = 16;
    ck_assert_msg(mn_eval_checkpoint(&options, &metrics, &model, &error) == MN_OK, "%s",
                  error.message);
    ck_assert_str_eq(model, "lenet5");
    ck_assert_int_eq(metrics.count, 120);
    ck_assert_double_eq(metrics.loss, last.test_loss);
    ck_assert_double_eq(metrics.accuracy, last.test_accuracy);
    options.batch = 50;
    options.amp = MN_BF16;
    options.limit = 70;
    ck_assert_int_eq(mn_eval_checkpoint(&options, &metrics, NULL, &error), MN_OK);
    ck_assert_int_eq(metrics.count, 70);
    options.data = "synthetic:12x12x1:5:20";
    ck_assert_int_eq(mn_eval_checkpoint(&options, &metrics, NULL, &error), MN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(error.message, "5 classes, want 4"));
    options.data = "synthetic:14x12x1:4:20";
    ck_assert_int_eq(mn_eval_checkpoint(&options, &metrics, NULL, NULL), MN_ERR_MISMATCH);
    options.batch = 0;
    ck_assert_int_eq(mn_eval_checkpoint(&options, &metrics, NULL, NULL), MN_ERR_ARGUMENT);
    options.checkpoint = NULL;
    ck_assert_int_eq(mn_eval_checkpoint(&options, &metrics, NULL, NULL), MN_ERR_ARGUMENT);
    unlink(path);
}
END_TEST

/* Loss and accuracy computed here from the logits. */
static void expect_metrics(mn_module *model, mn_loader *loader, const mn_metrics *metrics)
{
    mn_context *context = mn_module_context(model);
    mn_batch batch;
    double loss = 0.0, logits[64 * 4];
    int64_t correct = 0, count = 0;
    ck_assert_int_eq(mn_loader_start(loader, 0, 0, NULL), MN_OK);
    while (mn_loader_next(loader, &batch, NULL) == MN_OK && batch.count > 0) {
        const int64_t shape[4] = {batch.count, 12, 12, 1};
        mn_tensor *x = mn_tensor_from(context, MN_F32, 4, shape, batch.images);
        mn_tensor *y = mn_module_forward(model, x);
        ck_assert_int_eq(mn_tensor_read_f64(y, logits, 4 * batch.count), MN_OK);
        for (int64_t i = 0; i < batch.count; i++) {
            const double *row = logits + 4 * i;
            double sum = 0.0;
            int64_t best = 0;
            for (int c = 0; c < 4; c++) {
                sum += exp(row[c]);
                best = row[c] > row[best] ? c : best;
            }
            loss += log(sum) - row[batch.labels[i]];
            correct += best == batch.labels[i];
        }
        count += batch.count;
    }
    ck_assert_int_eq(metrics->count, count);
    ck_assert_int_eq(metrics->correct, correct);
    ck_assert_double_eq_tol(metrics->loss, loss / (double)count, 1e-5);
    ck_assert_double_eq_tol(metrics->accuracy, (double)correct / (double)count, 1e-12);
}

START_TEST(test_evaluate)
{
    mn_error error = {MN_OK, ""};
    mn_metrics metrics;
    mn_context *context = mn_context_create(NULL, NULL);
    mn_model_options options = mn_model_options_default();
    mn_loader_options loading = mn_loader_options_default();
    options.height = options.width = 12;
    options.classes = 4;
    mn_module *model = mn_model_create(context, "lenet5", &options);
    mn_dataset *dataset = mn_dataset_open("synthetic:12x12x1:4:100", false, NULL, NULL);
    loading.batch = 32; /* the last batch has 4 */
    mn_loader *loader = mn_loader_create(dataset, &loading, NULL);
    ck_assert_int_eq(mn_evaluate(model, loader, MN_F32, &metrics, &error), MN_OK);
    ck_assert(mn_module_is_training(model));
    expect_metrics(model, loader, &metrics);
    mn_metrics inside; /* FP32 is FP32 inside another region too */
    ck_assert_int_eq(mn_autocast_begin(context, MN_BF16), MN_OK);
    ck_assert_int_eq(mn_evaluate(model, loader, MN_F32, &inside, &error), MN_OK);
    ck_assert_int_eq(mn_autocast_end(context), MN_OK);
    ck_assert(inside.loss == metrics.loss);
    mn_module_set_training(model, false);
    ck_assert_int_eq(mn_evaluate(model, loader, MN_F16, &metrics, &error), MN_OK);
    ck_assert(!mn_module_is_training(model));
    ck_assert_int_eq(mn_evaluate(model, loader, MN_U8, &metrics, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_evaluate(NULL, loader, MN_F32, &metrics, NULL), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_error_status(context), MN_OK);
    mn_loader_free(loader);
    mn_dataset_free(dataset);
    mn_module_free(model);
    mn_context_free(context);
}
END_TEST

/* What a run calls validation is the part that its seed holds out. */
START_TEST(test_validation_part)
{
    char path[64];
    mn_epoch_result last;
    mn_metrics metrics;
    mn_normalization normalization;
    mn_model_options options = mn_model_options_default();
    mn_loader_options loading = mn_loader_options_default();
    snprintf(path, sizeof path, "/tmp/minim-validation-%ld", (long)getpid());
    train_checkpoint(path, NULL, &last);
    mn_context *context = mn_context_create(NULL, NULL);
    options.height = options.width = 12;
    options.classes = 4;
    mn_module *model = mn_model_create(context, "lenet5", &options);
    mn_state_dict *dict = mn_state_dict_read(context, path);
    ck_assert_int_eq(mn_module_load_state(model, dict), MN_OK);
    mn_dataset *dataset = mn_dataset_open(DATA, true, NULL, NULL);
    ck_assert_int_eq(mn_dataset_normalization(dataset, 0, &normalization, NULL), MN_OK);
    loading.validation = 0.1;
    loading.held_out = true;
    loading.normalization = normalization;
    mn_loader *loader = mn_loader_create(dataset, &loading, NULL);
    ck_assert_int_eq(mn_evaluate(model, loader, MN_F32, &metrics, NULL), MN_OK);
    ck_assert_int_eq(metrics.count, 12);
    ck_assert_double_eq_tol(metrics.loss, last.validation_loss, 1e-6);
    ck_assert_double_eq(metrics.accuracy, last.validation_accuracy);
    mn_loader_free(loader);
    mn_dataset_free(dataset);
    mn_state_dict_free(dict);
    mn_module_free(model);
    mn_context_free(context);
    unlink(path);
}
END_TEST

/* A failure in the middle leaves the model in the mode it was in. */
START_TEST(test_evaluate_fails)
{
    mn_error error = {MN_OK, ""};
    mn_metrics metrics;
    mn_context *context = mn_context_create(NULL, NULL);
    mn_module *model = mn_model_create(context, "lenet5", NULL);
    mn_dataset *dataset = mn_dataset_open("synthetic:12x12x1:4:10", false, NULL, NULL);
    mn_loader *loader = mn_loader_create(dataset, NULL, NULL);
    ck_assert_int_eq(mn_evaluate(model, loader, MN_F32, &metrics, &error), MN_ERR_SHAPE);
    ck_assert_str_ne(error.message, "");
    ck_assert_int_eq(mn_error_status(context), MN_ERR_SHAPE);
    mn_error_clear(context);
    ck_assert(mn_module_is_training(model));
    mn_loader_free(loader);
    mn_dataset_free(dataset);
    mn_module_free(model);
    mn_context_free(context);
}
END_TEST

/* ---- bench ----------------------------------------------------------------------------------- */

START_TEST(test_bench)
{
    mn_error error = {MN_OK, ""};
    mn_bench_options options = mn_bench_options_default();
    mn_bench_result result;
    options.batch = 8;
    options.steps = 5;
    options.warmup = 1;
    options.amp = _i ? MN_F16 : MN_F32;
    options.context.threads = 2;
    ck_assert_msg(mn_bench(&options, &result, &error) == MN_OK, "%s", error.message);
    /* Convolutions of 25 taps over 28x28 and 10x10, and three linear layers. */
    double forward =
        2.0 * 8 * (784 * 6 * 25 + 100 * 16 * 150 + 400.0 * 120 + 120.0 * 84 + 84.0 * 10);
    ck_assert_double_eq_tol(result.gflop_per_step, 3e-9 * forward, 1e-12);
    ck_assert_double_gt(result.step_ms_min, 0.0);
    ck_assert_double_ge(result.step_ms_median, result.step_ms_min);
    ck_assert_double_ge(result.step_ms_max, result.step_ms_median);
    ck_assert_double_eq_tol(result.images_per_s_median * result.step_ms_median, 8000.0, 1e-6);
    ck_assert_double_eq_tol(result.images_per_s_min * result.step_ms_max, 8000.0, 1e-6);
    ck_assert_uint_gt(result.peak_tensor_bytes, 100000);
    ck_assert_uint_gt(result.peak_rss_bytes, 1000000);
    ck_assert_int_eq(result.threads, 2);
    options.steps = 0;
    ck_assert_int_eq(mn_bench(&options, &result, &error), MN_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(error.message, "--steps"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train-events");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_parser_refuses);
    tcase_add_test(tests, test_writer);
    tcase_add_test(tests, test_numbers);
    tcase_add_test(tests, test_log);
    tcase_add_test(tests, test_log_without_validation);
    tcase_add_test(tests, test_log_of_stopped_run);
    tcase_add_test(tests, test_progress);
    tcase_add_loop_test(tests, test_eval_checkpoint, 0, 2);
    tcase_add_test(tests, test_evaluate);
    tcase_add_test(tests, test_validation_part);
    tcase_add_test(tests, test_evaluate_fails);
    tcase_add_loop_test(tests, test_bench, 0, 2);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
