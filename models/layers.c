/* The layers: each owns its parameters and calls one op. */
#include "models/module.h"

static mn_module *refuse(mn_context *context, const char *text)
{
    if (context != NULL)
        mn_fail(context, MN_ERR_ARGUMENT, "%s", text);
    return NULL;
}

static void add_weight_and_bias(mn_module *module, int ndim, const int64_t *shape, double fan_in,
                                bool bias)
{
    mn_slot_spec spec = {.name = "weight", .ndim = ndim, .fan_in = fan_in};
    for (int i = 0; i < ndim; i++)
        spec.shape[i] = shape[i];
    mn_module_add_slot(module, spec);
    spec.name = "bias";
    spec.ndim = 1;
    if (bias)
        mn_module_add_slot(module, spec);
}

/* A parameter, a 16-bit one widened where dtype is wider. */
static mn_tensor *parameter(const mn_module *module, int slot, mn_dtype dtype)
{
    mn_tensor *p = module->slots[slot];
    return p != NULL && mn_is_16_bit(p->dtype) && !mn_is_16_bit(dtype) ? mn_cast(p, dtype) : p;
}

/* What to widen parameters to for an op whose inputs have one dtype; autocast sees to it itself. */
static mn_dtype dtype_beside(const mn_tensor *x)
{
    const mn_dtype region = mn_autocast_dtype(x->context);
    return region != MN_F32 ? region : x->dtype;
}

/* ---- convolution ----------------------------------------------------------------------------- */

mn_conv2d_layer_options mn_conv2d_layer_options_default(void)
{
    mn_conv2d_layer_options options = {.size = sizeof options,
                                       .in_channels = 1,
                                       .out_channels = 1,
                                       .kernel = {1, 1},
                                       .stride = {1, 1},
                                       .dilation = {1, 1},
                                       .groups = 1,
                                       .bias = true};
    return options;
}

static mn_tensor *run_conv2d(mn_module *module, mn_tensor *x, const mn_fused *how)
{
    const mn_dtype dtype = dtype_beside(x);
    mn_tensor *w = parameter(module, 0, dtype), *b = parameter(module, 1, dtype);
    const mn_conv2d_options *options = &module->options.conv;
    mn_tensor *y = how->give ? mn_conv2d_moments(x, w, b, options, how->give)
                             : (how->relu ? mn_conv2d_relu : mn_conv2d)(x, w, b, options);
    if (how->give)
        mn_retain(*how->give);
    const int64_t *shape = mn_tensor_shape(y);
    const int64_t *filter = mn_tensor_shape(module->slots[0]);
    if (y != NULL)
        module->flops_per_image = 2.0 * (double)(shape[1] * shape[2]) *
                                  (double)(filter[0] * filter[1] * filter[2] * filter[3]);
    return y;
}

static mn_tensor *conv2d_forward(mn_module *module, mn_tensor *x)
{
    return run_conv2d(module, x, &(mn_fused){.relu = false});
}

static const mn_module_class conv2d_class = {"convolution", conv2d_forward};

mn_module *mn_conv2d_layer(mn_context *context, const mn_conv2d_layer_options *options)
{
    mn_conv2d_layer_options o = mn_conv2d_layer_options_default();
    if (!mn_ok(context) ||
        mn_options_copy(&context->error, "mn_conv2d_layer", &o, sizeof o, options) != MN_OK)
        return NULL;
    if (o.in_channels < 1 || o.out_channels < 1 || o.groups < 1 || o.in_channels % o.groups != 0 ||
        o.out_channels % o.groups != 0)
        return refuse(context, "convolution layer: channels must be at least 1 and multiples of "
                               "groups");
    if (o.kernel[0] < 1 || o.kernel[1] < 1)
        return refuse(context, "convolution layer: the kernel must be at least 1x1");
    mn_module *module = mn_module_new(context, &conv2d_class);
    if (module == NULL)
        return NULL;
    module->options.conv = mn_conv2d_options_default();
    for (int i = 0; i < 2; i++) {
        module->options.conv.stride[i] = o.stride[i];
        module->options.conv.padding[i] = o.padding[i];
        module->options.conv.dilation[i] = o.dilation[i];
    }
    module->options.conv.groups = o.groups;
    int64_t per_group = o.in_channels / o.groups;
    double fan_in = (double)per_group * o.kernel[0] * o.kernel[1];
    add_weight_and_bias(module, 4, (int64_t[]){o.out_channels, o.kernel[0], o.kernel[1], per_group},
                        fan_in, o.bias);
    return module;
}

/* ---- linear ---------------------------------------------------------------------------------- */

static mn_tensor *run_linear(mn_module *module, mn_tensor *x, bool relu)
{
    const int64_t *shape = mn_tensor_shape(module->slots[0]);
    const mn_dtype dtype = dtype_beside(x);
    module->flops_per_image = 2.0 * (double)(shape[0] * shape[1]);
    return (relu ? mn_linear_relu : mn_linear)(x, parameter(module, 0, dtype),
                                               parameter(module, 1, dtype));
}

static mn_tensor *linear_forward(mn_module *module, mn_tensor *x)
{
    return run_linear(module, x, false);
}

static mn_tensor *linear_fused(mn_module *module, mn_tensor *x, const mn_fused *how)
{
    return run_linear(module, x, how->relu);
}

static const mn_module_class linear_class = {"linear", linear_forward};

mn_module *mn_linear_layer(mn_context *context, int in_features, int out_features, bool bias)
{
    if (in_features < 1 || out_features < 1)
        return refuse(context, "linear layer: features must be at least 1");
    mn_module *module = mn_module_new(context, &linear_class);
    if (module == NULL)
        return NULL;
    add_weight_and_bias(module, 2, (int64_t[]){out_features, in_features}, in_features, bias);
    return module;
}

/* ---- batch norm ------------------------------------------------------------------------------ */

enum { BN_WEIGHT, BN_BIAS, BN_MEAN, BN_VAR, BN_COUNT };

static mn_tensor *run_batch_norm(mn_module *module, mn_tensor *x, const mn_fused *how)
{
    mn_batch_norm_options options = module->options.norm;
    options.training = mn_module_is_training(module);
    mn_tensor *const *slots = module->slots;
    mn_tensor *running[3] = {slots[BN_MEAN], slots[BN_VAR], slots[BN_COUNT]};
    const mn_dtype wide = x->dtype == MN_F64 ? MN_F64 : MN_F32;
    mn_tensor *weight = parameter(module, BN_WEIGHT, wide);
    mn_tensor *bias = parameter(module, BN_BIAS, wide);
    const mn_norm_then then = how->pool   ? MN_NORM_RELU_POOL
                              : how->relu ? MN_NORM_RELU
                                          : MN_NORM_ALONE;
    return mn_batch_norm_of(x, weight, bias, running, how->residual, how->moments, then, &options);
}

static mn_tensor *batch_norm_forward(mn_module *module, mn_tensor *x)
{
    return run_batch_norm(module, x, &(mn_fused){.relu = false});
}

static const mn_module_class batch_norm_class = {"batch norm", batch_norm_forward};

mn_module *mn_batch_norm_layer(mn_context *context, int channels)
{
    if (channels < 1)
        return refuse(context, "batch norm layer: channels must be at least 1");
    mn_module *module = mn_module_new(context, &batch_norm_class);
    if (module == NULL)
        return NULL;
    module->options.norm = mn_batch_norm_options_default();
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    for (int i = BN_WEIGHT; i <= BN_VAR; i++)
        mn_module_add_slot(module, (mn_slot_spec){.name = names[i],
                                                  .buffer = i >= BN_MEAN,
                                                  .ndim = 1,
                                                  .shape = {channels},
                                                  .start = i == BN_WEIGHT || i == BN_VAR});
    mn_module_add_slot(module, (mn_slot_spec){.name = "num_batches_tracked", .buffer = true});
    return module;
}

/* ---- layer and group norm -------------------------------------------------------------------- */

static mn_tensor *group_norm_forward(mn_module *module, mn_tensor *x)
{
    const mn_dtype dtype = dtype_beside(x);
    mn_tensor *weight = parameter(module, 0, dtype), *bias = parameter(module, 1, dtype);
    if (module->options.groups == 0)
        return mn_layer_norm(x, 1, weight, bias, 1e-5);
    return mn_group_norm(x, module->options.groups, weight, bias, 1e-5);
}

static mn_module *new_group_norm(mn_context *context, const mn_module_class *class, int groups,
                                 int channels)
{
    mn_module *module = mn_module_new(context, class);
    if (module == NULL)
        return NULL;
    module->options.groups = groups;
    mn_module_add_slot(
        module, (mn_slot_spec){.name = "weight", .ndim = 1, .shape = {channels}, .start = 1});
    mn_module_add_slot(module, (mn_slot_spec){.name = "bias", .ndim = 1, .shape = {channels}});
    return module;
}

static const mn_module_class group_norm_class = {"group norm", group_norm_forward};
static const mn_module_class layer_norm_class = {"layer norm", group_norm_forward};

mn_module *mn_group_norm_layer(mn_context *context, int groups, int channels)
{
    if (groups < 1 || channels < 1 || channels % groups != 0)
        return refuse(context, "group norm layer: channels must be a multiple of groups, both at "
                               "least 1");
    return new_group_norm(context, &group_norm_class, groups, channels);
}

mn_module *mn_layer_norm_layer(mn_context *context, int features)
{
    if (features < 1)
        return refuse(context, "layer norm layer: features must be at least 1");
    return new_group_norm(context, &layer_norm_class, 0, features);
}

/* ---- layers without parameters --------------------------------------------------------------- */

static mn_tensor *activation_forward(mn_module *module, mn_tensor *x)
{
    return module->options.function(x);
}

static mn_tensor *leaky_relu_forward(mn_module *module, mn_tensor *x)
{
    return mn_leaky_relu(x, module->options.number);
}

static mn_tensor *dropout_forward(mn_module *module, mn_tensor *x)
{
    return mn_dropout(x, module->options.number, mn_module_is_training(module));
}

static mn_tensor *max_pool2d_forward(mn_module *module, mn_tensor *x)
{
    return mn_max_pool2d(x, &module->options.pool);
}

static mn_tensor *avg_pool2d_forward(mn_module *module, mn_tensor *x)
{
    return mn_avg_pool2d(x, &module->options.pool);
}

static mn_tensor *upsample2d_forward(mn_module *module, mn_tensor *x)
{
    return mn_upsample2d(x, &module->options.upsample);
}

static mn_tensor *global_avg_pool2d_forward(mn_module *module, mn_tensor *x)
{
    (void)module;
    return mn_global_avg_pool2d(x);
}

static mn_tensor *flatten_forward(mn_module *module, mn_tensor *x)
{
    static const int to_chw[4] = {0, 3, 1, 2};
    if (mn_tensor_ndim(x) != 4) {
        mn_fail(module->context, MN_ERR_SHAPE, "flatten: input has %d axes, expected 4 [N,H,W,C]",
                mn_tensor_ndim(x));
        return NULL;
    }
    const int64_t *shape = mn_tensor_shape(x);
    const int64_t flat[2] = {shape[0], shape[1] * shape[2] * shape[3]};
    bool same_order = shape[3] == 1 || shape[1] * shape[2] == 1;
    return mn_reshape(same_order ? x : mn_permute(x, 4, to_chw), 2, flat);
}

static const mn_module_class activation_class = {"activation", activation_forward};
static const mn_module_class leaky_relu_class = {"leaky ReLU", leaky_relu_forward};
static const mn_module_class dropout_class = {"dropout", dropout_forward};
static const mn_module_class max_pool2d_class = {"max pool", max_pool2d_forward};
static const mn_module_class avg_pool2d_class = {"average pool", avg_pool2d_forward};
static const mn_module_class upsample2d_class = {"upsample", upsample2d_forward};
static const mn_module_class global_avg_pool2d_class = {"average pool", global_avg_pool2d_forward};
static const mn_module_class flatten_class = {"flatten", flatten_forward};

mn_module *mn_activation_layer(mn_context *context, mn_activation activation)
{
    static mn_tensor *(*const functions[])(mn_tensor *) = {
        [MN_ACTIVATION_RELU] = mn_relu,       [MN_ACTIVATION_GELU] = mn_gelu,
        [MN_ACTIVATION_SILU] = mn_silu,       [MN_ACTIVATION_TANH] = mn_tanh,
        [MN_ACTIVATION_SIGMOID] = mn_sigmoid,
    };
    if ((size_t)activation >= sizeof functions / sizeof *functions)
        return refuse(context, "activation layer: there is no such activation");
    mn_module *module = mn_module_new(context, &activation_class);
    if (module != NULL)
        module->options.function = functions[activation];
    return module;
}

/* What runs as one op with what is around it, and its ops alone. */
typedef struct fusion {
    const mn_module_class *class;
    mn_tensor *(*forward)(mn_module *module, mn_tensor *x, const mn_fused *how);
    mn_op_id ops[2];
} fusion;

static const fusion *fusion_of(const mn_module *layer)
{
    static const fusion fusions[] = {
        {&conv2d_class, run_conv2d, {MN_OP_conv2d, MN_OP_conv2d}},
        {&linear_class, linear_fused, {MN_OP_linear, MN_OP_linear}},
        {&batch_norm_class, run_batch_norm, {MN_OP_batch_norm, MN_OP_batch_norm_inference}},
    };
    for (size_t i = 0; i < sizeof fusions / sizeof *fusions; i++)
        if (layer->class == fusions[i].class)
            return &fusions[i];
    return NULL;
}

/* Of casts: none was set for one of them alone. */
static bool keep_rules(const mn_context *context, const mn_op_id *ops, int count)
{
    bool overridden = false;
    for (int i = 0; i < count && !overridden; i++)
        mn_autocast_rule(context, &mn_ops[ops[i]], &overridden);
    return !overridden;
}

bool mn_module_fuses(const mn_module *layer, const mn_module *relu)
{
    const fusion *pair = layer != NULL && layer->context->fusion ? fusion_of(layer) : NULL;
    if (pair == NULL ||
        (relu == NULL ? layer->class != &batch_norm_class
                      : relu->class != &activation_class || relu->options.function != mn_relu))
        return false;
    const mn_op_id ops[] = {pair->ops[0], pair->ops[1], MN_OP_relu, MN_OP_add};
    return keep_rules(layer->context, ops, relu == NULL ? 4 : 3);
}

/* Images too small, of which pooling tells, are left to it. */
bool mn_module_fuses_pool(const mn_module *layer, const mn_module *pool, const mn_tensor *x)
{
    static const mn_op_id ops[] = {MN_OP_max_pool2d};
    if (layer->class != &batch_norm_class || pool->class != &max_pool2d_class || x->ndim != 4)
        return false;
    const mn_pool2d_options *o = &pool->options.pool;
    bool fits = keep_rules(layer->context, ops, 1);
    for (int i = 0; i < 2; i++)
        fits = fits && o->kernel[i] == 2 && (o->stride[i] == 2 || o->stride[i] == 0) &&
               o->padding[i] == 0 && x->shape[1 + i] >= 2;
    return fits;
}

bool mn_module_gives_moments(const mn_module *conv, const mn_module *norm)
{
    static const mn_op_id ops[] = {MN_OP_conv2d, MN_OP_batch_norm};
    return conv->class == &conv2d_class && norm->class == &batch_norm_class &&
           conv->context->fusion && mn_module_is_training(norm) &&
           keep_rules(conv->context, ops, 2);
}

mn_tensor *mn_module_forward_fused(mn_module *layer, mn_tensor *x, const mn_fused *how)
{
    return mn_module_check(layer, x) == MN_OK ? fusion_of(layer)->forward(layer, x, how) : NULL;
}

mn_module *mn_relu_layer(mn_context *context)
{
    return mn_activation_layer(context, MN_ACTIVATION_RELU);
}

static mn_module *new_with_number(mn_context *context, const mn_module_class *class, double number)
{
    mn_module *module = mn_module_new(context, class);
    if (module != NULL)
        module->options.number = number;
    return module;
}

mn_module *mn_leaky_relu_layer(mn_context *context, double slope)
{
    return new_with_number(context, &leaky_relu_class, slope);
}

mn_module *mn_dropout_layer(mn_context *context, double p)
{
    if (!mn_is_within(p, 0, 1))
        return refuse(context, "dropout layer: p must be in [0, 1]");
    return new_with_number(context, &dropout_class, p);
}

static mn_module *new_pool(mn_context *context, const mn_module_class *class,
                           const mn_pool2d_options *options)
{
    mn_pool2d_options known = mn_pool2d_options_default();
    if (!mn_ok(context) ||
        mn_options_copy(&context->error, "mn_pool2d", &known, sizeof known, options) != MN_OK)
        return NULL;
    mn_module *module = mn_module_new(context, class);
    if (module != NULL)
        module->options.pool = known;
    return module;
}

mn_module *mn_max_pool2d_layer(mn_context *context, const mn_pool2d_options *options)
{
    return new_pool(context, &max_pool2d_class, options);
}

mn_module *mn_avg_pool2d_layer(mn_context *context, const mn_pool2d_options *options)
{
    return new_pool(context, &avg_pool2d_class, options);
}

mn_module *mn_upsample2d_layer(mn_context *context, const mn_upsample2d_options *options)
{
    mn_upsample2d_options known = mn_upsample2d_options_default();
    if (!mn_ok(context) ||
        mn_options_copy(&context->error, "mn_upsample2d", &known, sizeof known, options) != MN_OK)
        return NULL;
    mn_module *module = mn_module_new(context, &upsample2d_class);
    if (module != NULL)
        module->options.upsample = known;
    return module;
}

mn_module *mn_global_avg_pool2d_layer(mn_context *context)
{
    return mn_module_new(context, &global_avg_pool2d_class);
}

mn_module *mn_flatten_layer(mn_context *context)
{
    return mn_module_new(context, &flatten_class);
}
