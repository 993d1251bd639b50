/* train/trainer.c: the usual micro-step, the ring through which results of steps reach the host
 * without a step waiting for the device, and what skipped steps say of a run. */
#include "train/train.h"

#include <math.h>

/* Windows between two reads where reading the device costs a wait. */
enum { READ_PERIOD = 8 };

mn_status mn_trainer_open(mn_trainer *trainer, mn_context *context)
{
    const int64_t shape[2] = {MN_RING_ROWS, MN_RECORD_SIZE};
    MN_TRY(mn_error_status(context));
    *trainer = (mn_trainer){.context = context,
                            .period = context->device->host_visible ? 1 : READ_PERIOD,
                            .ring = mn_tensor_new_unscoped(context, MN_F64, 2, shape)};
    return trainer->ring ? mn_tensor_fill(trainer->ring, 0.0) : mn_error_status(context);
}

void mn_trainer_close(mn_trainer *trainer)
{
    mn_release(trainer->ring);
    trainer->ring = NULL;
}

bool mn_trainer_due(const mn_trainer *trainer)
{
    return trainer->ended - trainer->taken >= trainer->period;
}

mn_status mn_step_report(mn_step *step, mn_tensor *loss, mn_tensor *logits)
{
    if (!step || !step->context)
        return MN_ERR_ARGUMENT;
    mn_trainer *trainer = step->trainer;
    MN_TRY(mn_error_status(step->context));
    if (!trainer)
        return mn_fail(step->context, MN_ERR_ARGUMENT, "step report: step->trainer is NULL");
    mn_report_attributes attributes = {.entry = trainer->ended % MN_RING_ROWS,
                                       .first = !trainer->reported,
                                       .weight = step->weight};
    mn_tensor *inputs[] = {trainer->ring, loss, logits, step->labels};
    MN_TRY(mn_tensor_check(step->context, loss, "step report: loss"));
    MN_TRY(mn_tensor_check(step->context, logits, "step report: logits"));
    MN_TRY(mn_tensor_check(step->context, step->labels, "step report: labels"));
    mn_dispatch1(step->context, MN_OP_report_loss, inputs, 4, &attributes);
    trainer->reported = true;
    return mn_error_status(step->context);
}

mn_status mn_trainer_end_window(mn_trainer *trainer, const mn_step *step, int64_t epoch)
{
    int64_t row = trainer->ended % MN_RING_ROWS;
    mn_report_attributes attributes = {.entry = row};
    mn_tensor *inputs[] = {trainer->ring, step->optimizer->record,
                           mn_grad_scaler_record(step->scaler)};
    mn_dispatch1(trainer->context, MN_OP_report_step, inputs, 3, &attributes);
    trainer->rows[row].step = step->step;
    trainer->rows[row].epoch = epoch;
    trainer->rows[row].reported = trainer->reported;
    trainer->rows[row].retries = trainer->retries;
    trainer->ended++;
    trainer->reported = false;
    return mn_error_status(trainer->context);
}

/* A window whose step function reported nothing has no loss and no samples. */
static mn_step_result row_result(const mn_trainer *trainer, int64_t row)
{
    const double *values = trainer->host + row * MN_RECORD_SIZE;
    bool reported = trainer->rows[row].reported;
    return (mn_step_result){
        .step = trainer->rows[row].step,
        .epoch = trainer->rows[row].epoch,
        .samples = reported ? (int64_t)values[MN_REPORT_SAMPLES] : 0,
        .correct = reported ? (int64_t)values[MN_REPORT_CORRECT] : 0,
        .loss = reported ? values[MN_REPORT_LOSS] : (double)NAN,
        .lr = values[MN_REPORT_LR],
        .scale = values[MN_REPORT_SCALE],
        .grad_norm = values[MN_REPORT_NORM],
        .skipped = values[MN_REPORT_OUTCOME] == (double)MN_STEP_SKIPPED,
        .nonfinite = values[MN_REPORT_NONFINITE] != 0.0,
        .retries = trainer->rows[row].retries,
    };
}

mn_status mn_trainer_skipped(mn_trainer *trainer, bool *skipped)
{
    MN_TRY(mn_tensor_read(trainer->ring, trainer->host, sizeof trainer->host));
    *skipped = row_result(trainer, (trainer->ended - 1) % MN_RING_ROWS).skipped;
    return MN_OK;
}

void mn_trainer_retry(mn_trainer *trainer)
{
    trainer->ended--;
    trainer->retries++;
}

mn_status mn_trainer_collect(mn_trainer *trainer, mn_result_sink sink, void *user)
{
    if (trainer->taken == trainer->ended)
        return mn_error_status(trainer->context);
    MN_TRY(mn_tensor_read(trainer->ring, trainer->host, sizeof trainer->host));
    while (trainer->taken < trainer->ended) {
        mn_step_result result = row_result(trainer, trainer->taken % MN_RING_ROWS);
        trainer->taken++;
        MN_TRY(sink(user, &result));
    }
    return MN_OK;
}

/* ---- what skips say -------------------------------------------------------------------------- */

static int bits(int64_t word)
{
    int count = 0;
    for (; word != 0; word &= word - 1)
        count++;
    return count;
}

unsigned mn_skips_take(mn_skips *s, const mn_step_result *r, const mn_grad_scaler_options *o)
{
    const int64_t half = (INT64_C(1) << MN_SKIP_WINDOW / 2) - 1;
    const int64_t overflows = r->retries + r->skipped;
    /* Of the last attempt that overflowed; factors other than powers of two leave a rounding. */
    const double scale = r->skipped ? r->scale : r->scale / o->backoff_factor;
    const bool warm = s->applied > 0, grown = overflows == 1 && scale > 1.0001 * s->scale;
    const bool low =
        o->min_scale > 0 && o->min_scale < o->init_scale && r->scale <= (double)(float)o->min_scale;
    unsigned troubles = low ? MN_TROUBLE_FLOOR : 0;
    if (overflows > 0 && scale <= 1)
        troubles |= MN_TROUBLE_LOW;
    if (r->skipped)
        *(warm ? &s->growth : &s->warmup) += !warm || grown;
    if (warm) {
        s->in_row += overflows;
        s->recent[1] = (s->recent[1] << 1 | s->recent[0] >> (MN_SKIP_WINDOW / 2 - 1)) & half;
        s->recent[0] = (s->recent[0] << 1 | (overflows > 0 && !grown)) & half;
    }
    if (s->in_row >= MN_SKIPS_IN_ROW)
        troubles |= MN_TROUBLE_ROW;
    if (bits(s->recent[0]) + bits(s->recent[1]) > MN_SKIPS_IN_WINDOW)
        troubles |= MN_TROUBLE_RATE;
    if (!r->skipped) {
        s->applied++;
        s->in_row = 0;
    }
    s->scale = r->scale;
    return troubles;
}

/* ---- the usual micro-step -------------------------------------------------------------------- */

static mn_status finish_window(mn_step *step)
{
    MN_TRY(mn_grad_scaler_unscale(step->scaler, step->optimizer));
    MN_TRY(mn_clip_grad_norm(step->optimizer, step->clip_norm, NULL));
    MN_TRY(mn_grad_scaler_step(step->scaler, step->optimizer, NULL));
    MN_TRY(mn_grad_scaler_update(step->scaler));
    return mn_optimizer_zero_grad(step->optimizer);
}

mn_status mn_batch_next(mn_loader *loader, int64_t *epoch, mn_batch *batch, mn_error *error)
{
    if (batch->count > 0)
        MN_TRY(mn_loader_next(loader, batch, error));
    if (batch->count > 0)
        return MN_OK;
    MN_TRY(mn_loader_start(loader, (*epoch)++, 0, error));
    return mn_loader_next(loader, batch, error);
}

mn_status mn_batch_upload(mn_context *context, const mn_batch *batch, mn_tensor **images,
                          mn_tensor **labels)
{
    const int64_t shape[4] = {batch->count, batch->height, batch->width, batch->channels};
    *images = mn_tensor_from(context, MN_F32, 4, shape, batch->images);
    *labels = mn_tensor_from(context, MN_I64, 1, shape, batch->labels);
    return mn_error_status(context);
}

mn_tensor *mn_model_loss(mn_module *model, mn_tensor *images, mn_tensor *labels, mn_dtype amp,
                         mn_tensor **logits)
{
    mn_context *context = mn_module_context(model);
    *logits = NULL;
    if (mn_autocast_begin(context, amp) != MN_OK) /* MN_F32: off, also inside another region */
        return NULL;
    *logits = mn_module_forward(model, images);
    mn_tensor *loss = mn_cross_entropy(*logits, labels, NULL);
    mn_autocast_end(context);
    return loss;
}

mn_status mn_step_default(mn_step *step, void *user)
{
    (void)user;
    if (!step || !step->context)
        return MN_ERR_ARGUMENT;
    mn_tensor *logits;
    mn_tensor *loss = mn_model_loss(step->model, step->images, step->labels, step->amp, &logits);
    MN_TRY(mn_error_status(step->context));
    MN_TRY(mn_grad_scaler_backward(step->scaler, loss, step->weight));
    MN_TRY(mn_step_report(step, loss, logits));
    return step->window_complete ? finish_window(step) : MN_OK;
}
