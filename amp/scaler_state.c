/* Statistics of a grad scaler, and its state under PyTorch's names. */
#include "amp/internal.h"

#include "core/math.h"
#include "core/state_dict.h"

#include <stddef.h>

mn_status mn_grad_scaler_stats_get(mn_grad_scaler *scaler, mn_grad_scaler_stats *stats)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!stats)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT, "grad_scaler_stats_get: stats is NULL");
    MN_TRY(mn_record_read(scaler->record, record));
    *stats = (mn_grad_scaler_stats){
        .scale = record[MN_SCALER_SCALE],
        .growth_tracker = (int64_t)record[MN_SCALER_TRACKER],
        .updates = (int64_t)record[MN_SCALER_UPDATES],
        .backoffs = (int64_t)record[MN_SCALER_BACKOFFS],
        .collapsed = record[MN_SCALER_COLLAPSED] != 0,
    };
    return MN_OK;
}

/* ---- saving and loading ---------------------------------------------------------------------- */

/* Numbers that lie in the options, and counts that lie in the record. What PyTorch's scalers do not
 * save may be missing: the scaler's own then stays. */
typedef struct number {
    const char *name;
    size_t offset;
    bool required;
} number;
#define AT(member) offsetof(mn_grad_scaler_options, member)
static const number numbers[] = {
    {"scaler.growth_factor", AT(growth_factor), true},
    {"scaler.backoff_factor", AT(backoff_factor), true},
    {"scaler.min_scale", AT(min_scale), false},
    {"scaler.max_scale", AT(max_scale), false},
};
static const struct {
    const char *name;
    mn_scaler_slot slot;
} counts[] = {
    {"scaler._growth_tracker", MN_SCALER_TRACKER}, /* the one that must be there */
    {"scaler.updates", MN_SCALER_UPDATES},
    {"scaler.backoffs", MN_SCALER_BACKOFFS},
    {"scaler.collapsed", MN_SCALER_COLLAPSED},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers, COUNTS = sizeof counts / sizeof *counts };

mn_status mn_grad_scaler_save_state(mn_grad_scaler *scaler, mn_state_dict *dict)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!scaler->options.enabled)
        return MN_OK;
    MN_TRY(mn_state_dict_writable(scaler->context, dict, "grad_scaler_save_state"));
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_save_state"));
    MN_TRY(mn_record_read(scaler->record, record));
    float scale;
    mn_convert_elements(MN_F64, MN_F32, 1, &record[MN_SCALER_SCALE], &scale);
    MN_TRY(mn_state_dict_put(
        dict, &(mn_state_entry){
                  .name = "scaler.scale", .dtype = MN_F32, .data = &scale, .bytes = sizeof scale}));
    for (int i = 0; i < NUMBERS; i++) {
        const char *at = (const char *)&scaler->options + numbers[i].offset;
        MN_TRY(mn_state_dict_put_f64(dict, numbers[i].name, *(const double *)at));
    }
    MN_TRY(mn_state_dict_put_i64(dict, "scaler.growth_interval", scaler->options.growth_interval));
    for (int i = 0; i < COUNTS; i++)
        MN_TRY(mn_state_dict_put_i64(dict, counts[i].name, (int64_t)record[counts[i].slot]));
    return MN_OK;
}

static bool has(const mn_state_dict *dict, const char *name)
{
    mn_state_entry entry;
    return mn_state_dict_find(dict, name, &entry);
}

static mn_status get_options(const mn_state_dict *dict, mn_context *context,
                             mn_grad_scaler_options *options)
{
    for (int i = 0; i < NUMBERS; i++) {
        double *at = (double *)((char *)options + numbers[i].offset);
        if (numbers[i].required || has(dict, numbers[i].name))
            MN_TRY(mn_state_dict_get_f64(context, dict, numbers[i].name, at));
    }
    MN_TRY(
        mn_state_dict_get_i64(context, dict, "scaler.growth_interval", &options->growth_interval));
    return mn_grad_scaler_check_options(context, options);
}

static mn_status get_record(const mn_state_dict *dict, mn_context *context,
                            double record[MN_RECORD_SIZE])
{
    mn_state_entry entry;
    if (!mn_state_dict_find(dict, "scaler.scale", &entry) || entry.dtype != MN_F32 ||
        entry.bytes != sizeof(float))
        return mn_fail(context, MN_ERR_MISMATCH,
                       "grad_scaler_load_state: scaler.scale is missing or not one f32");
    double scale;
    mn_convert_elements(MN_F32, MN_F64, 1, entry.data, &scale);
    if (!(scale >= 0) || !mn_isfinite_f64(scale))
        return mn_fail(context, MN_ERR_MISMATCH,
                       "grad_scaler_load_state: scaler.scale is %g, must be finite and at least 0",
                       scale);
    record[MN_SCALER_SCALE] = record[MN_SCALER_SCALE_USED] = scale;
    record[MN_SCALER_FOUND_INF] = 0;
    if (!has(dict, counts[0].name))
        return mn_fail(context, MN_ERR_MISMATCH, "grad_scaler_load_state: %s is missing",
                       counts[0].name);
    for (int i = 0; i < COUNTS; i++) {
        int64_t count = 0;
        if (!has(dict, counts[i].name))
            continue;
        MN_TRY(mn_state_dict_get_i64(context, dict, counts[i].name, &count));
        if (count < 0 || count > INT64_C(1) << 53)
            return mn_fail(context, MN_ERR_MISMATCH,
                           "grad_scaler_load_state: %s is %lld, must be from 0 to 2^53",
                           counts[i].name, (long long)count);
        record[counts[i].slot] = (double)count;
    }
    return MN_OK;
}

mn_status mn_grad_scaler_load(mn_grad_scaler *scaler, const mn_state_dict *dict, bool apply)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!scaler->options.enabled)
        return MN_OK;
    MN_TRY(mn_state_dict_readable(scaler->context, dict, "grad_scaler_load_state"));
    if (!has(dict, "scaler.scale") && !has(dict, counts[0].name))
        return MN_OK; /* saved without a scaler, or with a disabled one */
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_load_state"));
    mn_grad_scaler_options options = scaler->options;
    MN_TRY(get_options(dict, scaler->context, &options));
    MN_TRY(mn_record_read(scaler->record, record));
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
