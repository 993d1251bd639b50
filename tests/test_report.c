/* tests/test_report.c: report.json and report.html of made-up comparisons: complete, well-formed,
 * escaped, and no file of it half written. */
#include "tests/support_counting.h"
#include "tests/support_report.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- report.json ----------------------------------------------------------------------------- */

static char *json_text(void)
{
    char *json = mn_made_report("report.json");
    ck_assert_str_eq(mn_json_skip(json), "\n");
    return json;
}

START_TEST(json_of_one_seed)
{
    static const char *const there[] = {"software.minim",
                                        "software.compiler",
                                        "software.kernels",
                                        "software.libc",
                                        "software.os",
                                        "hardware.device",
                                        "hardware.cpu",
                                        "hardware.features",
                                        "hardware.memory_bytes",
                                        "config.optimizer",
                                        "config.lr",
                                        "config.weight_decay",
                                        "config.schedule",
                                        "config.init_scale",
                                        "config.validation",
                                        "config.rules",
                                        "config.parameters",
                                        "config.parameter_count",
                                        "deviation.fp16.throughput_ratio",
                                        "notes.0",
                                        "deviation.bf16",
                                        "verdict.bf16"};
    static const char *const values[][2] = {{"reference", "\"fp32\""},
                                            {"cancelled", "false"},
                                            {"hardware.threads", "1"},
                                            {"config.model", "\"lenet5\""},
                                            {"config.data", "\"fashion-mnist\""},
                                            {"config.margin", "0.6"},
                                            {"config.seeds", "1"},
                                            {"config.precisions", "\"fp32,bf16,fp16\""},
                                            {"config.momentum", "0.9"},
                                            {"runs.2.precision", "\"fp16\""},
                                            {"runs.2.seed", "1"},
                                            {"runs.2.epochs.2.epoch", "3"},
                                            {"runs.2.epochs.2.test_accuracy", "0.84"},
                                            {"runs.2.epochs.2.test_accuracy_fp32", "0.845"},
                                            {"runs.2.epochs.2.validation_accuracy_fp32", "0.86"},
                                            {"runs.2.steps", "300"},
                                            {"runs.2.cancelled", "false"},
                                            {"runs.2.collapsed_step", "null"},
                                            {"runs.2.test_accuracy", "0.84"},
                                            {"runs.2.test_accuracy_fp32", "0.845"},
                                            {"runs.0.validation_accuracy", "0.87"},
                                            {"runs.2.validation_accuracy_fp32", "0.86"},
                                            {"runs.2.skipped_steps", "4"},
                                            {"runs.2.nonfinite", "4"},
                                            {"runs.2.scale_final", "4096"},
                                            {"runs.2.images_per_s", "12445"},
                                            {"runs.2.peak_tensor_bytes", "3145728"},
                                            {"runs.2.underflow_fraction", "null"},
                                            {"runs.2.seconds", "12.5"},
                                            {"deviation.fp16.accuracy_delta_pp.sd", "null"},
                                            {"deviation.fp16.accuracy_delta_pp.n", "1"},
                                            {"deviation.fp16.interval.level", "0.9"},
                                            {"deviation.fp16.interval.low", "null"},
                                            {"deviation.fp16.collapsed_runs", "0"},
                                            {"deviation.fp16.memory_ratio", "0.6"},
                                            {"deviation.fp16.max_loss_delta", "0"},
                                            {"verdict.fp16", "\"not enough seeds to say\""},
                                            {"verdict_rule.metric", "\"validation_accuracy\""},
                                            {"verdict_rule.margin", "0.6"}};
    mn_made_new(1, 3, 300);
    char *json = json_text();
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        ck_assert_msg(mn_json_at(json, there[i]) != NULL, "%s is not there", there[i]);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        mn_json_check(json, values[i][0], values[i][1]);
    ck_assert_ptr_null(mn_json_at(json, "runs.3"));
    ck_assert_ptr_nonnull(strstr(mn_json_at(json, "notes"), "no sign of convergence"));
    ck_assert_ptr_nonnull(strstr(mn_json_at(json, "notes"), "may gain nothing"));
    free(json);
}
END_TEST

/* bf16's differences are -0.09, -0.08 and -0.07 points. */
START_TEST(json_of_three_seeds)
{
    mn_made_new(3, 2, 50);
    char *json = json_text();
    mn_json_check(json, "runs.8.seed", "3");
    mn_json_check(json, "deviation.bf16.accuracy_delta_pp.n", "3");
    double mean = strtod(mn_json_at(json, "deviation.bf16.accuracy_delta_pp.mean"), NULL);
    double sd = strtod(mn_json_at(json, "deviation.bf16.accuracy_delta_pp.sd"), NULL);
    double low = strtod(mn_json_at(json, "deviation.bf16.interval.low"), NULL);
    double high = strtod(mn_json_at(json, "deviation.bf16.interval.high"), NULL);
    ck_assert_double_eq_tol(mean, -0.08, 1e-9);
    ck_assert_double_eq_tol(sd, 0.01, 1e-9);
    ck_assert_double_eq_tol(low, -0.08 - 2.92 * 0.01 / sqrt(3.0), 1e-6);
    ck_assert_double_eq_tol(high, -0.08 + 2.92 * 0.01 / sqrt(3.0), 1e-6);
    mn_json_check(json, "verdict.bf16", "\"within the stated bound\"");
    free(json);
}
END_TEST

START_TEST(json_of_what_was_not_measured)
{
    mn_made_new(1, 2, 20);
    mn_made.runs[2].collapsed_step = 19;
    mn_made.epochs[1][0].train_loss = (double)INFINITY;
    mn_made.epochs[0][1].validation_accuracy = (double)NAN;
    char *json = json_text();
    mn_json_check(json, "runs.2.epochs.1.test_accuracy", "0.84");
    mn_json_check(json, "runs.2.collapsed_step", "19");
    mn_json_check(json, "runs.2.test_accuracy", "null");
    mn_json_check(json, "runs.2.images_per_s", "null");
    mn_json_check(json, "runs.2.peak_tensor_bytes", "null");
    mn_json_check(json, "runs.2.skipped_steps", "4"); /* counted over its steps */
    mn_json_check(json, "runs.2.scale_final", "4096");
    mn_json_check(json, "deviation.fp16.collapsed_runs", "1");
    mn_json_check(json, "deviation.fp16.max_loss_delta", "null");
    mn_json_check(json, "deviation.bf16.max_loss_delta", "\"inf\"");
    mn_json_check(json, "runs.1.diverged", "false");
    mn_json_check(json, "runs.1.epochs.0.train_loss", "\"inf\"");
    mn_json_check(json, "runs.0.epochs.1.validation_accuracy", "null");
    mn_json_check(json, "verdict_rule.metric", "\"test_accuracy\"");
    free(json);
}
END_TEST

START_TEST(json_of_a_diverged_run)
{
    mn_made_new(3, 2, 20);
    mn_made.epochs[1][1].train_loss = (double)NAN;
    char *json = json_text();
    mn_json_check(json, "runs.1.epochs.1.train_loss", "\"nan\"");
    mn_json_check(json, "runs.1.diverged", "true");
    mn_json_check(json, "deviation.bf16.accuracy_delta_pp.n", "2");
    mn_json_check(json, "deviation.bf16.collapsed_runs", "1");
    mn_json_check(json, "verdict.bf16", "\"not enough seeds to say\"");
    mn_json_check(json, "verdict.fp16", "\"within the stated bound\"");
    free(json);
}
END_TEST

START_TEST(json_of_nothing)
{
    mn_made_new(0, 0, 0);
    char *json = json_text();
    mn_json_check(json, "runs", "[]");
    mn_json_check(json, "deviation", "{}");
    mn_json_check(json, "config.model", "\"lenet5\"");
    free(json);
}
END_TEST

/* ---- with a monitor -------------------------------------------------------------------------- */

enum { LAYERS = 60, ROWS = 2 * LAYERS + 2 };
static int64_t histograms[2][MN_MONITOR_BINS];
static char names[LAYERS][24];
static mn_monitor_row monitor_rows[ROWS];
static mn_overflow monitor_overflows[4];
static mn_train_monitor monitors[3];

/* Layers with 90 values at 2^-20 and 10 at 2^lowest in forward and backward, two updated
 * parameters, and in fp16 three overflows of two kinds, the last at two attempts. */
static void make_monitors(int layers, int lowest)
{
    memset(histograms, 0, sizeof histograms);
    histograms[0][-20 - MN_MONITOR_LOWEST] = 90;
    histograms[0][lowest - MN_MONITOR_LOWEST] = 10;
    for (int i = 0; i < 2 * layers; i++) {
        snprintf(names[i / 2], sizeof names[0], "block%d.conv<%d>", i / 8, i / 2);
        monitor_rows[i] = (mn_monitor_row){.layer = names[i / 2],
                                           .op = i % 2 ? "conv2d_backward" : "conv2d",
                                           .backward_of = i % 2 ? "conv2d" : "",
                                           .parameter = "",
                                           .direction = i % 2 ? MN_BACKWARD : MN_FORWARD,
                                           .dtype = MN_F16,
                                           .count = 100,
                                           .largest = 0.5,
                                           .smallest = 1e-9,
                                           .histogram = histograms[0],
                                           .stored = 100,
                                           .lost = i % 2 ? 25 : 0};
    }
    for (int i = 0; i < 2; i++)
        monitor_rows[2 * layers + i] = (mn_monitor_row){.layer = "",
                                                        .op = "sgd_step",
                                                        .backward_of = "",
                                                        .parameter = i ? "a&b" : "w",
                                                        .direction = MN_UPDATE,
                                                        .dtype = MN_F32,
                                                        .histogram = histograms[1],
                                                        .updates = 1000,
                                                        .updates_lost = i ? 125 : 0};
    for (int i = 0; i < 4; i++)
        monitor_overflows[i] = (mn_overflow){.step = i < 3 ? 5 + i : 7,
                                             .cause = MN_OVERFLOW_BACKWARD,
                                             .row = &monitor_rows[i == 1 ? 3 : 1],
                                             .largest = 60000.0,
                                             .infinities = 2,
                                             .input_name = ""};
    for (int i = 0; i < 3; i++) {
        monitors[i] = (mn_train_monitor){.steps = 10,
                                         .underflow_fraction = 0.125,
                                         .underflow_forward = 0.0,
                                         .underflow_backward = 0.25,
                                         .updates_lost = 0.0625,
                                         .row_count = 2 * layers + 2,
                                         .rows = monitor_rows,
                                         .overflow_count = i == 2 ? 4 : 0,
                                         .overflows = monitor_overflows};
        mn_made.runs[i].monitor = &monitors[i];
    }
}

START_TEST(json_of_a_monitor)
{
    static const char *const values[][2] = {
        {"runs.2.underflow_fraction", "0.125"},
        {"runs.2.monitor.steps", "10"},
        {"runs.2.monitor.underflow_backward", "0.25"},
        {"runs.2.monitor.updates_lost", "0.0625"},
        {"runs.2.monitor.overflows.1.step", "6"},
        {"runs.2.monitor.overflows.1.op", "\"conv2d\""},
        {"runs.2.monitor.overflows.1.layer", "\"block0.conv<1>\""},
        {"runs.2.monitor.overflows.1.max_abs", "60000"},
        {"runs.1.monitor.overflows", "[]"},
        {"runs.1.monitor.layers.1.layer", "\"block0.conv<1>\""},
        {"runs.1.monitor.layers.1.forward.count", "100"},
        {"runs.1.monitor.layers.1.forward.largest", "0.5"},
        {"runs.1.monitor.layers.1.forward.lost", "0"},
        {"runs.1.monitor.layers.1.backward.stored", "100"},
        {"runs.1.monitor.layers.1.backward.lost", "25"},
        {"runs.0.monitor.parameters.1.name", "\"a&b\""},
        {"runs.0.monitor.parameters.1.updates", "1000"},
        {"runs.0.monitor.parameters.1.lost", "125"},
    };
    mn_made_new(1, 2, 20);
    make_monitors(2, -40);
    char *json = json_text();
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        mn_json_check(json, values[i][0], values[i][1]);
    ck_assert_ptr_null(mn_json_at(json, "runs.1.monitor.layers.2"));
    free(json);
    mn_made.runs[2].monitor = NULL;
    json = json_text();
    mn_json_check(json, "runs.2.monitor", "null");
    free(json);
}
END_TEST

/* ---- report.html ----------------------------------------------------------------------------- */

/* What holds of every page; `there` must be on it. Freed by the caller. */
static char *html_with(const char *const there[], int count)
{
    static const char *const never[] = {"http://", "https://", "<script", "src=",    "@import",
                                        "url(",    "\"nan",    " nan",    "-nan",    "\"inf",
                                        " inf\"",  "Mnan",     "Hnan",    "=\"-inf", "javascript"};
    char *html = mn_made_report("report.html");
    mn_tags_check(html);
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        ck_assert_msg(strstr(html, never[i]) == NULL, "%s is there", never[i]);
    ck_assert_ptr_nonnull(strstr(html, "no sign of convergence"));
    ck_assert_ptr_nonnull(strstr(html, "may gain nothing from half precision"));
    ck_assert_int_eq(mn_count_of(html, "<figure>"), mn_count_of(html, "aria-label=\"") - 1);
    for (int i = 0; i < count; i++)
        ck_assert_msg(strstr(html, there[i]) != NULL, "%s is not there", there[i]);
    return html;
}

#define HTML_WITH(...)                                                                             \
    html_with((const char *const[]){__VA_ARGS__},                                                  \
              (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)))

START_TEST(html_of_one_seed)
{
    mn_made_new(1, 3, 240);
    char *html = HTML_WITH("<h1>lenet5 on fashion-mnist</h1>", "A verdict needs 3 seeds",
                           "? not enough seeds to say", "12&#8239;345",
                           "\xe2\x88\x92"
                           "0.09",
                           "87.00&#160;%",
                           "\xc3\x97"
                           "0.60 of FP32",
                           "3.00&#160;MiB", "4096", "<dt>weight_decay</dt><dd>0.0005</dd>",
                           "<dt>rules</dt><dd>none</dd>", "<dt>threads</dt><dd>1</dd>",
                           "<dt>kernels</dt>", "reference", "style=\"width:30.0%\"");
    ck_assert_int_eq(mn_count_of(html, "<figure>"), 5);
    ck_assert_ptr_null(strstr(html, " thin\""));
    ck_assert_ptr_null(strstr(html, "class=\"warning\">"));
    /* Each skipped step is marked above its loss scale and its gradient norm. */
    ck_assert_int_eq(mn_count_of(html, "v7M") + mn_count_of(html, "v7\"/>"),
                     2 * MN_MADE_SKIPPED_AT_START);
    ck_assert_ptr_nonnull(strstr(html, ">65&#8239;536</text>"));
    free(html);
}
END_TEST

START_TEST(html_of_five_seeds)
{
    mn_made_new(5, 2, 400);
    char *html =
        HTML_WITH("class=\"line fp16 thin\"", "<small>\xc2\xb1 ", "lies inside", "n&#160;=&#160;5");
    ck_assert_int_eq(mn_count_of(html, "\xe2\x9c\x93 within the stated bound"), 2);
    ck_assert_int_eq(mn_count_of(html, "class=\"line bf16 mark\" d=\"M"), 1); /* its interval */
    free(html);
}
END_TEST

START_TEST(html_of_odd_runs)
{
    mn_made_new(1, 1, 1); /* one step, one epoch */
    free(HTML_WITH("Steps of a run: 1."));
    mn_made_new(0, 0, 0);
    free(HTML_WITH("Seeds: 0."));
    mn_made_new(1, 0, 7); /* stopped before the first epoch's end */
    free(HTML_WITH("not measured"));
    mn_made_new(2, 1, 30); /* no validation part, and runs that collapsed */
    for (int i = 0; i < mn_made.result.row_count; i++)
        mn_made.epochs[i][0].validation_accuracy = (double)NAN;
    mn_made.runs[2].collapsed_step = mn_made.runs[5].collapsed_step = 17;
    char *html = HTML_WITH("2 runs collapsed, at step 17", "No verdict can be given", "test; ");
    ck_assert_ptr_null(strstr(html, "Validation accuracy"));
    free(html);
}
END_TEST

START_TEST(html_of_numbers_that_are_none)
{
    mn_made_new(3, 2, 100);
    for (int i = 0; i < 100; i++) {
        mn_made.steps[2][i].loss = i % 3 == 0 ? (double)NAN : (double)INFINITY;
        mn_made.steps[2][i].grad_norm = (double)NAN;
        mn_made.steps[2][i].scale = i == 50 ? 0.0 : i == 51 ? (double)INFINITY : 1e-300;
        mn_made.steps[5][i].loss = i == 7 ? 1e308 : -1e308;
        mn_made.steps[5][i].grad_norm = 0.0;
    }
    mn_made.epochs[2][1].train_loss = (double)NAN;
    mn_made.epochs[2][1].images_per_s = (double)NAN;
    mn_made.epochs[5][1].test_accuracy = (double)NAN;
    mn_made.epochs[5][1].peak_tensor_bytes = 0;
    mn_made.epochs[8][1].data_wait_fraction = 1e300;
    free(HTML_WITH("a run diverged", "collapsed or diverged", "not finite</span></td>",
                   "not measured"));
}
END_TEST

START_TEST(html_escapes)
{
    mn_made_new(1, 1, 10);
    for (int i = 0; i < 3; i++) {
        mn_made.runs[i].model = "<script>alert(1)</script>";
        mn_made.runs[i].data = "mnist:/a&b/\"c\"/<d>\x01\\";
    }
    mn_made.options.train.rules = "relu=<KEEP>&,\"}\\";
    free(HTML_WITH("<h1>&lt;script&gt;alert(1)&lt;/script&gt;",
                   "on mnist:/a&amp;b/&quot;c&quot;/&lt;d&gt;\xef\xbf\xbd",
                   "<dt>rules</dt><dd>relu=&lt;KEEP&gt;&amp;,&quot;}\\</dd>"));
    char *json = json_text();
    mn_json_check(json, "config.data", "\"mnist:/a&b/\\\"c\\\"/<d>\\u0001\\\\\"");
    free(json);
}
END_TEST

/* However many steps: lines that can be read, and a page that opens. */
START_TEST(html_of_many_steps)
{
    mn_made_new(1, 2, MN_MADE_MOST_STEPS);
    for (int i = 0; i < MN_MADE_MOST_STEPS; i++)
        mn_made.steps[2][i].skipped = true;
    char *html = HTML_WITH("means of 21 steps", ">5000</text>", ">2.5</text>");
    for (const char *at = html; (at = strstr(at, " d=\"")) != NULL; at += 4) {
        int points = 0;
        for (const char *c = at + 4; *c != '"'; c++)
            points += *c == 'L' || *c == 'M' || *c == 'H';
        ck_assert_int_le(points, 240);
    }
    ck_assert_uint_lt(strlen(html), 100000);
    free(html);
}
END_TEST

/* Pictures of few layers, with names; kinds of overflow, each at its first step; lost updates. */
START_TEST(html_of_a_monitor)
{
    mn_made_new(1, 2, 20);
    make_monitors(2, -40);
    char *html = HTML_WITH("Magnitudes by layer, fp32", "Magnitudes by layer, fp16",
                           ">block0.conv&lt;1&gt;</text>", ">f16 loses</text>",
                           "lost without loss scale", ">25&#160;%</text>", ">10&#160;%</text>",
                           "step 5: block0.conv&lt;0&gt;: conv2d_backward (backward, f16)",
                           "</td><td>2</td><td>7</td>", "a&amp;b</th><td>12.5&#160;%</td>",
                           "<td>12.5&#160;%</td></tr>");
    ck_assert_int_eq(mn_count_of(html, "<svg class=\"layers\""), 3);
    ck_assert_int_eq(mn_count_of(html, "is not finite; largest finite value 60000"), 2);
    ck_assert_ptr_null(strstr(html, "bf16 smallest"));
    free(html);
    make_monitors(2, -130); /* a tenth so small that BF16's limits come into view */
    monitors[2].overflow_count = 0;
    free(HTML_WITH("bf16 smallest", "All values of these steps were finite."));
    mn_made_new(1, 2, 20);
    html = HTML_WITH("not measured");
    ck_assert_ptr_null(strstr(html, "Magnitudes by layer"));
    free(html);
}
END_TEST

/* Each allocation fails once; what is written all the same, with less to spare, is whole. */
START_TEST(memory_for_a_monitor_runs_out)
{
    mn_test_counter counter = {.fail_at = 0};
    mn_error error;
    mn_made_new(1, 1, 5);
    make_monitors(LAYERS, -40);
    char *whole = HTML_WITH(">block14</text>");
    int failures = 0;
    mn_made.options.train.context.allocator = mn_test_counting(&counter);
    do {
        counter.calls = 0;
        counter.fail_at++;
        mn_status status = mn_made_write(&error);
        ck_assert_int_eq(counter.blocks, 0);
        ck_assert_msg(status == MN_OK || status == MN_ERR_MEMORY, "%s", error.message);
        failures += status != MN_OK;
        char *html = mn_made_read("report.html");
        ck_assert(strcmp(html, whole) == 0);
        free(html);
    } while (counter.calls >= counter.fail_at);
    ck_assert_int_gt(failures, 12);
    free(whole);
}
END_TEST

/* Of many layers those of a block share a row. */
START_TEST(html_of_many_layers)
{
    mn_made_new(1, 1, 20);
    make_monitors(LAYERS, -40);
    char *html = HTML_WITH(">block14</text>", ">block0</text>");
    ck_assert_ptr_null(strstr(html, ">block0."));
    ck_assert_int_eq(mn_count_of(html, ">block3</text>"), 3);
    free(html);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *tests = tcase_create("contents");
    tcase_add_checked_fixture(tests, mn_made_folder_make, mn_made_folder_remove);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, json_of_one_seed);
    tcase_add_test(tests, json_of_three_seeds);
    tcase_add_test(tests, json_of_what_was_not_measured);
    tcase_add_test(tests, json_of_a_diverged_run);
    tcase_add_test(tests, json_of_nothing);
    tcase_add_test(tests, json_of_a_monitor);
    tcase_add_test(tests, html_of_a_monitor);
    tcase_add_test(tests, html_of_many_layers);
    tcase_add_test(tests, memory_for_a_monitor_runs_out);
    tcase_add_test(tests, html_of_one_seed);
    tcase_add_test(tests, html_of_five_seeds);
    tcase_add_test(tests, html_of_odd_runs);
    tcase_add_test(tests, html_of_numbers_that_are_none);
    tcase_add_test(tests, html_escapes);
    tcase_add_test(tests, html_of_many_steps);
    return mn_test_run(suite, CK_FORK_GETENV);
}
