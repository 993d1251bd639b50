/* train/report_charts.c: curves over epochs and steps as inline SVG: accuracy, its difference from
 * FP32, loss, loss scale and gradient norm. One drawing routine; `charts` says what it shows. */
#include "train/report.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 460, HEIGHT = 270, LEFT = 72, RIGHT = 438, TOP = 10, BOTTOM = 224 };
/* Points of a curve, epochs up to which each has a dot, thin lines that can be told apart, and the
 * height of a row of marks above the plot. */
enum { POINTS = 240, DOTS = 30, SEED_LINES = 12, MARK_ROW = 10 };

typedef enum chart_kind { ACCURACY, DIFFERENCE, LOSS, SCALE, NORM, CHARTS } chart_kind;

typedef struct chart {
    const char *title, *note;
    bool steps;       /* else over epochs */
    bool logarithmic; /* to base 2 */
} chart;

static const chart charts[CHARTS] = {
    [ACCURACY] = {"Accuracy, percent", "each precision by its own arithmetic", false, false},
    [DIFFERENCE] = {"Difference of accuracy from FP32, points",
                    "band: the margin; bars at the end: 90 percent intervals", false, false},
    [LOSS] = {"Training loss", "lower is better; strokes above: not finite", true, false},
    [SCALE] = {"Loss scale", "of FP16; strokes above: skipped steps", true, true},
    [NORM] = {"Gradient norm", "before clipping; strokes above: not finite", true, true},
};

/* What falls into a window of steps or epochs. */
typedef struct point {
    double sum;
    int64_t n;
    bool mark;
} point;

/* low and high are logarithms on a logarithmic axis; ticks stand at multiples of step. */
typedef struct axis {
    bool whole; /* no ticks between whole numbers */
    double low, high, step;
} axis;

typedef struct plot {
    mn_json_out *page;
    const mn_report *report;
    chart_kind kind;
    const chart *chart;
    axis x, y;
    double top;
    bool marked; /* somewhere on the curves */
    /* The curve drawn now: positions 1 .. last in windows so wide that POINTS are enough. */
    int64_t last, width;
    int count;
    point points[POINTS];
} plot;

/* In percent; NaN without a row or such an epoch. */
static double accuracy(const plot *p, const mn_compare_row *row, int64_t index)
{
    if (!row || index >= row->run->epoch_count)
        return (double)NAN;
    const mn_epoch_result *epoch = &row->run->epochs[index];
    return 100.0 * (p->report->validation ? epoch->validation_accuracy : epoch->test_accuracy);
}

static void add_value(plot *p, int64_t position, double value, bool mark)
{
    int64_t within = position < 1 ? 1 : position > p->last ? p->last : position;
    point *at = &p->points[(within - 1) / p->width];
    at->mark |= mark;
    if (p->chart->logarithmic)
        value = value > 0.0 ? log2(value) : (double)NAN;
    /* A mean of scales would be none: the first stands for its window. */
    if (!mn_isfinite_f64(value) || (p->kind == SCALE && at->n > 0))
        return;
    at->n++;
    at->sum += value;
}

static void add_row(plot *p, const mn_compare_row *row)
{
    const mn_train_result *run = row->run;
    const mn_compare_result *result = p->report->result;
    const mn_compare_row *reference =
        mn_compare_row_of(result->rows, result->row_count, "fp32", row->seed);
    for (int64_t i = 0; p->chart->steps && i < run->step_count; i++) {
        const mn_step_result *step = &run->step_results[i];
        if (p->kind == LOSS)
            add_value(p, step->step, step->loss, !mn_isfinite_f64(step->loss));
        else if (p->kind == SCALE)
            add_value(p, step->step, step->scale, step->skipped);
        else
            add_value(p, step->step, step->grad_norm, step->nonfinite);
    }
    for (int64_t i = 0; !p->chart->steps && i < run->epoch_count; i++) {
        double less = p->kind == DIFFERENCE ? accuracy(p, reference, i) : 0.0;
        bool itself = p->kind == DIFFERENCE && reference == row;
        add_value(p, run->epochs[i].epoch, itself ? (double)NAN : accuracy(p, row, i) - less,
                  false);
    }
}

/* The curve of one row, or for NULL of all rows of the precision together. */
static void trace(plot *p, const char *precision, const mn_compare_row *only)
{
    const mn_report *report = p->report;
    memset(p->points, 0, sizeof p->points);
    p->last = p->chart->steps ? report->last_step : report->last_epoch;
    p->width = p->last > 0 ? (p->last - 1) / POINTS + 1 : 1;
    p->count = (int)((p->last + p->width - 1) / p->width);
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        /* Only fp16 has a scale. */
        bool shown = p->kind != SCALE || strcmp(row->precision, "fp16") == 0;
        if (shown && (only ? row == only : strcmp(row->precision, precision) == 0))
            add_row(p, row);
    }
}

/* NaN where there is nothing. */
static double height(const plot *p, int window)
{
    return p->points[window].sum / (double)p->points[window].n;
}

static void take(axis *a, double value)
{
    if (!mn_isfinite_f64(value))
        return;
    a->low = fmin(a->low, value);
    a->high = fmax(a->high, value);
}

/* The smallest of 1, 2, 5 times a power of ten that is not below `least`. */
static double round_step(double least)
{
    double power = pow(10.0, floor(log10(least))), ratio = least / power;
    return power * (ratio <= 1.0 ? 1.0 : ratio <= 2.0 ? 2.0 : ratio <= 5.0 ? 5.0 : 10.0);
}

/* Picks round ticks; widen: the ends become ticks. */
static void fit(axis *a, bool widen)
{
    if (!(a->low <= a->high))
        a->low = a->high = 0.0;
    /* Ends so far apart, or so close, that steps between them have no digits left. */
    a->low = fmax(a->low, -1e300);
    a->high = fmin(a->high, 1e300);
    if (a->high - a->low <= 1e-9 * fmax(fabs(a->low), fabs(a->high))) {
        double more = fmax(0.05 * fabs(a->low), a->whole ? 0.5 : 1e-6);
        a->low -= more;
        a->high += more;
    }
    a->step = round_step((a->high - a->low) / 5.0);
    if (a->whole && a->step < 1.0)
        a->step = 1.0;
    if (widen) {
        a->low = floor(a->low / a->step + 1e-9) * a->step;
        a->high = ceil(a->high / a->step - 1e-9) * a->step;
    }
}

/* The i-th tick's value and label, up to the first that returns false. */
static bool tick(const axis *a, bool logarithmic, int index, double *value, mn_label *label)
{
    int decimals = a->step < 1.0 ? (int)ceil(-log10(a->step) - 1e-9) : 0;
    *value = (ceil(a->low / a->step - 1e-9) + index) * a->step;
    *label = logarithmic ? mn_number(exp2(*value), *value < 0.0 ? -2 : 0, "")
                         : mn_number(*value, decimals, "");
    return *value <= a->high + 1e-6 * a->step;
}

static double place_x(const plot *p, double value)
{
    return LEFT + (value - p->x.low) / (p->x.high - p->x.low) * (RIGHT - LEFT);
}

static double place_y(const plot *p, double value)
{
    return BOTTOM - (value - p->y.low) / (p->y.high - p->y.low) * (BOTTOM - p->top);
}

static double middle(const plot *p, int window)
{
    int64_t first = window * p->width + 1, end = first + p->width - 1;
    return place_x(p, 0.5 * (double)(first + (end < p->last ? end : p->last)));
}

/* False: there is nothing to show. */
static bool fit_axes(plot *p)
{
    const mn_compare_result *result = p->report->result;
    bool steps = p->chart->steps;
    p->y = (axis){p->chart->logarithmic, (double)INFINITY, -(double)INFINITY, 1.0};
    for (int i = 0; i < result->row_count; i++) {
        trace(p, "", &result->rows[i]);
        for (int w = 0; w < p->count; w++) {
            take(&p->y, height(p, w));
            p->marked |= p->points[w].mark;
        }
    }
    bool any = p->marked || p->y.low <= p->y.high;
    for (int i = 0; p->kind == DIFFERENCE && i < result->deviation_count; i++) {
        take(&p->y, result->deviations[i].interval_low_pp);
        take(&p->y, result->deviations[i].interval_high_pp);
        take(&p->y, -1.1 * p->report->options->margin);
        take(&p->y, 1.1 * p->report->options->margin);
    }
    fit(&p->y, true);
    /* There is room beside the first and last epoch's dots. */
    p->x = (axis){true, steps ? 0.0 : 0.7, (double)p->last + (steps ? 0.0 : 0.3), 1.0};
    fit(&p->x, false);
    return any;
}

static void begin_figure(plot *p)
{
    const char *part = p->report->validation ? "validation; " : "test; ";
    mn_put(p->page, "<figure><figcaption><strong>%s</strong><span>%s%s", p->chart->title,
           p->chart->steps ? "" : part, p->chart->note);
    if (p->width > 1 && p->kind != SCALE)
        mn_put(p->page, "; means of %lld %s", (long long)p->width,
               p->chart->steps ? "steps" : "epochs");
    mn_put(p->page,
           "</span></figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" "
           "aria-label=\"%s\">\n",
           WIDTH, HEIGHT, p->chart->title);
}

static void draw_axes(plot *p)
{
    mn_label label;
    double value;
    for (int i = 0; tick(&p->x, false, i, &value, &label); i++)
        mn_put(p->page,
               "<path class=\"grid\" d=\"M%.1f %.1fV%d\"/>"
               "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
               place_x(p, value), p->top, BOTTOM, place_x(p, value), BOTTOM + 16, label.text);
    mn_put(p->page, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
           (LEFT + RIGHT) / 2, BOTTOM + 36, p->chart->steps ? "step" : "epoch");
    for (int i = 0; tick(&p->y, p->chart->logarithmic, i, &value, &label); i++)
        mn_put(p->page,
               "<path class=\"grid\" d=\"M%d %.1fH%d\"/>"
               "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
               LEFT, place_y(p, value), RIGHT, LEFT - 7, place_y(p, value) + 4.0, label.text);
}

static void draw_margin(plot *p)
{
    double high = place_y(p, p->report->options->margin);
    double low = place_y(p, -p->report->options->margin);
    mn_put(p->page,
           "<rect class=\"band\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>"
           "<path class=\"bound\" d=\"M%d %.1fH%dM%d %.1fH%d\"/>"
           "<path class=\"zero\" d=\"M%d %.1fH%d\"/>\n",
           LEFT, high, RIGHT - LEFT, low - high, LEFT, high, RIGHT, LEFT, low, RIGHT, LEFT,
           place_y(p, 0.0), RIGHT);
}

typedef enum pen { JOINED, DOTS_ONLY, MARKS } pen;

/* The curve, broken where there are no values, or its marks in a row of their own above. */
static void draw(plot *p, int precision, const char *class, pen with)
{
    double above = p->top - MARK_ROW * (p->report->count - precision) - 2.0;
    bool down = false; /* the point before was drawn */
    mn_put(p->page, "<path class=\"line %s %s\" d=\"", p->report->precisions[precision], class);
    for (int i = 0; i < p->count; i++) {
        double x = middle(p, i), y = place_y(p, height(p, i));
        if (with == MARKS && p->points[i].mark)
            mn_put(p->page, "M%.1f %.1fv7", x, above);
        else if (with == JOINED && down && mn_isfinite_f64(y))
            mn_put(p->page, p->kind == SCALE ? "H%.1fV%.1f" : "L%.1f %.1f", x, y);
        else if (with != MARKS && mn_isfinite_f64(y)) /* the empty stroke makes a dot */
            mn_put(p->page, "M%.1f %.1fh0", x, y);
        down = mn_isfinite_f64(y);
    }
    mn_put(p->page, "\"/>\n");
}

/* The interval at the end, a little beside the other precisions'. */
static void draw_interval(plot *p, int precision)
{
    const char *name = p->report->precisions[precision];
    const mn_compare_deviation *d = mn_report_deviation(p->report, name);
    if (!d || !mn_isfinite_f64(d->interval_low_pp) || !mn_isfinite_f64(d->interval_high_pp))
        return;
    double x = place_x(p, (double)p->last) + 7.0 * precision;
    double low = place_y(p, d->interval_low_pp), high = place_y(p, d->interval_high_pp);
    mn_put(p->page,
           "<path class=\"line %s mark\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh6M%.1f %.1fh6\"/>\n", name,
           x, low, high, x - 3.0, low, x - 3.0, high);
}

static void draw_precision(plot *p, int precision)
{
    const char *name = p->report->precisions[precision];
    const mn_compare_result *result = p->report->result;
    int drawn = 0;
    for (int i = 0; i < result->row_count; i++) {
        bool own = strcmp(result->rows[i].precision, name) == 0 && drawn++ < SEED_LINES;
        if (!own || (p->report->seeds == 1 && p->kind != SCALE))
            continue;
        trace(p, name, &result->rows[i]);
        draw(p, precision, p->kind == SCALE ? "step" : "thin", JOINED);
    }
    trace(p, name, NULL);
    if (p->kind != SCALE)
        draw(p, precision, "", JOINED);
    if (!p->chart->steps && p->count <= DOTS)
        draw(p, precision, "dots", DOTS_ONLY);
    if (p->marked)
        draw(p, precision, "mark", MARKS);
    if (p->kind == DIFFERENCE)
        draw_interval(p, precision);
}

void mn_report_charts(mn_json_out *page, const mn_report *report)
{
    mn_put(page, "<div class=\"charts\">\n");
    for (int kind = 0; kind < CHARTS; kind++) {
        plot p = {.page = page, .report = report, .kind = (chart_kind)kind};
        p.chart = &charts[kind];
        if (!fit_axes(&p))
            continue;
        p.top = TOP + (p.marked ? MARK_ROW * report->count : 0);
        begin_figure(&p);
        draw_axes(&p);
        if (kind == DIFFERENCE)
            draw_margin(&p);
        for (int i = 0; i < report->count; i++)
            draw_precision(&p, i);
        mn_put(page, "</svg></figure>\n");
    }
    mn_put(page, "</div>\n");
}
