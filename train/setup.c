/* train/setup.c: making everything that a run needs: data sets, context, model, optimizer, scaler,
 * loaders and counts, and the state of a checkpoint to resume; and freeing it. */
#include "train/train.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- data ------------------------------------------------------------------------------------ */

mn_status mn_check_fits(const mn_dataset *dataset, const mn_dataset_info *like, const char *what,
                        mn_error *error)
{
    mn_dataset_info info = mn_dataset_info_get(dataset);
    if (info.height != like->height || info.width != like->width || info.channels != like->channels)
        return mn_error_set(error, MN_ERR_MISMATCH,
                            "%s: images are %lldx%lldx%lld (height, width, channels), want "
                            "%lldx%lldx%lld",
                            what, (long long)info.height, (long long)info.width,
                            (long long)info.channels, (long long)like->height,
                            (long long)like->width, (long long)like->channels);
    if (info.classes != like->classes)
        return mn_error_set(error, MN_ERR_MISMATCH, "%s: there are %d classes, want %d", what,
                            info.classes, like->classes);
    return MN_OK;
}

static mn_status open_data(mn_run *run)
{
    const mn_train_options *o = &run->options;
    run->train_set = o->train_set;
    run->test_set = o->test_set;
    if (!run->train_set) {
        run->train_set = run->own_train =
            mn_dataset_open(o->data, true, &run->allocator, &run->error);
        /* A training set given without a test set: nothing is tested. */
        if (run->train_set && !run->test_set)
            run->test_set = run->own_test =
                mn_dataset_open(o->data, false, &run->allocator, &run->error);
        MN_TRY(run->error.status);
    }
    run->info = mn_dataset_info_get(run->train_set);
    return run->test_set ? mn_check_fits(run->test_set, &run->info, "test data", &run->error)
                         : MN_OK;
}

static mn_loader *open_loader(mn_run *run, const mn_dataset *dataset, bool training, bool held_out)
{
    const mn_train_options *o = &run->options;
    mn_loader_options options = mn_loader_options_default();
    bool split = dataset == run->train_set;
    options.batch = o->batch;
    options.shuffle = training;
    options.seed = o->seed;
    options.limit = split ? o->limit : 0;
    options.validation = split ? o->validation : 0.0;
    options.held_out = held_out;
    options.normalization = run->normalization;
    options.allocator = run->allocator;
    return mn_loader_create(dataset, &options, &run->error);
}

static mn_status open_loaders(mn_run *run)
{
    run->train = open_loader(run, run->train_set, true, false);
    if (run->train && run->options.validation > 0.0)
        run->validation = open_loader(run, run->train_set, false, true);
    if (run->error.status == MN_OK && run->test_set)
        run->test = open_loader(run, run->test_set, false, false);
    return run->error.status;
}

/* ---- counts ---------------------------------------------------------------------------------- */

static mn_status plan_steps(mn_run *run)
{
    const mn_train_options *o = &run->options;
    int64_t window = o->batch * o->accumulate;
    run->count = mn_loader_count(run->train);
    run->window = window < run->count ? window : run->count;
    run->steps_per_epoch = run->count / run->window + (run->count % run->window != 0);
    if (o->steps == 0 && o->epochs > INT64_MAX / run->steps_per_epoch)
        return mn_error_set(&run->error, MN_ERR_ARGUMENT, "--epochs %lld is too large",
                            (long long)o->epochs);
    run->planned = o->steps > 0 ? o->steps : o->epochs * run->steps_per_epoch;
    if (o->schedule == MN_SCHEDULE_COSINE && o->warmup >= run->planned)
        return mn_error_set(&run->error, MN_ERR_ARGUMENT,
                            "--warmup %lld must be below the planned steps, %lld",
                            (long long)o->warmup, (long long)run->planned);
    run->epochs = run->planned / run->steps_per_epoch + (run->planned % run->steps_per_epoch != 0);
    run->last = o->stop_after > 0 && o->stop_after < run->planned ? o->stop_after : run->planned;
    return MN_OK;
}

/* ---- what computes --------------------------------------------------------------------------- */

static mn_status open_context(mn_run *run)
{
    mn_context_options options = run->options.context;
    options.seed = run->options.seed;
    if (!options.warn) {
        options.warn = run->options.notice;
        options.warn_user = run->options.user;
    }
    run->context = mn_context_create(&options, &run->error);
    if (!run->context)
        return run->error.status;
    if (run->options.rules)
        MN_TRY(mn_autocast_set_rules(run->context, run->options.rules));
    return mn_autocast_rules_text(run->context, run->rules, sizeof run->rules);
}

mn_module *mn_model_for(mn_context *context, const char *name, const char *parameters,
                        const mn_dataset_info *info, mn_error *error)
{
    mn_model_options options = mn_model_options_default();
    if (info->height > INT32_MAX || info->width > INT32_MAX || info->channels > INT32_MAX) {
        mn_error_set(error, MN_ERR_SHAPE, "images are too large for a model");
        return NULL;
    }
    options.height = (int)info->height;
    options.width = (int)info->width;
    options.channels = (int)info->channels;
    options.classes = info->classes;
    mn_module *model = mn_model_create(context, name, &options);
    if (model && strncmp(parameters, "bf16", 4) == 0)
        mn_module_set_parameter_dtype(model, MN_BF16);
    return model;
}

static mn_optimizer *open_optimizer(const mn_run *run, mn_tensor *const *parameters, int count)
{
    const mn_train_options *o = &run->options;
    const mn_schedule schedule = {.kind = o->schedule,
                                  .total_steps = run->planned,
                                  .step_size = o->step_size,
                                  .gamma = o->gamma,
                                  .warmup_steps = o->warmup};
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adam = mn_adam_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    sgd.lr = adam.lr = rmsprop.lr = o->lr;
    sgd.momentum = rmsprop.momentum = o->momentum;
    sgd.weight_decay = adam.weight_decay = rmsprop.weight_decay = o->weight_decay;
    sgd.schedule = adam.schedule = rmsprop.schedule = schedule;
    mn_parameters_known(o->parameters, &sgd.rounding);
    adam.rounding = rmsprop.rounding = sgd.rounding;
    adam.decoupled = strcmp(o->optimizer, "adamw") == 0;
    if (strcmp(o->optimizer, "sgd") == 0)
        return mn_sgd_create(run->context, parameters, count, &sgd);
    if (strcmp(o->optimizer, "rmsprop") == 0)
        return mn_rmsprop_create(run->context, parameters, count, &rmsprop);
    return mn_adam_create(run->context, parameters, count, &adam);
}

static mn_status open_model(mn_run *run)
{
    const mn_train_options *o = &run->options;
    mn_grad_scaler_options scaler = o->scaler;
    int count = 0;
    run->model = mn_model_for(run->context, o->model, o->parameters, &run->info, &run->error);
    MN_TRY(run->error.status);
    mn_tensor *const *parameters = mn_module_parameters(run->model, &count);
    for (int i = 0; i < count; i++)
        run->parameters += mn_tensor_numel(parameters[i]);
    run->optimizer = open_optimizer(run, parameters, count);
    /* bf16 has the exponents of f32: only f16 needs a scale. */
    scaler.enabled = o->amp == MN_F16;
    run->scaler = mn_grad_scaler_create(run->context, &scaler);
    if (o->retry > 0 && scaler.enabled) {
        run->buffers = mn_module_buffers_create(run->model);
        MN_TRY(mn_error_status(run->context));
    }
    return mn_trainer_open(&run->trainer, run->context);
}

/* Hours of training should not end with a file that cannot be written. */
static mn_status check_checkpoint(mn_run *run, const char *path)
{
    char folder[4096], reason[128];
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return mn_error_set(&run->error, MN_ERR_IO, "--checkpoint %.400s: is %s, not a file", path,
                            S_ISDIR(there.st_mode) ? "a folder" : "a device or pipe");
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder)
        return mn_error_set(&run->error, MN_ERR_ARGUMENT,
                            "--checkpoint: the path is longer than "
                            "%zu bytes",
                            sizeof folder);
    memcpy(folder, path, length);
    folder[length] = '\0';
    if (access(length ? folder : slash ? "/" : ".", W_OK | X_OK) == 0)
        return MN_OK;
    return mn_error_set(&run->error, MN_ERR_IO, "--checkpoint %.400s: cannot write there: %s", path,
                        mn_system_text(errno, reason, sizeof reason));
}

/* ---- all of it ------------------------------------------------------------------------------- */

static mn_status open_parts(mn_run *run, const mn_state_dict *resumed)
{
    if (resumed)
        MN_TRY(mn_checkpoint_normalization(resumed, run->info.channels, &run->normalization));
    else
        MN_TRY(mn_dataset_normalization(run->train_set, run->options.limit, &run->normalization,
                                        &run->error));
    MN_TRY(open_loaders(run));
    MN_TRY(plan_steps(run));
    /* Before the model is made: another model's mismatch should be called by its name. */
    if (resumed)
        MN_TRY(mn_identity_check(run, resumed));
    MN_TRY(open_model(run));
    MN_TRY(mn_run_monitor_open(run));
    return resumed ? mn_run_load(run, resumed) : MN_OK;
}

static mn_status open_all(mn_run *run)
{
    if (run->options.checkpoint)
        MN_TRY(check_checkpoint(run, run->options.checkpoint));
    MN_TRY(open_data(run));
    MN_TRY(open_context(run));
    if (!run->options.resume)
        return open_parts(run, NULL);
    mn_state_dict *resumed = mn_state_dict_read(run->context, run->options.resume);
    if (!resumed)
        return mn_error_status(run->context);
    mn_status status = open_parts(run, resumed);
    mn_state_dict_free(resumed);
    return status;
}

mn_status mn_run_open(mn_run *run, const mn_train_options *options)
{
    memset(run, 0, sizeof *run);
    run->started = mn_clock_seconds();
    run->allocator = mn_allocator_or_default(NULL);
    MN_TRY(mn_train_options_read(options, &run->options, &run->error));
    const mn_allocator *chosen = &run->options.context.allocator;
    MN_TRY(mn_allocator_read(chosen, &run->allocator, &run->error));
    run->step_results = mn_list_new(chosen, sizeof(mn_step_result));
    run->epoch_results = mn_list_new(chosen, sizeof(mn_epoch_result));
    run->kept_images = mn_list_new(chosen, sizeof(float));
    run->kept_labels = mn_list_new(chosen, sizeof(int64_t));
    mn_out_init(&run->json, chosen);
    return open_all(run);
}

mn_status mn_error_give(mn_error *error, const mn_error *own, const mn_context *context,
                        mn_status status, const char *unsaid)
{
    mn_error found = *own;
    if (found.status == MN_OK && context && mn_error_status(context) != MN_OK)
        mn_error_set(&found, mn_error_status(context), "%s", mn_error_message(context));
    mn_error_set(&found, status == MN_OK ? MN_ERR_INTERNAL : status, "%s (%s)", unsaid,
                 mn_status_name(status));
    if (error)
        *error = found;
    return found.status;
}

void mn_run_close(mn_run *run)
{
    mn_loader_free(run->train);
    mn_loader_free(run->validation);
    mn_loader_free(run->test);
    mn_run_monitor_close(run);
    mn_trainer_close(&run->trainer);
    mn_module_buffers_free(run->buffers);
    mn_grad_scaler_free(run->scaler);
    mn_optimizer_free(run->optimizer);
    mn_module_free(run->model);
    mn_context_free(run->context);
    mn_dataset_free(run->own_train);
    mn_dataset_free(run->own_test);
    mn_list_free(&run->step_results);
    mn_list_free(&run->epoch_results);
    mn_list_free(&run->kept_images);
    mn_list_free(&run->kept_labels);
    mn_out_free(&run->json);
}
