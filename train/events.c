/* train/events.c: what happens in a run as JSON lines for options.log. */
#include "train/train.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define COUNT_OF(table) (sizeof(table) / sizeof *(table))

static mn_json_out *begin(mn_run *run, const char *event)
{
    if (!run->options.log)
        return NULL;
    mn_out_reset(&run->json);
    mn_out_begin(&run->json, NULL, '{');
    mn_out_string(&run->json, "event", event);
    return &run->json;
}

static mn_status end(mn_run *run)
{
    mn_out_end(&run->json, '}');
    const char *line = mn_out_text(&run->json);
    if (!line)
        return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for a line of the log");
    run->options.log(run->options.user, line);
    return MN_OK;
}

#define AT(member) offsetof(mn_train_options, member)
static const mn_field run_fields[] = {
    {"epochs", MN_FIELD_INTEGER, AT(epochs)},
    {"steps", MN_FIELD_INTEGER, AT(steps)},
    {"batch", MN_FIELD_INTEGER, AT(batch)},
    {"accumulate", MN_FIELD_INTEGER, AT(accumulate)},
    {"optimizer", MN_FIELD_STRING, AT(optimizer)},
    {"parameters", MN_FIELD_STRING, AT(parameters)},
    {"lr", MN_FIELD_NUMBER, AT(lr)},
    {"momentum", MN_FIELD_NUMBER, AT(momentum)},
    {"weight_decay", MN_FIELD_NUMBER, AT(weight_decay)},
};
static const mn_field more_fields[] = {
    {"warmup", MN_FIELD_INTEGER, AT(warmup)},
    {"step_size", MN_FIELD_INTEGER, AT(step_size)},
    {"gamma", MN_FIELD_NUMBER, AT(gamma)},
    {"clip_norm", MN_FIELD_NUMBER, AT(clip_norm)},
    {"init_scale", MN_FIELD_NUMBER, AT(scaler.init_scale)},
    {"growth_factor", MN_FIELD_NUMBER, AT(scaler.growth_factor)},
    {"backoff_factor", MN_FIELD_NUMBER, AT(scaler.backoff_factor)},
    {"growth_interval", MN_FIELD_INTEGER, AT(scaler.growth_interval)},
    {"min_scale", MN_FIELD_NUMBER, AT(scaler.min_scale)},
    {"max_scale", MN_FIELD_NUMBER, AT(scaler.max_scale)},
    {"retry", MN_FIELD_INTEGER, AT(retry)},
    {"seed", MN_FIELD_UNSIGNED, AT(seed)},
    {"validation", MN_FIELD_NUMBER, AT(validation)},
    {"limit", MN_FIELD_INTEGER, AT(limit)},
    {"rules", MN_FIELD_STRING, AT(rules)},
};
#undef AT

void mn_config_json(mn_json_out *json, const mn_train_options *options, const char *model,
                    const char *data)
{
    mn_train_options known = *options;
    if (mn_isnan_f64(known.lr))
        known.lr = mn_default_lr(options->optimizer);
    if (mn_isnan_f64(known.gamma))
        known.gamma = MN_DEFAULT_GAMMA;
    mn_out_string(json, "model", model);
    mn_out_string(json, "data", data);
    mn_out_fields(json, run_fields, COUNT_OF(run_fields), &known);
    mn_out_string(json, "schedule", mn_schedule_name(options->schedule));
    mn_out_fields(json, more_fields, COUNT_OF(more_fields), &known);
}

mn_status mn_event_start(mn_run *run)
{
    mn_json_out *json = begin(run, "start");
    if (!json)
        return MN_OK;
    mn_context_info info = mn_context_info_get(run->context);
    mn_out_string(json, "version", mn_version());
    mn_out_string(json, "device", info.device);
    mn_out_string(json, "cpu", info.cpu);
    mn_out_string(json, "kernels", info.kernels);
    mn_out_integer(json, "threads", info.threads);
    mn_out_string(json, "model", run->options.model);
    mn_out_integer(json, "parameters", run->parameters);
    mn_out_string(json, "amp", mn_amp_name(run->options.amp));
    mn_out_unsigned(json, "seed", run->options.seed);
    mn_out_begin(json, "config", '{');
    mn_config_json(json, &run->options, run->options.model, run->info.name);
    mn_out_end(json, '}');
    mn_out_integer(json, "train_images", run->count);
    mn_out_integer(json, "planned_steps", run->planned);
    mn_out_integer(json, "first_step", run->progress.step + 1);
    return end(run);
}

#define AT(member) offsetof(mn_step_result, member)
mn_status mn_event_step(mn_run *run, const mn_step_result *result)
{
    static const mn_field fields[] = {
        {"step", MN_FIELD_INTEGER, AT(step)},          {"epoch", MN_FIELD_INTEGER, AT(epoch)},
        {"loss", MN_FIELD_NUMBER, AT(loss)},           {"lr", MN_FIELD_NUMBER, AT(lr)},
        {"scale", MN_FIELD_NUMBER, AT(scale)},         {"skipped", MN_FIELD_BOOLEAN, AT(skipped)},
        {"grad_norm", MN_FIELD_NUMBER, AT(grad_norm)}, {"retries", MN_FIELD_INTEGER, AT(retries)},
    };
    mn_json_out *json = begin(run, "step");
    if (!json)
        return MN_OK;
    mn_out_fields(json, fields, COUNT_OF(fields), result);
    return end(run);
}
#undef AT

/* Texts for the bits of MN_TROUBLE_*, lowest first. */
#define SPELL(number) #number
#define COUNT(number) SPELL(number)
mn_status mn_event_troubles(mn_run *run, unsigned troubles, const mn_step_result *result)
{
    static const char *const conditions[] = {"skips_in_row", "skip_rate", "overflow_at_low_scale",
                                             "scale_at_floor"};
    static const char *const texts[] = {
        COUNT(MN_SKIPS_IN_ROW) " overflows in a row with no applied step in between",
        "more than " COUNT(MN_SKIPS_IN_WINDOW) " of the last " COUNT(
            MN_SKIP_WINDOW) " steps have overflowed, growth of the scale left out",
        "an overflow at a scale of 1 or less is not the scale's doing",
        "the scale is down to min_scale, where the next overflow ends the run"};
    troubles &= ~run->warned;
    run->warned |= troubles;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        char text[512];
        if (!(troubles >> i & 1))
            continue;
        snprintf(text, sizeof text,
                 "step %lld, loss scale %g: %s; a skipped update is a diagnosis, not a sign of "
                 "convergence: look at the loss and the data of these steps, and try --amp bf16, "
                 "--rules or a smaller --lr",
                 (long long)result->step, result->scale, texts[i]);
        if (run->options.notice)
            run->options.notice(run->options.user, text);
        mn_json_out *json = begin(run, "warning");
        if (!json)
            continue;
        mn_out_string(json, "condition", conditions[i]);
        mn_out_integer(json, "step", result->step);
        mn_out_number(json, "scale", result->scale);
        mn_out_string(json, "text", text);
        MN_TRY(end(run));
    }
    return MN_OK;
}

/* The op is the one whose gradient overflowed; "ran" is what computed it. */
void mn_overflow_json(mn_json_out *json, const mn_overflow *overflow)
{
    static const char *const causes[] = {"forward", "backward", "update", "input"};
    const mn_monitor_row *row = overflow->row;
    char text[512];
    mn_out_integer(json, "step", overflow->step);
    mn_out_string(json, "op", row->backward_of[0] ? row->backward_of : row->op);
    mn_out_string(json, "layer", row->layer);
    mn_out_string(json, "direction", mn_direction_name(row->direction));
    mn_out_string(json, "dtype", mn_dtype_name(row->dtype));
    mn_out_number(json, "max_abs", overflow->largest);
    mn_out_integer(json, "infinities", overflow->infinities);
    mn_out_integer(json, "nans", overflow->nans);
    mn_out_string(json, "ran", row->op);
    mn_out_string(json, "parameter", row->parameter);
    mn_out_string(json, "cause", causes[overflow->cause]);
    mn_out_string(json, "input", overflow->input_name);
    mn_out_string(json, "text", mn_overflow_describe(overflow, text, sizeof text));
}

mn_status mn_event_overflow(mn_run *run, const mn_overflow *overflow)
{
    mn_json_out *json = begin(run, "overflow");
    if (!json)
        return MN_OK;
    mn_overflow_json(json, overflow);
    return end(run);
}

/* A loss that is not a number is told from one not measured by its accuracy. */
static void put_loss(mn_json_out *json, const char *key, double loss, double accuracy)
{
    if (mn_isnan_f64(accuracy))
        mn_out_measured(json, key, accuracy);
    else
        mn_out_number(json, key, loss);
}

#define AT(member) offsetof(mn_epoch_result, member)
void mn_epoch_json(mn_json_out *json, const mn_epoch_result *result)
{
    static const mn_field fields[] = {
        {"epoch", MN_FIELD_INTEGER, AT(epoch)},
        {"steps", MN_FIELD_INTEGER, AT(steps)},
        {"train_loss", MN_FIELD_NUMBER, AT(train_loss)},
        {"train_accuracy", MN_FIELD_MEASURED, AT(train_accuracy)},
        {"validation_accuracy", MN_FIELD_MEASURED, AT(validation_accuracy)},
        {"validation_accuracy_fp32", MN_FIELD_MEASURED, AT(validation_accuracy_fp32)},
        {"test_accuracy", MN_FIELD_MEASURED, AT(test_accuracy)},
        {"test_accuracy_fp32", MN_FIELD_MEASURED, AT(test_accuracy_fp32)},
        {"images_per_s", MN_FIELD_MEASURED, AT(images_per_s)},
        {"data_wait_fraction", MN_FIELD_MEASURED, AT(data_wait_fraction)},
        {"seconds", MN_FIELD_NUMBER, AT(seconds)},
        {"skipped_steps", MN_FIELD_INTEGER, AT(skipped_steps)},
        {"skipped_warmup", MN_FIELD_INTEGER, AT(skipped_warmup)},
        {"skipped_growth", MN_FIELD_INTEGER, AT(skipped_growth)},
        {"retries", MN_FIELD_INTEGER, AT(retries)},
        {"scale", MN_FIELD_NUMBER, AT(scale)},
        {"nonfinite", MN_FIELD_INTEGER, AT(nonfinite)},
        {"peak_tensor_bytes", MN_FIELD_UNSIGNED, AT(peak_tensor_bytes)},
        {"peak_rss_bytes", MN_FIELD_UNSIGNED, AT(peak_rss_bytes)},
        {"underflow_fraction", MN_FIELD_MEASURED, AT(underflow_fraction)},
        {"underflow_forward", MN_FIELD_MEASURED, AT(underflow_forward)},
        {"underflow_backward", MN_FIELD_MEASURED, AT(underflow_backward)},
    };
    mn_out_fields(json, fields, COUNT_OF(fields), result);
    put_loss(json, "validation_loss", result->validation_loss, result->validation_accuracy);
    put_loss(json, "test_loss", result->test_loss, result->test_accuracy);
}
#undef AT

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
    mn_out_integer(json, "epochs", run->progress.epoch);
    mn_out_integer(json, "steps", run->progress.step);
    mn_out_measured(json, "test_accuracy", final_accuracy(run));
    mn_out_number(json, "seconds", mn_clock_seconds() - run->started);
    mn_out_boolean(json, "cancelled", run->cancelled);
    return end(run);
}
