/* What a model costs. Memory is measured, not estimated. What an image leaves for backward is what
 * a batch of one image more leaves more: parameters, their 16-bit shadows and whatever else is
 * there once fall out. */
#include "models/module.h"

#include "autograd/autograd.h"

typedef struct pass {
    mn_dtype amp; /* MN_F32: no autocast */
    bool training;
} pass;

/* One forward pass of `images` black images. Training: bytes left when it is done; else the most at
 * once; each beyond those that were there before, and the images among them. */
static uint64_t run(mn_module *net, const mn_model_options *o, int images, pass p)
{
    mn_context *context = net->context;
    mn_scope scope = mn_scope_begin(context);
    if (!p.training)
        mn_no_grad_begin(context);
    mn_module_set_training(net, p.training);
    uint64_t before = mn_memory_stats_get(context).live_bytes;
    mn_memory_reset_peak(context);
    mn_autocast_begin(context, p.amp);
    const int64_t shape[4] = {images, o->height, o->width, o->channels};
    mn_module_forward(net, mn_full(context, MN_F32, 4, shape, 0.0));
    mn_synchronize(context);
    mn_memory_stats stats = mn_memory_stats_get(context);
    mn_scope_end(context, scope); /* and autocast and no-grad */
    return (p.training ? stats.live_bytes : stats.peak_bytes) - before;
}

static uint64_t kept(mn_module *net, const mn_model_options *o, mn_dtype amp)
{
    const pass p = {amp, true};
    run(net, o, 2, p); /* makes what stays, such as shadows */
    uint64_t two = run(net, o, 2, p), three = run(net, o, 3, p);
    return three > two ? three - two : 0;
}

mn_status mn_model_summarize(mn_context *context, const char *name, const mn_model_options *options,
                             mn_model_summary *summary)
{
    if (context == NULL)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(context));
    if (summary == NULL)
        return mn_fail(context, MN_ERR_ARGUMENT, "model summary: summary is NULL");
    if (!mn_is_recording(context))
        return mn_fail(context, MN_ERR_STATE,
                       "model summary: nothing is kept for backward in a no-grad section");
    mn_module *net = mn_model_create(context, name, options);
    if (net == NULL)
        return mn_error_status(context);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_model_options o = mn_model_options_default();
    if (options != NULL)
        o = *options;
    mn_model_summary result = {0};
    for (int i = 0; i < count; i++)
        result.parameters += mn_tensor_numel(parameters[i]);
    result.kept_bytes_f32 = kept(net, &o, MN_F32);
    result.kept_bytes_16bit = kept(net, &o, MN_BF16);
    result.inference_peak_bytes = run(net, &o, 1, (pass){MN_F32, false});
    result.forward_flops = mn_module_forward_flops(net, 1);
    mn_module_free(net);
    if (mn_ok(context))
        *summary = result;
    return mn_error_status(context);
}
