/* Classifies one image with a checkpoint of `minim train`: no training, no data set, one thread.
 *   infer CHECKPOINT < IMAGE      IMAGE: height * width * channels bytes, row by row */
#include <minim.h>
#include <stdio.h>
#include <stdlib.h>

static int number(const mn_state_dict *dict, const char *key)
{
    const char *text = mn_state_dict_get_string(dict, key);
    return text != NULL ? atoi(text) : 0;
}

/* The model that the checkpoint tells of, with its weights, ready to predict. */
static mn_module *load(mn_context *ctx, const mn_state_dict *dict, mn_model_options *size)
{
    size->height = number(dict, "height"), size->width = number(dict, "width");
    size->channels = number(dict, "channels"), size->classes = number(dict, "classes");
    mn_module *net = mn_model_create(ctx, mn_state_dict_get_string(dict, "model"), size);
    if (net != NULL && mn_module_load_state(net, dict) == MN_OK)
        mn_module_set_training(net, false);
    return net;
}

/* Bytes to the numbers that the model was trained on: (pixel / 255 - mean) / deviation. */
static mn_tensor *image_tensor(mn_context *ctx, const mn_state_dict *dict,
                               const mn_model_options *size, const unsigned char *bytes)
{
    mn_state_entry mean, deviation;
    int64_t shape[4] = {1, size->height, size->width, size->channels};
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, 4, shape);
    float *values = mn_tensor_data_mut(x);
    if (values == NULL || !mn_state_dict_find(dict, "data.mean", &mean) ||
        !mn_state_dict_find(dict, "data.deviation", &deviation))
        return NULL;
    for (int64_t i = 0; i < mn_tensor_numel(x); i++) {
        int64_t c = i % size->channels;
        values[i] = ((float)bytes[i] / 255.0f - ((const float *)mean.data)[c]) /
                    ((const float *)deviation.data)[c];
    }
    return x;
}

int main(int argc, char **argv)
{
    static unsigned char image[64 * 64 * 4];
    if (argc != 2) {
        fprintf(stderr, "usage: infer CHECKPOINT < IMAGE\n");
        return 2;
    }
    mn_error error = {MN_OK, ""};
    mn_model_options size = mn_model_options_default();
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    mn_context *ctx = mn_context_create(&options, &error);
    mn_state_dict *dict = ctx != NULL ? mn_state_dict_read(ctx, argv[1]) : NULL;
    mn_module *net = dict != NULL ? load(ctx, dict, &size) : NULL;
    size_t bytes = (size_t)size.height * (size_t)size.width * (size_t)size.channels;
    bool read = net != NULL && bytes <= sizeof image && fread(image, 1, bytes, stdin) == bytes;
    mn_tensor *x = read ? image_tensor(ctx, dict, &size, image) : NULL;
    mn_state_dict_free(dict);
    mn_no_grad_begin(ctx);
    mn_tensor *p = x != NULL ? mn_softmax(mn_module_forward(net, x), 1) : NULL;
    mn_no_grad_end(ctx);
    double best = -1.0, sure = 0.0;
    if (p != NULL && mn_tensor_item(mn_argmax(p, 1), &best) == MN_OK)
        sure = (double)((const float *)mn_tensor_data(p))[(int)best];
    if (best >= 0.0)
        printf("class %d, probability %.3f\n", (int)best, sure);
    else
        fprintf(stderr, "infer: %s%s\n", ctx != NULL ? mn_error_message(ctx) : error.message,
                net != NULL && !read ? "the image is too short" : "");
    mn_module_free(net);
    mn_context_free(ctx);
    return best < 0.0;
}
