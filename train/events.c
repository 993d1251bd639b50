/* train/events.c: what happens in a run as JSON lines for options.log. */
#include "train/train.h"

#include <math.h>

static mn_json_out *begin(mn_run *run, const char *event)
{
    if (!run->options.log)
        return NULL;
    mn_out_reset(&run->json);
    mn_out_begin_object(&run->json);
    mn_out_add_string(&run->json, "event", event);
    return &run->json;
}

static mn_status end(mn_run *run)
{
    mn_out_end_object(&run->json);
    const char *line = mn_out_text(&run->json);
    if (!line)
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for a line of the log");
    run->options.log(run->options.user, line);
    return MN_OK;
}

static void add_scaler(mn_json_out *json, const mn_grad_scaler_options *scaler)
{
    mn_out_add_number(json, "init_scale", scaler->init_scale);
    mn_out_add_number(json, "growth_factor", scaler->growth_factor);
    mn_out_add_number(json, "backoff_factor", scaler->backoff_factor);
    mn_out_add_integer(json, "growth_interval", scaler->growth_interval);
    mn_out_add_number(json, "min_scale", scaler->min_scale);
    mn_out_add_number(json, "max_scale", scaler->max_scale);
}

void mn_config_json(mn_json_out *json, const mn_train_options *options, const char *data)
{
    mn_out_add_string(json, "model", options->model);
    mn_out_add_string(json, "data", data);
    mn_out_add_integer(json, "epochs", options->epochs);
    mn_out_add_integer(json, "steps", options->steps);
    mn_out_add_integer(json, "batch", options->batch);
    mn_out_add_integer(json, "accumulate", options->accumulate);
    mn_out_add_string(json, "optimizer", options->optimizer);
    mn_out_add_number(json, "lr", options->lr);
    mn_out_add_number(json, "momentum", options->momentum);
    mn_out_add_number(json, "weight_decay", options->weight_decay);
    mn_out_add_string(json, "schedule", mn_schedule_name(options->schedule));
    mn_out_add_number(json, "clip_norm", options->clip_norm);
    add_scaler(json, &options->scaler);
    mn_out_add_unsigned(json, "seed", options->seed);
    mn_out_add_number(json, "validation", options->validation);
    mn_out_add_integer(json, "limit", options->limit);
    mn_out_add_string(json, "rules", options->rules);
}

mn_status mn_event_start(mn_run *run)
{
    mn_json_out *json = begin(run, "start");
    if (!json)
        return MN_OK;
    mn_context_info info = mn_context_info_get(run->context);
    mn_out_add_string(json, "version", mn_version());
    mn_out_add_string(json, "device", info.device);
    mn_out_add_string(json, "cpu", info.cpu);
    mn_out_add_string(json, "kernels", info.kernels);
    mn_out_add_integer(json, "threads", info.threads);
    mn_out_add_string(json, "model", run->options.model);
    mn_out_add_integer(json, "parameters", run->parameters);
    mn_out_add_string(json, "amp", mn_amp_name(run->options.amp));
    mn_out_add_unsigned(json, "seed", run->options.seed);
    mn_out_key(json, "config");
    mn_out_begin_object(json);
    mn_config_json(json, &run->options, mn_run_data_name(run));
    mn_out_end_object(json);
    mn_out_add_integer(json, "train_images", run->count);
    mn_out_add_integer(json, "planned_steps", run->planned);
    mn_out_add_integer(json, "first_step", run->progress.step + 1);
    return end(run);
}

mn_status mn_event_step(mn_run *run, const mn_step_result *result)
{
    mn_json_out *json = begin(run, "step");
    if (!json)
        return MN_OK;
    mn_out_add_integer(json, "step", result->step);
    mn_out_add_integer(json, "epoch", result->epoch);
    mn_out_add_number(json, "loss", result->loss);
    mn_out_add_number(json, "lr", result->lr);
    mn_out_add_number(json, "scale", result->scale);
    mn_out_add_boolean(json, "skipped", result->skipped);
    mn_out_add_number(json, "grad_norm", result->grad_norm);
    return end(run);
}

/* A part's loss and accuracies; a loss that is not a number is told from one not measured by its
 * accuracy. */
static void add_part(mn_json_out *json, const char *const keys[3], double loss, double accuracy,
                     double accuracy_fp32)
{
    if (isnan(accuracy))
        mn_out_add_measured(json, keys[0], accuracy);
    else
        mn_out_add_number(json, keys[0], loss);
    mn_out_add_measured(json, keys[1], accuracy);
    mn_out_add_measured(json, keys[2], accuracy_fp32);
}

void mn_epoch_json(mn_json_out *json, const mn_epoch_result *result)
{
    static const char *const validation[3] = {"validation_loss", "validation_accuracy",
                                              "validation_accuracy_fp32"};
    static const char *const test[3] = {"test_loss", "test_accuracy", "test_accuracy_fp32"};
    mn_out_add_integer(json, "epoch", result->epoch);
    mn_out_add_integer(json, "steps", result->steps);
    mn_out_add_number(json, "train_loss", result->train_loss);
    mn_out_add_measured(json, "train_accuracy", result->train_accuracy);
    add_part(json, validation, result->validation_loss, result->validation_accuracy,
             result->validation_accuracy_fp32);
    add_part(json, test, result->test_loss, result->test_accuracy, result->test_accuracy_fp32);
    mn_out_add_measured(json, "images_per_s", result->images_per_s);
    mn_out_add_measured(json, "data_wait_fraction", result->data_wait_fraction);
    mn_out_add_number(json, "seconds", result->seconds);
    mn_out_add_integer(json, "skipped_steps", result->skipped_steps);
    mn_out_add_number(json, "scale", result->scale);
    mn_out_add_integer(json, "nonfinite", result->nonfinite);
    mn_out_add_unsigned(json, "peak_tensor_bytes", result->peak_tensor_bytes);
    mn_out_add_unsigned(json, "peak_rss_bytes", result->peak_rss_bytes);
}

mn_status mn_event_epoch(mn_run *run, const mn_epoch_result *result)
{
    mn_json_out *json = begin(run, "epoch");
    if (!json)
        return MN_OK;
    mn_epoch_json(json, result);
    return end(run);
}

/* The last epoch's test accuracy says something of the end only if no step came after it. */
static double final_accuracy(const mn_run *run)
{
    const mn_epoch_result *results = run->epoch_results.items;
    if (run->epoch_results.count == 0)
        return (double)NAN;
    const mn_epoch_result *newest = &results[run->epoch_results.count - 1];
    return newest->steps == run->progress.step ? newest->test_accuracy : (double)NAN;
}

mn_status mn_event_end(mn_run *run)
{
    mn_json_out *json = begin(run, "end");
    if (!json)
        return MN_OK;
    mn_out_add_integer(json, "epochs", run->progress.epoch);
    mn_out_add_integer(json, "steps", run->progress.step);
    mn_out_add_measured(json, "test_accuracy", final_accuracy(run));
    mn_out_add_number(json, "seconds", mn_clock_seconds() - run->started);
    mn_out_add_boolean(json, "cancelled", run->cancelled);
    return end(run);
}
