/* train/report_charts.c: what happened on the way: loss, accuracy, difference, gradient norm and
 * loss scale over steps and epochs. */
#include "train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* More thin lines than these cannot be told apart. */
enum { SEED_LINES = 12, MARKED_POINTS = 30, STRIP_ROW = 9, SEEN_IN_WINDOW = 8 };

typedef struct line_chart {
    const char *id, *title, *note, *y_title;
    mn_curve_source source;
    mn_axis_kind kind;
    bool ratio;  /* logarithmic if the values span much */
    bool delta;  /* difference from FP32 */
    bool margin; /* with the verdict's margin around zero */
    bool marked; /* what is not finite is marked above the plot */
} line_chart;

/* ---- sources --------------------------------------------------------------------------------- */

static double step_loss(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    double loss = row->run->step_results[index].loss;
    (void)report;
    return isnan(loss) ? (double)INFINITY : loss;
}

static double step_norm(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    const mn_step_result *step = &row->run->step_results[index];
    (void)report;
    return step->nonfinite ? (double)INFINITY : step->grad_norm;
}

/* At the same step of the same data; a loss that is not finite has its mark in the loss's chart. */
static double step_loss_delta(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    const mn_compare_row *reference = mn_report_reference(report, row);
    if (!reference || index >= reference->run->step_count)
        return (double)NAN;
    double delta = step_loss(report, row, index) - step_loss(report, reference, index);
    return isfinite(delta) ? delta : (double)NAN;
}

static double epoch_validation(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    (void)report;
    return 100.0 * row->run->epochs[index].validation_accuracy;
}

static double epoch_test(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    (void)report;
    return 100.0 * row->run->epochs[index].test_accuracy;
}

static double epoch_test_delta(const mn_report *report, const mn_compare_row *row, int64_t index)
{
    const mn_compare_row *reference = mn_report_reference(report, row);
    if (!reference || index >= reference->run->epoch_count)
        return (double)NAN;
    return epoch_test(report, row, index) - epoch_test(report, reference, index);
}

static const line_chart charts[] = {
    {.id = "loss",
     .title = "Training loss",
     .note = "lower is better",
     .y_title = "loss",
     .source = {step_loss, true, 0},
     .ratio = true,
     .marked = true},
    {.id = "loss-delta",
     .title = "Difference of training loss from FP32",
     .note = "at the same step, on the same images",
     .y_title = "difference",
     .source = {step_loss_delta, true, 80},
     .delta = true},
    {.id = "validation",
     .title = "Validation accuracy",
     .note = "each precision by its own arithmetic",
     .y_title = "percent",
     .source = {epoch_validation, false, 0}},
    {.id = "test",
     .title = "Test accuracy",
     .note = "each precision by its own arithmetic",
     .y_title = "percent",
     .source = {epoch_test, false, 0}},
    {.id = "test-delta",
     .title = "Difference of test accuracy from FP32",
     .note = "inside the band: within the margin",
     .y_title = "points",
     .source = {epoch_test_delta, false, 0},
     .delta = true,
     .margin = true},
    {.id = "norm",
     .title = "Gradient norm",
     .note = "after unscaling, before clipping",
     .y_title = "norm",
     .source = {step_norm, true, 0},
     .kind = MN_AXIS_LOG10,
     .marked = true},
};

/* ---- axes ------------------------------------------------------------------------------------ */

/* Takes in all that will be drawn; *broken: windows with something that is not finite. */
static void take_curve(mn_axis *axis, const mn_curve *curve, double *smallest, int *broken)
{
    for (int i = 0; i < curve->count; i++) {
        double y = mn_curve_y(curve, i);
        mn_axis_take(axis, y);
        if (y < *smallest)
            *smallest = y;
        *broken += curve->broken[i];
    }
}

static int take_rows(mn_axis *axis, const mn_report *report, const line_chart *chart,
                     double *smallest)
{
    mn_curve curve;
    int broken = 0;
    *smallest = (double)INFINITY;
    for (int i = 0; i < report->result->row_count; i++) {
        mn_curve_of_row(&curve, report, &chart->source, &report->result->rows[i]);
        take_curve(axis, &curve, smallest, &broken);
    }
    return broken;
}

/* Values of a loss that fall to a thirtieth or less are read better on a logarithmic axis. */
static int fit_y(mn_plot *plot, const mn_report *report, const line_chart *chart)
{
    double smallest;
    plot->y = mn_axis_begin(chart->kind, chart->y_title);
    int broken = take_rows(&plot->y, report, chart, &smallest);
    if (chart->ratio && smallest > 0.0 && plot->y.high > 30.0 * smallest) {
        plot->y = mn_axis_begin(MN_AXIS_LOG10, chart->y_title);
        (void)take_rows(&plot->y, report, chart, &smallest);
    }
    if (chart->margin) {
        mn_axis_take(&plot->y, -1.1 * report->options->margin);
        mn_axis_take(&plot->y, 1.1 * report->options->margin);
    } else if (chart->delta) {
        mn_axis_take(&plot->y, 0.0);
    }
    mn_axis_fit(&plot->y, 5, true);
    return broken;
}

static void fit_x(mn_plot *plot, const mn_report *report, bool steps)
{
    plot->x = mn_axis_begin(MN_AXIS_WHOLE, steps ? "step" : "epoch");
    if (steps) {
        mn_axis_take(&plot->x, 0.0);
        mn_axis_take(&plot->x, (double)report->last_step);
    } else {
        mn_axis_take(&plot->x, 0.7);
        mn_axis_take(&plot->x, (double)report->last_epoch + 0.3);
    }
    mn_axis_fit(&plot->x, 6, false);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void draw_zero(mn_plot *plot)
{
    mn_page_format(plot->page, "<path class=\"zero\" d=\"M%.1f %.1fH%.1f\"/>", plot->left,
                   mn_plot_y(plot, 0.0), plot->right);
}

static void draw_margin(mn_plot *plot, double margin)
{
    double top = mn_plot_y(plot, margin), bottom = mn_plot_y(plot, -margin);
    mn_page_format(plot->page,
                   "<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                   "<path class=\"bound\" d=\"M%.1f %.1fH%.1fM%.1f %.1fH%.1f\"/>",
                   plot->left, top, plot->right - plot->left, bottom - top, plot->left, top,
                   plot->right, plot->left, bottom, plot->right);
}

static void draw_points(mn_plot *plot, const mn_curve *curve, const char *precision)
{
    for (int i = 0; i < curve->count; i++)
        mn_plot_marker(plot, mn_plot_x(plot, mn_curve_x(curve, i)),
                       mn_plot_y(plot, mn_curve_y(curve, i)), precision, 4.0);
}

/* A row of crosses above the plot. */
static void draw_broken(mn_plot *plot, const mn_curve *curve, const char *precision, int row)
{
    double y = plot->top - plot->strip + STRIP_ROW * (row + 0.5) - 4.0;
    mn_page_format(plot->page, "<path class=\"line cross %s\" d=\"", mn_plot_class(precision));
    for (int i = 0; i < curve->count; i++)
        if (curve->broken[i])
            mn_page_format(plot->page, "M%.1f %.1fl6 6m-6 0l6-6",
                           mn_plot_x(plot, mn_curve_x(curve, i)) - 3.0, y - 3.0);
    mn_page_put(plot->page, "\"/>\n");
}

static void draw_precision(mn_plot *plot, const mn_report *report, const line_chart *chart, int p)
{
    mn_curve curve;
    const char *precision = report->precisions[p];
    int drawn = 0;
    for (int i = 0; report->seeds > 1 && i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        if (!mn_report_is(row, precision) || drawn++ >= SEED_LINES)
            continue;
        mn_curve_of_row(&curve, report, &chart->source, row);
        mn_plot_line(plot, &curve, precision, true);
    }
    mn_curve_of_all(&curve, report, &chart->source, precision);
    mn_plot_line(plot, &curve, precision, false);
    if (!chart->source.steps && curve.count <= MARKED_POINTS)
        draw_points(plot, &curve, precision);
    if (plot->strip > 0.0)
        draw_broken(plot, &curve, precision, p);
}

static void describe(char *text, size_t size, const mn_report *report, const line_chart *chart,
                     bool broken)
{
    mn_curve curve;
    int used = snprintf(text, size, "%s", chart->note);
    mn_curve_of_all(&curve, report, &chart->source, "");
    if (chart->margin)
        used += snprintf(text + used, size - (size_t)used, " of \xc2\xb1%g points",
                         report->options->margin);
    if (curve.width > 1)
        used += snprintf(text + used, size - (size_t)used, "; means over %lld %s",
                         (long long)curve.width, chart->source.steps ? "steps" : "epochs");
    if (report->seeds > 1)
        used +=
            snprintf(text + used, size - (size_t)used, "; bold: mean of all seeds, thin: %sseeds",
                     report->seeds > SEED_LINES ? "the first 12 " : "single ");
    if (broken)
        snprintf(text + used, size - (size_t)used, "; crosses above: not finite");
}

static void draw_chart(mn_page *page, const mn_report *report, const line_chart *chart)
{
    char note[256];
    unsigned shown = 0; /* a bit for each precision */
    mn_plot plot = {.page = page, .id = chart->id, .title = chart->title, .description = note};
    int broken = fit_y(&plot, report, chart);
    bool marked = chart->marked && broken > 0;
    fit_x(&plot, report, chart->source.steps);
    describe(note, sizeof note, report, chart, marked);
    for (int p = 0; p < report->count; p++)
        if (!chart->delta || strcmp(report->precisions[p], "fp32") != 0)
            shown |= 1u << p;
    plot.strip = marked ? STRIP_ROW * report->count + 4 : 0;
    mn_plot_begin(&plot, report, shown);
    if (marked)
        mn_page_format(page, "<text x=\"0\" y=\"%.1f\">not finite</text>",
                       plot.top - 0.5 * plot.strip + 2.0);
    if (chart->delta)
        draw_zero(&plot);
    if (chart->margin)
        draw_margin(&plot, report->options->margin);
    for (int p = 0; p < report->count; p++)
        if (shown & 1u << p)
            draw_precision(&plot, report, chart, p);
    mn_plot_end(&plot);
}

void mn_report_line_charts(mn_page *page, const mn_report *report)
{
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++) {
        const line_chart *chart = &charts[i];
        if ((chart->source.steps ? report->last_step : report->last_epoch) == 0)
            continue;
        if (chart->source.value == epoch_validation && !report->validation)
            continue;
        draw_chart(page, report, chart);
    }
}

/* ---- loss scale ------------------------------------------------------------------------------ */

/* A scale of 1 throughout is none. */
static bool is_scaled(const mn_compare_row *row)
{
    for (int64_t i = 0; i < row->run->step_count; i++)
        if (row->run->step_results[i].scale != 1.0)
            return true;
    return false;
}

/* True if there is still room in the step's window: what happens very often between two pixels
 * cannot be seen. */
typedef struct crowd {
    int window, count;
} crowd;

static bool has_room(crowd *state, const mn_curve *windows, const mn_step_result *step)
{
    int here = mn_curve_window(windows, step->step);
    state->count = here == state->window ? state->count + 1 : 1;
    state->window = here;
    return state->count <= SEEN_IN_WINDOW;
}

static void draw_scale(mn_plot *plot, const mn_curve *windows, const mn_compare_row *row, bool thin)
{
    const mn_train_result *run = row->run;
    crowd drawn = {-1, 0};
    double last = (double)NAN;
    mn_page_format(plot->page, "<path class=\"line %s%s\" d=\"", mn_plot_class(row->precision),
                   thin ? " seed" : " scale");
    for (int64_t i = 0; i < run->step_count; i++) {
        const mn_step_result *step = &run->step_results[i];
        double x = mn_plot_x(plot, (double)step->step), y = mn_plot_y(plot, step->scale);
        bool changed = step->scale != last && isfinite(y);
        if (changed && isnan(last))
            mn_page_format(plot->page, "M%.1f %.1f", x, y);
        if (changed && has_room(&drawn, windows, step)) {
            mn_page_format(plot->page, "H%.1fV%.1f", x, y);
            last = step->scale;
        } else if (i + 1 == run->step_count && !isnan(last)) {
            mn_page_format(plot->page, "H%.1f", x);
        }
    }
    mn_page_put(plot->page, "\"/>\n");
}

static void draw_skipped(mn_plot *plot, const mn_curve *windows, const mn_compare_row *row)
{
    crowd drawn = {-1, 0};
    mn_page_format(plot->page, "<path class=\"line cross %s\" d=\"", mn_plot_class(row->precision));
    for (int64_t i = 0; i < row->run->step_count; i++) {
        const mn_step_result *step = &row->run->step_results[i];
        double y = mn_plot_y(plot, step->scale);
        if (step->skipped && isfinite(y) && has_room(&drawn, windows, step))
            mn_page_format(plot->page, "M%.1f %.1fl7 7m-7 0l7-7",
                           mn_plot_x(plot, (double)step->step) - 3.5, y - 3.5);
    }
    mn_page_put(plot->page, "\"/>\n");
}

/* The rows with a loss scale, as a set of bits of their precisions. */
static unsigned take_scales(mn_axis *axis, const mn_report *report)
{
    unsigned precisions = 0;
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        if (!is_scaled(row))
            continue;
        for (int64_t s = 0; s < row->run->step_count; s++)
            mn_axis_take(axis, row->run->step_results[s].scale);
        for (int p = 0; p < report->count; p++)
            if (mn_report_is(row, report->precisions[p]))
                precisions |= 1u << p;
    }
    return precisions;
}

void mn_report_scale_chart(mn_page *page, const mn_report *report)
{
    const mn_curve_source source = {step_loss, true, 0}; /* any: only its windows are needed */
    char note[160];
    mn_curve windows;
    mn_plot plot = {.page = page, .id = "scale", .title = "Loss scale", .description = note};
    snprintf(note, sizeof note, "crosses: skipped steps%s",
             report->seeds > 1 ? "; a line for each seed" : "");
    plot.y = mn_axis_begin(MN_AXIS_LOG2, "scale");
    unsigned precisions = take_scales(&plot.y, report);
    if (mn_axis_empty(&plot.y))
        return;
    mn_axis_fit(&plot.y, 5, true);
    fit_x(&plot, report, true);
    mn_plot_begin(&plot, report, precisions);
    mn_curve_of_all(&windows, report, &source, "");
    int drawn = 0;
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        if (!is_scaled(row) || drawn++ >= SEED_LINES)
            continue;
        draw_scale(&plot, &windows, row, report->seeds > 1);
        draw_skipped(&plot, &windows, row);
    }
    mn_plot_end(&plot);
}
