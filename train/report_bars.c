/* train/report_bars.c: what came out at the end: difference from FP32 against the margin,
 * throughput and memory. */
#include "train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROW_HEIGHT = 46, FRAME_HEIGHT = 58, SEED_DOTS = 60, LABEL = 14 };

/* ---- difference at the end ------------------------------------------------------------------- */

static void draw_whisker(mn_plot *plot, const mn_compare_deviation *d, double y)
{
    double low = mn_plot_x(plot, d->interval_low_pp), high = mn_plot_x(plot, d->interval_high_pp);
    if (isfinite(low) && isfinite(high))
        mn_page_format(
            plot->page,
            "<path class=\"line whisker %s\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv10M%.1f %.1fv10\"/>",
            mn_plot_class(d->precision), low, y, high, low, y - 5.0, high, y - 5.0);
    mn_plot_marker(plot, mn_plot_x(plot, d->accuracy_delta_pp_mean), y, d->precision, 5.0);
}

/* A small dot for each seed, below the row's whisker. */
static void draw_seeds(mn_plot *plot, const mn_report *report, const char *precision, double y,
                       mn_report_number number)
{
    int drawn = 0;
    for (int i = 0; report->seeds > 1 && i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        double x = mn_plot_x(plot, number(report, row));
        if (!mn_report_is(row, precision) || !isfinite(x) || drawn++ >= SEED_DOTS)
            continue;
        mn_page_format(plot->page, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>",
                       mn_plot_class(precision), x, y);
    }
}

static void fit_difference(mn_plot *plot, const mn_report *report)
{
    plot->x = mn_axis_begin(MN_AXIS_LINEAR, "points");
    mn_axis_take(&plot->x, -1.2 * report->options->margin);
    mn_axis_take(&plot->x, 1.2 * report->options->margin);
    for (int i = 0; i < report->result->deviation_count; i++) {
        mn_axis_take(&plot->x, report->result->deviations[i].interval_low_pp);
        mn_axis_take(&plot->x, report->result->deviations[i].interval_high_pp);
    }
    for (int i = 0; i < report->result->row_count; i++)
        mn_axis_take(&plot->x, mn_report_delta(report, &report->result->rows[i]));
    mn_axis_fit(&plot->x, 5, true);
}

static void draw_margin(mn_plot *plot, double margin)
{
    double low = mn_plot_x(plot, -margin), high = mn_plot_x(plot, margin);
    mn_page_format(plot->page,
                   "<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                   "<path class=\"bound\" d=\"M%.1f %.1fV%.1fM%.1f %.1fV%.1f\"/>"
                   "<path class=\"zero\" d=\"M%.1f %.1fV%.1f\"/>",
                   low, plot->top, high - low, plot->bottom - plot->top, low, plot->top,
                   plot->bottom, high, plot->top, plot->bottom, mn_plot_x(plot, 0.0), plot->top,
                   plot->bottom);
}

void mn_report_verdict_chart(mn_page *page, const mn_report *report)
{
    char note[200];
    int count = report->result->deviation_count;
    mn_plot plot = {.page = page,
                    .id = "verdict",
                    .title = "Difference from FP32 at the end",
                    .description = note,
                    .height = FRAME_HEIGHT + ROW_HEIGHT * count,
                    .rows = true};
    if (count == 0)
        return;
    snprintf(note, sizeof note,
             "%s accuracy; band: margin of \xc2\xb1%g points; whiskers: "
             "90 percent interval%s",
             report->validation ? "validation" : "test", report->options->margin,
             report->seeds > 1 ? "; dots: seeds" : ", which needs 2 seeds or more");
    fit_difference(&plot, report);
    plot.gutter = 24.0;
    mn_plot_begin(&plot, report, 0);
    draw_margin(&plot, report->options->margin);
    for (int i = 0; i < count; i++) {
        const mn_compare_deviation *d = &report->result->deviations[i];
        double y = plot.top + ROW_HEIGHT * (i + 0.4);
        mn_page_format(page, "<text class=\"label\" x=\"0\" y=\"%.1f\">", y + 4.0);
        mn_page_precision(page, d->precision);
        mn_page_put(page, "</text>");
        draw_whisker(&plot, d, y);
        draw_seeds(&plot, report, d->precision, y + 13.0, mn_report_delta);
    }
    mn_plot_end(&plot);
}

/* ---- bars ------------------------------------------------------------------------------------ */

typedef struct bar_chart {
    const char *id, *title, *note, *unit;
    mn_report_number number;
    int decimals;
} bar_chart;

static double mebibytes(const mn_report *report, const mn_compare_row *row)
{
    return mn_report_memory(report, row) / 1048576.0;
}

static double ratio_of(const mn_report *report, const bar_chart *chart, const char *precision)
{
    const mn_compare_deviation *d = mn_report_deviation(report, precision);
    if (!d)
        return (double)NAN;
    return chart->number == mebibytes ? d->memory_ratio : d->throughput_ratio;
}

static void draw_bar(mn_plot *plot, const mn_report *report, const bar_chart *chart, int p)
{
    mn_page *page = plot->page;
    const char *precision = report->precisions[p];
    mn_report_stat stat = mn_report_over_seeds(report, precision, chart->number);
    double ratio = ratio_of(report, chart, precision), y = plot->top + ROW_HEIGHT * p + LABEL;
    mn_page_format(page, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\">", plot->left + 6.0, y);
    mn_page_precision(page, precision);
    mn_page_put(page, ": ");
    if (stat.n == 0) {
        mn_page_put(page, "not measured</text>");
        return;
    }
    mn_page_number(page, stat.mean, chart->decimals);
    mn_page_format(page, " %s", chart->unit);
    if (isfinite(ratio)) {
        mn_page_put(page, ", \xc3\x97");
        mn_page_number(page, ratio, 2);
        mn_page_put(page, " of FP32");
    }
    mn_page_put(page, "</text>");
    double end = mn_plot_x(plot, stat.mean);
    if (isfinite(end))
        mn_page_format(page,
                       "<rect class=\"bar %s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                       "height=\"16\" rx=\"2\"/>",
                       mn_plot_class(precision), plot->left, y + 6.0, end - plot->left);
    draw_seeds(plot, report, precision, y + 26.0, chart->number);
}

static void draw_bars(mn_page *page, const mn_report *report, const bar_chart *chart)
{
    char note[160];
    mn_plot plot = {.page = page,
                    .id = chart->id,
                    .title = chart->title,
                    .description = note,
                    .height = FRAME_HEIGHT + ROW_HEIGHT * report->count,
                    .rows = true};
    snprintf(note, sizeof note, "%s%s", chart->note,
             report->seeds > 1 ? "; bars: means, dots: seeds" : "");
    plot.x = mn_axis_begin(MN_AXIS_LINEAR, chart->unit);
    mn_axis_take(&plot.x, 0.0);
    for (int i = 0; i < report->result->row_count; i++)
        mn_axis_take(&plot.x, chart->number(report, &report->result->rows[i]));
    if (!(plot.x.high > 0.0)) /* nothing measured */
        return;
    mn_axis_fit(&plot.x, 4, true);
    mn_plot_begin(&plot, report, 0);
    for (int p = 0; p < report->count; p++)
        draw_bar(&plot, report, chart, p);
    mn_plot_end(&plot);
}

void mn_report_bar_charts(mn_page *page, const mn_report *report)
{
    static const bar_chart charts[] = {
        {"throughput", "Throughput", "more is better; last epoch, without evaluation", "images/s",
         mn_report_throughput, 0},
        {"memory", "Peak tensor memory", "less is better; tensors and workspaces at once", "MiB",
         mebibytes, 1},
    };
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
        draw_bars(page, report, &charts[i]);
}
