/* train/loop.c: the training loop: windows of micro-batches, epochs, what the host learns of them,
 * and when checkpoints are written. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- measuring ------------------------------------------------------------------------------- */

static void watch_start(mn_run *run)
{
    mn_stopwatch *watch = &run->watch;
    if (watch->running || run->steps_here < MN_WARMUP_STEPS ||
        mn_run_monitors(run, run->progress.step + 1))
        return;
    watch->running = true;
    watch->started = mn_clock_seconds();
    watch->waited_before = mn_loader_wait_seconds(run->train);
}

/* Warm-up, evaluation or a checkpoint is over: its memory is not the steps'. */
static void watch_resume(mn_run *run)
{
    mn_memory_reset_peak(run->context);
    watch_start(run);
}

/* The device has nothing left to do: what was enqueued counts. */
static void watch_stop(mn_run *run)
{
    mn_stopwatch *watch = &run->watch;
    uint64_t peak = mn_memory_stats_get(run->context).peak_bytes;
    if (!watch->running)
        return;
    if (peak > run->peak)
        run->peak = peak;
    watch->running = false;
    watch->seconds += mn_clock_seconds() - watch->started;
    watch->waited += mn_loader_wait_seconds(run->train) - watch->waited_before;
}

static double rate(const mn_run *run)
{
    const mn_stopwatch *watch = &run->watch;
    double seconds = watch->seconds;
    if (watch->running)
        seconds += mn_clock_seconds() - watch->started;
    return watch->images > 0 && seconds > 0.0 ? (double)watch->images / seconds : (double)NAN;
}

/* ---- results of steps ------------------------------------------------------------------------ */

static double ratio(double part, int64_t whole)
{
    return whole > 0 ? part / (double)whole : (double)NAN;
}

static void tell_progress(mn_run *run, const mn_step_result *result)
{
    const mn_run_progress *p = &run->progress;
    double images_per_s = rate(run);
    double left = (double)(run->last - result->step) * (double)run->window;
    mn_progress progress = {
        .last = *result,
        .steps = result->step,
        .total_steps = run->planned,
        .epochs = run->epochs,
        .skipped_steps = p->skipped,
        .loss = ratio(p->loss_sum, p->samples),
        .accuracy = ratio((double)p->correct, p->samples),
        .images_per_s = images_per_s,
        .seconds_left = left / images_per_s,
    };
    run->options.progress(run->options.user, &progress);
}

static mn_status take_result(void *user, const mn_step_result *result)
{
    mn_run *run = user;
    mn_run_progress *p = &run->progress;
    if (result->samples > 0)
        p->loss_sum += result->loss * (double)result->samples;
    p->samples += result->samples;
    p->correct += result->correct;
    p->skipped += result->skipped;
    p->nonfinite += result->nonfinite;
    p->retries += result->retries;
    if (!mn_list_append(&run->step_results, result, 1))
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the results of steps");
    MN_TRY(mn_event_step(run, result));
    if (mn_grad_scaler_is_enabled(run->scaler))
        MN_TRY(
            mn_event_troubles(run, mn_skips_take(&p->skips, result, &run->options.scaler), result));
    MN_TRY(mn_run_monitor_tell(run, result->step));
    if (run->options.progress)
        tell_progress(run, result);
    return MN_OK;
}

/* A scale at its floor with gradients that still overflow skips every step from here on: that is no
 * training any more. */
static mn_status check_scale(mn_run *run)
{
    mn_grad_scaler_stats stats;
    const mn_step_result *results = run->step_results.items;
    int64_t count = run->step_results.count;
    if (count == 0 || !results[count - 1].skipped)
        return MN_OK;
    MN_TRY(mn_grad_scaler_stats_get(run->scaler, &stats));
    if (!stats.collapsed)
        return MN_OK;
    run->collapsed_step = results[count - 1].step;
    return mn_error_set(
        &run->error, MN_ERR_COLLAPSED,
        "step %lld: the loss scale is down to %g and gradients still overflow, which "
        "no loss scale can mend: values overflow in the forward pass, or the data "
        "or parameters are not finite (try --amp bf16 or a smaller --lr)",
        (long long)run->collapsed_step, stats.scale);
}

static mn_status collect(mn_run *run)
{
    MN_TRY(mn_run_monitor_collect(run));
    MN_TRY(mn_trainer_collect(&run->trainer, take_result, run));
    return check_scale(run);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static mn_status upload_and_step(mn_run *run, mn_step *step, const mn_batch *batch)
{
    const mn_train_options *o = &run->options;
    MN_TRY(mn_batch_upload(run->context, batch, &step->images, &step->labels));
    MN_TRY((o->step ? o->step : mn_step_default)(step, o->step_user));
    MN_TRY(mn_error_status(run->context));
    return step->window_complete
               ? mn_trainer_end_window(step->trainer, step, run->progress.epoch + 1)
               : MN_OK;
}

mn_status mn_run_micro_step(mn_run *run, const mn_batch *batch, double weight, bool last)
{
    mn_step step = {
        .context = run->context,
        .model = run->model,
        .optimizer = run->optimizer,
        .scaler = run->scaler,
        .amp = run->options.amp,
        .weight = weight,
        .clip_norm = run->options.clip_norm,
        .window_complete = last,
        .step = run->progress.step + 1,
        .retry = run->trainer.retries,
        .trainer = &run->trainer,
    };
    mn_scope scope = mn_scope_begin(run->context);
    mn_status status = upload_and_step(run, &step, batch);
    mn_scope_end(run->context, scope);
    return status;
}

/* The loader's next batch, which is kept if the window may have to be run again. */
static mn_status take_batch(mn_run *run, int64_t left, mn_batch *batch)
{
    MN_TRY(mn_loader_next(run->train, batch, &run->error));
    if (batch->count < 1 || batch->count > left)
        return mn_error_set(&run->error, MN_ERR_INTERNAL,
                            "the loader gave %lld images where %lld were left in the window",
                            (long long)batch->count, (long long)left);
    int64_t pixels = batch->count * batch->height * batch->width * batch->channels;
    if (!run->buffers || (mn_list_append(&run->kept_images, batch->images, (size_t)pixels) &&
                          mn_list_append(&run->kept_labels, batch->labels, (size_t)batch->count)))
        return MN_OK;
    return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory to keep a window for --retry");
}

/* The same batches again: only the last one of an epoch is smaller than --batch. */
static mn_batch kept_batch(const mn_run *run, int64_t done, int64_t left)
{
    const mn_dataset_info *info = &run->info;
    const float *images = run->kept_images.items;
    const int64_t *labels = run->kept_labels.items;
    return (mn_batch){.count = run->options.batch < left ? run->options.batch : left,
                      .height = info->height,
                      .width = info->width,
                      .channels = info->channels,
                      .images = images + done * info->height * info->width * info->channels,
                      .labels = labels + done};
}

static mn_status attempt_window(mn_run *run, int64_t samples)
{
    for (int64_t done = 0, micro_step = 0; done < samples; micro_step++) {
        mn_batch batch;
        if (run->trainer.retries > 0)
            batch = kept_batch(run, done, samples - done);
        else
            MN_TRY(take_batch(run, samples - done, &batch));
        done += batch.count;
        MN_TRY(mn_random_position(run->context, run->progress.step + 1, micro_step));
        MN_TRY(
            mn_run_micro_step(run, &batch, (double)batch.count / (double)samples, done == samples));
    }
    return MN_OK;
}

/* Until the step is applied, no scale is left, or attempts are used up. Waits for the device. */
static mn_status settle_window(mn_run *run, int64_t samples)
{
    mn_grad_scaler_stats scaler;
    bool skipped;
    run->kept_images.count = run->kept_labels.count = 0;
    MN_TRY(mn_module_buffers_save(run->buffers));
    for (;;) {
        MN_TRY(attempt_window(run, samples));
        MN_TRY(mn_trainer_skipped(&run->trainer, &skipped));
        if (!skipped)
            return MN_OK;
        MN_TRY(mn_module_buffers_restore(run->buffers));
        MN_TRY(mn_grad_scaler_stats_get(run->scaler, &scaler));
        if (scaler.collapsed || run->trainer.retries == run->options.retry)
            return MN_OK;
        mn_trainer_retry(&run->trainer);
        MN_TRY(mn_run_monitor_again(run));
    }
}

/* Steps that the monitor looks on at are not timed. */
static mn_status begin_monitored(mn_run *run)
{
    if (run->watch.running)
        MN_TRY(mn_synchronize(run->context));
    watch_stop(run);
    return mn_run_monitor_look(run, true);
}

static mn_status run_window(mn_run *run)
{
    mn_run_progress *p = &run->progress;
    const bool monitored = mn_run_monitors(run, p->step + 1);
    if (monitored)
        MN_TRY(begin_monitored(run));
    int64_t left = run->count - p->position;
    int64_t samples = run->window < left ? run->window : left;
    run->trainer.retries = 0;
    MN_TRY(run->buffers ? settle_window(run, samples) : attempt_window(run, samples));
    p->position += samples;
    p->step++;
    run->steps_here++;
    if (run->watch.running)
        run->watch.images += samples;
    if (monitored)
        MN_TRY(mn_run_monitor_look(run, false));
    if (run->steps_here < MN_WARMUP_STEPS || (run->steps_here > MN_WARMUP_STEPS && !monitored))
        return MN_OK;
    MN_TRY(mn_synchronize(run->context));
    watch_resume(run);
    return MN_OK;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

/* What has no loader is left as not measured. */
static mn_status evaluate_part(mn_run *run, mn_loader *loader, double *loss, double *accuracy,
                               double *accuracy_fp32)
{
    const mn_train_options *o = &run->options;
    mn_metrics metrics;
    *loss = *accuracy = *accuracy_fp32 = (double)NAN;
    if (!loader)
        return MN_OK;
    MN_TRY(mn_evaluate_loader(run->model, loader, o->amp, &metrics, &run->error));
    *loss = metrics.loss;
    *accuracy = metrics.accuracy;
    if (!o->fp32_metrics)
        return MN_OK;
    if (o->amp != MN_F32)
        MN_TRY(mn_evaluate_loader(run->model, loader, MN_F32, &metrics, &run->error));
    *accuracy_fp32 = metrics.accuracy;
    return MN_OK;
}

static mn_status measure_epoch(mn_run *run, mn_epoch_result *r)
{
    const mn_run_progress *p = &run->progress;
    const mn_stopwatch *watch = &run->watch;
    mn_grad_scaler_stats scaler;
    MN_TRY(evaluate_part(run, run->validation, &r->validation_loss, &r->validation_accuracy,
                         &r->validation_accuracy_fp32));
    MN_TRY(evaluate_part(run, run->test, &r->test_loss, &r->test_accuracy, &r->test_accuracy_fp32));
    MN_TRY(mn_grad_scaler_stats_get(run->scaler, &scaler));
    r->epoch = p->epoch + 1;
    r->steps = p->step;
    r->train_loss = ratio(p->loss_sum, p->samples);
    r->train_accuracy = ratio((double)p->correct, p->samples);
    r->images_per_s = rate(run);
    r->data_wait_fraction = watch->seconds > 0.0 ? watch->waited / watch->seconds : (double)NAN;
    r->seconds = mn_clock_seconds() - run->epoch_started;
    r->skipped_steps = p->skipped;
    r->nonfinite = p->nonfinite;
    r->skipped_warmup = p->skips.warmup;
    r->skipped_growth = p->skips.growth;
    r->retries = p->retries;
    r->scale = scaler.scale;
    r->peak_tensor_bytes = run->peak;
    r->peak_rss_bytes = mn_peak_rss();
    mn_run_monitor_epoch(run, r);
    return MN_OK;
}

static mn_status finish_epoch(mn_run *run)
{
    mn_run_progress *p = &run->progress;
    mn_epoch_result result = {.epoch = 0};
    MN_TRY(measure_epoch(run, &result));
    double accuracy = result.validation_accuracy;
    if (p->best_epoch == 0 ? !mn_isnan_f64(accuracy) : accuracy > p->best_accuracy) {
        p->best_epoch = result.epoch;
        p->best_accuracy = accuracy;
        p->best_loss = result.validation_loss;
    }
    if (!mn_list_append(&run->epoch_results, &result, 1))
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the results of epochs");
    MN_TRY(mn_event_epoch(run, &result));
    if (run->options.epoch)
        run->options.epoch(run->options.user, &result);
    return MN_OK;
}

void mn_run_next_epoch(mn_run *run)
{
    mn_run_progress *p = &run->progress;
    p->epoch++;
    p->position = p->correct = p->samples = 0;
    p->loss_sum = 0.0;
    run->watch = (mn_stopwatch){.running = false};
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* What is due after a window. The last epoch of a run may be cut short by --steps; it is an
 * epoch all the same. One cut short by --stop-after or cancel will be gone on with. */
static mn_status after_window(mn_run *run, bool stop)
{
    const mn_train_options *o = &run->options;
    mn_run_progress *p = &run->progress;
    bool whole = p->position == run->count;
    bool save = o->checkpoint && o->checkpoint_every > 0 && p->step % o->checkpoint_every == 0;
    if (!whole && !save && !stop)
        return mn_trainer_due(&run->trainer) ? collect(run) : MN_OK;
    MN_TRY(collect(run));
    watch_stop(run);
    if (whole || p->step == run->planned)
        MN_TRY(finish_epoch(run));
    if (whole)
        mn_run_next_epoch(run);
    if (save && !stop)
        MN_TRY(mn_run_save(run));
    if (!stop && !whole)
        watch_resume(run);
    return MN_OK;
}

static mn_status run_loop(mn_run *run)
{
    const mn_train_options *o = &run->options;
    mn_run_progress *p = &run->progress;
    for (bool started = false; p->step < run->last && !run->cancelled; started = true) {
        if (!started || p->position == 0) {
            run->epoch_started = mn_clock_seconds();
            MN_TRY(mn_loader_start(run->train, p->epoch, p->position, &run->error));
            watch_resume(run);
        }
        MN_TRY(run_window(run));
        run->cancelled = o->cancel && o->cancel(o->user);
        MN_TRY(after_window(run, run->cancelled || p->step >= run->last));
    }
    return MN_OK;
}

static mn_status train(mn_run *run)
{
    MN_TRY(mn_event_start(run));
    MN_TRY(run_loop(run));
    MN_TRY(mn_run_save(run));
    return mn_event_end(run);
}

/* ---- results --------------------------------------------------------------------------------- */

/* What mn_train returns, with what it needs to be freed. */
typedef struct owned_result {
    mn_train_result result; /* first: the public pointer is this one */
    mn_list steps, epochs;
    mn_json_out names; /* of model and data set, each with its zero */
} owned_result;

void mn_train_result_free(mn_train_result *result)
{
    if (!result)
        return;
    owned_result *owned = (owned_result *)result;
    mn_allocator allocator = owned->steps.allocator;
    mn_train_monitor_free(owned->result.monitor);
    mn_list_free(&owned->steps);
    mn_list_free(&owned->epochs);
    mn_out_free(&owned->names);
    allocator.free(allocator.user, owned, sizeof *owned);
}

static mn_train_result *make_result(mn_run *run)
{
    owned_result *owned =
        run->allocator.alloc(run->allocator.user, sizeof *owned, _Alignof(owned_result));
    mn_json_out names;
    mn_out_init(&names, &run->allocator);
    mn_put(&names, "%s%c%s", run->options.model, '\0', run->info.name);
    const char *text = mn_out_text(&names);
    mn_train_monitor *monitor = mn_run_monitor_keep(run);
    if (!owned || !text || (run->monitor.monitor && !monitor)) {
        mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the result of a run");
        mn_out_free(&names);
        mn_train_monitor_free(monitor);
        if (owned)
            run->allocator.free(run->allocator.user, owned, sizeof *owned);
        return NULL;
    }
    *owned =
        (owned_result){.steps = run->step_results, .epochs = run->epoch_results, .names = names};
    run->step_results = run->epoch_results = (mn_list){.items = NULL};
    owned->result = (mn_train_result){
        .model = text,
        .data = text + strlen(text) + 1,
        .parameters = run->parameters,
        .epoch_count = owned->epochs.count,
        .epochs = owned->epochs.items,
        .step_count = owned->steps.count,
        .step_results = owned->steps.items,
        .total_steps = run->progress.step,
        .skipped_steps = run->progress.skipped,
        .skipped_warmup = run->progress.skips.warmup,
        .skipped_growth = run->progress.skips.growth,
        .retries = run->progress.retries,
        .seconds = mn_clock_seconds() - run->started,
        .cancelled = run->cancelled,
        .collapsed_step = run->collapsed_step,
        .monitor = monitor,
    };
    return &owned->result;
}

static mn_train_result *train_once(const mn_train_options *options, bool collapsible,
                                   mn_error *error)
{
    mn_run run;
    mn_train_result *result = NULL;
    mn_status status = mn_run_open(&run, options);
    if (status == MN_OK)
        status = train(&run);
    if (status == MN_OK || (collapsible && run.collapsed_step > 0))
        result = make_result(&run);
    char unsaid[80];
    snprintf(unsaid, sizeof unsaid, "step %lld: the step function failed without saying why",
             (long long)run.progress.step + 1);
    if (!result)
        mn_error_give(error, &run.error, run.context, status, unsaid);
    mn_run_close(&run);
    return result;
}

mn_train_result *mn_train(const mn_train_options *options, mn_error *error)
{
    return train_once(options, false, error);
}

mn_train_result *mn_train_collapsible(const mn_train_options *options, mn_error *error)
{
    return train_once(options, true, error);
}
