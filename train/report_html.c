/* train/report_html.c: report.html, the comparison for people: one file that loads nothing. */
#include "train/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_head(mn_json_out *page, const mn_report *report)
{
    mn_put(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "style-src 'unsafe-inline'\"/>\n<title>minim compare: ");
    mn_put_escaped(page, report->model);
    mn_put(page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", mn_report_style);
    mn_put_escaped(page, report->model);
    mn_put(page, " on ");
    mn_put_escaped(page, report->data);
    mn_put(page,
           "</h1>\n<p class=\"soft\">The same run in every precision, from the same seed "
           "and in the same order of the data. Epochs: %s. Steps of a run: %s. Seeds: "
           "%d.</p>\n",
           mn_number((double)report->last_epoch, 0, "").text,
           mn_number((double)report->last_step, 0, "").text, report->seeds);
}

/* By the first letter of a verdict. */
typedef struct verdict_kind {
    const char *class, *sign, *reason;
} verdict_kind;

static verdict_kind kind_of(const char *verdict)
{
    return *verdict == 'w'   ? (verdict_kind){"within", "\xe2\x9c\x93", "lies inside"}
           : *verdict == 'o' ? (verdict_kind){"outside", "\xe2\x9c\x97", "lies wholly outside"}
                             : (verdict_kind){"open", "?", "crosses"};
}

static void put_summary(mn_json_out *page, const mn_report *report, const mn_compare_deviation *d)
{
    mn_figure metric = report->validation ? MN_FIGURE_VALIDATION : MN_FIGURE_TEST;
    mn_stat skipped = mn_report_stat(report, d->precision, MN_FIGURE_SKIPPED);
    mn_put(page, "<p>Final %s accuracy %s against %s in FP32: <strong>%s&#160;points</strong>",
           report->validation ? "validation" : "test",
           mn_number(100.0 * mn_report_stat(report, d->precision, metric).mean, 2, "%").text,
           mn_number(100.0 * mn_report_stat(report, "fp32", metric).mean, 2, "%").text,
           mn_signed(d->accuracy_delta_pp_mean).text);
    if (mn_isfinite_f64(d->throughput_ratio) && mn_isfinite_f64(d->memory_ratio))
        mn_put(page, ", at \xc3\x97%s its speed and \xc3\x97%s its tensor memory",
               mn_number(d->throughput_ratio, 2, "").text, mn_number(d->memory_ratio, 2, "").text);
    mn_put(page, "; skipped steps: %s%s.</p>",
           mn_number(skipped.mean, skipped.mean == floor(skipped.mean) ? 0 : 1, "").text,
           skipped.n > 1 ? " a run" : "");
}

/* Why the verdict is what it is. */
static void put_reason(mn_json_out *page, const mn_report *report, const mn_compare_deviation *d)
{
    mn_put(page, "<p class=\"soft\">");
    if (d->collapsed > 0)
        mn_put(page, "No verdict can be given where runs collapsed or diverged.");
    else if (d->n < 3)
        mn_put(page, "A verdict needs 3 seeds or more; pairs of runs here: %d.", d->n);
    else if (mn_isnan_f64(d->interval_low_pp) || mn_isnan_f64(d->interval_high_pp))
        mn_put(page, "The accuracies are not numbers that can be compared.");
    else
        mn_put(page, "The 90 percent interval [%s, %s] %s the margin of \xc2\xb1%s points.",
               mn_signed(d->interval_low_pp).text, mn_signed(d->interval_high_pp).text,
               kind_of(d->verdict).reason, mn_number(report->options->margin, -6, "").text);
    mn_put(page, "</p>");
}

static void put_warnings(mn_json_out *page, const mn_report *report, const char *precision)
{
    mn_stat collapsed = mn_report_stat(report, precision, MN_FIGURE_COLLAPSED);
    if (collapsed.n > 0)
        mn_put(page,
               "<p class=\"warning\">\xe2\x9a\xa0 %d run%s collapsed, at step %.0f%s: gradients "
               "overflowed at the smallest loss scale.</p>",
               collapsed.n, collapsed.n == 1 ? "" : "s", collapsed.low,
               collapsed.n == 1 ? "" : " or later");
    mn_stat loss = mn_report_stat(report, precision, MN_FIGURE_LOSS);
    if (loss.n > 0 && !mn_isfinite_f64(loss.mean))
        mn_put(page, "<p class=\"warning\">\xe2\x9a\xa0 The training loss is not finite at "
                     "the end: a run diverged.</p>");
}

static void put_cards(mn_json_out *page, const mn_report *report)
{
    mn_put(page, "<section class=\"cards\" aria-label=\"Verdicts\">\n");
    for (int i = 0; i < report->result->deviation_count; i++) {
        const mn_compare_deviation *d = &report->result->deviations[i];
        verdict_kind kind = kind_of(d->verdict);
        mn_put(page,
               "<div class=\"card %s\"><h3><span class=\"name\">%s</span>: <span "
               "class=\"verdict\">%s %s</span></h3>",
               kind.class, d->precision, kind.sign, d->verdict);
        if (d->n > 0)
            put_summary(page, report, d);
        put_reason(page, report, d);
        put_warnings(page, report, d->precision);
        mn_put(page, "</div>\n");
    }
    mn_put(page, "</section>\n");
}

typedef enum row_style {
    MEAN,
    RANGE,  /* smallest to largest: a mean of scales would be no scale */
    DELTA,  /* from FP32 */
    POINTS, /* of accuracy, likewise, with interval; its figure is not used */
    BAR     /* with its ratio to FP32 */
} row_style;

typedef struct table_row {
    const char *title, *unit;
    mn_figure figure;
    double factor;
    int decimals;
    row_style style;
} table_row;

static const table_row rows[] = {
    {"Validation accuracy", "%", MN_FIGURE_VALIDATION, 100.0, 2, MEAN},
    {"Validation accuracy in FP32", "%", MN_FIGURE_VALIDATION_FP32, 100.0, 2, MEAN},
    {"Test accuracy", "%", MN_FIGURE_TEST, 100.0, 2, MEAN},
    {"Test accuracy in FP32", "%", MN_FIGURE_TEST_FP32, 100.0, 2, MEAN},
    {"Difference of accuracy, points", "", MN_FIGURE_TEST, 1.0, 2, POINTS},
    {"Training loss, last epoch", "", MN_FIGURE_LOSS, 1.0, 4, MEAN},
    {"Largest difference of an epoch\xe2\x80\x99s loss", "", MN_FIGURE_LOSS_DELTA, 1.0, 4, DELTA},
    {"Steps", "", MN_FIGURE_STEPS, 1.0, 0, RANGE},
    {"Steps skipped", "", MN_FIGURE_SKIPPED, 1.0, 0, RANGE},
    {"Steps with non-finite gradients", "", MN_FIGURE_NONFINITE, 1.0, 0, RANGE},
    {"Loss scale at the end", "", MN_FIGURE_SCALE, 1.0, -8, RANGE},
    {"Images per second", "", MN_FIGURE_SPEED, 1.0, 0, BAR},
    {"Peak tensor memory", "MiB", MN_FIGURE_MEMORY, 1.0 / 1048576.0, 2, BAR},
    {"Waiting for data", "%", MN_FIGURE_WAIT, 100.0, 1, MEAN},
    {"Values lost to underflow", "%", MN_FIGURE_UNDERFLOW, 100.0, -3, MEAN},
    {"Updates that changed nothing", "%", MN_FIGURE_UPDATES_LOST, 100.0, -3, MEAN},
};

/* Half as long as its room for FP32. */
static void put_bar(mn_json_out *page, const mn_report *report, const char *precision,
                    mn_figure figure)
{
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    double ratio = strcmp(precision, "fp32") == 0 ? 1.0 : (double)NAN;
    if (d)
        ratio = figure == MN_FIGURE_SPEED ? d->throughput_ratio : d->memory_ratio;
    if (!mn_isfinite_f64(ratio))
        return;
    if (d)
        mn_put(page, "<small>\xc3\x97%s of FP32</small>", mn_number(ratio, 2, "").text);
    mn_put(page, "<span class=\"bar\"><span class=\"%s\" style=\"width:%.1f%%\"></span></span>",
           precision, fmin(50.0 * ratio, 100.0));
}

static void put_difference(mn_json_out *page, const mn_report *report, const char *precision)
{
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    mn_put(page, "%s", mn_signed(d ? d->accuracy_delta_pp_mean : (double)NAN).text);
    if (d && mn_isfinite_f64(d->interval_low_pp))
        mn_put(page, "<small>[%s, %s]</small>", mn_signed(d->interval_low_pp).text,
               mn_signed(d->interval_high_pp).text);
    if (d)
        mn_put(page, "<small>n&#160;=&#160;%d</small>", d->n);
}

static void put_mean(mn_json_out *page, const table_row *row, const mn_stat *stat)
{
    bool range = row->style == RANGE && stat->high > stat->low;
    double first = row->factor * (range ? stat->low : stat->mean);
    mn_put(page, "%s", mn_number(first, row->decimals, row->unit).text);
    if (range)
        mn_put(page, " to %s", mn_number(stat->high, row->decimals, "").text);
    else if (stat->sd > 0.0)
        mn_put(page, "<small>\xc2\xb1 %s</small>",
               mn_number(row->factor * stat->sd, row->decimals, "").text);
}

static void put_cell(mn_json_out *page, const mn_report *report, const table_row *row,
                     const char *precision)
{
    mn_stat stat = mn_report_stat(report, precision, row->figure);
    mn_put(page, "<td>");
    if ((row->style == DELTA || row->style == POINTS) && strcmp(precision, "fp32") == 0)
        mn_put(page, "reference");
    else if (row->style == POINTS)
        put_difference(page, report, precision);
    else if (row->figure == MN_FIGURE_UNDERFLOW && stat.n == 0 && strcmp(precision, "fp32") == 0)
        mn_put(page, "no 16 bit");
    else
        put_mean(page, row, &stat);
    if (row->style == BAR && stat.n > 0)
        put_bar(page, report, precision, row->figure);
    mn_put(page, "</td>");
}

static void put_table(mn_json_out *page, const mn_report *report)
{
    mn_put(page,
           "<h2>Final numbers</h2>\n<div class=\"wide\"><table>\n<thead><tr>"
           "<th scope=\"col\">After the last epoch<small>means over the seeds \xc2\xb1 standard "
           "deviation</small></th>");
    for (int p = 0; p < report->count; p++)
        mn_put(page, "<th scope=\"col\" class=\"name\">%s</th>", report->precisions[p]);
    mn_put(page, "</tr></thead>\n<tbody>\n");
    for (size_t i = report->validation ? 0 : 2; i < sizeof rows / sizeof *rows; i++) {
        mn_put(page, "<tr><th scope=\"row\">%s</th>", rows[i].title);
        for (int p = 0; p < report->count; p++)
            put_cell(page, report, &rows[i], report->precisions[p]);
        mn_put(page, "</tr>\n");
    }
    mn_put(page, "</tbody></table></div>\n");
}

static void put_charts(mn_json_out *page, const mn_report *report)
{
    mn_put(page, "<h2>On the way</h2>\n<p class=\"legend\">");
    for (int p = 0; p < report->count; p++)
        mn_put(
            page,
            "<span><svg class=\"swatch\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">"
            "<path class=\"line %s\" d=\"M2 6H32\"/></svg> <span class=\"name\">%s</span></span> ",
            report->precisions[p], report->precisions[p]);
    mn_put(page, "<span class=\"soft\">bold: mean of the seeds, thin: single seeds</span></p>\n");
    mn_report_charts(page, report);
}

/* A string, number or null of JSON text as text for readers; returns what follows. */
static const char *put_value(mn_json_out *page, const char *at)
{
    char *end;
    if (*at != '"') {
        double value = strtod(at, &end);
        bool null = end == at;
        mn_put(page, "%s",
               null ? "none" : mn_number(value, value == floor(value) ? 0 : -6, "").text);
        return at + (null ? strlen("null") : (size_t)(end - at));
    }
    for (at++; *at != '"'; at++) {
        at += *at == '\\'; /* of a control character, letters are left */
        mn_put_escaped(page, (char[2]){*at, '\0'});
    }
    return at + 1;
}

/* A key and its colon, behind what stands before it. */
static const char *put_key(mn_json_out *page, const char *at)
{
    int length = (int)strcspn(at + 2, "\"");
    mn_put(page, "%.*s", length, at + 2);
    return at + length + 4;
}

/* The objects of plain values with which report.json begins, by the names that they have there. */
static void put_settings(mn_json_out *page, const char *json)
{
    mn_put(page, "<h2>Settings</h2>\n<div class=\"settings\">\n");
    for (int i = 0; i < 3; i++) {
        mn_put(page, "<div><h3>");
        json = put_key(page, json);
        mn_put(page, "</h3><dl>\n");
        while (*json != '}') {
            mn_put(page, "<div><dt>");
            json = put_key(page, json);
            mn_put(page, "</dt><dd>");
            json = put_value(page, json);
            mn_put(page, "</dd></div>\n");
        }
        mn_put(page, "</dl></div>\n");
        json++;
    }
    mn_put(page, "</div>\n");
}

void mn_report_html(mn_json_out *page, const mn_report *report, const char *json)
{
    put_head(page, report);
    put_cards(page, report);
    put_table(page, report);
    put_charts(page, report);
    mn_report_numerics(page, report);
    mn_put(page, "<h2>How to read this</h2>\n");
    for (int i = 0; i < MN_REPORT_NOTES; i++) {
        int subject = (int)strcspn(mn_report_notes[i], ":");
        mn_put(page, "<p><strong>%.*s</strong>%s</p>\n", subject, mn_report_notes[i],
               mn_report_notes[i] + subject);
    }
    mn_put(page, "<p class=\"soft\">All figures, run by run and epoch by epoch, are in "
                 "report.json beside this page.</p>\n");
    put_settings(page, json);
    mn_put(page, "</body>\n</html>\n");
}
