/* Statistics of a grad scaler, and its state under PyTorch's names. */
#include "amp/internal.h"

#include "core/state_dict.h"

#include <math.h>

mn_status mn_grad_scaler_read_record(const mn_grad_scaler *scaler, double record[MN_RECORD_SIZE])
{
    return mn_tensor_read(scaler->record, record, MN_RECORD_SIZE * sizeof *record);
}

mn_status mn_grad_scaler_stats_get(mn_grad_scaler *scaler, mn_grad_scaler_stats *stats)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!stats)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT, "grad_scaler_stats_get: stats is NULL");
    MN_TRY(mn_grad_scaler_read_record(scaler, record));
    *stats = (mn_grad_scaler_stats){
        .scale = record[MN_SCALER_SCALE],
        .growth_tracker = (int64_t)record[MN_SCALER_TRACKER],
        .updates = (int64_t)record[MN_SCALER_UPDATES],
        .backoffs = (int64_t)record[MN_SCALER_BACKOFFS],
        .collapsed = record[MN_SCALER_COLLAPSED] != 0,
    };
    return MN_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static mn_status put_scale(mn_state_dict *dict, double scale)
{
    const float value = (float)scale;
    const mn_state_entry entry = {.name = "scaler.scale",
                                  .dtype = MN_F32,
                                  .ndim = 0,
                                  .shape = NULL,
                                  .data = &value,
                                  .bytes = sizeof value};
    return mn_state_dict_put(dict, &entry);
}

mn_status mn_grad_scaler_save_state(mn_grad_scaler *scaler, mn_state_dict *dict)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!scaler->options.enabled)
        return MN_OK;
    if (!dict)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT, "grad_scaler_save_state: dict is NULL");
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_save_state"));
    MN_TRY(mn_grad_scaler_read_record(scaler, record));
    const mn_grad_scaler_options *o = &scaler->options;
    MN_TRY(put_scale(dict, record[MN_SCALER_SCALE]));
    MN_TRY(mn_state_dict_put_f64(dict, "scaler.growth_factor", o->growth_factor));
    MN_TRY(mn_state_dict_put_f64(dict, "scaler.backoff_factor", o->backoff_factor));
    MN_TRY(mn_state_dict_put_i64(dict, "scaler.growth_interval", o->growth_interval));
    MN_TRY(
        mn_state_dict_put_i64(dict, "scaler._growth_tracker", (int64_t)record[MN_SCALER_TRACKER]));
    MN_TRY(mn_state_dict_put_f64(dict, "scaler.min_scale", o->min_scale));
    MN_TRY(mn_state_dict_put_f64(dict, "scaler.max_scale", o->max_scale));
    MN_TRY(mn_state_dict_put_i64(dict, "scaler.updates", (int64_t)record[MN_SCALER_UPDATES]));
    MN_TRY(mn_state_dict_put_i64(dict, "scaler.backoffs", (int64_t)record[MN_SCALER_BACKOFFS]));
    return mn_state_dict_put_i64(dict, "scaler.collapsed", record[MN_SCALER_COLLAPSED] != 0);
}

/* ---- loading --------------------------------------------------------------------------------- */

static mn_status get_scale(const mn_state_dict *dict, mn_context *context, double *scale)
{
    mn_state_entry entry;
    if (!mn_state_dict_find(dict, "scaler.scale", &entry) || entry.dtype != MN_F32 ||
        entry.bytes != sizeof(float))
        return mn_fail(context, MN_ERR_MISMATCH, "scaler.scale is not one f32");
    *scale = (double)*(const float *)entry.data;
    return MN_OK;
}

static bool has(const mn_state_dict *dict, const char *name)
{
    mn_state_entry entry;
    return mn_state_dict_find(dict, name, &entry);
}

/* What PyTorch's scalers do not save may be missing: the scaler's own then stays. */
static mn_status get_count(const mn_state_dict *dict, const char *name, double *value)
{
    int64_t count = 0;
    if (!has(dict, name))
        return MN_OK;
    MN_TRY(mn_state_dict_get_i64(dict, name, &count));
    if (count < 0 || count > INT64_C(1) << 53)
        return mn_fail(mn_state_dict_context(dict), MN_ERR_MISMATCH, "%s is %lld", name,
                       (long long)count);
    *value = (double)count;
    return MN_OK;
}

static mn_status get_bound(const mn_state_dict *dict, const char *name, double *value)
{
    return has(dict, name) ? mn_state_dict_get_f64(dict, name, value) : MN_OK;
}

static mn_status get_options(const mn_state_dict *dict, mn_context *context,
                             mn_grad_scaler_options *options)
{
    MN_TRY(mn_state_dict_get_f64(dict, "scaler.growth_factor", &options->growth_factor));
    MN_TRY(mn_state_dict_get_f64(dict, "scaler.backoff_factor", &options->backoff_factor));
    MN_TRY(mn_state_dict_get_i64(dict, "scaler.growth_interval", &options->growth_interval));
    MN_TRY(get_bound(dict, "scaler.min_scale", &options->min_scale));
    MN_TRY(get_bound(dict, "scaler.max_scale", &options->max_scale));
    return mn_grad_scaler_check_options(context, options);
}

static mn_status get_record(const mn_state_dict *dict, mn_context *context,
                            double record[MN_RECORD_SIZE])
{
    MN_TRY(get_scale(dict, context, &record[MN_SCALER_SCALE]));
    if (!has(dict, "scaler._growth_tracker"))
        return mn_fail(context, MN_ERR_MISMATCH, "scaler._growth_tracker is missing");
    MN_TRY(get_count(dict, "scaler._growth_tracker", &record[MN_SCALER_TRACKER]));
    MN_TRY(get_count(dict, "scaler.updates", &record[MN_SCALER_UPDATES]));
    MN_TRY(get_count(dict, "scaler.backoffs", &record[MN_SCALER_BACKOFFS]));
    MN_TRY(get_count(dict, "scaler.collapsed", &record[MN_SCALER_COLLAPSED]));
    record[MN_SCALER_FOUND_INF] = 0;
    record[MN_SCALER_SCALE_USED] = record[MN_SCALER_SCALE];
    if (!(record[MN_SCALER_SCALE] >= 0) || !isfinite(record[MN_SCALER_SCALE]))
        return mn_fail(context, MN_ERR_MISMATCH, "scaler.scale is %g", record[MN_SCALER_SCALE]);
    return MN_OK;
}

mn_status mn_grad_scaler_load(mn_grad_scaler *scaler, const mn_state_dict *dict, bool apply)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!scaler->options.enabled)
        return MN_OK;
    if (!dict)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT, "grad_scaler_load_state: dict is NULL");
    if (!has(dict, "scaler.scale"))
        return MN_OK;
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_load_state"));
    mn_grad_scaler_options options = scaler->options;
    MN_TRY(get_options(dict, scaler->context, &options));
    MN_TRY(mn_grad_scaler_read_record(scaler, record));
    MN_TRY(get_record(dict, scaler->context, record));
    if (!apply)
        return MN_OK;
    MN_TRY(mn_tensor_write(scaler->record, record, sizeof record));
    scaler->scaling = ++scaler->context->last_scaling;
    scaler->options = options;
    return MN_OK;
}

mn_status mn_grad_scaler_load_state(mn_grad_scaler *scaler, const mn_state_dict *dict)
{
    return mn_grad_scaler_load(scaler, dict, true);
}
