/* train/report_numerics.c: what the monitors of a comparison's runs have seen: magnitudes by layer
 * as inline SVG, values and updates lost, what was not finite. */
#include "train/report.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Above so many layers those of a block share a row; kinds of overflow of a run, and parameters,
 * that are listed; shades. */
enum { MOST_ROWS = 40, MOST_EVENTS = 8, MOST_PARAMETERS = 12, LEVELS = 8 };
/* Of the picture: a column of names, and two plots with a column of shares beside each. */
enum { WIDTH = 1000, NAMES = 164, SPAN = 350, NEXT = 424, TOP = 52, ROW = 15, NAME_LENGTH = 21 };

typedef struct picture {
    mn_json_out *page;
    const char *precision;
    double scale; /* of the loss */
    const mn_layer *layers;
    int count;
    int low[2], high[2]; /* exponents at the ends of each plot, of all precisions */
    int side;            /* drawn now */
} picture;

/* ---- axes ------------------------------------------------------------------------------------ */

/* Makes room for what a row's magnitudes are, but for the smallest twentieth. */
static void widen(const mn_layer_side *side, int *low, int *high)
{
    int64_t total = 0, below = 0;
    for (int i = 0; i < MN_MONITOR_BINS; i++)
        total += side->histogram[i];
    for (int i = 0; i < MN_MONITOR_BINS; i++) {
        const int exponent = MN_MONITOR_LOWEST + i;
        below += side->histogram[i];
        if (below <= total / 20)
            continue;
        if (exponent < *low)
            *low = exponent;
        if (side->histogram[i] > 0 && exponent >= *high)
            *high = exponent + 1;
    }
}

static double place(const picture *p, double exponent)
{
    const int low = p->low[p->side], high = p->high[p->side];
    return NAMES + p->side * NEXT + SPAN * (exponent - low) / (high - low);
}

/* A line at a limit, if it is in the plot, and its name: ending there or beginning. */
static void draw_limit(const picture *p, double limit, const char *name, int above, bool ends)
{
    const double x = place(p, log2(limit));
    if (log2(limit) < p->low[p->side] || log2(limit) > p->high[p->side])
        return;
    mn_put(p->page,
           "<path class=\"bound\" d=\"M%.1f %dV%d\"/>"
           "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>",
           x, TOP - 2, TOP + ROW * p->count, ends ? x + 2.0 : x - 2.0, TOP - above,
           ends ? "end" : "start", name);
}

static void draw_axes(const picture *p)
{
    static const char *const titles[] = {"values in forward, log2 of magnitude",
                                         "gradients in backward, log2 of magnitude"};
    const mn_float_limits f16 = mn_float_limits_get(MN_F16), bf16 = mn_float_limits_get(MN_BF16);
    const int bottom = TOP + ROW * p->count, span = p->high[p->side] - p->low[p->side];
    const int step = span > 128 ? 32 : span > 64 ? 16 : 8;
    for (int e = p->low[p->side] / step * step; e <= p->high[p->side]; e += step)
        mn_put(p->page,
               "<path class=\"grid\" d=\"M%.1f %dV%d\"/>"
               "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
               place(p, e), TOP, bottom, place(p, e), bottom + 15, mn_number(e, 0, "").text);
    mn_put(p->page, "<text class=\"axis\" x=\"%.1f\" y=\"13\">%s</text>", place(p, p->low[p->side]),
           titles[p->side]);
    draw_limit(p, f16.smallest, span > 90 ? "f16" : "f16 smallest", 7, true);
    draw_limit(p, f16.smallest_normal, span > 90 ? "" : "normal", 7, false);
    draw_limit(p, f16.largest, "largest", 7, true);
    draw_limit(p, bf16.smallest, "bf16 smallest", 7, false);
    draw_limit(p, bf16.smallest_normal, "", 7, false);
    draw_limit(p, bf16.largest, "bf16 largest", 7, true);
    if (p->side == 1 && p->scale > 1.0)
        draw_limit(p, f16.smallest * p->scale, "\xe2\x86\x90 lost without loss scale", 22, true);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Shade of an exponent: by the root of its share, so that tails are seen. What is beyond an end of
 * the plot counts at the end. */
static int level_of(const picture *p, const mn_layer_side *side, int exponent)
{
    const int low = p->low[p->side], high = p->high[p->side];
    int64_t total = 0, here = 0;
    for (int i = 0; i < MN_MONITOR_BINS; i++) {
        const int e = MN_MONITOR_LOWEST + i, within = e < low ? low : e >= high ? high - 1 : e;
        total += side->histogram[i];
        here += within == exponent ? side->histogram[i] : 0;
    }
    const double share = here > 0 ? (double)here / (double)total : 0.0;
    return (int)ceil(LEVELS * sqrt(fmin(4.0 * share, 1.0)));
}

static void draw_level(const picture *p, int level)
{
    const double width = place(p, 1.0) - place(p, 0.0);
    mn_put(p->page, "<path class=\"heat %s\" fill-opacity=\"%.2f\" d=\"", p->precision,
           0.06 + 0.94 * level / LEVELS);
    for (int i = 0; i < p->count; i++) {
        const mn_layer_side *side = &p->layers[i].sides[p->side];
        for (int e = p->low[p->side]; e < p->high[p->side]; e++)
            if (level_of(p, side, e) == level)
                mn_put(p->page, "M%.1f %dh%.1fv%dh-%.1fz", place(p, e), TOP + ROW * i + 1, width,
                       ROW - 2, width);
    }
    mn_put(p->page, "\"/>\n");
}

/* Of values stored in 16 bit; in FP32, of all, as if FP16 were to hold them. */
static double lost_share(const picture *p, const mn_layer_side *side)
{
    const mn_monitor_row row = {.histogram = side->histogram, .largest = side->largest};
    if (strcmp(p->precision, "fp32") != 0)
        return mn_share(side->lost, side->stored);
    return side->count > 0 ? mn_monitor_fit_get(&row, MN_F16, 0).lost : (double)NAN;
}

static void draw_shares(const picture *p)
{
    const double x = place(p, p->high[p->side]) + 58.0;
    mn_put(p->page, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"end\">%s</text>", x, TOP - 22,
           strcmp(p->precision, "fp32") == 0 ? "f16 loses" : "lost");
    for (int i = 0; i < p->count; i++) {
        const double share = lost_share(p, &p->layers[i].sides[p->side]);
        mn_put(p->page, "<text class=\"%s\" x=\"%.1f\" y=\"%d\" text-anchor=\"end\">%s</text>",
               share >= 0.01 ? "axis" : "", x, TOP + ROW * i + 12,
               mn_isnan_f64(share)           ? "\xe2\x80\x93"
               : share > 0.0 && share < 1e-5 ? "&lt;0.001&#160;%"
                                             : mn_number(100.0 * share, -2, "%").text);
    }
    mn_put(p->page, "\n");
}

static void draw_names(const picture *p)
{
    for (int i = 0; i < p->count; i++) {
        const mn_layer *layer = &p->layers[i];
        mn_label name;
        const int skipped = layer->length > NAME_LENGTH ? layer->length - NAME_LENGTH : 0;
        snprintf(name.text, sizeof name.text, "%s%.*s", skipped ? "..." : "",
                 layer->length - skipped, layer->name + skipped);
        mn_put(p->page, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", NAMES - 8,
               TOP + ROW * i + 12);
        mn_put_escaped(p->page, name.text);
        mn_put(p->page, "</text>");
    }
    mn_put(p->page, "\n");
}

static void draw(picture *p)
{
    mn_put(p->page, "<figure><figcaption><strong class=\"name\">%s</strong><span>", p->precision);
    if (p->scale > 1.0)
        mn_put(p->page, "gradients with the loss scale in them, at the end %s",
               mn_number(p->scale, -8, "").text);
    mn_put(p->page,
           "</span></figcaption><div class=\"wide\"><svg class=\"layers\" viewBox=\"0 0 %d %d\" "
           "role=\"img\" aria-label=\"Magnitudes by layer, %s\">\n",
           WIDTH, TOP + ROW * p->count + 20, p->precision);
    draw_names(p);
    for (p->side = 0; p->side < 2; p->side++) {
        draw_axes(p);
        for (int level = 1; level <= LEVELS; level++)
            draw_level(p, level);
        draw_shares(p);
    }
    mn_put(p->page, "</svg></div></figure>\n");
}

/* ---- layers of a precision ------------------------------------------------------------------- */

/* Of all seeds. */
static void add_layers(mn_json_out *page, const mn_report *report, const char *precision, int depth,
                       mn_list *layers)
{
    const mn_compare_result *result = report->result;
    layers->count = 0;
    for (int i = 0; i < result->row_count; i++)
        if (result->rows[i].run->monitor && strcmp(result->rows[i].precision, precision) == 0)
            page->failed |= !mn_layers_add(layers, result->rows[i].run->monitor, depth);
}

/* The most names of a path with which the layers are not too many. */
static int choose_depth(mn_json_out *page, const mn_report *report, mn_list *layers)
{
    int depth = 8;
    do
        add_layers(page, report, report->precisions[0], depth, layers);
    while (layers->count > MOST_ROWS && --depth > 1);
    return depth;
}

static void put_pictures(mn_json_out *page, const mn_report *report)
{
    mn_list lists[MN_REPORT_PRECISIONS];
    picture p = {.page = page, .low = {-24, -24}, .high = {16, 16}};
    int depth = 8;
    for (int i = 0; i < report->count; i++) {
        lists[i] = mn_list_new(&page->text.allocator, sizeof(mn_layer));
        depth = i == 0 ? choose_depth(page, report, &lists[0]) : depth;
        add_layers(page, report, report->precisions[i], depth, &lists[i]);
        const mn_layer *layers = lists[i].items;
        for (int64_t l = 0; l < 2 * lists[i].count; l++)
            widen(&layers[l / 2].sides[l % 2], &p.low[l % 2], &p.high[l % 2]);
    }
    for (int side = 0; side < 2; side++) /* ticks at the ends; MN_MONITOR_LOWEST is above -152 */
        p.low[side] = (p.low[side] - 7) / 8 * 8, p.high[side] += 1;
    for (int i = 0; i < report->count; i++) {
        p.precision = report->precisions[i];
        p.scale = mn_report_stat(report, p.precision, MN_FIGURE_SCALE).high;
        p.layers = lists[i].items;
        p.count = (int)lists[i].count;
        if (p.count > 0)
            draw(&p);
        mn_list_free(&lists[i]);
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

typedef struct parameter {
    const char *name;
    double worst;
    int64_t updates[MN_REPORT_PRECISIONS], lost[MN_REPORT_PRECISIONS];
} parameter;

static int by_share(const void *a, const void *b)
{
    const double x = ((const parameter *)a)->worst, y = ((const parameter *)b)->worst;
    return (x < y) - (x > y);
}

static bool add_updates(mn_list *list, const mn_monitor_row *row, int precision)
{
    parameter *at = list->items, *end = at + list->count;
    while (at < end && strcmp(at->name, row->parameter) != 0)
        at++;
    if (at == end) {
        const parameter new = {.name = row->parameter};
        if (!mn_list_append(list, &new, 1))
            return false;
        at = (parameter *)list->items + list->count - 1;
    }
    at->updates[precision] += row->updates;
    at->lost[precision] += row->updates_lost;
    at->worst = fmax(at->worst, mn_share(at->lost[precision], at->updates[precision]));
    return true;
}

static void add_run_updates(mn_json_out *page, const mn_report *report, mn_list *list, int index)
{
    const mn_train_monitor *monitor = report->result->rows[index].run->monitor;
    int precision = 0;
    while (strcmp(report->precisions[precision], report->result->rows[index].precision) != 0)
        precision++;
    for (int r = 0; monitor && r < monitor->row_count; r++)
        if (monitor->rows[r].updates > 0)
            page->failed |= !add_updates(list, &monitor->rows[r], precision);
}

static void put_updates(mn_json_out *page, const mn_report *report)
{
    mn_list list = mn_list_new(&page->text.allocator, sizeof(parameter));
    for (int i = 0; i < report->result->row_count; i++)
        add_run_updates(page, report, &list, i);
    if (list.count > 0)
        qsort(list.items, (size_t)list.count, sizeof(parameter), by_share);
    const parameter *all = list.items;
    mn_put(page,
           "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">Updates that changed nothing"
           "<small>%s of %d parameters; all are in report.json</small>",
           list.count > 0 && all->worst > 0.0 ? "the worst" : "none", (int)list.count);
    mn_put(page, "</th>");
    for (int p = 0; p < report->count; p++)
        mn_put(page, "<th scope=\"col\" class=\"name\">%s</th>", report->precisions[p]);
    mn_put(page, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < list.count && i < MOST_PARAMETERS && all[i].worst > 0.0; i++) {
        const parameter *at = &all[i];
        mn_put(page, "<tr><th scope=\"row\">");
        mn_put_escaped(page, at->name);
        for (int p = 0; p < report->count; p++)
            mn_put(page, "%s<td>%s</td>", p == 0 ? "</th>" : "",
                   mn_number(100.0 * mn_share(at->lost[p], at->updates[p]), -3, "%").text);
        mn_put(page, "</tr>\n");
    }
    mn_put(page, "</tbody></table></div>\n");
    mn_list_free(&list);
}

/* ---- what was not finite --------------------------------------------------------------------- */

/* Like ones are one line: at the first of them. */
static void put_run_overflows(mn_json_out *page, const mn_compare_row *row)
{
    const mn_train_monitor *m = row->run->monitor;
    const mn_overflow *shown[MOST_EVENTS];
    int count = 0;
    for (int i = 0; m && i < m->overflow_count && count < MOST_EVENTS; i++) {
        const mn_overflow *o = &m->overflows[i];
        int64_t steps = 0, last = 0;
        char text[512];
        int known = 0;
        while (known < count && (shown[known]->row != o->row || shown[known]->cause != o->cause))
            known++;
        if (known < count)
            continue;
        shown[count++] = o;
        for (int j = i; j < m->overflow_count; j++)
            if (m->overflows[j].row == o->row && m->overflows[j].cause == o->cause &&
                m->overflows[j].step != last) /* not a further attempt */
                steps++, last = m->overflows[j].step;
        mn_put(page, "<tr><th scope=\"row\">");
        mn_put_escaped(page, mn_overflow_describe(o, text, sizeof text));
        mn_put(page,
               "</th><td><span "
               "class=\"name\">%s</span>,&#160;seed&#160;%llu</td><td>%s</td><td>%s</td></tr>\n",
               row->precision, (unsigned long long)row->seed, mn_number((double)steps, 0, "").text,
               mn_number((double)last, 0, "").text);
    }
}

static void put_overflows(mn_json_out *page, const mn_report *report, bool any)
{
    if (!any) {
        mn_put(page, "<p>All values of these steps were finite.</p>\n");
        return;
    }
    mn_put(page, "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">First in its step that "
                 "was not finite</th><th scope=\"col\">Run</th><th scope=\"col\">Steps</th>"
                 "<th scope=\"col\">Last</th></tr></thead>\n<tbody>\n");
    for (int i = 0; i < report->result->row_count; i++)
        put_run_overflows(page, &report->result->rows[i]);
    mn_put(page, "</tbody></table></div>\n");
}

void mn_report_numerics(mn_json_out *page, const mn_report *report)
{
    int64_t steps = 0, overflows = 0;
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_train_monitor *monitor = report->result->rows[i].run->monitor;
        steps += monitor ? monitor->steps : 0;
        overflows += monitor ? monitor->overflow_count : 0;
    }
    if (steps == 0)
        return;
    mn_put(
        page,
        "<h2>What the formats did to the numbers</h2>\n<p class=\"soft\">Steps of all runs that "
        "the monitor looked on at: %s. Each row is a layer (of large models a block), each column "
        "a power of two; the darker, the more of the layer\xe2\x80\x99s values that are not 0. "
        "What lies outside a plot is at its edge. Left of a format\xe2\x80\x99s smallest normal "
        "number values lose digits, left of its smallest they become 0; right of its largest they "
        "overflow. BF16\xe2\x80\x99s limits, 2<sup>\xe2\x88\x92"
        "133</sup>, 2<sup>\xe2\x88\x92"
        "126</sup> and 2<sup>128</sup>, are mostly out of sight. Lost: of the values, not 0, that "
        "were stored in "
        "16 bit, those that became 0.</p>\n",
        mn_number((double)steps, 0, "").text);
    put_pictures(page, report);
    put_overflows(page, report, overflows > 0);
    put_updates(page, report);
}

/* ---- report.json ----------------------------------------------------------------------------- */

static void put_side(mn_json_out *json, const char *key, const mn_layer_side *side)
{
#define AT(member) offsetof(mn_layer_side, member)
    static const mn_field fields[] = {
        {"count", MN_FIELD_INTEGER, AT(count)},
        {"zeros", MN_FIELD_INTEGER, AT(zeros)},
        {"infinities", MN_FIELD_INTEGER, AT(infinities)},
        {"nans", MN_FIELD_INTEGER, AT(nans)},
        {"largest", MN_FIELD_NUMBER, AT(largest)},
        {"smallest", MN_FIELD_NUMBER, AT(smallest)},
        {"stored", MN_FIELD_INTEGER, AT(stored)},
        {"lost", MN_FIELD_INTEGER, AT(lost)},
    };
#undef AT
    mn_out_begin(json, key, '{');
    mn_out_fields(json, fields, sizeof fields / sizeof *fields, side);
    mn_out_end(json, '}');
}

static void put_layers(mn_json_out *json, const mn_train_monitor *monitor)
{
    mn_list layers = mn_list_new(&json->text.allocator, sizeof(mn_layer));
    json->failed |= !mn_layers_add(&layers, monitor, INT32_MAX);
    mn_out_begin(json, "layers", '[');
    for (int64_t i = 0; i < layers.count; i++) {
        const mn_layer *layer = (const mn_layer *)layers.items + i;
        mn_out_begin(json, NULL, '{');
        mn_out_string(json, "layer", layer->name); /* whole paths end where their text does */
        put_side(json, "forward", &layer->sides[0]);
        put_side(json, "backward", &layer->sides[1]);
        mn_out_end(json, '}');
    }
    mn_out_end(json, ']');
    mn_list_free(&layers);
}

void mn_report_numerics_json(mn_json_out *json, const mn_train_monitor *monitor)
{
    if (!monitor) {
        mn_out_string(json, "monitor", NULL);
        return;
    }
    mn_out_begin(json, "monitor", '{');
    mn_out_integer(json, "steps", monitor->steps);
    mn_out_measured(json, "underflow_forward", monitor->underflow_forward);
    mn_out_measured(json, "underflow_backward", monitor->underflow_backward);
    mn_out_measured(json, "updates_lost", monitor->updates_lost);
    mn_out_begin(json, "overflows", '[');
    for (int i = 0; i < monitor->overflow_count; i++) {
        mn_out_begin(json, NULL, '{');
        mn_overflow_json(json, &monitor->overflows[i]);
        mn_out_end(json, '}');
    }
    mn_out_end(json, ']');
    put_layers(json, monitor);
    mn_out_begin(json, "parameters", '[');
    for (int i = 0; i < monitor->row_count; i++) {
        if (monitor->rows[i].updates == 0)
            continue;
        mn_out_begin(json, NULL, '{');
        mn_out_string(json, "name", monitor->rows[i].parameter);
        mn_out_integer(json, "updates", monitor->rows[i].updates);
        mn_out_integer(json, "lost", monitor->rows[i].updates_lost);
        mn_out_end(json, '}');
    }
    mn_out_end(json, ']');
    mn_out_end(json, '}');
}
