/* The models by name. */
#include "models/module.h"

#include <stdio.h>
#include <string.h>

typedef struct model {
    const char *name;
    void (*build)(mn_context *context, mn_module *net, const mn_model_options *options,
                  const struct model *model);
    int smallest;              /* side of an image */
    int width, stages, blocks; /* of a residual network: channels of the first stage, stages, and
                                  blocks in each */
} model;

/* So that no model's number of features overflows. */
enum { MAX_SIDE = 8192 };

mn_model_options mn_model_options_default(void)
{
    mn_model_options options = {
        .size = sizeof options, .height = 28, .width = 28, .channels = 1, .classes = 10};
    return options;
}

static mn_module *conv(mn_context *context, int from, int to, int kernel, int padding)
{
    mn_conv2d_layer_options options = mn_conv2d_layer_options_default();
    options.in_channels = from;
    options.out_channels = to;
    for (int i = 0; i < 2; i++) {
        options.kernel[i] = kernel;
        options.padding[i] = padding;
    }
    return mn_conv2d_layer(context, &options);
}

/* Of a residual network: keeps the size but for the stride, and leaves the bias to batch norm. */
static mn_module *plain_conv(mn_context *context, int from, int to, int kernel, int stride)
{
    mn_conv2d_layer_options options = mn_conv2d_layer_options_default();
    options.in_channels = from;
    options.out_channels = to;
    options.bias = false;
    for (int i = 0; i < 2; i++) {
        options.kernel[i] = kernel;
        options.padding[i] = kernel / 2;
        options.stride[i] = stride;
    }
    return mn_conv2d_layer(context, &options);
}

/* LeNet-5 with ReLU and max pooling; after LeCun et al. 1998, doi 10.1109/5.726791. */
static void build_lenet5(mn_context *context, mn_module *net, const mn_model_options *o,
                         const model *m)
{
    (void)m;
    int height = (o->height / 2 - 4) / 2, width = (o->width / 2 - 4) / 2;
    mn_sequential_add(net, "conv1", conv(context, o->channels, 6, 5, 2));
    mn_sequential_add(net, "relu1", mn_relu_layer(context));
    mn_sequential_add(net, "pool1", mn_max_pool2d_layer(context, NULL));
    mn_sequential_add(net, "conv2", conv(context, 6, 16, 5, 0));
    mn_sequential_add(net, "relu2", mn_relu_layer(context));
    mn_sequential_add(net, "pool2", mn_max_pool2d_layer(context, NULL));
    mn_sequential_add(net, "flatten", mn_flatten_layer(context));
    mn_sequential_add(net, "fc1", mn_linear_layer(context, 16 * height * width, 120, true));
    mn_sequential_add(net, "relu3", mn_relu_layer(context));
    mn_sequential_add(net, "fc2", mn_linear_layer(context, 120, 84, true));
    mn_sequential_add(net, "relu4", mn_relu_layer(context));
    mn_sequential_add(net, "fc3", mn_linear_layer(context, 84, o->classes, true));
}

/* Three 3x3 convolutions of 32, 64 and 128 channels with batch norm, and one linear layer. */
static void build_cnn_small(mn_context *context, mn_module *net, const mn_model_options *o,
                            const model *m)
{
    (void)m;
    int height = o->height / 4, width = o->width / 4;
    mn_sequential_add(net, "conv1", conv(context, o->channels, 32, 3, 1));
    mn_sequential_add(net, "bn1", mn_batch_norm_layer(context, 32));
    mn_sequential_add(net, "relu1", mn_relu_layer(context));
    mn_sequential_add(net, "conv2", conv(context, 32, 64, 3, 1));
    mn_sequential_add(net, "bn2", mn_batch_norm_layer(context, 64));
    mn_sequential_add(net, "relu2", mn_relu_layer(context));
    mn_sequential_add(net, "pool2", mn_max_pool2d_layer(context, NULL));
    mn_sequential_add(net, "conv3", conv(context, 64, 128, 3, 1));
    mn_sequential_add(net, "bn3", mn_batch_norm_layer(context, 128));
    mn_sequential_add(net, "relu3", mn_relu_layer(context));
    mn_sequential_add(net, "pool3", mn_max_pool2d_layer(context, NULL));
    mn_sequential_add(net, "flatten", mn_flatten_layer(context));
    mn_sequential_add(net, "fc", mn_linear_layer(context, 128 * height * width, o->classes, true));
}

static mn_module *basic_block(mn_context *context, int from, int to, int stride)
{
    mn_module *block = mn_residual(context);
    mn_sequential_add(block, "conv1", plain_conv(context, from, to, 3, stride));
    mn_sequential_add(block, "bn1", mn_batch_norm_layer(context, to));
    mn_sequential_add(block, "relu1", mn_relu_layer(context));
    mn_sequential_add(block, "conv2", plain_conv(context, to, to, 3, 1));
    mn_sequential_add(block, "bn2", mn_batch_norm_layer(context, to));
    if (from == to && stride == 1)
        return block;
    mn_module *shortcut = mn_sequential(context);
    mn_sequential_add(shortcut, "0", plain_conv(context, from, to, 1, stride));
    mn_sequential_add(shortcut, "1", mn_batch_norm_layer(context, to));
    mn_residual_shortcut(block, "downsample", shortcut);
    return block;
}

/* He et al. 2015, arXiv 1512.03385, section 4.2, with 1x1 convolutions where shapes change: stages
 * of basic blocks, each but the first with twice the channels and half the size of the one before.
 */
static void build_resnet(mn_context *context, mn_module *net, const mn_model_options *o,
                         const model *m)
{
    char name[24];
    int channels = m->width;
    mn_sequential_add(net, "conv1", plain_conv(context, o->channels, channels, 3, 1));
    mn_sequential_add(net, "bn1", mn_batch_norm_layer(context, channels));
    mn_sequential_add(net, "relu", mn_relu_layer(context));
    for (int stage = 0; stage < m->stages; stage++) {
        mn_module *layer = mn_sequential(context);
        for (int i = 0; i < m->blocks; i++) {
            bool halve = stage > 0 && i == 0;
            int from = channels;
            channels = halve ? 2 * from : from;
            snprintf(name, sizeof name, "%d", i);
            mn_sequential_add(layer, name, basic_block(context, from, channels, halve ? 2 : 1));
        }
        snprintf(name, sizeof name, "layer%d", stage + 1);
        mn_sequential_add(net, name, layer);
    }
    mn_sequential_add(net, "avgpool", mn_global_avg_pool2d_layer(context));
    mn_sequential_add(net, "fc", mn_linear_layer(context, channels, o->classes, true));
}

/* Every pooling and every stage of a residual network really halves the smallest image. */
static const model models[] = {
    {"lenet5", build_lenet5, 12, 0, 0, 0},   {"cnn-small", build_cnn_small, 4, 0, 0, 0},
    {"resnet8", build_resnet, 4, 16, 3, 1},  {"resnet20", build_resnet, 4, 16, 3, 3},
    {"resnet18", build_resnet, 8, 64, 4, 2},
};
enum { MODEL_COUNT = (int)(sizeof models / sizeof models[0]) };

const char *mn_model_name(int index)
{
    return index >= 0 && index < MODEL_COUNT ? models[index].name : NULL;
}

static mn_status refuse_name(mn_context *context, const char *name)
{
    char names[160] = "";
    for (int i = 0, used = 0; i < MODEL_COUNT && used < (int)sizeof names; i++)
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i > 0 ? ", " : "",
                         models[i].name);
    return mn_fail(context, MN_ERR_ARGUMENT, "there is no model \"%s\"; there are %s",
                   name != NULL ? name : "(null)", names);
}

static mn_status check_options(mn_context *context, const model *m, const mn_model_options *o)
{
    if (o->channels < 1 || o->classes < 1 || o->height < 1 || o->width < 1 ||
        o->height > MAX_SIDE || o->width > MAX_SIDE)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "model %s: image size, channels and classes must be at least 1, and the "
                       "size at most %dx%d",
                       m->name, (int)MAX_SIDE, (int)MAX_SIDE);
    if (o->height < m->smallest || o->width < m->smallest)
        return mn_fail(context, MN_ERR_SHAPE, "%s needs images of at least %dx%d, these are %dx%d",
                       m->name, m->smallest, m->smallest, o->height, o->width);
    return MN_OK;
}

mn_module *mn_model_create(mn_context *context, const char *name, const mn_model_options *options)
{
    if (context == NULL || !mn_ok(context))
        return NULL;
    mn_model_options o = mn_model_options_default();
    if (mn_options_copy(&context->error, "mn_model", &o, sizeof o, options) != MN_OK)
        return NULL;
    int index = 0;
    while (index < MODEL_COUNT && (name == NULL || strcmp(models[index].name, name) != 0))
        index++;
    if (index == MODEL_COUNT)
        refuse_name(context, name);
    else
        check_options(context, &models[index], &o);
    mn_module *net = mn_sequential(context);
    if (net == NULL)
        return NULL;
    models[index].build(context, net, &o, &models[index]);
    if (mn_module_init(net) == MN_OK)
        return net;
    mn_module_free(net);
    return NULL;
}
