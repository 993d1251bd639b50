/* train/report.c: a comparison's report: its figures per run and over seeds, and writing it. */
#include "train/report.h"

#include <locale.h>
#include <math.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

const mn_compare_deviation *mn_report_deviation(const mn_report *report, const char *precision)
{
    for (int i = 0; i < report->result->deviation_count; i++)
        if (strcmp(report->result->deviations[i].precision, precision) == 0)
            return &report->result->deviations[i];
    return NULL;
}

static void read_epoch(const mn_epoch_result *epoch, double figures[MN_FIGURES])
{
    figures[MN_FIGURE_VALIDATION] = epoch->validation_accuracy;
    figures[MN_FIGURE_VALIDATION_FP32] = epoch->validation_accuracy_fp32;
    figures[MN_FIGURE_TEST] = epoch->test_accuracy;
    figures[MN_FIGURE_TEST_FP32] = epoch->test_accuracy_fp32;
    figures[MN_FIGURE_LOSS] =
        mn_isnan_f64(epoch->train_loss) ? (double)INFINITY : epoch->train_loss;
    figures[MN_FIGURE_SCALE] = epoch->scale;
    figures[MN_FIGURE_SPEED] = epoch->images_per_s;
    figures[MN_FIGURE_WAIT] = epoch->data_wait_fraction;
    if (epoch->peak_tensor_bytes > 0) /* else too few steps to tell */
        figures[MN_FIGURE_MEMORY] = (double)epoch->peak_tensor_bytes;
}

void mn_report_figures(const mn_report *report, const mn_compare_row *row,
                       double figures[MN_FIGURES])
{
    const mn_train_result *run = row->run;
    const mn_compare_deviation *d = mn_report_deviation(report, row->precision);
    bool ended = run->epoch_count > 0 && run->collapsed_step == 0;
    for (int i = 0; i < MN_FIGURES; i++)
        figures[i] = (double)NAN;
    figures[MN_FIGURE_STEPS] = (double)run->total_steps;
    figures[MN_FIGURE_SKIPPED] = figures[MN_FIGURE_NONFINITE] = 0.0;
    for (int64_t i = 0; i < run->step_count; i++) {
        figures[MN_FIGURE_SKIPPED] += run->step_results[i].skipped;
        figures[MN_FIGURE_NONFINITE] += run->step_results[i].nonfinite;
        figures[MN_FIGURE_SCALE] = run->step_results[i].scale;
    }
    if (d && d->n > 0)
        figures[MN_FIGURE_LOSS_DELTA] =
            mn_isnan_f64(d->max_loss_delta) ? (double)INFINITY : d->max_loss_delta;
    if (run->collapsed_step > 0)
        figures[MN_FIGURE_COLLAPSED] = (double)run->collapsed_step;
    if (run->monitor) {
        figures[MN_FIGURE_UNDERFLOW] = run->monitor->underflow_fraction;
        figures[MN_FIGURE_UPDATES_LOST] = run->monitor->updates_lost;
    }
    if (ended)
        read_epoch(&run->epochs[run->epoch_count - 1], figures);
}

mn_stat mn_report_stat(const mn_report *report, const char *precision, mn_figure figure)
{
    mn_stat stat = {0.0, (double)NAN, (double)NAN, (double)NAN, 0};
    double squares = 0.0; /* of the differences from the mean: Welford's sums */
    for (int i = 0; i < report->result->row_count; i++) {
        double figures[MN_FIGURES];
        if (strcmp(report->result->rows[i].precision, precision) != 0)
            continue;
        mn_report_figures(report, &report->result->rows[i], figures);
        double value = figures[figure], before = value - stat.mean;
        if (mn_isnan_f64(value))
            continue;
        stat.mean += before / ++stat.n;
        squares += before * (value - stat.mean);
        stat.low = stat.n == 1 || value < stat.low ? value : stat.low;
        stat.high = stat.n == 1 || value > stat.high ? value : stat.high;
    }
    if (stat.n == 0 || !mn_isfinite_f64(stat.high)) /* an infinite one leaves no other mean */
        stat.mean = stat.high;
    if (stat.n > 1)
        stat.sd = sqrt(squares / (stat.n - 1));
    return stat;
}

/* Rows come seed by seed, so that the first precision has one of each. */
static void add_row(mn_report *report, const mn_compare_row *row)
{
    const mn_train_result *run = row->run;
    int known = 0;
    report->model = run->model;
    report->data = run->data;
    while (known < report->count && strcmp(row->precision, report->precisions[known]) != 0)
        known++;
    if (known == report->count && known < MN_REPORT_PRECISIONS)
        report->precisions[report->count++] = row->precision;
    report->seeds += known == 0;
    if (run->epoch_count > 0 && run->epochs[run->epoch_count - 1].epoch > report->last_epoch)
        report->last_epoch = run->epochs[run->epoch_count - 1].epoch;
    if (run->step_count > 0 && run->step_results[run->step_count - 1].step > report->last_step)
        report->last_step = run->step_results[run->step_count - 1].step;
}

/* Both texts are there before the first file is. */
static mn_status write_files(const mn_report *report, mn_json_out *json, mn_json_out *html,
                             mn_error *error)
{
    const char *folder = report->options->report;
    mn_report_json(json, report);
    if (mn_out_text(json))
        mn_report_html(html, report, mn_out_text(json));
    if (json->failed || html->failed)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for its text");
    MN_TRY(mn_report_folder(&json->text.allocator, folder, error));
    MN_TRY(mn_report_save(json, folder, "report.json", error));
    return mn_report_save(html, folder, "report.html", error);
}

static mn_status write_report(const mn_report *report, mn_error *error)
{
    mn_json_out json, html;
    /* Numbers are written with a decimal point, whatever the program's locale. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a locale");
    locale_t before = uselocale(plain);
    mn_out_init(&json, &report->options->train.context.allocator);
    mn_out_init(&html, &report->options->train.context.allocator);
    mn_status status = write_files(report, &json, &html, error);
    mn_out_free(&json);
    mn_out_free(&html);
    uselocale(before);
    freelocale(plain);
    return status;
}

mn_status mn_report_write(const mn_compare_options *options, const mn_compare_result *result,
                          mn_error *error)
{
    if (!options->report)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--report: a folder is needed");
    /* Says what the runs' contexts were: they are gone by now. */
    mn_error local = {MN_OK, ""};
    mn_context *context = mn_context_create(&options->train.context, &local);
    if (!context)
        return mn_error_set(error, local.status, "report: %s", local.message);
    mn_report report = {.options = options,
                        .result = result,
                        .info = mn_context_info_get(context),
                        .validation = mn_compare_uses_validation(result->rows, result->row_count),
                        .model = options->train.model,
                        .data = options->train.data};
    for (int i = 0; i < result->row_count; i++)
        add_row(&report, &result->rows[i]);
    mn_status status = write_report(&report, error);
    mn_context_free(context);
    return status;
}
