/* minim shadow: a model in FP32 and in 16 bit side by side. */
#include "cli.h"

#include <string.h>

static void print_json(const mn_shadow_report *r)
{
    printf("{\"amp\":\"%s\",\"batches\":%lld", cli_amp_name(r->dtype), (long long)r->batches);
    cli_json_number(stdout, "tolerance", r->tolerance);
    cli_json_number(stdout, "loss_scale", r->loss_scale);
    cli_json_number(stdout, "loss_fp32", r->loss_fp32);
    cli_json_number(stdout, "loss", r->loss);
    printf(",\"past\":%lld,\"unmatched\":%lld,\"first\":%lld,\"worst_local\":%lld,\"rows\":[",
           (long long)r->past, (long long)r->unmatched, (long long)r->first,
           (long long)r->worst_local);
    for (int64_t i = 0; i < r->row_count; i++) {
        const mn_shadow_row *row = &r->rows[i];
        printf("%s{\"layer\":", i > 0 ? "," : "");
        cli_json_string(stdout, row->layer);
        printf(",\"op\":\"%s\",\"backward_of\":\"%s\",\"direction\":\"%s\",\"occurrence\":%lld,"
               "\"dtype\":\"%s\"",
               row->op, row->backward_of, mn_direction_name(row->direction),
               (long long)row->occurrence, mn_dtype_name(row->dtype));
        cli_json_measured(stdout, "error", row->error);
        cli_json_measured(stdout, "rms", row->rms);
        cli_json_measured(stdout, "local_error", row->local_error);
        printf(",\"nonfinite\":%lld,\"compared\":%lld,\"unmatched\":%lld}",
               (long long)row->nonfinite, (long long)row->compared, (long long)row->unmatched);
    }
    printf("]}\n");
}

/* "conv1 conv2d", "conv1 backward of conv2d: reduce_to" */
static const char *name_of(const mn_shadow_row *row, char *buffer, size_t size)
{
    const bool inner = row->backward_of[0] != '\0' && strstr(row->op, row->backward_of) != row->op;
    snprintf(buffer, size, "%.80s%s%s%s%s%s", row->layer, row->layer[0] != '\0' ? " " : "",
             inner ? "backward of " : "", inner ? row->backward_of : "", inner ? ": " : "",
             row->op);
    return buffer;
}

static void print_rows(const mn_shadow_report *r)
{
    char name[256];
    int width = 0;
    for (int64_t i = 0; i < r->row_count; i++) {
        int length = (int)strlen(name_of(&r->rows[i], name, sizeof name));
        width = length > width ? length : width;
    }
    printf("%-*s  %-8s  %-5s  %9s  %9s  %9s\n", width, "op", "", "dtype", "error", "rms", "local");
    for (int64_t i = 0; i < r->row_count; i++) {
        const mn_shadow_row *row = &r->rows[i];
        printf("%-*s  %-8s  %-5s", width, name_of(row, name, sizeof name),
               mn_direction_name(row->direction), mn_dtype_name(row->dtype));
        cli_cell(10, "%.3g", row->error);
        cli_cell(10, "%.3g", row->rms);
        cli_cell(10, "%.3g", row->local_error);
        if (row->nonfinite > 0)
            printf("  %lld not finite", (long long)row->nonfinite);
        printf("%s%s\n", row->rms > r->tolerance ? "  PAST" : "",
               row->unmatched > 0 ? "  in one precision only" : "");
    }
}

static void print_summary(const mn_shadow_report *r)
{
    char name[256];
    printf("%s against FP32, %lld batch%s, loss %.6g against %.6g, loss scale %g:\n",
           cli_amp_name(r->dtype), (long long)r->batches, r->batches == 1 ? "" : "es", r->loss,
           r->loss_fp32, r->loss_scale);
    if (r->first < 0)
        printf("no op is past the tolerance %g", r->tolerance);
    else
        printf("%lld of %lld ops past the tolerance %g, first %s", (long long)r->past,
               (long long)r->row_count, r->tolerance,
               name_of(&r->rows[r->first], name, sizeof name));
    if (r->worst_local >= 0)
        printf("; largest local error %.3g, %s", r->rows[r->worst_local].local_error,
               name_of(&r->rows[r->worst_local], name, sizeof name));
    printf("\n");
}

int cli_shadow(settings *set)
{
    mn_shadow_model_options options = mn_shadow_model_options_default();
    mn_error error = {MN_OK, ""};
    options.model = set->train.model;
    options.checkpoint = set->train.checkpoint;
    options.data = set->data_given ? set->train.data : NULL;
    options.rules = set->train.rules;
    options.batch = set->train.batch;
    options.check = set->shadow;
    options.context = set->train.context;
    options.context.seed = set->train.seed;
    mn_shadow_report *report = mn_shadow_model(&options, &error);
    if (report == NULL)
        return cli_fail_error("shadow", &error);
    if (set->json) {
        print_json(report);
    } else {
        print_rows(report);
        print_summary(report);
    }
    mn_shadow_report_free(report);
    return EXIT_OK;
}
