/* train/shadow_model.c: the shadow check of a model by name or of a checkpoint's. */
#include "train/train.h"

mn_shadow_model_options mn_shadow_model_options_default(void)
{
    return (mn_shadow_model_options){.size = sizeof(mn_shadow_model_options),
                                     .model = "lenet5",
                                     .batch = 64,
                                     .check = mn_shadow_options_default(),
                                     .context = mn_context_options_default()};
}

typedef struct images {
    mn_evaluation *e;
    mn_batch batch;
    int64_t count; /* batches so far */
    int64_t epoch; /* to begin next */
} images;

static mn_tensor *loss_of(mn_context *context, int64_t batch, void *user)
{
    images *i = user;
    mn_tensor *x, *labels;
    for (; i->count <= batch; i->count++)
        if (mn_batch_next(i->e->loader, &i->epoch, &i->batch, &i->e->error) != MN_OK)
            return NULL;
    if (mn_batch_upload(context, &i->batch, &x, &labels) != MN_OK)
        return NULL;
    return mn_cross_entropy(mn_module_forward(i->e->model, x), labels, NULL);
}

static mn_status read_options(mn_evaluation *e, mn_shadow_model_options *o,
                              const mn_shadow_model_options *given)
{
    MN_TRY(mn_options_copy(&e->error, "mn_shadow_model", o, sizeof *o, given));
    if (!o->model && !o->checkpoint)
        return mn_error_set(&e->error, MN_ERR_ARGUMENT, "shadow check: there is no model");
    e->options = mn_eval_options_default();
    e->options.checkpoint = o->checkpoint;
    e->options.data = o->data || o->checkpoint ? o->data : mn_train_options_default().data;
    e->options.batch = o->batch;
    e->options.context = o->context;
    e->name = o->model;
    e->rules = o->rules;
    const mn_integer_rule rules[] = {{"--batch", o->batch, 1}, {"--batches", o->check.batches, 1}};
    return mn_check_integers(rules, 2, &e->error);
}

mn_shadow_report *mn_shadow_model(const mn_shadow_model_options *options, mn_error *error)
{
    mn_evaluation e = {.name = NULL};
    mn_shadow_model_options o = mn_shadow_model_options_default();
    mn_shadow_report *report = NULL;
    images i = {.e = &e};
    mn_status status = read_options(&e, &o, options);
    if (status == MN_OK)
        status = mn_evaluation_open(&e);
    if (status == MN_OK)
        report = mn_shadow_check(e.context, loss_of, &i, &o.check);
    if (!report)
        mn_error_give(error, &e.error, e.context, status, "shadow check");
    mn_evaluation_close(&e);
    return report;
}
