/* train/checkpoint.c: the checkpoint of a run: model, optimizer, scaler, progress, normalisation
 * and identity. Two runs that have done the same write the same bytes, whether at once or with
 * stops in between. */
#include "train/train.h"

#include "core/state_dict.h"

#include <math.h>
#include <string.h>

/* ---- progress -------------------------------------------------------------------------------- */

static mn_status save_progress(const mn_run_progress *p, mn_state_dict *dict)
{
    MN_TRY(mn_state_dict_put_i64(dict, "progress.epoch", p->epoch));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.position", p->position));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.step", p->step));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.skipped", p->skipped));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.nonfinite", p->nonfinite));
    MN_TRY(mn_state_dict_put_f64(dict, "progress.loss_sum", p->loss_sum));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.correct", p->correct));
    MN_TRY(mn_state_dict_put_i64(dict, "progress.samples", p->samples));
    if (p->best_epoch == 0)
        return MN_OK;
    MN_TRY(mn_state_dict_put_i64(dict, "progress.best_epoch", p->best_epoch));
    MN_TRY(mn_state_dict_put_f64(dict, "progress.best_accuracy", p->best_accuracy));
    return mn_state_dict_put_f64(dict, "progress.best_loss", p->best_loss);
}

static mn_status load_best(const mn_state_dict *dict, mn_run_progress *p)
{
    mn_state_entry entry;
    if (!mn_state_dict_find(dict, "progress.best_epoch", &entry))
        return MN_OK;
    MN_TRY(mn_state_dict_get_i64(dict, "progress.best_epoch", &p->best_epoch));
    MN_TRY(mn_state_dict_get_f64(dict, "progress.best_accuracy", &p->best_accuracy));
    return mn_state_dict_get_f64(dict, "progress.best_loss", &p->best_loss);
}

/* Nothing in a file is trusted: the counts must be possible ones. */
static mn_status check_progress(mn_run *run, const mn_run_progress *p)
{
    const int64_t counts[] = {p->epoch,     p->position, p->step,    p->skipped,
                              p->nonfinite, p->correct,  p->samples, p->best_epoch};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i] < 0 || counts[i] > INT64_MAX / 2)
            return mn_fail(run->context, MN_ERR_FORMAT,
                           "checkpoint %.400s: its progress has an impossible count",
                           run->options.resume);
    }
    if (p->skipped > p->step || p->correct > p->samples)
        return mn_fail(run->context, MN_ERR_FORMAT,
                       "checkpoint %.400s: the counts of its progress do not fit each other",
                       run->options.resume);
    return MN_OK;
}

static mn_status load_progress(mn_run *run, const mn_state_dict *dict, mn_run_progress *p)
{
    *p = (mn_run_progress){0};
    MN_TRY(mn_state_dict_get_i64(dict, "progress.epoch", &p->epoch));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.position", &p->position));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.step", &p->step));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.skipped", &p->skipped));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.nonfinite", &p->nonfinite));
    MN_TRY(mn_state_dict_get_f64(dict, "progress.loss_sum", &p->loss_sum));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.correct", &p->correct));
    MN_TRY(mn_state_dict_get_i64(dict, "progress.samples", &p->samples));
    MN_TRY(load_best(dict, p));
    MN_TRY(check_progress(run, p));
    /* With other data, let through by resume_anyway, the epoch may be over earlier. */
    if (p->position >= run->count) {
        p->epoch++;
        p->position = p->correct = p->samples = 0;
        p->loss_sum = 0.0;
    }
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
        if (!isfinite(values[c]))
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
    mn_run_progress progress;
    /* Everything is checked before anything is changed. */
    MN_TRY(load_progress(run, dict, &progress));
    MN_TRY(mn_module_load(run->model, dict, false));
    MN_TRY(mn_optimizer_load(run->optimizer, dict, false));
    MN_TRY(mn_grad_scaler_load(run->scaler, dict, false));
    MN_TRY(mn_module_load(run->model, dict, true));
    MN_TRY(mn_optimizer_load(run->optimizer, dict, true));
    MN_TRY(mn_grad_scaler_load(run->scaler, dict, true));
    run->progress = progress;
    return MN_OK;
}
