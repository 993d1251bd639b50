/* train/range.c: whether the values of a run in f32 or bf16 would fit into 16 bits. */
#include "train/train.h"

#include <math.h>
#include <string.h>

/* The result with what its rows point to. */
typedef struct range {
    mn_range_result shown; /* first: what is freed is this */
    mn_run run;
    mn_monitor *monitor;
    mn_list rows;
} range;

enum { LARGEST_SCALE = 127 }; /* log2; a loss scale is f32 */
static const mn_dtype formats[2] = {MN_F16, MN_BF16};

/* ---- judging --------------------------------------------------------------------------------- */

static bool is_gradient(const mn_monitor_row *row)
{
    return row->direction == MN_BACKWARD;
}

/* Further outputs are statistics and gradients of parameters, but for the residual's gradient. */
static bool is_statistic(const mn_monitor_row *row)
{
    return row->output > 0 &&
           (row->output != 3 || strcmp(row->op, mn_ops[MN_OP_batch_norm_relu_backward].name) != 0);
}

/* Gradients are summed and unscaled in f32; parameters, which steps write, are what 16-bit copies
 * are made of. */
static bool is_exempt(const mn_monitor_row *row)
{
    const bool is_step = row->updates > 0 || row->parameter[0] == '\0';
    if (row->rule == MN_CAST_FP32 || is_statistic(row) || mn_row_is_scaling(row))
        return true;
    return is_gradient(row) ? row->parameter[0] != '\0'
                            : (row->direction == MN_UPDATE && !is_step) ||
                                  (row->direction == MN_FORWARD && row->rule == MN_CAST_FP32_OUT);
}

static mn_range_fit fit_of(const mn_monitor_row *row, mn_dtype format)
{
    mn_range_fit fit = {.factor = row->largest / mn_float_limits_get(format).largest,
                        .plain = mn_monitor_fit_get(row, format, 0)};
    if (is_gradient(row) && row->largest > 0) {
        fit.scale_log2 = -ilogb(fit.factor); /* at most one too many */
        if (mn_monitor_fit_get(row, format, fit.scale_log2).overflows)
            fit.scale_log2--;
    }
    return fit;
}

/* The scale is the smallest of the rows' largest ones. */
static void judge(range *r, int format)
{
    mn_range_result *shown = &r->shown;
    mn_range_row *rows = r->rows.items;
    bool any = false;
    shown->fits[format] = true;
    for (int i = 0; i < shown->count; i++) {
        const mn_range_fit *fit = &rows[i].fit[format];
        const mn_monitor_row *row = rows[i].row;
        if (row->infinities + row->nans > 0)
            shown->fits[format] = false;
        if (rows[i].exempt || row->largest == 0)
            continue;
        if (!is_gradient(row)) {
            shown->fits[format] &= !fit->plain.overflows;
        } else if (!any || fit->scale_log2 < shown->scale_log2[format]) {
            shown->scale_log2[format] = fit->scale_log2;
            any = true;
        }
    }
    if (shown->scale_log2[format] > LARGEST_SCALE)
        shown->scale_log2[format] = LARGEST_SCALE;
    for (int i = 0; i < shown->count; i++) {
        mn_range_fit *fit = &rows[i].fit[format];
        if (!is_gradient(rows[i].row))
            continue;
        fit->scaled = mn_monitor_fit_get(rows[i].row, formats[format], shown->scale_log2[format]);
        if (!rows[i].exempt && fit->scaled.lost > shown->lost[format])
            shown->lost[format] = fit->scaled.lost;
    }
}

static mn_status judge_all(range *r)
{
    int count;
    MN_TRY(mn_monitor_collect(r->monitor));
    const mn_monitor_row *row = mn_monitor_rows(r->monitor, &count);
    for (int i = 0; i < count; i++, row++) {
        const mn_range_row judged = {
            row, is_exempt(row), {fit_of(row, formats[0]), fit_of(row, formats[1])}};
        if (row->count > 0 && !mn_list_append(&r->rows, &judged, 1))
            return mn_error_set(&r->run.error, MN_ERR_MEMORY, "no memory for the rows");
    }
    r->shown.rows = r->rows.items;
    r->shown.count = (int)r->rows.count;
    judge(r, 0);
    judge(r, 1);
    return MN_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static mn_status run_steps(range *r)
{
    mn_run *run = &r->run;
    mn_batch batch = {.count = 0};
    int64_t epoch = run->progress.epoch;
    for (int64_t i = 0; i < run->options.steps; i++) {
        MN_TRY(mn_batch_next(run->train, &epoch, &batch, &run->error));
        MN_TRY(mn_monitor_step(r->monitor, i + 1));
        MN_TRY(mn_run_micro_step(run, &batch, 1.0, true));
        run->progress.step++;
        r->shown.steps++;
    }
    return MN_OK;
}

static mn_status open_range(range *r, mn_train_options *o)
{
    mn_run *run = &r->run;
    if (o->amp == MN_F16)
        return mn_error_set(&run->error, MN_ERR_ARGUMENT,
                            "what overflowed in fp16 has no magnitude: --amp off or bf16");
    o->schedule = MN_SCHEDULE_CONSTANT;
    o->steps = o->steps == 0 ? 50 : o->steps;
    o->checkpoint = NULL;
    o->resume_anyway = o->resume != NULL;
    MN_TRY(mn_run_open(run, o));
    r->monitor = mn_monitor_create(run->context, NULL);
    MN_TRY(mn_error_status(run->context));
    MN_TRY(run_steps(r));
    return judge_all(r);
}

void mn_range_result_free(mn_range_result *result)
{
    range *r = (range *)result;
    if (!r)
        return;
    const mn_allocator allocator = r->rows.allocator;
    mn_monitor_free(r->monitor);
    mn_run_close(&r->run);
    mn_list_free(&r->rows);
    allocator.free(allocator.user, r, sizeof *r);
}

mn_range_result *mn_range(const mn_train_options *options, mn_error *error)
{
    mn_train_options o = mn_train_options_default();
    mn_error own = {MN_OK, ""};
    mn_allocator allocator;
    range *r = NULL;
    if (mn_options_copy(&own, "mn_train", &o, sizeof o, options) == MN_OK &&
        mn_allocator_read(&o.context.allocator, &allocator, &own) == MN_OK) {
        r = allocator.alloc(allocator.user, sizeof *r, _Alignof(range));
        if (!r)
            mn_error_set(&own, MN_ERR_MEMORY, "no memory for the ranges");
    }
    if (!r) {
        mn_error_give(error, &own, NULL, own.status, "range");
        return NULL;
    }
    memset(r, 0, sizeof *r);
    r->rows = mn_list_new(&allocator, sizeof(mn_range_row));
    const mn_status status = open_range(r, &o);
    if (status == MN_OK)
        return &r->shown;
    mn_error_give(error, &r->run.error, r->run.context, status, "range");
    mn_range_result_free(&r->shown);
    return NULL;
}
