/* The calls that golden values were made of, by name: the same as in tests/golden/generate.py. */
#include "tests/support_golden.h"

#include <check.h>
#include <string.h>

/* ---- fixed inputs and options ---------------------------------------------------------------- */

/* Integers (5 i + 1) mod bound, as indices and labels, or (i mod 3) > 0 as u8 for bound 0. */
static mn_tensor *fixed(mn_tensor *like, int ndim, int64_t bound)
{
    mn_tensor *y = mn_tensor_create(mn_tensor_context(like), bound > 0 ? MN_I64 : MN_U8, ndim,
                                    mn_tensor_shape(like));
    double values[256];
    const int64_t count = mn_tensor_numel(y);
    ck_assert(count <= 256);
    for (int64_t i = 0; i < count; i++)
        values[i] = bound > 0 ? (double)((5 * i + 1) % bound) : i % 3 > 0;
    mn_tensor_write_f64(y, values, count);
    return y;
}

static int64_t columns(const mn_tensor *x)
{
    return mn_tensor_shape(x)[mn_tensor_ndim(x) - 1];
}

static mn_tensor *labels(mn_tensor *x)
{
    return fixed(x, 1, columns(x));
}

static mn_tensor *index_of(mn_tensor *x)
{
    return fixed(x, 2, columns(x));
}

static mn_tensor *filled(mn_tensor *x, double value)
{
    const int64_t channels = columns(x);
    return mn_full(mn_tensor_context(x), MN_F32, 1, &channels, value);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static mn_tensor *leaky_relu(mn_tensor *x)
{
    return mn_leaky_relu(x, 0.1);
}
static mn_tensor *clamp(mn_tensor *x)
{
    return mn_clamp(x, -0.5, 1.5);
}
static mn_tensor *add_scalar(mn_tensor *x)
{
    return mn_add_scalar(x, 0.5);
}
static mn_tensor *mul_scalar(mn_tensor *x)
{
    return mn_mul_scalar(x, 0.5);
}
static mn_tensor *pow_scalar(mn_tensor *x)
{
    return mn_pow_scalar(x, 1.5);
}
static mn_tensor *softmax(mn_tensor *x)
{
    return mn_softmax(x, 1);
}
static mn_tensor *log_softmax(mn_tensor *x)
{
    return mn_log_softmax(x, 1);
}
static mn_tensor *softmax_first(mn_tensor *x)
{
    return mn_softmax(x, 0);
}
static mn_tensor *sum(mn_tensor *x)
{
    return mn_sum(x, 0, NULL, false);
}
static mn_tensor *mean(mn_tensor *x)
{
    return mn_mean(x, 0, NULL, false);
}
static mn_tensor *amax(mn_tensor *x)
{
    return mn_amax(x, 0, NULL, false);
}
static mn_tensor *amin(mn_tensor *x)
{
    return mn_amin(x, 0, NULL, false);
}
static mn_tensor *norm(mn_tensor *x)
{
    return mn_norm(x, 2, 0, NULL, false);
}
static mn_tensor *var(mn_tensor *x)
{
    return mn_var(x, 1, 0, NULL, false);
}
static const int first = 0;
static mn_tensor *sum_first(mn_tensor *x)
{
    return mn_sum(x, 1, &first, true);
}
static mn_tensor *mean_first(mn_tensor *x)
{
    return mn_mean(x, 1, &first, false);
}
static mn_tensor *amax_first(mn_tensor *x)
{
    return mn_amax(x, 1, &first, false);
}
static mn_tensor *norm1_first(mn_tensor *x)
{
    return mn_norm(x, 1, 1, &first, false);
}
static mn_tensor *var0_first(mn_tensor *x)
{
    return mn_var(x, 0, 1, &first, true);
}
static mn_tensor *argmax(mn_tensor *x)
{
    return mn_argmax(x, 1);
}
static mn_tensor *slice(mn_tensor *x)
{
    return mn_slice(x, 0, 1, INT64_MAX);
}
static mn_tensor *gather(mn_tensor *x)
{
    return mn_gather(x, 1, index_of(x));
}
static mn_tensor *dropout(mn_tensor *x)
{
    return mn_dropout(x, 0.5, true);
}
static mn_tensor *layer_norm(mn_tensor *x)
{
    return mn_layer_norm(x, 1, NULL, NULL, 1e-5);
}
static mn_tensor *group_norm(mn_tensor *x)
{
    return mn_group_norm(x, 2, NULL, NULL, 1e-5);
}
static mn_tensor *nll_loss(mn_tensor *x)
{
    return mn_nll_loss(x, labels(x), NULL);
}
static mn_tensor *cross_entropy(mn_tensor *x)
{
    return mn_cross_entropy(x, labels(x), NULL);
}
static mn_tensor *max_pool(mn_tensor *x)
{
    return mn_max_pool2d(x, NULL);
}
static mn_tensor *avg_pool(mn_tensor *x)
{
    return mn_avg_pool2d(x, NULL);
}

static mn_tensor *reshape(mn_tensor *x)
{
    const int64_t shape = -1;
    return mn_reshape(x, 1, &shape);
}

static mn_tensor *permute(mn_tensor *x)
{
    const int axes[2] = {1, 0};
    return mn_permute(x, 2, axes);
}

static mn_tensor *pad(mn_tensor *x)
{
    const int64_t before[2] = {0, 1}, after[2] = {0, 2};
    return mn_pad(x, before, after, 2);
}

static mn_tensor *batch_norm(mn_tensor *x)
{
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    mn_tensor *const running[3] = {filled(x, 1), filled(x, 1), NULL};
    return mn_batch_norm(x, filled(x, 1.5), filled(x, 0.25), running, &options);
}

static mn_tensor *batch_norm_inference(mn_tensor *x)
{
    mn_tensor *const running[3] = {filled(x, 0.5), filled(x, 2), NULL};
    return mn_batch_norm(x, filled(x, 1.5), filled(x, 0.25), running, NULL);
}

static mn_tensor *cross_entropy_smooth(mn_tensor *x)
{
    mn_cross_entropy_options options = mn_cross_entropy_options_default();
    options.label_smoothing = 0.2;
    options.ignore_index = 2;
    options.reduction = MN_REDUCTION_SUM;
    return mn_cross_entropy(x, labels(x), &options);
}

static mn_tensor *pool_odd(mn_tensor *x, mn_tensor *(*call)(mn_tensor *, const mn_pool2d_options *))
{
    mn_pool2d_options options = mn_pool2d_options_default();
    options.kernel[0] = options.kernel[1] = 3;
    options.stride[0] = options.stride[1] = 2;
    options.padding[0] = options.padding[1] = 1;
    options.exclude_padding = call == mn_avg_pool2d;
    return call(x, &options);
}

static mn_tensor *max_pool_odd(mn_tensor *x)
{
    return pool_odd(x, mn_max_pool2d);
}
static mn_tensor *avg_pool_odd(mn_tensor *x)
{
    return pool_odd(x, mn_avg_pool2d);
}

static mn_tensor *resize(mn_tensor *x, mn_upsample_mode mode, bool align)
{
    mn_upsample2d_options options = mn_upsample2d_options_default();
    options.height = options.width = 7;
    options.mode = mode;
    options.align_corners = align;
    return mn_upsample2d(x, &options);
}

static mn_tensor *nearest(mn_tensor *x)
{
    return resize(x, MN_UPSAMPLE_NEAREST, false);
}
static mn_tensor *bilinear(mn_tensor *x)
{
    return resize(x, MN_UPSAMPLE_BILINEAR, false);
}
static mn_tensor *bilinear_aligned(mn_tensor *x)
{
    return resize(x, MN_UPSAMPLE_BILINEAR, true);
}

static mn_tensor *where(mn_tensor *a, mn_tensor *b)
{
    return mn_where(fixed(a, 2, 0), a, b);
}

static mn_tensor *concat(mn_tensor *a, mn_tensor *b)
{
    mn_tensor *const both[2] = {a, b};
    return mn_concat(both, 2, 0);
}

static mn_tensor *scatter_add(mn_tensor *a, mn_tensor *b)
{
    return mn_scatter_add(a, 1, index_of(a), b);
}

static mn_tensor *linear(mn_tensor *x, mn_tensor *w)
{
    return mn_linear(x, w, NULL);
}
static mn_tensor *linear_bias(mn_tensor *x, mn_tensor *b)
{
    return mn_linear(x, x, b);
}
static mn_tensor *conv2d(mn_tensor *x, mn_tensor *w)
{
    return mn_conv2d(x, w, NULL, NULL);
}
static mn_tensor *conv2d_bias(mn_tensor *x, mn_tensor *b)
{
    return mn_conv2d(x, x, b, NULL);
}

static mn_tensor *conv2d_odd(mn_tensor *x, mn_tensor *w)
{
    mn_conv2d_options options = mn_conv2d_options_default();
    options.stride[0] = 2;
    options.padding[0] = 1;
    options.padding[1] = 2;
    options.dilation[1] = 2;
    options.groups = 2;
    return mn_conv2d(x, w, NULL, &options);
}

static mn_tensor *layer_norm_affine(mn_tensor *x, mn_tensor *w)
{
    return mn_layer_norm(x, 1, w, w, 1e-5);
}

static mn_tensor *group_norm_affine(mn_tensor *x, mn_tensor *w)
{
    return mn_group_norm(x, 2, w, w, 1e-5);
}

static mn_tensor *cross_entropy_of(mn_tensor *x, mn_tensor *t)
{
    return mn_cross_entropy(x, t, NULL);
}

static mn_tensor *mse(mn_tensor *x, mn_tensor *t)
{
    return mn_mse_loss(x, t, MN_REDUCTION_MEAN);
}
static mn_tensor *l1(mn_tensor *x, mn_tensor *t)
{
    return mn_l1_loss(x, t, MN_REDUCTION_MEAN);
}

static mn_tensor *huber(mn_tensor *x, mn_tensor *t)
{
    return mn_huber_loss(x, t, 0.5, MN_REDUCTION_MEAN);
}

static mn_tensor *bce_with_logits(mn_tensor *x, mn_tensor *t)
{
    return mn_binary_cross_entropy_with_logits(x, t, MN_REDUCTION_MEAN);
}

static mn_tensor *bce(mn_tensor *p, mn_tensor *t)
{
    return mn_binary_cross_entropy(p, t, MN_REDUCTION_MEAN);
}

static const struct {
    const char *name;
    mn_tensor *(*one)(mn_tensor *);
    mn_tensor *(*two)(mn_tensor *, mn_tensor *);
} calls[] = {
    {"relu", mn_relu, NULL},
    {"leaky_relu", leaky_relu, NULL},
    {"clamp", clamp, NULL},
    {"neg", mn_neg, NULL},
    {"abs", mn_abs, NULL},
    {"add_scalar", add_scalar, NULL},
    {"mul_scalar", mul_scalar, NULL},
    {"pow_scalar", pow_scalar, NULL},
    {"exp", mn_exp, NULL},
    {"log", mn_log, NULL},
    {"sqrt", mn_sqrt, NULL},
    {"rsqrt", mn_rsqrt, NULL},
    {"tanh", mn_tanh, NULL},
    {"sigmoid", mn_sigmoid, NULL},
    {"silu", mn_silu, NULL},
    {"gelu", mn_gelu, NULL},
    {"softmax", softmax, NULL},
    {"softmax_first", softmax_first, NULL},
    {"log_softmax", log_softmax, NULL},
    {"sum", sum, NULL},
    {"sum_first", sum_first, NULL},
    {"mean", mean, NULL},
    {"mean_first", mean_first, NULL},
    {"amax", amax, NULL},
    {"amax_first", amax_first, NULL},
    {"amin", amin, NULL},
    {"norm", norm, NULL},
    {"norm1_first", norm1_first, NULL},
    {"var", var, NULL},
    {"var0_first", var0_first, NULL},
    {"argmax", argmax, NULL},
    {"clone", mn_clone, NULL},
    {"reshape", reshape, NULL},
    {"permute", permute, NULL},
    {"slice", slice, NULL},
    {"pad", pad, NULL},
    {"gather", gather, NULL},
    {"dropout", dropout, NULL},
    {"layer_norm", layer_norm, NULL},
    {"nll_loss", nll_loss, NULL},
    {"cross_entropy", cross_entropy, NULL},
    {"cross_entropy_smooth", cross_entropy_smooth, NULL},
    {"group_norm", group_norm, NULL},
    {"batch_norm", batch_norm, NULL},
    {"batch_norm_inference", batch_norm_inference, NULL},
    {"max_pool2d", max_pool, NULL},
    {"max_pool2d_odd", max_pool_odd, NULL},
    {"avg_pool2d", avg_pool, NULL},
    {"avg_pool2d_odd", avg_pool_odd, NULL},
    {"global_avg_pool2d", mn_global_avg_pool2d, NULL},
    {"nearest", nearest, NULL},
    {"bilinear", bilinear, NULL},
    {"bilinear_aligned", bilinear_aligned, NULL},
    {"add", NULL, mn_add},
    {"sub", NULL, mn_sub},
    {"mul", NULL, mn_mul},
    {"div", NULL, mn_div},
    {"pow", NULL, mn_pow},
    {"minimum", NULL, mn_minimum},
    {"maximum", NULL, mn_maximum},
    {"eq", NULL, mn_eq},
    {"ne", NULL, mn_ne},
    {"lt", NULL, mn_lt},
    {"le", NULL, mn_le},
    {"gt", NULL, mn_gt},
    {"ge", NULL, mn_ge},
    {"where", NULL, where},
    {"concat", NULL, concat},
    {"scatter_add", NULL, scatter_add},
    {"dot", NULL, mn_dot},
    {"matmul", NULL, mn_matmul},
    {"linear", NULL, linear},
    {"linear_bias", NULL, linear_bias},
    {"conv2d", NULL, conv2d},
    {"conv2d_bias", NULL, conv2d_bias},
    {"conv2d_odd", NULL, conv2d_odd},
    {"layer_norm_affine", NULL, layer_norm_affine},
    {"group_norm_affine", NULL, group_norm_affine},
    {"cross_entropy_of", NULL, cross_entropy_of},
    {"mse_loss", NULL, mse},
    {"l1_loss", NULL, l1},
    {"huber_loss", NULL, huber},
    {"bce_with_logits", NULL, bce_with_logits},
    {"bce", NULL, bce},
};
enum { CALLS = (int)(sizeof calls / sizeof calls[0]) };

mn_tensor *mn_golden_call(const char *name, mn_tensor *const *inputs)
{
    for (int i = 0; i < CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].one != NULL ? calls[i].one(inputs[0])
                                        : calls[i].two(inputs[0], inputs[1]);
    ck_abort_msg("there is no call \"%s\"", name);
    return NULL;
}
