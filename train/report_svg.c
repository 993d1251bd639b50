/* train/report_svg.c: plots as inline SVG: frame, grid, ticks, titles, lines and markers. Colours
 * come from the page's style sheet. */
#include "train/report.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 460, NARROW = 345, HEIGHT = 270, LEFT = 74, RIGHT = 22, TOP = 10, BOTTOM = 46 };

const char *mn_plot_class(const char *precision)
{
    static const char *const known[] = {"fp32", "bf16", "fp16"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(precision, known[i]) == 0)
            return known[i];
    return "other";
}

double mn_plot_x(const mn_plot *plot, double value)
{
    return plot->left + mn_axis_place(&plot->x, value) * (plot->right - plot->left);
}

double mn_plot_y(const mn_plot *plot, double value)
{
    return plot->bottom - mn_axis_place(&plot->y, value) * (plot->bottom - plot->top);
}

/* ---- frame ----------------------------------------------------------------------------------- */

static void legend(mn_page *page, const mn_report *report, unsigned precisions)
{
    mn_page_put(page, "<p class=\"legend\">");
    for (int i = 0; i < report->count; i++) {
        const char *name = mn_plot_class(report->precisions[i]);
        mn_plot swatch = {.page = page};
        if (!(precisions & 1u << i))
            continue;
        mn_page_format(page,
                       "<span><svg class=\"swatch\" viewBox=\"0 0 34 12\" aria-hidden=\"true\">"
                       "<path class=\"line %s\" d=\"M1 6H33\"/>",
                       name);
        mn_plot_marker(&swatch, 17.0, 6.0, report->precisions[i], 3.5);
        mn_page_put(page, "</svg> ");
        mn_page_precision(page, report->precisions[i]);
        mn_page_put(page, "</span> ");
    }
    mn_page_put(page, "</p>");
}

static void x_ticks(mn_plot *plot)
{
    double place;
    char label[64];
    for (int i = 0; mn_axis_tick(&plot->x, i, &place, label); i++) {
        double x = plot->left + place * (plot->right - plot->left);
        mn_page_format(plot->page,
                       "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>"
                       "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                       x, plot->top, plot->bottom, x, plot->bottom + 16.0, label);
    }
}

static void y_ticks(mn_plot *plot)
{
    double place;
    char label[64];
    for (int i = 0; mn_axis_tick(&plot->y, i, &place, label); i++) {
        double y = plot->bottom - place * (plot->bottom - plot->top);
        mn_page_format(plot->page,
                       "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>"
                       "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
                       plot->left, y, plot->right, plot->left - 7.0, y + 4.0, label);
    }
}

static void axis_titles(mn_plot *plot)
{
    mn_page_format(plot->page,
                   "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                   0.5 * (plot->left + plot->right), plot->bottom + 36.0, plot->x.title);
    if (plot->rows)
        return;
    double middle = 0.5 * (plot->top + plot->bottom);
    mn_page_format(plot->page,
                   "<text class=\"axis\" x=\"11\" y=\"%.1f\" text-anchor=\"middle\" "
                   "transform=\"rotate(-90 11 %.1f)\">%s</text>",
                   middle, middle, plot->y.title);
}

void mn_plot_begin(mn_plot *plot, const mn_report *report, unsigned precisions)
{
    mn_page *page = plot->page;
    int width = plot->rows ? NARROW : WIDTH;
    double height = plot->height > 0.0 ? plot->height : HEIGHT;
    plot->left = (plot->rows ? RIGHT : LEFT) + plot->gutter;
    plot->right = width - RIGHT;
    plot->top = TOP + plot->strip;
    plot->bottom = height - BOTTOM;
    mn_page_format(page, "<figure><figcaption><strong>%s</strong> <span>%s</span></figcaption>",
                   plot->title, plot->description);
    if (precisions)
        legend(page, report, precisions);
    mn_page_format(page,
                   "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-labelledby=\"%s-t %s-d\">"
                   "<title id=\"%s-t\">%s</title><desc id=\"%s-d\">%s</desc>\n",
                   width, height, plot->id, plot->id, plot->id, plot->title, plot->id,
                   plot->description);
    x_ticks(plot);
    if (!plot->rows)
        y_ticks(plot);
    axis_titles(plot);
}

void mn_plot_end(mn_plot *plot)
{
    mn_page_put(plot->page, "</svg></figure>\n");
}

/* ---- content --------------------------------------------------------------------------------- */

void mn_plot_line(mn_plot *plot, const mn_curve *curve, const char *precision, bool thin)
{
    bool down = false;
    mn_page_format(plot->page, "<path class=\"line %s%s\" d=\"", mn_plot_class(precision),
                   thin ? " thin" : "");
    for (int i = 0; i < curve->count; i++) {
        double y = mn_plot_y(plot, mn_curve_y(curve, i));
        if (!isfinite(y)) {
            down = false;
            continue;
        }
        /* The empty stroke makes a dot of a point without neighbours. */
        mn_page_format(plot->page, down ? "L%.1f %.1f" : "M%.1f %.1fh0",
                       mn_plot_x(plot, mn_curve_x(curve, i)), y);
        down = true;
    }
    /* A path that is there but empty is no error, only invisible. */
    mn_page_put(plot->page, "\"/>\n");
}

void mn_plot_marker(mn_plot *plot, double x, double y, const char *precision, double radius)
{
    const char *name = mn_plot_class(precision);
    if (!isfinite(x) || !isfinite(y))
        return;
    if (strcmp(name, "bf16") == 0)
        mn_page_format(plot->page,
                       "<rect class=\"mark %s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                       "height=\"%.1f\"/>",
                       name, x - radius, y - radius, 2.0 * radius, 2.0 * radius);
    else if (strcmp(name, "fp16") == 0)
        mn_page_format(plot->page, "<path class=\"mark %s\" d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"/>",
                       name, x, y - 1.3 * radius, 1.2 * radius, 2.2 * radius, -2.4 * radius);
    else
        mn_page_format(plot->page, "<circle class=\"mark %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>",
                       name, x, y, radius);
}
