/* train/report_table.c: the report's figures as tables: final numbers by precision, and every run.
 */
#include "train/report.h"

#include <math.h>
#include <string.h>

enum { SHOWN_RUNS = 90 };

/* ---- numbers --------------------------------------------------------------------------------- */

static double value_of(const mn_compare_row *row, size_t offset)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    double value = (double)NAN;
    if (last)
        memcpy(&value, (const char *)last + offset, sizeof value);
    return value;
}

static double validation(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return 100.0 * value_of(row, offsetof(mn_epoch_result, validation_accuracy));
}

static double validation_fp32(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return 100.0 * value_of(row, offsetof(mn_epoch_result, validation_accuracy_fp32));
}

static double test(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return 100.0 * value_of(row, offsetof(mn_epoch_result, test_accuracy));
}

static double test_fp32(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return 100.0 * value_of(row, offsetof(mn_epoch_result, test_accuracy_fp32));
}

static double train_loss(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return value_of(row, offsetof(mn_epoch_result, train_loss));
}

static double data_wait(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return 100.0 * value_of(row, offsetof(mn_epoch_result, data_wait_fraction));
}

static double steps(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    return (double)row->run->total_steps;
}

static double mebibytes(const mn_report *report, const mn_compare_row *row)
{
    return mn_report_memory(report, row) / 1048576.0;
}

static double unmeasured(const mn_report *report, const mn_compare_row *row)
{
    (void)report;
    (void)row;
    return (double)NAN;
}

typedef struct table_row {
    const char *name, *unit;
    mn_report_number number;
    int decimals;
    bool validation; /* only where there is a validation part */
    bool plain;      /* no deviation over seeds */
} table_row;

/* The difference from FP32 has its place behind the accuracies. */
enum { ACCURACY_ROWS = 4 };
static const table_row rows[] = {
    {"Validation accuracy", "%", validation, 2, true, false},
    {"Validation accuracy in FP32", "%", validation_fp32, 2, true, false},
    {"Test accuracy", "%", test, 2, false, false},
    {"Test accuracy in FP32", "%", test_fp32, 2, false, false},
    {"Training loss, last epoch", "", train_loss, 4, false, false},
    {"Steps", "", steps, 0, false, true},
    {"Steps skipped", "", mn_report_skipped, 0, false, true},
    {"Steps with non-finite gradients", "", mn_report_nonfinite, 0, false, true},
    {"Loss scale at the end", "", mn_report_scale, 0, false, true},
    {"Images per second", "", mn_report_throughput, 0, false, false},
    {"Peak tensor memory", "MiB", mebibytes, 2, false, true},
    {"Waiting for data", "%", data_wait, 1, false, true},
    {"Values lost to underflow", "", unmeasured, 2, false, false},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* A loss that is not a number was measured all the same. */
static bool not_a_number(const mn_report *report, const table_row *row, const char *precision)
{
    if (row->number != train_loss)
        return false;
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *run = &report->result->rows[i];
        if (mn_report_is(run, precision) && mn_report_last_epoch(run) &&
            isnan(train_loss(report, run)))
            return true;
    }
    return false;
}

/* ---- by precision ---------------------------------------------------------------------------- */

static void put_ratio(mn_page *page, double ratio)
{
    if (isnan(ratio))
        return;
    mn_page_put(page, "<small>\xc3\x97");
    mn_page_number(page, ratio, 2);
    mn_page_put(page, " of FP32</small>");
}

/* A mean of scales would be no scale: the smallest and the largest over the seeds. */
static void put_scales(mn_page *page, const mn_report *report, const char *precision)
{
    double low = (double)NAN, high = (double)NAN;
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        if (!mn_report_is(row, precision))
            continue;
        low = fmin(low, mn_report_scale(report, row));
        high = fmax(high, mn_report_scale(report, row));
    }
    mn_page_number(page, low, 0);
    if (high > low) {
        mn_page_put(page, " to ");
        mn_page_number(page, high, 0);
    }
}

static void put_cell(mn_page *page, const mn_report *report, const table_row *row,
                     const char *precision)
{
    mn_report_stat stat = mn_report_over_seeds(report, precision, row->number);
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    bool whole = row->decimals > 0 || stat.n < 2 || stat.mean == floor(stat.mean);
    mn_page_put(page, "<td>");
    if (not_a_number(report, row, precision)) {
        mn_page_put(page, "<span class=\"warning\">not a number</span></td>");
        return;
    }
    if (row->number == mn_report_scale) {
        put_scales(page, report, precision);
        mn_page_put(page, "</td>");
        return;
    }
    mn_page_number(page, stat.mean, whole || !row->plain ? row->decimals : 1);
    if (isfinite(stat.mean) && row->unit[0])
        mn_page_format(page, "&#160;%s", row->unit);
    if (stat.n > 1 && !row->plain && isfinite(stat.sd)) {
        mn_page_put(page, "<small>\xc2\xb1 ");
        mn_page_number(page, stat.sd, row->decimals);
        mn_page_put(page, "</small>");
    }
    if (d && row->number == mn_report_throughput)
        put_ratio(page, d->throughput_ratio);
    if (d && row->number == mebibytes)
        put_ratio(page, d->memory_ratio);
    mn_page_put(page, "</td>");
}

static void put_difference(mn_page *page, const mn_report *report, const char *precision)
{
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    mn_page_put(page, "<td>");
    if (!d) {
        mn_page_put(page, strcmp(precision, "fp32") == 0 ? "reference</td>" : "not measured</td>");
        return;
    }
    mn_page_signed(page, d->accuracy_delta_pp_mean, 2);
    mn_page_put(page, "<small>");
    if (isnan(d->interval_low_pp)) {
        mn_page_put(page, "no interval");
    } else {
        mn_page_put(page, "[");
        mn_page_signed(page, d->interval_low_pp, 2);
        mn_page_put(page, ", ");
        mn_page_signed(page, d->interval_high_pp, 2);
        mn_page_put(page, "]");
    }
    mn_page_format(page, ", n&#160;=&#160;%d</small></td>", d->n);
}

static void put_loss_difference(mn_page *page, const mn_report *report, const char *precision)
{
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    mn_page_put(page, "<td>");
    if (!d)
        mn_page_put(page, strcmp(precision, "fp32") == 0 ? "reference" : "not measured");
    else if (isnan(d->max_loss_delta))
        mn_page_put(page, "<span class=\"warning\">not a number</span>");
    else
        mn_page_number(page, d->max_loss_delta, 4);
    mn_page_put(page, "</td>");
}

static void put_special(mn_page *page, const mn_report *report, const char *name,
                        void (*put)(mn_page *, const mn_report *, const char *))
{
    mn_page_format(page, "<tr><th scope=\"row\">%s</th>", name);
    for (int p = 0; p < report->count; p++)
        put(page, report, report->precisions[p]);
    mn_page_put(page, "</tr>\n");
}

static void put_row(mn_page *page, const mn_report *report, const table_row *row)
{
    if (row->validation && !report->validation)
        return;
    mn_page_format(page, "<tr><th scope=\"row\">%s</th>", row->name);
    for (int p = 0; p < report->count; p++)
        put_cell(page, report, row, report->precisions[p]);
    mn_page_put(page, "</tr>\n");
}

void mn_report_final_table(mn_page *page, const mn_report *report)
{
    mn_page_put(page, "<section>\n<h2>Final numbers</h2>\n");
    if (report->seeds > 1)
        mn_page_put(page, "<p class=\"soft\">Means over the seeds, \xc2\xb1 standard "
                          "deviation.</p>\n");
    mn_page_put(page, "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">After the last "
                      "epoch</th>");
    for (int p = 0; p < report->count; p++) {
        mn_page_put(page, "<th scope=\"col\">");
        mn_page_precision(page, report->precisions[p]);
        mn_page_put(page, "</th>");
    }
    mn_page_put(page, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < ACCURACY_ROWS; i++)
        put_row(page, report, &rows[i]);
    put_special(page, report,
                report->validation ? "Difference of validation accuracy, points"
                                   : "Difference of test accuracy, points",
                put_difference);
    put_row(page, report, &rows[ACCURACY_ROWS]);
    put_special(page, report, "Largest difference of an epoch\xe2\x80\x99s training loss",
                put_loss_difference);
    for (int i = ACCURACY_ROWS + 1; i < ROWS; i++)
        put_row(page, report, &rows[i]);
    mn_page_put(page, "</tbody></table></div>\n</section>\n");
}

/* ---- every run ------------------------------------------------------------------------------- */

typedef struct run_column {
    const char *name;
    mn_report_number number;
    int decimals;
} run_column;

/* The first one only where there is a validation part. */
static const run_column columns[] = {
    {"Validation&#160;%", validation, 2},     {"Test&#160;%", test, 2},
    {"Points from FP32", mn_report_delta, 2}, {"Training loss", train_loss, 4},
    {"Skipped", mn_report_skipped, 0},        {"Scale", mn_report_scale, 0},
    {"Images/s", mn_report_throughput, 0},    {"Peak MiB", mebibytes, 2},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void put_run(mn_page *page, const mn_report *report, const mn_compare_row *row)
{
    mn_page_put(page, "<tr><th scope=\"row\">");
    mn_page_precision(page, row->precision);
    mn_page_format(page, "</th><td>%llu</td>", (unsigned long long)row->seed);
    for (int i = report->validation ? 0 : 1; i < COLUMNS; i++) {
        double value = columns[i].number(report, row);
        bool lost = columns[i].number == train_loss && isnan(value) && mn_report_last_epoch(row);
        mn_page_put(page, "<td>");
        if (columns[i].number == mn_report_delta && mn_report_is(row, "fp32"))
            mn_page_put(page, "reference");
        else if (lost)
            mn_page_put(page, "<span class=\"warning\">not a number</span>");
        else if (columns[i].number == mn_report_delta)
            mn_page_signed(page, value, columns[i].decimals);
        else
            mn_page_number(page, value, columns[i].decimals);
        mn_page_put(page, "</td>");
    }
    mn_page_put(page, "</tr>\n");
}

void mn_report_run_table(mn_page *page, const mn_report *report)
{
    int count = report->result->row_count;
    if (report->seeds < 2)
        return;
    mn_page_put(
        page,
        "<section>\n<h2>Every run</h2>\n<div class=\"wide\"><table class=\"runs\">\n<thead><tr>"
        "<th scope=\"col\">Precision</th><th scope=\"col\">Seed</th>");
    for (int i = report->validation ? 0 : 1; i < COLUMNS; i++)
        mn_page_format(page, "<th scope=\"col\">%s</th>", columns[i].name);
    mn_page_put(page, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < count && i < SHOWN_RUNS; i++)
        put_run(page, report, &report->result->rows[i]);
    mn_page_put(page, "</tbody></table></div>\n");
    if (count > SHOWN_RUNS)
        mn_page_format(page,
                       "<p class=\"soft\">The first %d of %d runs; all are in "
                       "report.json.</p>\n",
                       SHOWN_RUNS, count);
    mn_page_put(page, "</section>\n");
}
