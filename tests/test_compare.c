/* tests/test_compare.c: the verdict: Student's t, deviation from FP32, when which verdict is given;
 * collapsed runs, what mn_compare refuses. */
#include "train/compare.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 24 };

/* Runs of one epoch each. */
typedef struct runs {
    int count;
    mn_compare_row rows[MOST_ROWS];
    mn_train_result results[MOST_ROWS];
    mn_epoch_result epochs[MOST_ROWS];
} runs;
static runs made;

static void setup(void)
{
    memset(&made, 0, sizeof made);
}

static mn_epoch_result *add(const char *precision, uint64_t seed, double validation, double test)
{
    int i = made.count++;
    ck_assert_int_lt(i, MOST_ROWS);
    made.epochs[i] = (mn_epoch_result){.epoch = 1,
                                       .train_loss = 0.5,
                                       .validation_accuracy = validation,
                                       .test_accuracy = test,
                                       .images_per_s = 100.0,
                                       .peak_tensor_bytes = 1000};
    made.results[i] = (mn_train_result){.epoch_count = 1, .epochs = &made.epochs[i]};
    made.rows[i] = (mn_compare_row){precision, seed, &made.results[i]};
    return &made.epochs[i];
}

/* Pairs whose validation accuracies differ by so many points. */
static void add_pairs(const double *points, int count)
{
    for (int i = 0; i < count; i++) {
        add("fp32", (uint64_t)i + 1, 0.9, 0.5);
        add("fp16", (uint64_t)i + 1, 0.9 + points[i] / 100.0, 0.1);
    }
}

static mn_compare_deviation deviate(double margin)
{
    mn_compare_deviation deviation = {.precision = "fp16"};
    mn_compare_deviate(made.rows, made.count, margin, &deviation);
    return deviation;
}

START_TEST(student_quantiles)
{
    static const struct {
        int degrees;
        double t;
    } known[] = {{1, 6.3138},  {2, 2.9200},  {3, 2.3534},  {4, 2.1318},  {5, 2.0150},
                 {10, 1.8125}, {20, 1.7247}, {21, 1.7207}, {25, 1.7081}, {30, 1.6973},
                 {40, 1.6839}, {60, 1.6706}, {100, 1.6602}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        ck_assert_double_eq_tol(mn_student_t95(known[i].degrees), known[i].t, 1e-4);
    ck_assert_double_nan(mn_student_t95(0));
    for (int degrees = 1; degrees < 200; degrees++)
        ck_assert_double_gt(mn_student_t95(degrees), mn_student_t95(degrees + 1));
}
END_TEST

/* Differences 0.1, 0.2 and 0.6: mean 0.3, sd sqrt(0.07), half width 2.92 * sd / sqrt(3). */
START_TEST(deviation_by_hand)
{
    add_pairs((const double[]){0.1, 0.2, 0.6}, 3);
    made.epochs[1].images_per_s = 150.0;
    made.epochs[3].peak_tensor_bytes = 400;
    made.epochs[5].train_loss = 0.75;
    mn_compare_deviation d = deviate(0.6);
    ck_assert_int_eq(d.n, 3);
    ck_assert_double_eq_tol(d.accuracy_delta_pp_mean, 0.3, 1e-9);
    ck_assert_double_eq_tol(d.accuracy_delta_pp_sd, 0.26457513, 1e-6);
    ck_assert_double_eq_tol(d.interval_low_pp, 0.3 - 0.44603, 1e-4);
    ck_assert_double_eq_tol(d.interval_high_pp, 0.3 + 0.44603, 1e-4);
    ck_assert_double_eq_tol(d.throughput_ratio, (1.5 + 1.0 + 1.0) / 3.0, 1e-12);
    ck_assert_double_eq_tol(d.memory_ratio, (1.0 + 0.4 + 1.0) / 3.0, 1e-12);
    ck_assert_double_eq_tol(d.max_loss_delta, 0.25, 1e-12);
    ck_assert_str_eq(d.verdict, "not enough seeds to say"); /* 0.746 is past the margin */
}
END_TEST

START_TEST(verdicts)
{
    static const struct {
        double points[4];
        int n;
        const char *verdict;
    } cases[] = {
        {{0.1, -0.1, 0.05, 0.0}, 4, "within the stated bound"},
        {{-0.1, -0.2, -0.15, 0.0}, 3, "within the stated bound"},
        {{-2.0, -2.1, -2.2, 0.0}, 3, "outside"},
        {{2.0, 2.1, 2.2, 2.0}, 4, "outside"},
        {{-0.5, -0.6, -0.7, 0.0}, 3, "not enough seeds to say"},
        {{3.0, -3.0, 0.0, 0.0}, 3, "not enough seeds to say"}, /* wider than the margin */
        {{0.0, 0.0, 0.0, 0.0}, 1, "not enough seeds to say"},
        {{0.0, 0.0, 0.0, 0.0}, 2, "not enough seeds to say"},
        {{0.0, 0.0, 0.0, 0.0}, 3, "within the stated bound"},
        {{-9.0, -9.0, 0.0, 0.0}, 2, "not enough seeds to say"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup();
        add_pairs(cases[i].points, cases[i].n);
        mn_compare_deviation d = deviate(0.6);
        ck_assert_int_eq(d.n, cases[i].n);
        ck_assert_msg(strcmp(d.verdict, cases[i].verdict) == 0, "case %d: %s", (int)i, d.verdict);
    }
}
END_TEST

START_TEST(margin_decides)
{
    add_pairs((const double[]){-1.0, -1.1, -0.9}, 3);
    ck_assert_str_eq(deviate(0.5).verdict, "outside");
    ck_assert_str_eq(deviate(1.0).verdict, "not enough seeds to say");
    ck_assert_str_eq(deviate(2.0).verdict, "within the stated bound");
}
END_TEST

START_TEST(one_seed_has_no_interval)
{
    add_pairs((const double[]){-0.25}, 1);
    mn_compare_deviation d = deviate(0.6);
    ck_assert_double_eq_tol(d.accuracy_delta_pp_mean, -0.25, 1e-9);
    ck_assert_double_nan(d.accuracy_delta_pp_sd);
    ck_assert_double_nan(d.interval_low_pp);
    ck_assert_double_nan(d.interval_high_pp);
}
END_TEST

/* Without a validation part the test accuracy counts. */
START_TEST(metric)
{
    add("fp32", 1, 0.9, 0.8);
    add("fp16", 1, 0.89, 0.85);
    ck_assert(mn_compare_uses_validation(made.rows, made.count));
    ck_assert_double_eq_tol(deviate(0.6).accuracy_delta_pp_mean, -1.0, 1e-9);
    made.epochs[0].validation_accuracy = made.epochs[1].validation_accuracy = (double)NAN;
    ck_assert(!mn_compare_uses_validation(made.rows, made.count));
    ck_assert_double_eq_tol(deviate(0.6).accuracy_delta_pp_mean, 5.0, 1e-9);
    ck_assert(!mn_compare_uses_validation(NULL, 0));
}
END_TEST

/* Seeds are paired by number, not by place; what has no partner or no epoch does not count. */
START_TEST(pairing)
{
    add("fp16", 2, 0.7, 0.7);
    add("fp16", 1, 0.5, 0.5);
    add("fp32", 1, 0.6, 0.6);
    add("fp32", 2, 0.9, 0.9);
    add("fp16", 3, 0.1, 0.1);
    add("fp32", 4, 0.9, 0.9);
    add("bf16", 4, 0.2, 0.2);
    mn_compare_deviation d = deviate(0.6);
    ck_assert_int_eq(d.n, 2);
    ck_assert_double_eq_tol(d.accuracy_delta_pp_mean, -15.0, 1e-9);
    made.results[0].epoch_count = 0;
    d = deviate(0.6);
    ck_assert_int_eq(d.n, 1);
    ck_assert_double_eq_tol(d.accuracy_delta_pp_mean, -10.0, 1e-9);
}
END_TEST

/* On the way they are a difference; at the end the run has failed, whatever its accuracy: also
 * where the reference, or both, have. */
START_TEST(losses_that_are_not_numbers)
{
    mn_epoch_result two[2];
    add_pairs((const double[]){0.0, 0.0, 0.0, 0.0}, 4);
    two[0] = two[1] = made.epochs[1];
    made.results[1].epochs = two;
    made.results[1].epoch_count = 2;
    two[0].train_loss = (double)NAN;
    ck_assert_double_nan(deviate(0.6).max_loss_delta);
    two[0].train_loss = (double)INFINITY;
    ck_assert_double_infinite(deviate(0.6).max_loss_delta);
    ck_assert_str_eq(deviate(0.6).verdict, "within the stated bound");
    two[0].train_loss = 0.5;
    for (int bad = 1; bad <= 3; bad++) { /* this precision's, the reference's, both */
        two[1].train_loss = bad & 1 ? (double)NAN : 0.5;
        made.epochs[0].train_loss = bad & 2 ? -(double)INFINITY : 0.5;
        mn_compare_deviation d = deviate(0.6);
        ck_assert_int_eq(d.n, 3);
        ck_assert_int_eq(d.collapsed, 1);
        ck_assert_double_eq_tol(d.max_loss_delta, 0.0, 1e-12);
        ck_assert_str_eq(d.verdict, "not enough seeds to say");
    }
}
END_TEST

/* Only runs that came to their end are compared, and none of the others is left out silently. */
START_TEST(runs_without_an_end)
{
    add_pairs((const double[]){0.0, 0.0, 0.0, 0.0}, 4);
    ck_assert_str_eq(deviate(0.6).verdict, "within the stated bound");
    made.results[3].collapsed_step = 7;
    mn_compare_deviation d = deviate(0.6);
    ck_assert_int_eq(d.n, 3);
    ck_assert_int_eq(d.collapsed, 1);
    ck_assert_str_eq(d.verdict, "not enough seeds to say");
    made.results[3].collapsed_step = 0;
    made.results[3].cancelled = true;
    d = deviate(0.6);
    ck_assert_int_eq(d.n, 3);
    ck_assert_int_eq(d.collapsed, 0);
    for (int i = 0; i < made.count; i++)
        made.results[i].collapsed_step = 7;
    d = deviate(0.6);
    ck_assert_int_eq(d.n, 0);
    ck_assert_double_nan(d.accuracy_delta_pp_mean);
    ck_assert_double_nan(d.max_loss_delta);
}
END_TEST

/* The first precision's runs end early and the comparison goes on. */
START_TEST(collapse)
{
    uint8_t images[40 * 144];
    int64_t labels[40];
    for (int i = 0; i < 40; i++)
        labels[i] = i % 2;
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 37 % 251);
    mn_error error = {MN_OK, ""};
    mn_dataset *data =
        mn_dataset_from_memory(images, labels, (const int64_t[]){40, 12, 12, 1}, 2, NULL, &error);
    ck_assert_msg(data != NULL, "%s", error.message);
    mn_compare_options options = mn_compare_options_default();
    options.train.train_set = data;
    options.train.batch = 8;
    options.train.epochs = 3;
    options.train.scaler.init_scale = 1ll << 40;
    options.train.scaler.min_scale = 1ll << 38;
    options.train.context.threads = 1;
    options.precisions = "fp16,fp32";
    mn_compare_result *result = mn_compare(&options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    ck_assert_int_eq(result->row_count, 2);
    ck_assert_int_gt(result->rows[0].run->collapsed_step, 0);
    ck_assert_int_eq(result->rows[1].run->collapsed_step, 0);
    ck_assert_int_eq(result->rows[1].run->epoch_count, 3);
    /* A training set of the caller's is not tested on the data set named by default. */
    ck_assert_double_nan(result->rows[1].run->epochs[2].test_accuracy);
    ck_assert_int_eq(result->deviation_count, 1);
    ck_assert_int_eq(result->deviations[0].collapsed, 1);
    mn_compare_result_free(result);
    mn_dataset_free(data);
}
END_TEST

static void refused(const mn_compare_options *options, const char *word)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_compare(options, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    ck_assert_msg(strstr(error.message, word) != NULL, "%s", error.message);
    ck_assert_ptr_null(mn_compare(options, NULL));
}

START_TEST(bad_options)
{
    static const char *const lists[] = {"",          "fp32,fp8",   "fp32,,fp16", "bf16,fp16",
                                        "fp32,fp32", "fp32,fp16,", "FP32",       "fp"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        mn_compare_options options = mn_compare_options_default();
        options.precisions = lists[i];
        refused(&options, "--precisions");
    }
    mn_compare_options options = mn_compare_options_default();
    options.size = sizeof options + 8;
    refused(&options, "options.size");
    options.size = sizeof options;
    options.seeds = 0;
    refused(&options, "--seeds");
    options.seeds = 1;
    static const double margins[] = {0.0, -1.0, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof margins / sizeof *margins; i++) {
        options.margin = margins[i];
        refused(&options, "--margin");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare");
    TCase *verdict = tcase_create("verdict");
    tcase_add_checked_fixture(verdict, setup, NULL);
    tcase_add_test(verdict, student_quantiles);
    tcase_add_test(verdict, deviation_by_hand);
    tcase_add_test(verdict, verdicts);
    tcase_add_test(verdict, margin_decides);
    tcase_add_test(verdict, one_seed_has_no_interval);
    tcase_add_test(verdict, metric);
    tcase_add_test(verdict, pairing);
    tcase_add_test(verdict, losses_that_are_not_numbers);
    tcase_add_test(verdict, runs_without_an_end);
    tcase_add_test(verdict, collapse);
    tcase_add_test(verdict, bad_options);
    suite_add_tcase(suite, verdict);
    return mn_test_run(suite, CK_FORK_GETENV);
}
