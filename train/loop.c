/* train/loop.c: the training loop: windows of micro-batches, epochs, what the host learns of them,
 * and when checkpoints are written. */
#include "train/train.h"

#include <math.h>
#include <string.h>

/* ---- measuring ------------------------------------------------------------------------------- */

static void watch_start(mn_run *run)
{
    mn_stopwatch *watch = &run->watch;
    if (watch->running || run->steps_here < MN_WARMUP_STEPS)
        return;
    watch->running = true;
    watch->started = mn_clock_seconds();
    watch->waited_before = mn_loader_wait_seconds(run->train);
}

/* The device has nothing left to do: what was enqueued counts. */
static void watch_stop(mn_run *run)
{
    mn_stopwatch *watch = &run->watch;
    uint64_t peak = mn_memory_stats_get(run->context).peak_bytes;
    if (peak > run->peak)
        run->peak = peak;
    if (!watch->running)
        return;
    watch->running = false;
    watch->seconds += mn_clock_seconds() - watch->started;
    watch->waited += mn_loader_wait_seconds(run->train) - watch->waited_before;
}

/* Evaluation and checkpoints are over: their memory is not the steps'. */
static void watch_resume(mn_run *run)
{
    mn_memory_reset_peak(run->context);
    watch_start(run);
}

static mn_status end_warmup(mn_run *run)
{
    MN_TRY(mn_synchronize(run->context));
    mn_memory_reset_peak(run->context);
    run->peak = 0;
    watch_start(run);
    return MN_OK;
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
    if (!mn_list_append(&run->step_results, result))
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the results of steps");
    MN_TRY(mn_event_step(run, result));
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
    MN_TRY(mn_trainer_collect(&run->trainer, take_result, run));
    return check_scale(run);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static mn_step make_step(mn_run *run)
{
    return (mn_step){
        .context = run->context,
        .model = run->model,
        .optimizer = run->optimizer,
        .scaler = run->scaler,
        .amp = run->options.amp,
        .clip_norm = run->options.clip_norm,
        .step = run->progress.step + 1,
        .trainer = &run->trainer,
    };
}

static mn_status run_window(mn_run *run)
{
    const mn_train_options *o = &run->options;
    mn_run_progress *p = &run->progress;
    int64_t left = run->count - p->position;
    int64_t samples = run->window < left ? run->window : left;
    mn_step step = make_step(run);
    for (int64_t done = 0; done < samples;) {
        mn_batch batch;
        MN_TRY(mn_loader_next(run->train, &batch, &run->error));
        if (batch.count < 1 || batch.count > samples - done)
            return mn_error_set(&run->error, MN_ERR_INTERNAL,
                                "the loader gave %lld images where %lld were left in the window",
                                (long long)batch.count, (long long)(samples - done));
        done += batch.count;
        step.weight = (double)batch.count / (double)samples;
        step.window_complete = done == samples;
        MN_TRY(mn_trainer_micro_step(&step, &batch, p->epoch + 1,
                                     o->step ? o->step : mn_step_default, o->step_user));
    }
    p->position += samples;
    p->step++;
    run->steps_here++;
    if (run->watch.running)
        run->watch.images += samples;
    return run->steps_here == MN_WARMUP_STEPS ? end_warmup(run) : MN_OK;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

typedef struct part_metrics {
    double loss, accuracy, accuracy_fp32;
} part_metrics;

static mn_status evaluate_part(mn_run *run, mn_loader *loader, part_metrics *part)
{
    const mn_train_options *o = &run->options;
    mn_metrics metrics;
    *part = (part_metrics){(double)NAN, (double)NAN, (double)NAN};
    if (!loader)
        return MN_OK;
    MN_TRY(mn_evaluate_loader(run->model, loader, o->amp, &metrics, &run->error));
    part->loss = metrics.loss;
    part->accuracy = metrics.accuracy;
    if (!o->fp32_metrics)
        return MN_OK;
    if (o->amp != MN_F32)
        MN_TRY(mn_evaluate_loader(run->model, loader, MN_F32, &metrics, &run->error));
    part->accuracy_fp32 = metrics.accuracy;
    return MN_OK;
}

static void keep_best(mn_run_progress *p, const part_metrics *validation)
{
    if (isnan(validation->accuracy))
        return;
    if (p->best_epoch > 0 && !(validation->accuracy > p->best_accuracy))
        return;
    p->best_epoch = p->epoch + 1;
    p->best_accuracy = validation->accuracy;
    p->best_loss = validation->loss;
}

static mn_epoch_result make_epoch(const mn_run *run, const part_metrics *validation,
                                  const part_metrics *test)
{
    const mn_run_progress *p = &run->progress;
    const mn_stopwatch *watch = &run->watch;
    return (mn_epoch_result){
        .epoch = p->epoch + 1,
        .steps = p->step,
        .train_loss = ratio(p->loss_sum, p->samples),
        .train_accuracy = ratio((double)p->correct, p->samples),
        .validation_loss = validation->loss,
        .validation_accuracy = validation->accuracy,
        .validation_accuracy_fp32 = validation->accuracy_fp32,
        .test_loss = test->loss,
        .test_accuracy = test->accuracy,
        .test_accuracy_fp32 = test->accuracy_fp32,
        .images_per_s = rate(run),
        .data_wait_fraction = watch->seconds > 0.0 ? watch->waited / watch->seconds : (double)NAN,
        .seconds = mn_clock_seconds() - run->epoch_started,
        .skipped_steps = p->skipped,
        .nonfinite = p->nonfinite,
        .peak_tensor_bytes = run->peak,
        .peak_rss_bytes = mn_peak_rss(),
    };
}

static mn_status finish_epoch(mn_run *run)
{
    part_metrics validation, test;
    mn_grad_scaler_stats scaler;
    MN_TRY(evaluate_part(run, run->validation, &validation));
    MN_TRY(evaluate_part(run, run->test, &test));
    MN_TRY(mn_grad_scaler_stats_get(run->scaler, &scaler));
    mn_epoch_result result = make_epoch(run, &validation, &test);
    result.scale = scaler.scale;
    keep_best(&run->progress, &validation);
    if (!mn_list_append(&run->epoch_results, &result))
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the results of epochs");
    MN_TRY(mn_event_epoch(run, &result));
    if (run->options.epoch)
        run->options.epoch(run->options.user, &result);
    return MN_OK;
}

static void next_epoch(mn_run *run)
{
    mn_run_progress *p = &run->progress;
    p->epoch++;
    p->position = p->correct = p->samples = 0;
    p->loss_sum = 0.0;
    run->watch = (mn_stopwatch){.running = false};
}

static mn_status start_epoch(mn_run *run)
{
    run->epoch_started = mn_clock_seconds();
    MN_TRY(mn_loader_start(run->train, run->progress.epoch, run->progress.position, &run->error));
    watch_resume(run);
    return MN_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* What is due after a window. The last epoch of a run may be cut short by --steps; it is an epoch
 * all the same. One cut short by --stop-after or cancel will be gone on with. */
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
        next_epoch(run);
    if (save && !stop)
        MN_TRY(mn_run_save(run));
    if (!stop && !whole)
        watch_resume(run);
    return MN_OK;
}

static mn_status run_loop(mn_run *run)
{
    const mn_train_options *o = &run->options;
    bool started = false;
    while (run->progress.step < run->last && !run->cancelled) {
        if (!started || run->progress.position == 0)
            MN_TRY(start_epoch(run));
        started = true;
        MN_TRY(run_window(run));
        run->cancelled = o->cancel && o->cancel(o->user);
        MN_TRY(after_window(run, run->cancelled || run->progress.step >= run->last));
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
    mn_train_result result;
    mn_allocator allocator;
    mn_list steps, epochs;
    char *model, *data;
} owned_result;

static void free_owned(owned_result *owned)
{
    mn_allocator allocator = owned->allocator;
    mn_list_free(&owned->steps);
    mn_list_free(&owned->epochs);
    mn_text_free(&allocator, owned->model);
    mn_text_free(&allocator, owned->data);
    allocator.free(allocator.user, owned, sizeof *owned);
}

static void fill_result(owned_result *owned, const mn_run *run)
{
    owned->result = (mn_train_result){
        .model = owned->model,
        .data = owned->data,
        .parameters = run->parameters,
        .epoch_count = owned->epochs.count,
        .epochs = owned->epochs.items,
        .step_count = owned->steps.count,
        .step_results = owned->steps.items,
        .total_steps = run->progress.step,
        .seconds = mn_clock_seconds() - run->started,
        .cancelled = run->cancelled,
        .collapsed_step = run->collapsed_step,
    };
}

static mn_train_result *make_result(mn_run *run)
{
    owned_result *owned =
        run->allocator.alloc(run->allocator.user, sizeof *owned, _Alignof(owned_result));
    if (owned) {
        memset(owned, 0, sizeof *owned);
        owned->allocator = run->allocator;
        owned->model = mn_text_copy(&run->allocator, run->options.model);
        owned->data = mn_text_copy(&run->allocator, mn_run_data_name(run));
    }
    if (!owned || !owned->model || !owned->data) {
        mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the result of a run");
        if (owned)
            free_owned(owned);
        return NULL;
    }
    owned->steps = run->step_results;
    owned->epochs = run->epoch_results;
    run->step_results = run->epoch_results = (mn_list){.items = NULL};
    fill_result(owned, run);
    return &owned->result;
}

void mn_train_result_free(mn_train_result *result)
{
    /* The result is the first member. */
    if (result)
        free_owned((owned_result *)result);
}

/* The first error, wherever it was met. */
static mn_error find_error(const mn_run *run, mn_status status)
{
    mn_error error = run->error;
    if (error.status != MN_OK)
        return error;
    if (run->context && mn_error_status(run->context) != MN_OK)
        mn_error_set(&error, mn_error_status(run->context), "%s", mn_error_message(run->context));
    else
        mn_error_set(&error, status == MN_OK ? MN_ERR_INTERNAL : status,
                     "step %lld: the step function failed without saying why (%s)",
                     (long long)run->progress.step + 1, mn_status_name(status));
    return error;
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
    if (!result && error)
        *error = find_error(&run, status);
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
