/* train/checkpoint.c: the checkpoint of a run: model, optimizer, scaler, progress, normalisation
 * and identity. Two runs that have done the same write the same bytes, whether at once or with
 * stops in between. */
#include "train/train.h"

#include "core/state_dict.h"

#include <stddef.h>
#include <string.h>

/* ---- progress -------------------------------------------------------------------------------- */

/* Numbers if `real`, else counts; the last three only if there was a best epoch. */
static const struct {
    const char *name;
    size_t offset;
    bool real;
} entries[] = {
#define ENTRY(member, real)                                                                        \
    {                                                                                              \
        "progress." #member, offsetof(mn_run_progress, member), real                               \
    }
    ENTRY(epoch, false),         ENTRY(position, false),        ENTRY(step, false),
    ENTRY(skipped, false),       ENTRY(nonfinite, false),       ENTRY(loss_sum, true),
    ENTRY(correct, false),       ENTRY(samples, false),         ENTRY(retries, false),
    ENTRY(skips.applied, false), ENTRY(skips.warmup, false),    ENTRY(skips.growth, false),
    ENTRY(skips.in_row, false),  ENTRY(skips.recent[0], false), ENTRY(skips.recent[1], false),
    ENTRY(skips.scale, true),    ENTRY(best_epoch, false),      ENTRY(best_accuracy, true),
    ENTRY(best_loss, true),
#undef ENTRY
};
/* Files of the first version have no more than FIRST_ENTRIES, and the best: the rest is 0 then. */
enum { ENTRIES = sizeof entries / sizeof *entries, FIRST_ENTRIES = 8 };

static mn_status save_progress(const mn_run_progress *p, mn_state_dict *dict)
{
    for (int i = 0; i < (p->best_epoch > 0 ? ENTRIES : ENTRIES - 3); i++) {
        const void *at = (const char *)p + entries[i].offset;
        MN_TRY(entries[i].real
                   ? mn_state_dict_put_f64(dict, entries[i].name, *(const double *)at)
                   : mn_state_dict_put_i64(dict, entries[i].name, *(const int64_t *)at));
    }
    return MN_OK;
}

/* Nothing in a file is trusted: the counts must be possible ones. */
static mn_status read_progress(mn_run *run, const mn_state_dict *dict, mn_run_progress *p)
{
    mn_state_entry entry;
    bool best = mn_state_dict_find(dict, "progress.best_epoch", &entry);
    for (int i = 0; i < (best ? ENTRIES : ENTRIES - 3); i++) {
        void *at = (char *)p + entries[i].offset;
        if (i >= FIRST_ENTRIES && i < ENTRIES - 3 &&
            !mn_state_dict_find(dict, entries[i].name, &entry))
            continue;
        MN_TRY(entries[i].real ? mn_state_dict_get_f64(run->context, dict, entries[i].name, at)
                               : mn_state_dict_get_i64(run->context, dict, entries[i].name, at));
        if (!entries[i].real && (*(int64_t *)at < 0 || *(int64_t *)at > INT64_MAX / 2))
            return mn_fail(run->context, MN_ERR_FORMAT,
                           "checkpoint %.400s: its progress has an impossible count",
                           run->options.resume);
    }
    if (p->skipped > p->step || p->correct > p->samples ||
        p->skips.warmup + p->skips.growth > p->skipped)
        return mn_fail(run->context, MN_ERR_FORMAT,
                       "checkpoint %.400s: the counts of its progress do not fit each other",
                       run->options.resume);
    return MN_OK;
}

/* ---- normalisation --------------------------------------------------------------------------- */

static mn_status save_normalization(const mn_normalization *n, mn_state_dict *dict)
{
    const int64_t shape[1] = {n->channels};
    mn_state_entry entry = {.name = "data.mean",
                            .dtype = MN_F32,
                            .ndim = 1,
                            .shape = shape,
                            .data = n->mean,
                            .bytes = (size_t)n->channels * sizeof(float)};
    MN_TRY(mn_state_dict_put(dict, &entry));
    entry.name = "data.deviation";
    entry.data = n->deviation;
    return mn_state_dict_put(dict, &entry);
}

static mn_status load_channels(const mn_state_dict *dict, const char *name, int64_t channels,
                               float *values)
{
    mn_state_entry entry;
    mn_context *context = mn_state_dict_context(dict);
    if (!mn_state_dict_find(dict, name, &entry))
        return mn_fail(context, MN_ERR_MISMATCH,
                       "the checkpoint has no \"%s\": it is not one of a run", name);
    if (entry.dtype != MN_F32 || entry.ndim != 1 || entry.shape[0] != channels)
        return mn_fail(context, MN_ERR_MISMATCH,
                       "\"%s\" of the checkpoint is not f32 [%lld], as the data has channels", name,
                       (long long)channels);
    memcpy(values, entry.data, (size_t)channels * sizeof(float));
    for (int64_t c = 0; c < channels; c++) {
        if (!mn_isfinite_f64((double)values[c]))
            return mn_fail(context, MN_ERR_FORMAT, "\"%s\" of the checkpoint is not finite", name);
    }
    return MN_OK;
}

mn_status mn_checkpoint_normalization(const mn_state_dict *dict, int64_t channels,
                                      mn_normalization *normalization)
{
    mn_context *context = mn_state_dict_context(dict);
    MN_TRY(mn_error_status(context));
    if (channels < 1 || channels > 4)
        return mn_fail(context, MN_ERR_UNSUPPORTED,
                       "images have %lld channels, there can be 1 to 4", (long long)channels);
    *normalization = (mn_normalization){.channels = (int)channels};
    MN_TRY(load_channels(dict, "data.mean", channels, normalization->mean));
    return load_channels(dict, "data.deviation", channels, normalization->deviation);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static mn_status fill(mn_run *run, mn_state_dict *dict)
{
    MN_TRY(mn_module_save_state(run->model, dict));
    MN_TRY(mn_optimizer_save_state(run->optimizer, dict));
    MN_TRY(mn_grad_scaler_save_state(run->scaler, dict));
    MN_TRY(save_progress(&run->progress, dict));
    MN_TRY(save_normalization(&run->normalization, dict));
    MN_TRY(mn_identity_save(run, dict));
    return mn_state_dict_write(dict, run->options.checkpoint);
}

mn_status mn_run_save(mn_run *run)
{
    if (!run->options.checkpoint)
        return MN_OK;
    mn_state_dict *dict = mn_state_dict_create(run->context);
    if (!dict)
        return mn_error_status(run->context);
    mn_status status = fill(run, dict);
    mn_state_dict_free(dict);
    return status;
}

mn_status mn_run_load(mn_run *run, const mn_state_dict *dict)
{
    mn_run_progress progress = {0};
    /* Everything is checked before anything is changed. */
    MN_TRY(read_progress(run, dict, &progress));
    MN_TRY(mn_module_load(run->model, dict, false));
    MN_TRY(mn_optimizer_load(run->optimizer, dict, false));
    MN_TRY(mn_grad_scaler_load(run->scaler, dict, false));
    MN_TRY(mn_module_load(run->model, dict, true));
    MN_TRY(mn_optimizer_load(run->optimizer, dict, true));
    MN_TRY(mn_grad_scaler_load(run->scaler, dict, true));
    run->progress = progress;
    /* With other data, let through by resume_anyway, the epoch may be over earlier. */
    if (progress.position >= run->count)
        mn_run_next_epoch(run);
    return MN_OK;
}
