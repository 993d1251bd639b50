/* minim range: would the model fit into 16 bits? */
#include "cli.h"

static const char *const formats[2] = {"f16", "bf16"};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_fit_json(const mn_range_row *row, int format)
{
    const mn_range_fit *fit = &row->fit[format];
    printf(",\"%s\":{\"factor\":%.6g,\"overflows\":%s,\"overflow\":%.6g,\"subnormal\":%.6g,"
           "\"lost\":%.6g",
           formats[format], fit->factor, fit->plain.overflows ? "true" : "false",
           fit->plain.overflow, fit->plain.subnormal, fit->plain.lost);
    if (row->row->direction == MN_BACKWARD)
        printf(",\"scale_log2\":%d,\"lost_scaled\":%.6g,\"subnormal_scaled\":%.6g", fit->scale_log2,
               fit->scaled.lost, fit->scaled.subnormal);
    putchar('}');
}

static void print_row_json(const mn_range_row *row)
{
    const mn_monitor_row *m = row->row;
    printf("{\"layer\":");
    cli_json_string(stdout, m->layer);
    cli_json_text(stdout, "op", m->op);
    cli_json_text(stdout, "backward_of", m->backward_of);
    cli_json_text(stdout, "parameter", m->parameter);
    printf(",\"direction\":\"%s\",\"dtype\":\"%s\",\"output\":%d,\"exempt\":%s,\"count\":%lld,"
           "\"zeros\":%lld,\"infinities\":%lld,\"nans\":%lld,\"largest\":%.9g,\"smallest\":%.9g",
           mn_direction_name(m->direction), mn_dtype_name(m->dtype), m->output,
           row->exempt ? "true" : "false", (long long)m->count, (long long)m->zeros,
           (long long)m->infinities, (long long)m->nans, m->largest, m->smallest);
    print_fit_json(row, 0);
    print_fit_json(row, 1);
    putchar('}');
}

static void print_json(const settings *set, const mn_range_result *r)
{
    printf("{\"model\":\"%s\",\"amp\":\"%s\",\"steps\":%lld", set->train.model,
           cli_amp_name(set->train.amp), (long long)r->steps);
    for (int k = 0; k < 2; k++)
        printf(",\"%s\":{\"fits\":%s,\"scale_log2\":%d,\"lost\":%.6g}", formats[k],
               r->fits[k] ? "true" : "false", r->scale_log2[k], r->lost[k]);
    printf(",\"rows\":[");
    for (int i = 0; i < r->count; i++) {
        if (i > 0)
            putchar(',');
        print_row_json(&r->rows[i]);
    }
    printf("]}\n");
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Of a row in f16; the run could have the loss scale 2^run_log2. */
static void print_verdict(const mn_range_row *row, int run_log2)
{
    const mn_range_fit *fit = &row->fit[0];
    if (row->exempt)
        printf("stays f32");
    else if (row->row->infinities + row->row->nans > 0)
        printf("is not finite");
    else if (row->row->direction == MN_BACKWARD)
        printf("scale <= 2^%d; lost %.2g%%, at 2^%d %.2g%%", fit->scale_log2, 100 * fit->plain.lost,
               run_log2, 100 * fit->scaled.lost);
    else if (fit->plain.overflows)
        printf("overflows by %.2gx", fit->factor);
    else if (fit->plain.lost + fit->plain.subnormal > 0)
        printf("fits; lost %.2g%%, digits of %.2g%%", 100 * fit->plain.lost,
               100 * fit->plain.subnormal);
    else
        printf("fits");
}

static const char *place_of(const mn_monitor_row *m)
{
    return m->layer[0] ? m->layer : m->parameter;
}

static void print_row(const mn_range_row *row, int run_log2)
{
    const mn_monitor_row *m = row->row;
    char op[48];
    snprintf(op, sizeof op, m->output > 0 ? "%.30s #%d" : "%.30s", m->op, m->output);
    printf("%-18.40s %-22s %-8s %-4s %9.3g %9.3g  ", place_of(m), op,
           mn_direction_name(m->direction), mn_dtype_name(m->dtype), m->smallest, m->largest);
    print_verdict(row, run_log2);
    putchar('\n');
}

static void print_summary(const mn_range_result *r, int format)
{
    printf("%s: ", formats[format]);
    if (!r->fits[format])
        printf("does not fit, and no loss scale can mend that:\n");
    else
        printf("fits; loss scales up to 2^%d, at which no op loses more than %.3g%% of its "
               "gradients\n",
               r->scale_log2[format], 100 * r->lost[format]);
    for (int i = 0; i < r->count && !r->fits[format]; i++) {
        const mn_monitor_row *m = r->rows[i].row;
        if (m->infinities + m->nans > 0)
            printf("  is not finite in %s at %s %s %s\n", mn_dtype_name(m->dtype), place_of(m),
                   m->op, mn_direction_name(m->direction));
        else if (!r->rows[i].exempt && m->direction != MN_BACKWARD &&
                 r->rows[i].fit[format].plain.overflows)
            printf("  overflows by %.2gx at %s %s %s\n", r->rows[i].fit[format].factor, place_of(m),
                   m->op, mn_direction_name(m->direction));
    }
}

static void on_notice(void *user, const char *text)
{
    (void)user;
    cli_say(EXIT_OK, "note: %s", text);
}

int cli_range(settings *set)
{
    mn_error error = {MN_OK, ""};
    set->train.notice = on_notice;
    set->train.validation = 0;
    mn_range_result *r = mn_range(&set->train, &error);
    if (r == NULL)
        return cli_fail_error("range", &error);
    if (set->json) {
        print_json(set, r);
    } else {
        printf("%s, amp %s, %lld steps\n\n%-18s %-22s %-13s %9s %9s  %s\n", set->train.model,
               cli_amp_name(set->train.amp), (long long)r->steps, "layer or parameter", "op",
               "direction", "smallest", "largest", "in f16");
        for (int i = 0; i < r->count; i++)
            print_row(&r->rows[i], r->scale_log2[0]);
        printf(
            "\n#N: a further output of the op. lost: share of values that would become 0; digits "
            "of: share\nthat would keep fewer digits. scale: the largest that a gradient can be "
            "multiplied by; lost\nwithout any, and at the loss scale that the run could have.\n\n");
        print_summary(r, 0);
        print_summary(r, 1);
    }
    mn_range_result_free(r);
    return EXIT_OK;
}
