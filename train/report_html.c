/* train/report_html.c: report.html, the comparison for people: one file that loads nothing. */
#include "train/report.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

static const char *metric_name(const mn_report *report)
{
    return report->validation ? "validation" : "test";
}

static void plural(mn_page *page, int64_t count, const char *word)
{
    mn_page_number(page, (double)count, 0);
    mn_page_format(page, " %s%s", word, count == 1 ? "" : "s");
}

/* ---- head ------------------------------------------------------------------------------------ */

static void put_title(mn_page *page, const mn_report *report)
{
    mn_page_escape(page, report->model);
    mn_page_put(page, " on ");
    mn_page_escape(page, report->data);
}

static void put_head(mn_page *page, const mn_report *report)
{
    mn_page_put(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                      "style-src 'unsafe-inline'\"/>\n<title>minim compare: ");
    put_title(page, report);
    mn_page_put(page, "</title>\n<style>\n");
    mn_page_put(page, mn_report_style);
    mn_page_put(page, "</style>\n</head>\n<body>\n<header>\n<h1>");
    put_title(page, report);
    mn_page_put(page, "</h1>\n<p class=\"soft\">");
    for (int i = 0; i < report->count; i++) {
        mn_page_put(page, i == 0 ? "" : i + 1 < report->count ? ", " : " and ");
        mn_page_precision(page, report->precisions[i]);
    }
    mn_page_put(page, ", trained from the same seed and in the same order of the data. ");
    plural(page, report->last_epoch, "epoch");
    mn_page_put(page, ", ");
    plural(page, report->last_step, "step");
    mn_page_put(page, " a run, ");
    plural(page, report->seeds, "seed");
    mn_page_put(page, ".</p>\n");
    if (report->result->cancelled)
        mn_page_put(page, "<p class=\"warning\">The comparison was stopped before its end: this is "
                          "what had been done by then.</p>\n");
    mn_page_put(page, "</header>\n");
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static const char *verdict_class(const char *verdict)
{
    return strncmp(verdict, "within", 6) == 0    ? "within"
           : strncmp(verdict, "outside", 7) == 0 ? "outside"
                                                 : "open";
}

static const char *verdict_sign(const char *verdict)
{
    return strncmp(verdict, "within", 6) == 0    ? "\xe2\x9c\x93"
           : strncmp(verdict, "outside", 7) == 0 ? "\xe2\x9c\x97"
                                                 : "?";
}

static void put_interval(mn_page *page, const mn_compare_deviation *d)
{
    mn_page_put(page, "[");
    mn_page_signed(page, d->interval_low_pp, 2);
    mn_page_put(page, ", ");
    mn_page_signed(page, d->interval_high_pp, 2);
    mn_page_put(page, "]");
}

/* Why the verdict is what it is. */
static void put_reason(mn_page *page, const mn_report *report, const mn_compare_deviation *d)
{
    double margin = report->options->margin;
    mn_page_put(page, "<p class=\"soft\">");
    if (d->n < 3) {
        mn_page_put(page, "A verdict needs 3 seeds or more; there ");
        mn_page_format(page, d->n == 1 ? "is %d." : "are %d.", d->n);
    } else if (isnan(d->interval_low_pp) || isnan(d->interval_high_pp)) {
        mn_page_put(page, "The accuracies are not numbers that can be compared.");
    } else {
        mn_page_put(page, "The 90 percent interval ");
        put_interval(page, d);
        const char *kind = verdict_class(d->verdict);
        mn_page_put(page, strcmp(kind, "within") == 0 ? " lies inside the margin of \xc2\xb1"
                          : strcmp(kind, "outside") == 0
                              ? " lies wholly outside the margin of \xc2\xb1"
                              : " crosses the margin of \xc2\xb1");
        mn_page_general(page, margin, 6);
        mn_page_put(page, " points.");
    }
    mn_page_put(page, "</p>");
}

static double diverged(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    (void)report;
    return last && !isfinite(last->train_loss) ? 1.0 : 0.0;
}

static double all_skipped(const mn_report *report, const mn_compare_row *row)
{
    double steps = (double)row->run->total_steps;
    return steps > 0.0 && mn_report_skipped(report, row) >= steps ? 1.0 : 0.0;
}

static void put_warnings(mn_page *page, const mn_report *report, const char *precision)
{
    if (mn_report_over_seeds(report, precision, diverged).mean > 0.0)
        mn_page_put(page, "<p class=\"warning\">\xe2\x9a\xa0 The training loss is not finite at "
                          "the end: a run diverged.</p>");
    if (mn_report_over_seeds(report, precision, all_skipped).mean > 0.0)
        mn_page_put(page, "<p class=\"warning\">\xe2\x9a\xa0 Every step of a run was skipped: "
                          "nothing was trained.</p>");
}

static void put_summary(mn_page *page, const mn_report *report, const mn_compare_deviation *d)
{
    mn_report_stat own = mn_report_over_seeds(report, d->precision, mn_report_accuracy);
    mn_report_stat fp32 = mn_report_over_seeds(report, "fp32", mn_report_accuracy);
    mn_report_stat skipped = mn_report_over_seeds(report, d->precision, mn_report_skipped);
    mn_page_format(page, "<p>Final %s accuracy ", metric_name(report));
    mn_page_number(page, 100.0 * own.mean, 2);
    mn_page_put(page, "&#160;% against ");
    mn_page_number(page, 100.0 * fp32.mean, 2);
    mn_page_put(page, "&#160;% in FP32: <strong>");
    mn_page_signed(page, d->accuracy_delta_pp_mean, 2);
    mn_page_put(page, " points</strong>, at \xc3\x97");
    mn_page_number(page, d->throughput_ratio, 2);
    mn_page_put(page, " its speed and \xc3\x97");
    mn_page_number(page, d->memory_ratio, 2);
    mn_page_put(page, " its tensor memory; ");
    mn_page_number(page, skipped.mean, skipped.mean == floor(skipped.mean) ? 0 : 1);
    mn_page_put(page, skipped.mean == 1.0 ? " step skipped" : " steps skipped");
    mn_page_put(page, skipped.n > 1 ? " a run.</p>" : ".</p>");
}

static void put_cards(mn_page *page, const mn_report *report)
{
    mn_page_put(page, "<section class=\"cards\" aria-label=\"Verdicts\">\n");
    for (int i = 0; i < report->result->deviation_count; i++) {
        const mn_compare_deviation *d = &report->result->deviations[i];
        mn_page_format(page, "<div class=\"card %s\"><h3>", verdict_class(d->verdict));
        mn_page_precision(page, d->precision);
        mn_page_format(page, ": <span class=\"verdict\">%s ", verdict_sign(d->verdict));
        mn_page_escape(page, d->verdict);
        mn_page_put(page, "</span></h3>");
        put_summary(page, report, d);
        put_reason(page, report, d);
        put_warnings(page, report, d->precision);
        mn_page_put(page, "</div>\n");
    }
    if (report->result->deviation_count == 0)
        mn_page_put(page, "<p>No run in half precision has an FP32 run of the same seed to be "
                          "compared with.</p>\n");
    mn_page_put(page, "</section>\n");
}

/* ---- settings -------------------------------------------------------------------------------- */

static void begin_setting(mn_page *page, const char *name)
{
    mn_page_format(page, "<tr><th scope=\"row\">%s</th><td>", name);
}

static void end_setting(mn_page *page)
{
    mn_page_put(page, "</td></tr>\n");
}

static void text_setting(mn_page *page, const char *name, const char *value)
{
    begin_setting(page, name);
    mn_page_escape(page, value && *value ? value : "not known");
    end_setting(page);
}

static void number_setting(mn_page *page, const char *name, double value)
{
    begin_setting(page, name);
    mn_page_general(page, value, 12);
    end_setting(page);
}

static void begin_settings(mn_page *page, const char *title)
{
    mn_page_format(page, "<div><h3>%s</h3><table class=\"settings\"><tbody>\n", title);
}

static void end_settings(mn_page *page)
{
    mn_page_put(page, "</tbody></table></div>\n");
}

static void put_run_settings(mn_page *page, const mn_report *report)
{
    const mn_train_options *train = &report->options->train;
    const mn_compare_result *result = report->result;
    begin_settings(page, "Runs");
    text_setting(page, "Model", report->model);
    if (result->row_count > 0)
        number_setting(page, "Parameters", (double)result->rows[0].run->parameters);
    text_setting(page, "Data", report->data);
    if (train->limit > 0)
        number_setting(page, "First images only", (double)train->limit);
    number_setting(page, "Validation part", train->validation);
    if (train->steps > 0)
        number_setting(page, "Steps asked for", (double)train->steps);
    else
        number_setting(page, "Epochs asked for", (double)train->epochs);
    number_setting(page, "Images a micro-batch", (double)train->batch);
    number_setting(page, "Micro-batches a step", (double)train->accumulate);
    number_setting(page, "First seed", (double)train->seed);
    number_setting(page, "Seeds", report->options->seeds);
    begin_setting(page, "Margin");
    mn_page_put(page, "\xc2\xb1");
    mn_page_general(page, report->options->margin, 6);
    mn_page_put(page, " points");
    end_setting(page);
    end_settings(page);
}

static void put_optimizer_settings(mn_page *page, const mn_train_options *train)
{
    begin_settings(page, "Optimizer and loss scale");
    text_setting(page, "Optimizer", train->optimizer ? train->optimizer : "sgd");
    number_setting(page, "Learning rate", train->lr);
    text_setting(page, "Schedule", mn_schedule_name(train->schedule));
    number_setting(page, "Momentum", train->momentum);
    number_setting(page, "Weight decay", train->weight_decay);
    if (isinf(train->clip_norm))
        text_setting(page, "Gradients clipped to", "not clipped");
    else
        number_setting(page, "Gradients clipped to", train->clip_norm);
    text_setting(page, "Cast rules", train->rules ? train->rules : "built-in");
    number_setting(page, "First loss scale", train->scaler.init_scale);
    number_setting(page, "Scale grows by", train->scaler.growth_factor);
    number_setting(page, "... after good steps", (double)train->scaler.growth_interval);
    number_setting(page, "Scale falls by", train->scaler.backoff_factor);
    end_settings(page);
}

static void put_machine(mn_page *page, const mn_report *report)
{
    begin_settings(page, "Hardware");
    text_setting(page, "Processor", report->info.cpu);
    text_setting(page, "Features", report->info.features);
    number_setting(page, "Threads", report->info.threads);
    begin_setting(page, "Memory");
    if (report->memory_bytes > 0) {
        mn_page_number(page, (double)report->memory_bytes / 1073741824.0, 1);
        mn_page_put(page, " GiB");
    } else {
        mn_page_put(page, "not known");
    }
    end_setting(page);
    text_setting(page, "Device", report->info.device);
    end_settings(page);
    begin_settings(page, "Software");
    text_setting(page, "minim", mn_version());
    text_setting(page, "Kernels", report->info.kernels);
    text_setting(page, "Compiler", report->info.compiler);
    text_setting(page, "C library", report->libc);
    text_setting(page, "System", report->system);
    end_settings(page);
}

/* ---- explanation ----------------------------------------------------------------------------- */

static void put_explanation(mn_page *page, const mn_report *report)
{
    mn_page_put(page, "<section>\n<h2>How to read this</h2>\n<p><strong>The verdict.</strong> For "
                      "every seed the same run is trained in FP32 and in half precision. What "
                      "counts is the difference of ");
    mn_page_format(page, "%s accuracy after the last epoch, in percentage points. ",
                   metric_name(report));
    mn_page_put(page, "Over 3 seeds or more, its 90 percent interval (Student t, paired by seed) "
                      "decides: inside the margin of \xc2\xb1");
    mn_page_general(page, report->options->margin, 6);
    mn_page_put(
        page,
        " points it is \xe2\x80\x9cwithin the stated bound\xe2\x80\x9d; wholly outside it is "
        "\xe2\x80\x9coutside\xe2\x80\x9d; anything else is \xe2\x80\x9cnot enough seeds to "
        "say\xe2\x80\x9d. Seeds alone move accuracy by some tenths of a point, so a single pair "
        "proves nothing.</p>\n"
        "<p><strong>Skipped steps.</strong> With FP16 the loss is multiplied by a scale, so that "
        "small gradients do not become zero. If a gradient overflows, that step is not applied and "
        "the scale is lowered. A few skipped steps, at the start above all, are how the right "
        "scale "
        "is found. A skipped step is a diagnosis of the loss scale, and no sign of convergence: "
        "whether training works is read from loss and accuracy. Steps skipped one after another "
        "down to a tiny scale mean that something else overflows.</p>\n"
        "<p><strong>Speed and memory.</strong> Images per second leave out the first 5 steps and "
        "evaluation. Peak tensor memory is the most that lived in tensors and workspaces at once "
        "after those steps, not what the process takes from the system. Small models, and models "
        "that wait for their input, may gain nothing from half precision. Measured figures differ "
        "from run to run; losses and accuracies do not.</p>\n"
        "<p><strong>Accuracy \xe2\x80\x9cin FP32\xe2\x80\x9d</strong> is that of the same trained "
        "weights, evaluated without half precision. If it is clearly above a "
        "precision\xe2\x80\x99s "
        "own accuracy, evaluation loses it and not training.</p>\n"
        "<p><strong>Not measured</strong> is written where there is no figure, and nothing is put "
        "in its place. The share of values that half precision turned to zero is measured with a "
        "monitor only, which these runs did not have.</p>\n"
        "<p class=\"soft\">All figures, epoch by epoch, are in report.json beside this page.</p>\n"
        "</section>\n");
}

mn_status mn_report_html(mn_page *page, const mn_report *report, mn_error *error)
{
    put_head(page, report);
    mn_page_put(page, "<main>\n");
    put_cards(page, report);
    mn_report_final_table(page, report);
    mn_page_put(page, "<section>\n<h2>At the end</h2>\n<div class=\"charts narrow\">\n");
    mn_report_verdict_chart(page, report);
    mn_report_bar_charts(page, report);
    mn_page_put(page, "</div>\n</section>\n<section>\n<h2>On the way</h2>\n"
                      "<div class=\"charts\">\n");
    mn_report_line_charts(page, report);
    mn_report_scale_chart(page, report);
    mn_page_put(page, "</div>\n</section>\n");
    mn_report_run_table(page, report);
    put_explanation(page, report);
    mn_page_put(page, "<section>\n<h2>Settings</h2>\n<div class=\"columns\">\n");
    put_run_settings(page, report);
    put_optimizer_settings(page, &report->options->train);
    put_machine(page, report);
    mn_page_put(page, "</div>\n</section>\n</main>\n</body>\n</html>\n");
    if (!page->failed)
        return MN_OK;
    return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for report.html");
}
