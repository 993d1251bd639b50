/* tests/test_report.c: report.json and report.html of made-up comparisons: complete, well-formed,
 * escaped; curves and axes. */
#include "tests/support_report.h"

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

static void check_there(const char *json, const char *where)
{
    ck_assert_msg(mn_json_at(json, where) != NULL, "%s is not there", where);
}

START_TEST(json_of_one_seed)
{
    mn_made_new(1, 3, 300);
    char *json = json_text();
    static const char *const there[] = {
        "software.minim",   "software.compiler", "software.kernels",      "software.libc",
        "software.os",      "hardware.cpu",      "hardware.features",     "hardware.memory_bytes",
        "config.optimizer", "config.lr",         "config.weight_decay",   "config.init_scale",
        "config.schedule",  "config.validation", "verdict_rule.interval", "notes.0"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        check_there(json, there[i]);
    mn_json_check(json, "reference", "\"fp32\"");
    mn_json_check(json, "hardware.threads", "1");
    mn_json_check(json, "config.model", "\"lenet5\"");
    mn_json_check(json, "config.data", "\"fashion-mnist\"");
    mn_json_check(json, "config.margin", "0.6");
    mn_json_check(json, "config.seeds", "1");
    mn_json_check(json, "config.momentum", "0.9");
    mn_json_check(json, "runs.2.precision", "\"fp16\"");
    mn_json_check(json, "runs.2.seed", "1");
    mn_json_check(json, "runs.2.epochs.2.epoch", "3");
    mn_json_check(json, "runs.2.epochs.2.test_accuracy", "0.84");
    mn_json_check(json, "runs.2.epochs.2.test_accuracy_fp32", "0.845");
    mn_json_check(json, "runs.2.epochs.2.validation_accuracy_fp32", "0.86");
    mn_json_check(json, "runs.2.test_accuracy", "0.84");
    mn_json_check(json, "runs.2.skipped_steps", "4");
    mn_json_check(json, "runs.2.nonfinite", "4");
    mn_json_check(json, "runs.2.scale_final", "4096");
    mn_json_check(json, "runs.2.images_per_s", "12445");
    mn_json_check(json, "runs.2.peak_tensor_bytes", "3145728");
    mn_json_check(json, "runs.2.underflow_fraction", "null");
    ck_assert_ptr_null(mn_json_at(json, "runs.3"));
    ck_assert_ptr_null(mn_json_at(json, "runs.0.steps_results"));
    mn_json_check(json, "deviation.fp16.accuracy_delta_pp.sd", "null");
    mn_json_check(json, "deviation.fp16.accuracy_delta_pp.n", "1");
    mn_json_check(json, "deviation.fp16.interval.low", "null");
    mn_json_check(json, "deviation.fp16.memory_ratio", "0.6");
    check_there(json, "deviation.fp16.throughput_ratio");
    mn_json_check(json, "deviation.fp16.max_loss_delta", "0");
    mn_json_check(json, "verdict.fp16", "\"not enough seeds to say\"");
    mn_json_check(json, "verdict_rule.metric", "\"validation_accuracy\"");
    mn_json_check(json, "verdict_rule.margin", "0.6");
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
    mn_made.runs[2].epoch_count = 0; /* stopped in its first epoch */
    mn_made.runs[2].cancelled = true;
    mn_made.epochs[1][1].train_loss = (double)NAN;
    mn_made.epochs[1][0].train_loss = (double)INFINITY;
    mn_made.epochs[0][1].validation_accuracy = (double)NAN;
    char *json = json_text();
    mn_json_check(json, "runs.2.epochs", "[]");
    mn_json_check(json, "runs.2.test_accuracy", "null");
    mn_json_check(json, "runs.2.images_per_s", "null");
    mn_json_check(json, "runs.2.peak_tensor_bytes", "null");
    mn_json_check(json, "runs.2.skipped_steps", "4"); /* counted over its steps */
    mn_json_check(json, "runs.2.scale_final", "4096");
    mn_json_check(json, "runs.1.epochs.1.train_loss", "\"nan\"");
    mn_json_check(json, "runs.1.epochs.0.train_loss", "\"inf\"");
    mn_json_check(json, "runs.0.epochs.1.validation_accuracy", "null");
    mn_json_check(json, "verdict_rule.metric", "\"test_accuracy\"");
    ck_assert_ptr_null(mn_json_at(json, "deviation.fp16"));
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

/* ---- report.html ----------------------------------------------------------------------------- */

/* What holds of every page. */
static char *html_text(void)
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
    ck_assert_int_eq(mn_count_of(html, "<title"), mn_count_of(html, "<desc") + 1);
    return html;
}

static void check_html(void)
{
    free(html_text());
}

START_TEST(html_of_one_seed)
{
    mn_made_new(1, 3, 300);
    char *html = html_text();
    ck_assert_ptr_nonnull(strstr(html, "<h1>lenet5 on fashion-mnist</h1>"));
    ck_assert_int_eq(mn_count_of(html, "? not enough seeds to say"), 2);
    ck_assert_int_eq(mn_count_of(html, "<figure>"), 10);
    ck_assert_ptr_null(strstr(html, "class=\"line fp16 thin\""));
    ck_assert_ptr_null(strstr(html, "Every run"));
    ck_assert_ptr_nonnull(strstr(html, "not measured")); /* underflow */
    /* Each skipped step is crossed on the line of the scale. */
    ck_assert_int_eq(mn_count_of(html, "l7 7m-7 0l7-7"), MN_MADE_SKIPPED_AT_START);
    ck_assert_ptr_nonnull(strstr(html, "12&#8239;345"));
    ck_assert_ptr_nonnull(strstr(html, "\xe2\x88\x92"
                                       "0.09"));
    free(html);
}
END_TEST

START_TEST(html_of_five_seeds)
{
    mn_made_new(5, 2, 400);
    char *html = html_text();
    ck_assert_int_eq(mn_count_of(html, "\xe2\x9c\x93 within the stated bound"), 2);
    ck_assert_ptr_nonnull(strstr(html, "class=\"line fp16 thin\""));
    ck_assert_ptr_nonnull(strstr(html, "Every run"));
    ck_assert_ptr_nonnull(strstr(html, "class=\"line whisker bf16\""));
    free(html);
}
END_TEST

START_TEST(html_of_odd_runs)
{
    mn_made_new(1, 1, 1); /* one step, one epoch */
    check_html();
    mn_made_new(0, 0, 0);
    check_html();
    mn_made_new(1, 0, 7); /* stopped before the first epoch's end */
    mn_made.result.cancelled = true;
    char *html = html_text();
    ck_assert_ptr_nonnull(strstr(html, "was stopped before its end"));
    ck_assert_ptr_nonnull(strstr(html, "No run in half precision has an FP32 run"));
    free(html);
    mn_made_new(2, 1, 30); /* no validation part */
    for (int i = 0; i < mn_made.result.row_count; i++)
        mn_made.epochs[i][0].validation_accuracy = mn_made.epochs[i][0].validation_accuracy_fp32 =
            (double)NAN;
    html = html_text();
    ck_assert_ptr_nonnull(strstr(html, "Difference of test accuracy, points"));
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
    char *html = html_text();
    ck_assert_ptr_nonnull(strstr(html, "a run diverged"));
    ck_assert_ptr_nonnull(strstr(html, "not a number"));
    ck_assert_ptr_nonnull(strstr(html, "crosses above: not finite"));
    free(html);
}
END_TEST

START_TEST(html_escapes)
{
    mn_made_new(1, 1, 10);
    for (int i = 0; i < 3; i++) {
        mn_made.runs[i].model = "<script>alert(1)</script>";
        mn_made.runs[i].data = "mnist:/a&b/\"c\"/<d>\x01";
    }
    mn_made.options.train.rules = "relu=<KEEP>&";
    char *html = html_text();
    ck_assert_ptr_nonnull(strstr(html, "&lt;script&gt;alert(1)&lt;/script&gt;"));
    ck_assert_ptr_nonnull(strstr(html, "mnist:/a&amp;b/&quot;c&quot;/&lt;d&gt;\xef\xbf\xbd"));
    ck_assert_ptr_nonnull(strstr(html, "relu=&lt;KEEP&gt;&amp;"));
    free(html);
}
END_TEST

/* However many steps: lines that can be read, and a page that opens. */
START_TEST(html_of_many_steps)
{
    mn_made_new(1, 2, MN_MADE_MOST_STEPS);
    for (int i = 0; i < MN_MADE_MOST_STEPS; i++)
        mn_made.steps[2][i].skipped = true;
    char *html = html_text();
    for (const char *at = html; (at = strstr(at, " d=\"")) != NULL; at += 4) {
        int points = 0;
        for (const char *c = at + 4; *c != '"'; c++)
            points += *c == 'L';
        ck_assert_int_le(points, MN_CURVE_POINTS);
    }
    ck_assert_int_le(mn_count_of(html, "l7 7m-7 0l7-7"), 8 * MN_CURVE_POINTS);
    ck_assert_uint_lt(strlen(html), 200000);
    ck_assert_ptr_nonnull(strstr(html, "means over 21 steps"));
    free(html);
}
END_TEST

/* ---- parts ----------------------------------------------------------------------------------- */

static double loss_of(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    (void)report;
    return row->run->step_results[index].loss;
}

START_TEST(curves_are_means)
{
    const mn_curve_source source = {loss_of, true, 0};
    mn_curve curve;
    mn_made_new(2, 1, 1000);
    mn_report report = {.result = &mn_made.result, .last_step = 1000};
    for (int i = 0; i < 1000; i++) {
        mn_made.steps[0][i].loss = i;
        mn_made.steps[3][i].loss = i + 10;
    }
    mn_made.steps[0][0].loss = (double)INFINITY;
    mn_curve_of_row(&curve, &report, &source, &mn_made.rows[0]);
    ck_assert_int_eq(curve.width, 5);
    ck_assert_int_eq(curve.count, 200);
    ck_assert_double_eq(mn_curve_y(&curve, 0), 2.5); /* 1 .. 4 */
    ck_assert(curve.broken[0] && !curve.broken[1]);
    ck_assert_double_eq(mn_curve_x(&curve, 0), 3.0);
    ck_assert_double_eq(mn_curve_y(&curve, 199), 997.0);
    mn_curve_of_all(&curve, &report, &source, "fp32");
    ck_assert_double_eq(mn_curve_y(&curve, 199), 1002.0);
    mn_curve_of_all(&curve, &report, &source, "tf32");
    ck_assert_double_nan(mn_curve_y(&curve, 0));
}
END_TEST

/* Labels of an axis, joined by blanks. */
static const char *ticks(mn_axis_kind kind, double low, double high, int count, bool widen)
{
    static char all[512];
    char label[64];
    double place;
    mn_axis axis = mn_axis_begin(kind, "");
    mn_axis_take(&axis, low);
    mn_axis_take(&axis, (double)NAN);
    mn_axis_take(&axis, (double)INFINITY);
    mn_axis_take(&axis, high);
    mn_axis_fit(&axis, count, widen);
    all[0] = '\0';
    for (int i = 0; mn_axis_tick(&axis, i, &place, label); i++) {
        ck_assert_double_ge(place, -1e-9);
        ck_assert_double_le(place, 1.0 + 1e-9);
        ck_assert_int_lt(i, 16);
        strcat(strcat(all, i > 0 ? " " : ""), label);
    }
    return all;
}

START_TEST(axes_have_round_ticks)
{
    ck_assert_str_eq(ticks(MN_AXIS_LINEAR, 0.2, 2.31, 5, true), "0.0 0.5 1.0 1.5 2.0 2.5");
    ck_assert_str_eq(ticks(MN_AXIS_LINEAR, -0.03, 0.02, 5, true), "\xe2\x88\x92"
                                                                  "0.03 "
                                                                  "\xe2\x88\x92"
                                                                  "0.02 "
                                                                  "\xe2\x88\x92"
                                                                  "0.01 0.00 0.01 0.02");
    ck_assert_str_eq(ticks(MN_AXIS_WHOLE, 0.7, 5.3, 6, false), "1 2 3 4 5");
    ck_assert_str_eq(ticks(MN_AXIS_WHOLE, 0.7, 1.3, 6, false), "1");
    ck_assert_str_eq(ticks(MN_AXIS_WHOLE, 0.0, 25000.0, 6, false),
                     "0 5000 10&#8239;000 15&#8239;000 20&#8239;000 25&#8239;000");
    ck_assert_str_eq(ticks(MN_AXIS_LOG10, 0.02, 30.0, 5, true), "0.01 0.1 1 10 100");
    ck_assert_str_eq(ticks(MN_AXIS_LOG2, 16384.0, 65536.0, 5, true),
                     "2<tspan class=\"exponent\" dy=\"-5\">14</tspan> "
                     "2<tspan class=\"exponent\" dy=\"-5\">15</tspan> "
                     "2<tspan class=\"exponent\" dy=\"-5\">16</tspan>");
    ticks(MN_AXIS_LINEAR, -1e308, 1e308, 5, true);
    ticks(MN_AXIS_LINEAR, 0.9, 0.9, 5, true);
    ticks(MN_AXIS_LINEAR, 0.0, 0.0, 5, true);
    ticks(MN_AXIS_LINEAR, 1e15, 1e15 + 1.0, 5, true);
    ticks(MN_AXIS_LOG10, 1e-300, 1e300, 5, true);
    ticks(MN_AXIS_LOG2, 1.0, 1.0, 5, true);
    ticks(MN_AXIS_LINEAR, (double)NAN, (double)NAN, 5, true);
}
END_TEST

static TCase *new_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, mn_made_folder_make, mn_made_folder_remove);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *json = new_case(suite, "json"), *html = new_case(suite, "html");
    TCase *parts = new_case(suite, "parts");
    tcase_add_test(json, json_of_one_seed);
    tcase_add_test(json, json_of_three_seeds);
    tcase_add_test(json, json_of_what_was_not_measured);
    tcase_add_test(json, json_of_nothing);
    tcase_add_test(html, html_of_one_seed);
    tcase_add_test(html, html_of_five_seeds);
    tcase_add_test(html, html_of_odd_runs);
    tcase_add_test(html, html_of_numbers_that_are_none);
    tcase_add_test(html, html_escapes);
    tcase_add_test(html, html_of_many_steps);
    tcase_add_test(parts, curves_are_means);
    tcase_add_test(parts, axes_have_round_ticks);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
