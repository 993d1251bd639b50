/* train/options.c: defaults of training, evaluation and bench, and the check of a run's options.
 * Messages name options as the command line does. */
#include "train/train.h"

#include <math.h>
#include <string.h>

mn_train_options mn_train_options_default(void)
{
    return (mn_train_options){
        .size = sizeof(mn_train_options),
        .model = "lenet5",
        .data = "fashion-mnist",
        .amp = MN_F32,
        .epochs = 5,
        .batch = 64,
        .accumulate = 1,
        .optimizer = "sgd",
        .parameters = "f32",
        .lr = (double)NAN,
        .momentum = 0.9,
        .weight_decay = 5e-4,
        .schedule = MN_SCHEDULE_COSINE,
        .gamma = (double)NAN,
        .clip_norm = (double)INFINITY,
        .scaler = mn_grad_scaler_options_default(),
        .seed = 1,
        .validation = 0.1,
        .context = mn_context_options_default(),
    };
}

mn_eval_options mn_eval_options_default(void)
{
    return (mn_eval_options){
        .size = sizeof(mn_eval_options),
        .amp = MN_F32,
        .batch = 256,
        .context = mn_context_options_default(),
    };
}

mn_bench_options mn_bench_options_default(void)
{
    return (mn_bench_options){
        .size = sizeof(mn_bench_options),
        .model = "lenet5",
        .batch = 64,
        .steps = 50,
        .warmup = 5,
        .amp = MN_F32,
        .height = 28,
        .width = 28,
        .channels = 1,
        .classes = 10,
        .context = mn_context_options_default(),
    };
}

const char *mn_amp_name(mn_dtype amp)
{
    return amp == MN_F32 ? "off" : amp == MN_BF16 ? "bf16" : amp == MN_F16 ? "fp16" : NULL;
}

const char *mn_schedule_name(mn_schedule_kind kind)
{
    static const char *const names[] = {"constant", "cosine", "step", "onecycle"};
    const size_t index = (size_t)kind;
    return index < sizeof names / sizeof *names ? names[index] : NULL;
}

mn_status mn_check_integers(const mn_integer_rule *rules, size_t count, mn_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (rules[i].value < rules[i].smallest)
            return mn_error_set(error, MN_ERR_ARGUMENT, "%s must be at least %lld, got %lld",
                                rules[i].name, (long long)rules[i].smallest,
                                (long long)rules[i].value);
    }
    return MN_OK;
}

mn_status mn_check_amp(mn_dtype amp, mn_error *error)
{
    if (mn_amp_name(amp))
        return MN_OK;
    return mn_error_set(error, MN_ERR_ARGUMENT, "--amp must be off, bf16 or fp16, got %s",
                        mn_dtype_name(amp));
}

double mn_default_lr(const char *optimizer)
{
    static const struct {
        const char *name;
        double lr;
    } known[] = {{"sgd", 0.05}, {"adam", 1e-3}, {"adamw", 1e-3}, {"rmsprop", 1e-3}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (optimizer && strcmp(optimizer, known[i].name) == 0)
            return known[i].lr;
    return (double)NAN;
}

bool mn_parameters_known(const char *parameters, mn_rounding *rounding)
{
    static const char *const names[] = {"bf16", "bf16-master", "bf16-stochastic"};
    *rounding = MN_ROUNDING_NEAREST;
    for (int i = 0; i < 3; i++) {
        if (strcmp(parameters, names[i]) == 0) {
            *rounding = (mn_rounding)i;
            return true;
        }
    }
    return strcmp(parameters, "f32") == 0;
}

static mn_status check_integers(const mn_train_options *o, mn_error *error)
{
    const mn_integer_rule rules[] = {
        {"--epochs", o->epochs, o->steps > 0 ? 0 : 1},
        {"--steps", o->steps, 0},
        {"--stop-after", o->stop_after, 0},
        {"--batch", o->batch, 1},
        {"--accumulate", o->accumulate, 1},
        {"--limit", o->limit, 0},
        {"--checkpoint-every", o->checkpoint_every, 0},
        {"--warmup", o->warmup, 0},
        {"--retry", o->retry, 0},
        {"--monitor-every", o->monitor, 0},
        {"--step-size", o->step_size, o->schedule == MN_SCHEDULE_STEP},
    };
    MN_TRY(mn_check_integers(rules, sizeof rules / sizeof *rules, error));
    if (o->batch > INT64_MAX / o->accumulate)
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--batch %lld times --accumulate %lld is too "
                            "large",
                            (long long)o->batch, (long long)o->accumulate);
    return MN_OK;
}

static mn_status check_numbers(const mn_train_options *o, mn_error *error)
{
    static const char *const names[] = {"--lr", "--momentum", "--weight-decay", "--gamma"};
    const double values[] = {o->lr, o->momentum, o->weight_decay, o->gamma};
    for (int i = 0; i < 4; i++) {
        if (!mn_isfinite_f64(values[i]) || values[i] < 0.0)
            return mn_error_set(error, MN_ERR_ARGUMENT,
                                "%s must be a finite number of at least 0, got %g", names[i],
                                values[i]);
    }
    if (mn_isnan_f64(o->clip_norm) || o->clip_norm <= 0.0)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--clip-norm must be above 0, got %g",
                            o->clip_norm);
    /* Adam has none. */
    if (o->momentum >= 1.0 && strncmp(o->optimizer, "adam", 4) != 0)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--momentum must be below 1, got %g",
                            o->momentum);
    if (mn_isnan_f64(o->scaler.init_scale) || o->scaler.init_scale <= 0.0)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--init-scale must be above 0, got %g",
                            o->scaler.init_scale);
    if (!mn_is_within(o->validation, 0.0, 1.0) || o->validation == 1.0)
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--validation must be at least 0 and below 1, got %g", o->validation);
    return MN_OK;
}

static mn_status check_choices(const mn_train_options *o, mn_error *error)
{
    mn_rounding rounding;
    MN_TRY(mn_check_amp(o->amp, error));
    if (mn_isnan_f64(mn_default_lr(o->optimizer)))
        return mn_error_set(error, MN_ERR_UNSUPPORTED,
                            "--optimizer %.100s is not available; there are sgd, adam, adamw and "
                            "rmsprop",
                            o->optimizer);
    if (!mn_parameters_known(o->parameters, &rounding))
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--parameters must be f32, bf16, bf16-master or bf16-stochastic, got "
                            "%.100s",
                            o->parameters);
    if (!mn_schedule_name(o->schedule))
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--schedule must be constant, step, cosine or onecycle, got number %d",
                            (int)o->schedule);
    if (o->schedule == MN_SCHEDULE_ONE_CYCLE && o->warmup > 0)
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--warmup is not for --schedule onecycle, which warms up itself");
    if (o->schedule != MN_SCHEDULE_STEP && (o->step_size > 0 || !mn_isnan_f64(o->gamma)))
        return mn_error_set(error, MN_ERR_ARGUMENT, "%s is of --schedule step, not of %s",
                            o->step_size > 0 ? "--step-size" : "--gamma",
                            mn_schedule_name(o->schedule));
    if (o->resume_anyway && !o->resume)
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--resume-anyway needs --resume, the checkpoint to go on from");
    if (o->checkpoint_every > 0 && !o->checkpoint)
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--checkpoint-every needs --checkpoint, the file to write");
    return MN_OK;
}

mn_status mn_train_options_read(const mn_train_options *given, mn_train_options *options,
                                mn_error *error)
{
    mn_train_options defaults = mn_train_options_default();
    *options = defaults;
    MN_TRY(mn_options_copy(error, "mn_train", options, sizeof *options, given));
    if (!options->model)
        options->model = defaults.model;
    if (!options->data)
        options->data = defaults.data;
    if (!options->optimizer)
        options->optimizer = defaults.optimizer;
    if (!options->parameters)
        options->parameters = defaults.parameters;
    MN_TRY(check_choices(options, error));
    if (mn_isnan_f64(options->lr))
        options->lr = mn_default_lr(options->optimizer);
    if (mn_isnan_f64(options->gamma))
        options->gamma = MN_DEFAULT_GAMMA;
    MN_TRY(check_integers(options, error));
    return check_numbers(options, error);
}
