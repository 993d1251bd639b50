/* train/evaluate.c: loss and accuracy of a model without gradients, and of a checkpoint's model,
 * which is made again from the file alone. */
#include "train/train.h"

#include "core/state_dict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a model over a loader ------------------------------------------------------------------- */

/* Adds a batch to the ring's only row: the sum of loss * images, and the counts. */
static mn_status evaluate_batch(mn_module *model, const mn_batch *batch, mn_dtype amp,
                                mn_tensor *ring, bool first)
{
    mn_context *context = mn_module_context(model);
    mn_tensor *images, *labels, *logits;
    MN_TRY(mn_batch_upload(context, batch, &images, &labels));
    mn_tensor *loss = mn_model_loss(model, images, labels, amp, &logits);
    MN_TRY(mn_error_status(context));
    mn_report_attributes attributes = {.first = first, .weight = (double)batch->count};
    mn_tensor *inputs[] = {ring, loss, logits, labels};
    mn_dispatch1(context, MN_OP_report_loss, inputs, 4, &attributes);
    return mn_error_status(context);
}

static mn_status evaluate_batches(mn_module *model, mn_loader *loader, mn_dtype amp,
                                  mn_tensor *ring, mn_error *error)
{
    mn_batch batch;
    mn_context *context = mn_module_context(model);
    MN_TRY(mn_loader_start(loader, 0, 0, error));
    for (bool first = true;; first = false) {
        MN_TRY(mn_loader_next(loader, &batch, error));
        if (batch.count == 0)
            return MN_OK;
        mn_scope scope = mn_scope_begin(context);
        mn_status status = evaluate_batch(model, &batch, amp, ring, first);
        mn_scope_end(context, scope);
        MN_TRY(status);
    }
}

static mn_status evaluate_all(mn_module *model, mn_loader *loader, mn_dtype amp,
                              mn_metrics *metrics, mn_error *error)
{
    mn_context *context = mn_module_context(model);
    const int64_t shape[2] = {1, MN_RECORD_SIZE};
    double row[MN_RECORD_SIZE];
    mn_tensor *ring = mn_full(context, MN_F64, 2, shape, 0.0);
    MN_TRY(mn_error_status(context));
    MN_TRY(evaluate_batches(model, loader, amp, ring, error));
    MN_TRY(mn_tensor_read(ring, row, sizeof row));
    metrics->count = (int64_t)row[MN_REPORT_SAMPLES];
    metrics->correct = (int64_t)row[MN_REPORT_CORRECT];
    metrics->loss = row[MN_REPORT_LOSS] / row[MN_REPORT_SAMPLES];
    metrics->accuracy = row[MN_REPORT_CORRECT] / row[MN_REPORT_SAMPLES];
    return MN_OK;
}

mn_status mn_evaluate_loader(mn_module *model, mn_loader *loader, mn_dtype amp, mn_metrics *metrics,
                             mn_error *error)
{
    mn_context *context = mn_module_context(model);
    MN_TRY(mn_error_status(context));
    mn_module_evaluating(model, true);
    mn_scope scope = mn_scope_begin(context);
    mn_no_grad_begin(context);
    mn_status status = evaluate_all(model, loader, amp, metrics, error);
    mn_no_grad_end(context);
    mn_scope_end(context, scope);
    mn_module_evaluating(model, false);
    return status;
}

mn_status mn_evaluate(mn_module *model, mn_loader *loader, mn_dtype amp, mn_metrics *metrics,
                      mn_error *error)
{
    mn_error local = {.status = MN_OK};
    mn_status status;
    if (!model || !loader || !metrics)
        status = mn_error_set(&local, MN_ERR_ARGUMENT, "evaluate: %s is NULL",
                              !model    ? "model"
                              : !loader ? "loader"
                                        : "metrics");
    else if (!mn_amp_name(amp))
        status = mn_error_set(&local, MN_ERR_ARGUMENT,
                              "evaluate: amp must be f32 (off), bf16 or f16, got %s",
                              mn_dtype_name(amp));
    else
        status = mn_evaluate_loader(model, loader, amp, metrics, &local);
    if (status != MN_OK)
        mn_error_give(error, &local, mn_module_context(model), status, "evaluate");
    return status;
}

/* ---- a checkpoint's model -------------------------------------------------------------------- */

static mn_status read_options(mn_evaluation *e, const mn_eval_options *given)
{
    mn_eval_options *o = &e->options;
    *o = mn_eval_options_default();
    MN_TRY(mn_options_copy(&e->error, "mn_eval", o, sizeof *o, given));
    if (!o->checkpoint)
        return mn_error_set(&e->error, MN_ERR_ARGUMENT,
                            "--checkpoint, the file to evaluate, is "
                            "missing");
    const mn_integer_rule rules[] = {{"--batch", o->batch, 1}, {"--limit", o->limit, 0}};
    MN_TRY(mn_check_integers(rules, 2, &e->error));
    return mn_check_amp(o->amp, &e->error);
}

static mn_status wanted_number(mn_evaluation *e, const char *key, int64_t *value)
{
    const char *text = mn_state_dict_get_string(e->dict, key);
    char *rest = NULL;
    if (!text)
        return mn_error_set(&e->error, MN_ERR_MISMATCH,
                            "%.400s is no checkpoint of a run of minim: it does not say its %s",
                            e->options.checkpoint, key);
    errno = 0;
    long long number = strtoll(text, &rest, 10);
    if (errno || rest == text || *rest || number < 1 || number > INT32_MAX)
        return mn_error_set(&e->error, MN_ERR_FORMAT,
                            "%.400s: %s is \"%.40s\", not a number above "
                            "0",
                            e->options.checkpoint, key, text);
    *value = number;
    return MN_OK;
}

static mn_status read_identity(mn_evaluation *e)
{
    int64_t classes = 0;
    const char *model = mn_state_dict_get_string(e->dict, "model");
    MN_TRY(wanted_number(e, "height", &e->wanted.height));
    MN_TRY(wanted_number(e, "width", &e->wanted.width));
    MN_TRY(wanted_number(e, "channels", &e->wanted.channels));
    MN_TRY(wanted_number(e, "classes", &classes));
    e->wanted.classes = (int)classes;
    for (int i = 0; (e->name = mn_model_name(i)) != NULL; i++)
        if (model && strcmp(e->name, model) == 0)
            return MN_OK;
    return mn_error_set(&e->error, MN_ERR_MISMATCH,
                        "%.400s: this version of minim has no model \"%.80s\"",
                        e->options.checkpoint, model ? model : "");
}

/* Before the model is made: a file that lies about sizes must not cost memory for them. */
static mn_status open_eval_data(mn_evaluation *e)
{
    mn_loader_options options = mn_loader_options_default();
    const mn_allocator *allocator = &e->options.context.allocator;
    const char *spec = e->options.data;
    if (!spec && e->dict)
        spec = mn_state_dict_get_string(e->dict, "data");
    if (!spec || strcmp(spec, "memory") == 0)
        return mn_error_set(
            &e->error, MN_ERR_ARGUMENT,
            "the checkpoint does not say on which data it was trained: give --data");
    e->dataset = mn_dataset_open(spec, !e->dict, allocator, &e->error);
    if (!e->dataset)
        return e->error.status;
    if (e->dict)
        MN_TRY(mn_check_fits(e->dataset, &e->wanted, spec, &e->error));
    else
        e->wanted = mn_dataset_info_get(e->dataset);
    options.batch = e->options.batch;
    options.limit = e->options.limit;
    options.shuffle = false;
    options.allocator = *allocator;
    MN_TRY(e->dict
               ? mn_checkpoint_normalization(e->dict, e->wanted.channels, &options.normalization)
               : mn_dataset_normalization(e->dataset, options.limit, &options.normalization,
                                          &e->error));
    e->loader = mn_loader_create(e->dataset, &options, &e->error);
    return e->loader ? MN_OK : e->error.status;
}

static mn_status open_eval_model(mn_evaluation *e)
{
    const char *rules = e->rules, *parameters = NULL;
    if (e->dict) {
        rules = rules ? rules : mn_state_dict_get_string(e->dict, "rules");
        parameters = mn_state_dict_get_string(e->dict, "parameters");
    }
    e->model =
        mn_model_for(e->context, e->name, parameters ? parameters : "f32", &e->wanted, &e->error);
    MN_TRY(e->error.status);
    if (rules)
        MN_TRY(mn_autocast_set_rules(e->context, rules));
    return e->dict ? mn_module_load_state(e->model, e->dict) : mn_error_status(e->context);
}

mn_status mn_evaluation_open(mn_evaluation *e)
{
    e->context = mn_context_create(&e->options.context, &e->error);
    if (!e->context)
        return e->error.status;
    if (e->options.checkpoint) {
        e->dict = mn_state_dict_read(e->context, e->options.checkpoint);
        MN_TRY(mn_error_status(e->context));
        MN_TRY(read_identity(e));
    }
    MN_TRY(open_eval_data(e));
    return open_eval_model(e);
}

void mn_evaluation_close(mn_evaluation *e)
{
    mn_loader_free(e->loader);
    mn_dataset_free(e->dataset);
    mn_module_free(e->model);
    mn_state_dict_free(e->dict);
    mn_context_free(e->context);
}

mn_status mn_eval_checkpoint(const mn_eval_options *options, mn_metrics *metrics,
                             const char **model_name, mn_error *error)
{
    mn_evaluation e = {.name = NULL};
    mn_status status = read_options(&e, options);
    if (status == MN_OK && !metrics)
        status = mn_error_set(&e.error, MN_ERR_ARGUMENT, "evaluate: metrics is NULL");
    if (status == MN_OK)
        status = mn_evaluation_open(&e);
    if (status == MN_OK)
        status = mn_evaluate_loader(e.model, e.loader, e.options.amp, metrics, &e.error);
    if (status != MN_OK)
        mn_error_give(error, &e.error, e.context, status, "evaluate");
    else if (model_name)
        *model_name = e.name;
    mn_evaluation_close(&e);
    return status;
}
