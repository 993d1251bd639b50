/* The models by name. */
#include "models/module.h"

#include <string.h>

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

/* LeNet-5 with ReLU and max pooling; after LeCun et al. 1998, doi 10.1109/5.726791. */
static void build_lenet5(mn_context *context, mn_module *net, const mn_model_options *o)
{
    int height = (o->height / 2 - 4) / 2, width = (o->width / 2 - 4) / 2;
    if (height < 1 || width < 1) {
        mn_fail(context, MN_ERR_SHAPE, "lenet5 needs images of at least 12x12, these are %dx%d",
                o->height, o->width);
        return;
    }
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
static void build_cnn_small(mn_context *context, mn_module *net, const mn_model_options *o)
{
    int height = o->height / 4, width = o->width / 4;
    if (height < 1 || width < 1) {
        mn_fail(context, MN_ERR_SHAPE, "cnn-small needs images of at least 4x4, these are %dx%d",
                o->height, o->width);
        return;
    }
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

static const struct {
    const char *name;
    void (*build)(mn_context *context, mn_module *net, const mn_model_options *options);
} models[] = {{"lenet5", build_lenet5}, {"cnn-small", build_cnn_small}};
enum { MODEL_COUNT = (int)(sizeof models / sizeof models[0]) };

const char *mn_model_name(int index)
{
    return index >= 0 && index < MODEL_COUNT ? models[index].name : NULL;
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
        mn_fail(context, MN_ERR_ARGUMENT,
                "there is no model \"%s\"; there are lenet5 and cnn-small",
                name != NULL ? name : "(null)");
    else if (o.channels < 1 || o.classes < 1 || o.height < 1 || o.width < 1 ||
             o.height > MAX_SIDE || o.width > MAX_SIDE)
        mn_fail(context, MN_ERR_ARGUMENT,
                "model %s: image size, channels and classes must be at least 1, and the size at "
                "most %dx%d",
                name, (int)MAX_SIDE, (int)MAX_SIDE);
    mn_module *net = mn_sequential(context);
    if (net == NULL)
        return NULL;
    models[index].build(context, net, &o);
    if (mn_module_init(net) == MN_OK)
        return net;
    mn_module_free(net);
    return NULL;
}
