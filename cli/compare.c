/* minim compare. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void on_run(void *user, const char *precision, uint64_t seed)
{
    progress_line *line = user;
    snprintf(line->prefix, sizeof line->prefix, "%-4s seed %llu  ", precision,
             (unsigned long long)seed);
    line->epochs = 0;
}

/* A figure of the table; "-" where it was not measured. */
static const char *figure(char buffer[32], const char *format, double value)
{
    if (isnan(value))
        return "-";
    snprintf(buffer, 32, format, value);
    return buffer;
}

static void print_row(const mn_epoch_result *e)
{
    const uint64_t peak = e->peak_tensor_bytes;
    cli_cell(8, "%.2f%%", 100.0 * e->validation_accuracy);
    cli_cell(8, "%.2f%%", 100.0 * e->test_accuracy);
    cli_cell(8, "%.2f%%", 100.0 * e->test_accuracy_fp32);
    printf(e->train_loss < 1e5 ? " %10.4f" : " %10.4g", fabs(e->train_loss));
    printf(" %8lld %9lld %11g", (long long)e->skipped_steps, (long long)e->nonfinite, e->scale);
    cli_cell(9, "%.3g%%", 100.0 * e->underflow_fraction);
    cli_cell(9, "%.0f", e->images_per_s);
    cli_cell(6, "%.1f%%", 100.0 * e->data_wait_fraction);
    cli_cell(12, "%.2f MiB", peak > 0 ? (double)peak / 1048576.0 : (double)NAN);
    printf("%s\n", isfinite(e->train_loss) ? "" : "  diverged");
}

static void print_machine(const settings *set)
{
    mn_context *context = mn_context_create(&set->train.context, NULL);
    if (context == NULL)
        return;
    const mn_context_info info = mn_context_info_get(context);
    printf("\nminim %s, %s, %s kernels, %d thread%s\n", mn_version(), info.cpu, info.kernels,
           info.threads, info.threads == 1 ? "" : "s");
    mn_context_free(context);
}

static void print_table(const mn_compare_result *r)
{
    int width = 5;
    for (int i = 0; i < r->row_count; i++) {
        int length = snprintf(NULL, 0, "%llu", (unsigned long long)r->rows[i].seed);
        width = length > width ? length : width;
    }
    printf("%-9s %*s %8s %8s %8s %10s %8s %9s %11s %9s %9s %6s %12s\n", "precision", width, "seed",
           "val acc", "test acc", "in fp32", "train loss", "skipped", "nonfinite", "scale",
           "underflow", "images/s", "wait", "peak tensors");
    for (int i = 0; i < r->row_count; i++) {
        const mn_train_result *run = r->rows[i].run;
        const mn_epoch_result *e = cli_last_epoch(run);
        if (e == NULL && run->collapsed_step == 0)
            continue;
        printf("%-9s %*llu", r->rows[i].precision, width, (unsigned long long)r->rows[i].seed);
        if (run->collapsed_step > 0)
            printf("   collapsed at step %lld: gradients overflow at the smallest scale\n",
                   (long long)run->collapsed_step);
        else
            print_row(e);
    }
}

static void print_deviations(const mn_compare_result *r, double margin)
{
    if (r->deviation_count == 0)
        return;
    const mn_epoch_result *last = cli_last_epoch(r->rows[0].run);
    const char *metric = last != NULL && !isnan(last->validation_accuracy) ? "validation" : "test";
    printf("\nagainst fp32, paired by seed (margin %g points, 90%% interval):\n", margin);
    for (int i = 0; i < r->deviation_count; i++) {
        const mn_compare_deviation *d = &r->deviations[i];
        char speed[32], memory[32];
        printf("%-9s ", d->precision);
        if (d->collapsed > 0)
            printf("%d of %d runs collapsed or diverged; ", d->collapsed, d->collapsed + d->n);
        if (d->n > 0)
            printf("%s accuracy %+.2f points", metric, d->accuracy_delta_pp_mean);
        if (!isnan(d->interval_low_pp))
            printf(" [%+.2f, %+.2f]", d->interval_low_pp, d->interval_high_pp);
        if (d->n > 0)
            printf(" (n = %d), throughput %s, tensor memory %s: ", d->n,
                   figure(speed, "x%.2f", d->throughput_ratio),
                   figure(memory, "x%.2f", d->memory_ratio));
        printf("%s\n", d->verdict);
    }
}

static void print_json(const mn_compare_result *r)
{
    printf("{\"reference\":\"fp32\",\"runs\":[");
    for (int i = 0; i < r->row_count; i++) {
        const mn_train_result *run = r->rows[i].run;
        const mn_epoch_result *e = cli_last_epoch(run);
        bool ended = e != NULL && run->collapsed_step == 0;
        printf("%s{\"precision\":\"%s\",\"seed\":%llu", i > 0 ? "," : "", r->rows[i].precision,
               (unsigned long long)r->rows[i].seed);
        cli_json_measured(stdout, "test_accuracy", ended ? e->test_accuracy : (double)NAN);
        printf(",\"skipped_steps\":%lld", (long long)run->skipped_steps);
        cli_json_measured(stdout, "images_per_s", e != NULL ? e->images_per_s : (double)NAN);
        cli_json_measured(stdout, "underflow_fraction",
                          run->monitor != NULL ? run->monitor->underflow_fraction : (double)NAN);
        cli_json_measured(stdout, "collapsed_step",
                          run->collapsed_step > 0 ? (double)run->collapsed_step : (double)NAN);
        printf("}");
    }
    printf("],\"verdict\":{");
    for (int i = 0; i < r->deviation_count; i++)
        printf("%s\"%s\":\"%s\"", i > 0 ? "," : "", r->deviations[i].precision,
               r->deviations[i].verdict);
    printf("}}\n");
}

int cli_compare(settings *set)
{
    progress_line line;
    cli_progress_begin(&line, set);
    mn_compare_options options = mn_compare_options_default();
    options.train = set->train;
    options.precisions = set->precisions;
    options.seeds = set->seeds < 1000000 ? (int)set->seeds : 1000000;
    options.margin = set->margin;
    options.report = set->report;
    options.run_begin = on_run;
    mn_error error = {MN_OK, ""};
    mn_compare_result *result = mn_compare(&options, &error);
    cli_progress_end(&line);
    if (result == NULL)
        return cli_fail_error("compare", &error);
    if (set->json) {
        print_json(result);
    } else {
        print_machine(set);
        print_table(result);
        print_deviations(result, options.margin);
        printf("A skipped step is a diagnosis of the loss scale, and no sign of convergence.\n");
        if (set->report != NULL && !result->cancelled)
            printf("report: %s/report.html and %s/report.json\n", set->report, set->report);
    }
    int status = result->cancelled ? EXIT_INTERRUPTED : EXIT_OK;
    mn_compare_result_free(result);
    return status;
}
