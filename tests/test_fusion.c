/* Batch norm with a residual and ReLU as one op, convolutions and linear
 * layers with ReLU, against the ops alone: the same bits, in every dtype and kernel set, of
 * results, gradients and running statistics; and no more memory with batch norm. */
#include "ops/ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- batch norm ------------------------------------------------------------------------------ */

typedef struct problem {
    mn_dtype dtype;
    int64_t rows, channels;
    bool training, residual;
    int spoil; /* 1: NaN in the tail; 2: infinity */
} problem;

/* Multiples of 1/8, so that many results are exactly 0 where the weight is 1 and the bias 0. */
static mn_tensor *draw(mn_context *context, mn_dtype dtype, const problem *p, int which)
{
    const bool vector = which >= 1 && which <= 4;
    const int64_t shape[2] = {p->rows, p->channels}, *from = vector ? &shape[1] : shape;
    mn_tensor *x = mn_tensor_create(context, dtype, vector ? 1 : 2, from);
    const int64_t count = mn_tensor_numel(x);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    uint32_t state = (uint32_t)(which + 7) * 2654435761U;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (double)(state >> 27) / 8 - 2;
        if (which == 3 || which == 4)
            values[i] = which == 4 ? 0.5 + fabs(values[i]) : values[i] / 4;
    }
    if (which == 0 && p->spoil && count > 0)
        values[count - 1] = p->spoil == 1 ? (double)NAN : (double)INFINITY;
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    free(values);
    return x;
}

/* Result, gradients of x, weight, bias and residual, running mean and variance, into out. */
static void solve(mn_context *context, const problem *p, bool fused, mn_tensor *out[7])
{
    mn_batch_norm_options options = mn_batch_norm_options_default();
    const mn_dtype wide = p->dtype == MN_F64 ? MN_F64 : MN_F32;
    mn_tensor *in[7];
    options.training = p->training;
    for (int i = 0; i < 7; i++) {
        in[i] = draw(context, i >= 1 && i <= 4 ? wide : p->dtype, p, i);
        if (i < 3 || i == 5)
            ck_assert_int_eq(mn_set_requires_grad(in[i], true), MN_OK);
    }
    mn_tensor *const running[3] = {in[3], in[4], NULL};
    mn_tensor *y;
    if (fused) {
        y = mn_batch_norm_relu(in[0], in[1], in[2], running, p->residual ? in[5] : NULL, &options);
    } else {
        y = mn_batch_norm(in[0], in[1], in[2], running, &options);
        y = mn_relu(p->residual ? mn_add(y, in[5]) : y);
    }
    ck_assert_msg(y != NULL, "%s", mn_error_message(context));
    mn_tensor *loss = mn_sum(mn_mul(y, in[6]), 0, NULL, false);
    ck_assert_msg(mn_backward(loss, 1.0) == MN_OK, "%s", mn_error_message(context));
    out[0] = y;
    for (int i = 0; i < 3; i++)
        out[1 + i] = mn_grad(in[i]);
    out[4] = p->residual ? mn_grad(in[5]) : y;
    out[5] = in[3];
    out[6] = in[4];
}

START_TEST(one_op_gives_the_bits_of_three)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    static const int64_t shapes[][2] = {{2, 1},    {7, 3},    {64, 16}, {5, 521}, {3, 1031},
                                        {1201, 8}, {900, 64}, {0, 5},   {4, 0},   {2047, 17}};
    const mn_kernel_set kernels = (mn_kernel_set)_i;
    if (!mn_cpu_has_kernels(kernels))
        return;
    mn_context *context = mn_test_open_with(kernels, true);
    /* AVX-512 has loops of its own, of the same order. */
    mn_context *narrower =
        mn_test_open_with(kernels == MN_KERNELS_AVX512 ? MN_KERNELS_AVX2 : kernels, true);
    for (size_t i = 0; i < COUNT(shapes) * COUNT(dtypes) * 12; i++) {
        const int64_t *shape = shapes[i / 12 / COUNT(dtypes)];
        const problem p = {dtypes[i / 12 % COUNT(dtypes)],
                           shape[0],
                           shape[1],
                           i % 2 == 0,
                           i / 2 % 2 == 0,
                           (int)(i / 4 % 3)};
        mn_tensor *one[7], *three[7];
        mn_scope scope = mn_scope_begin(context);
        solve(context, &p, true, one);
        solve(context, &p, false, three);
        for (int k = 0; k < 7; k++)
            mn_test_same_bits(one[k], three[k], "problem", (int)i);
        mn_tensor *other[7];
        mn_scope scope_of_other = mn_scope_begin(narrower);
        solve(narrower, &p, true, other);
        for (int k = 0; k < 7 && !p.spoil; k++) /* NaN may have either sign */
            mn_test_same_bits(one[k], other[k], "kernel set", (int)i);
        mn_scope_end(narrower, scope_of_other);
        mn_scope_end(context, scope);
    }
    mn_context_free(narrower);
    mn_context_free(context);
}
END_TEST

/* ---- convolution and linear ------------------------------------------------------------------ */

typedef struct product {
    int64_t x[4], w[4]; /* w[1] = 0: a linear layer */
    int stride, padding, groups;
} product;

/* Pixels in lanes, tiles of channels with and without copies and surplus columns, both of Winograd,
 * groups; nothing. */
static const product products[] = {
    {{2, 9, 8, 1}, {6, 5, 5, 1}, 1, 2, 1},        {{3, 7, 11, 3}, {5, 3, 3, 3}, 2, 1, 1},
    {{2, 6, 5, 13}, {17, 3, 3, 13}, 1, 1, 1},     {{1, 5, 9, 16}, {64, 1, 1, 16}, 1, 0, 1},
    {{17, 16, 16, 32}, {16, 3, 3, 32}, 1, 1, 1},  {{17, 7, 7, 112}, {32, 3, 3, 112}, 1, 1, 1},
    {{2, 5, 4, 6}, {4, 3, 3, 3}, 1, 1, 2},        {{0, 5, 5, 2}, {3, 3, 3, 2}, 1, 1, 1},
    {{1, 1, 1, 1}, {1, 0, 0, 1}, 1, 0, 1},        {{1, 5, 3, 31}, {17, 0, 0, 31}, 1, 0, 1},
    {{1, 1, 64, 400}, {120, 0, 0, 400}, 1, 0, 1}, {{1, 1, 0, 3}, {2, 0, 0, 3}, 1, 0, 1},
};

/* Multiples of 1/8 up to 2, some products' sums beyond FP16's range; spoil as above. */
static mn_tensor *fill(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                       int spoil)
{
    problem p = {dtype, 1, 1, true, false, spoil == 3 ? 0 : spoil};
    for (int i = 0; i < ndim; i++)
        p.rows *= shape[i];
    mn_tensor *x = draw(context, dtype, &p, spoil < 0 ? 6 : 0);
    if (spoil == 3)
        ck_assert_int_eq(mn_tensor_scale(x, 4096, 0), MN_OK);
    return mn_reshape(x, ndim, shape);
}

/* Result and gradients of x, weight and bias, into out. */
static void multiply(mn_context *context, const product *p, mn_dtype dtype, int spoil, bool fused,
                     mn_tensor *out[4])
{
    mn_conv2d_options o = mn_conv2d_options_default();
    const bool linear = p->w[1] == 0;
    mn_tensor *in[3] = {fill(context, dtype, 4, p->x, spoil),
                        fill(context, dtype, linear ? 2 : 4,
                             linear ? (const int64_t[]){p->w[0], p->w[3]} : p->w, -1),
                        fill(context, dtype, 1, p->w, -1)};
    for (int i = 0; i < 3; i++) {
        in[i] = mn_detach(in[i]);
        ck_assert_int_eq(mn_set_requires_grad(in[i], true), MN_OK);
        o.stride[i & 1] = p->stride;
        o.padding[i & 1] = p->padding;
    }
    o.groups = p->groups;
    if (fused)
        out[0] =
            linear ? mn_linear_relu(in[0], in[1], in[2]) : mn_conv2d_relu(in[0], in[1], in[2], &o);
    else
        out[0] =
            mn_relu(linear ? mn_linear(in[0], in[1], in[2]) : mn_conv2d(in[0], in[1], in[2], &o));
    ck_assert_msg(out[0] != NULL, "%s", mn_error_message(context));
    mn_tensor *loss = mn_sum(mn_mul(out[0], out[0]), 0, NULL, false);
    ck_assert_msg(mn_backward(loss, 1.0) == MN_OK, "%s", mn_error_message(context));
    for (int i = 0; i < 3; i++)
        out[1 + i] = mn_grad(in[i]);
}

START_TEST(products_with_relu)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    const mn_kernel_set kernels = (mn_kernel_set)_i;
    if (!mn_cpu_has_kernels(kernels))
        return;
    mn_context *context = mn_test_open_with(kernels, true);
    for (size_t i = 0; i < COUNT(products) * COUNT(dtypes) * 4; i++) {
        const product *p = &products[i / 4 / COUNT(dtypes)];
        const mn_dtype dtype = dtypes[i / 4 % COUNT(dtypes)];
        if (p->x[0] == 17 && (kernels == MN_KERNELS_REFERENCE || dtype == MN_F64))
            continue; /* takes long, and has nothing of its own */
        mn_tensor *one[4], *two[4];
        mn_scope scope = mn_scope_begin(context);
        multiply(context, p, dtype, (int)(i % 4), true, one);
        multiply(context, p, dtype, (int)(i % 4), false, two);
        for (int k = 0; k < 4; k++)
            mn_test_same_bits(one[k], two[k], "product", (int)i);
        mn_scope_end(context, scope);
    }
    mn_context_free(context);
}
END_TEST

/* The moments of a convolution's result, as it is stored, against a plain loop; the same bits with
 * any number of threads. */
static mn_tensor *moments_of(mn_context *context, const product *p, mn_dtype dtype, int spoil,
                             mn_tensor **y, mn_tensor **alone)
{
    mn_conv2d_options o = mn_conv2d_options_default();
    mn_tensor *moments = NULL, *x = fill(context, dtype, 4, p->x, spoil);
    mn_tensor *w = fill(context, dtype, 4, p->w, -1), *b = fill(context, dtype, 1, p->w, -1);
    for (int i = 0; i < 2; i++) {
        o.stride[i] = p->stride;
        o.padding[i] = p->padding;
    }
    o.groups = p->groups;
    *y = mn_conv2d_moments(x, w, b, &o, &moments);
    *alone = mn_conv2d(x, w, b, &o);
    ck_assert_msg(*y != NULL, "%s", mn_error_message(context));
    return moments;
}

static void check_moments(const mn_tensor *y, const mn_tensor *moments, int which)
{
    const int64_t count = mn_tensor_numel(y), channels = mn_tensor_shape(y)[3];
    const double *got = mn_tensor_data(moments), rows = (double)(count / channels);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    ck_assert_int_eq(mn_tensor_read_f64(y, values, count), MN_OK);
    for (int64_t c = 0; c < channels && count > 0; c++) {
        double mean = 0, squares = 0;
        for (int64_t i = c; i < count; i += channels)
            mean += values[i] / rows;
        for (int64_t i = c; i < count; i += channels)
            squares += (values[i] - mean) * (values[i] - mean);
        if (!isfinite(mean)) {
            ck_assert_msg(!isfinite(got[c]), "product %d channel %d", which, (int)c);
            continue;
        }
        ck_assert_msg(fabs(got[c] - mean) <= 2e-6 * (fabs(mean) + sqrt(squares / rows)) &&
                          fabs(got[channels + c] - squares) <= 1e-5 * squares,
                      "product %d channel %d: %g %g, not %g %g", which, (int)c, got[c],
                      got[channels + c], mean, squares);
    }
    free(values);
}

START_TEST(moments_of_products)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    const mn_kernel_set kernels = (mn_kernel_set)_i;
    if (!mn_cpu_has_kernels(kernels))
        return;
    mn_context *contexts[4];
    for (int i = 0; i < 4; i++) {
        mn_context_options options = mn_context_options_default();
        options.kernels = kernels;
        options.threads = (int[]){1, 2, 3, 5}[i];
        contexts[i] = mn_context_create(&options, NULL);
    }
    for (size_t i = 0; i < COUNT(products) * COUNT(dtypes) * 4; i++) {
        const product *p = &products[i / 4 / COUNT(dtypes)];
        const mn_dtype dtype = dtypes[i / 4 % COUNT(dtypes)];
        if (p->w[1] == 0 || i % 4 == 3 ||
            (p->x[0] == 17 && (kernels == MN_KERNELS_REFERENCE || dtype == MN_F64)))
            continue;
        mn_tensor *first = NULL;
        mn_scope scopes[4];
        for (int k = 0; k < 4; k++) {
            mn_tensor *y, *alone;
            scopes[k] = mn_scope_begin(contexts[k]);
            mn_tensor *moments = moments_of(contexts[k], p, dtype, (int)(i % 4), &y, &alone);
            mn_test_same_bits(y, alone, "result", (int)i);
            if (k == 0)
                check_moments(y, moments, (int)i);
            else
                mn_test_same_bits(first, moments, "moments", (int)i);
            first = k == 0 ? moments : first;
        }
        for (int k = 0; k < 4; k++)
            mn_scope_end(contexts[k], scopes[k]);
    }
    for (int i = 0; i < 4; i++)
        mn_context_free(contexts[i]);
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct run {
    mn_context *context;
    mn_module *net;
    mn_scope scope;
    mn_tensor *result, *evaluated;
    uint64_t peak;
    uint64_t fused, pooled, joined, normed, rectified, again; /* calls of ops */
} run;

/* A forward and a backward pass of training, and a forward pass of evaluation. */
static run train(const char *model, mn_kernel_set kernels, mn_dtype region, bool fusion)
{
    run r = {.context = mn_test_open_with(kernels, fusion)};
    mn_model_options o = mn_model_options_default();
    o.height = o.width = 16;
    o.channels = 3;
    r.net = mn_model_create(r.context, model, &o);
    r.scope = mn_scope_begin(r.context);
    const problem images = {MN_F32, 4 * 16 * 16, 3, true, false, 0};
    mn_tensor *x =
        mn_reshape(draw(r.context, MN_F32, &images, 0), 4, (const int64_t[]){4, 16, 16, 3});
    mn_memory_reset_peak(r.context);
    mn_autocast_begin(r.context, region);
    r.result = mn_module_forward(r.net, x);
    mn_autocast_end(r.context);
    mn_tensor *loss = mn_sum(mn_cast(r.result, MN_F32), 0, NULL, false);
    ck_assert_msg(mn_backward(loss, 1.0) == MN_OK, "%s", mn_error_message(r.context));
    r.peak = mn_memory_stats_get(r.context).peak_bytes;
    r.fused = mn_op_calls(r.context, MN_OP_batch_norm_relu);
    r.pooled = mn_op_calls(r.context, MN_OP_batch_norm_relu_pool);
    r.joined =
        mn_op_calls(r.context, MN_OP_conv2d_relu) + mn_op_calls(r.context, MN_OP_linear_relu);
    r.normed = mn_op_calls(r.context, MN_OP_batch_norm);
    r.rectified = mn_op_calls(r.context, MN_OP_relu);
    r.again = mn_op_calls(r.context, MN_OP_batch_norm_relu_again);
    mn_module_set_training(r.net, false);
    r.evaluated = mn_module_forward(r.net, x);
    return r;
}

static void drop(run *r)
{
    mn_scope_end(r->context, r->scope);
    mn_module_free(r->net);
    mn_context_free(r->context);
}

/* Statistics from a convolution's store are sums in another order; what follows is as far off as
 * roundings to `dtype` are. */
static void close_to(const mn_tensor *a, const mn_tensor *b, mn_dtype dtype, const char *what)
{
    const double bound = dtype == MN_F32 ? 2e-5 : dtype == MN_F16 ? 0.02 : 0.2;
    const int64_t count = mn_tensor_numel(a);
    double *x = malloc(2 * (size_t)count * sizeof *x), off = 0, all = 0;
    ck_assert_int_eq(mn_tensor_read_f64(a, x, count), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(b, x + count, count), MN_OK);
    for (int64_t i = 0; i < count; i++) {
        off += (x[i] - x[count + i]) * (x[i] - x[count + i]);
        all += x[i] * x[i];
    }
    free(x);
    ck_assert_msg(sqrt(off) <= bound * sqrt(all) + 1e-6, "%s: %g of %g", what, sqrt(off),
                  sqrt(all));
}

/* Not of a bias that a batch norm takes away again: 0 but for rounding. */
static void compare_gradients(const mn_tensor *got, const mn_tensor *want, mn_dtype dtype)
{
    const char *name = mn_tensor_name(got);
    if (strncmp(name, "conv", 4) != 0 || strstr(name, ".bias") == NULL)
        close_to(mn_grad(got), mn_grad(want), dtype, name);
}

/* resnet8's blocks have shortcuts with and without layers; cnn-small pools what ReLU gives; lenet5
 * has no batch norm. */
START_TEST(models_with_and_without)
{
    static const mn_dtype regions[] = {MN_F32, MN_F16, MN_BF16};
    static const struct {
        const char *name;
        unsigned fused, pooled, joined, normed, moments, again;
    } models[] = {{"resnet8", 7, 0, 0, 2, 9, 1},
                  {"cnn-small", 1, 2, 0, 0, 3, 1},
                  {"lenet5", 0, 0, 4, 0, 0, 0}};
    const char *model = models[_i / 6].name;
    const mn_kernel_set kernels = _i % 2 ? MN_KERNELS_AUTO : MN_KERNELS_PORTABLE;
    run one = train(model, kernels, regions[_i / 2 % 3], true);
    run three = train(model, kernels, regions[_i / 2 % 3], false);
    int count;
    mn_tensor *const *got = mn_module_parameters(one.net, &count);
    mn_tensor *const *want = mn_module_parameters(three.net, &count);
    const mn_dtype dtype = regions[_i / 2 % 3];
    if (models[_i / 6].moments > 0) {
        close_to(one.result, three.result, dtype, "result");
        close_to(one.evaluated, three.evaluated, dtype, "evaluation");
    } else {
        mn_test_same_bits(one.result, three.result, "result", 0);
        mn_test_same_bits(one.evaluated, three.evaluated, "evaluation", 0);
    }
    for (int i = 0; i < count; i++)
        if (models[_i / 6].moments > 0)
            compare_gradients(got[i], want[i], dtype);
        else
            mn_test_same_bits(mn_grad(got[i]), mn_grad(want[i]), mn_tensor_name(got[i]), i);
    ck_assert_uint_eq(mn_op_calls(one.context, MN_OP_conv2d_moments), models[_i / 6].moments);
    ck_assert_uint_eq(mn_op_calls(three.context, MN_OP_conv2d_moments), 0);
    if (models[_i / 6].joined == 0)
        ck_assert_uint_le(one.peak, three.peak);
    ck_assert_uint_eq(one.fused, models[_i / 6].fused);
    ck_assert_uint_eq(one.pooled, models[_i / 6].pooled);
    ck_assert_uint_eq(mn_op_calls(one.context, MN_OP_batch_norm_inference_relu_pool), one.pooled);
    ck_assert_uint_eq(one.joined, models[_i / 6].joined);
    ck_assert_uint_eq(one.normed, models[_i / 6].normed);
    ck_assert_uint_eq(one.rectified, 0);
    ck_assert_uint_eq(one.again, models[_i / 6].again);
    ck_assert_uint_eq(three.again, 0);
    ck_assert_uint_eq(three.fused + three.pooled + three.joined, 0);
    drop(&one);
    drop(&three);
}
END_TEST

/* Another rule of casts for one of the ops is followed: then they stay apart. */
START_TEST(rules_are_kept)
{
    mn_context *context = mn_test_open_with(MN_KERNELS_AUTO, true);
    mn_module *net = mn_sequential(context);
    mn_sequential_add(net, "bn", mn_batch_norm_layer(context, 3));
    mn_sequential_add(net, "relu", mn_relu_layer(context));
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    const problem p = {MN_BF16, 8, 3, true, false, 0};
    mn_tensor *x = draw(context, MN_BF16, &p, 0);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            ck_assert_int_eq(mn_autocast_set_rules(context, "batch_norm=FP32"), MN_OK);
        mn_autocast_begin(context, MN_BF16);
        ck_assert_int_eq(mn_tensor_dtype(mn_module_forward(net, x)), i == 0 ? MN_BF16 : MN_F32);
        mn_autocast_end(context);
        ck_assert_uint_eq(mn_op_calls(context, MN_OP_batch_norm_relu), 1);
    }
    mn_module_free(net);
    mn_context_free(context);
}
END_TEST

/* y goes three ways, of whose gradients each sum is rounded: their order tells. */
static void branch(bool fusion, bool layer, mn_tensor **gradient, mn_context **context)
{
    *context = mn_test_open_with(MN_KERNELS_AUTO, fusion);
    mn_module *outer = mn_residual(*context), *inner = mn_residual(*context);
    if (layer)
        mn_sequential_add(inner, "tanh", mn_activation_layer(*context, MN_ACTIVATION_TANH));
    mn_sequential_add(inner, "bn", mn_batch_norm_layer(*context, 3));
    mn_residual_shortcut(inner, "gelu", mn_activation_layer(*context, MN_ACTIVATION_GELU));
    mn_sequential_add(outer, "inner", inner);
    ck_assert_int_eq(mn_module_init(outer), MN_OK);
    const problem p = {MN_BF16, 64, 3, true, false, 0};
    mn_tensor *x = draw(*context, MN_BF16, &p, 0), *weight = draw(*context, MN_BF16, &p, 6);
    mn_set_requires_grad(x, true);
    mn_tensor *y = mn_mul(x, weight);
    mn_tensor *loss = mn_sum(mn_mul(mn_module_forward(outer, y), weight), 0, NULL, false);
    ck_assert_msg(mn_backward(loss, 1.0) == MN_OK, "%s", mn_error_message(*context));
    *gradient = mn_grad(x);
    mn_module_free(outer);
}

START_TEST(order_of_sums_is_kept)
{
    mn_context *contexts[2];
    mn_tensor *gradients[2];
    for (int fusion = 0; fusion < 2; fusion++)
        branch(fusion, _i, &gradients[fusion], &contexts[fusion]);
    mn_test_same_bits(gradients[0], gradients[1], "gradient", _i);
    mn_context_free(contexts[0]);
    mn_context_free(contexts[1]);
}
END_TEST

/* Likewise; and only a ReLU joins them. */
START_TEST(rules_of_products_are_kept)
{
    mn_context *context = mn_test_open_with(MN_KERNELS_AUTO, true);
    mn_module *net = mn_sequential(context);
    mn_sequential_add(net, "fc1", mn_linear_layer(context, 3, 3, true));
    mn_sequential_add(net, "relu1", mn_relu_layer(context));
    mn_sequential_add(net, "fc2", mn_linear_layer(context, 3, 3, false));
    mn_sequential_add(net, "tanh", mn_activation_layer(context, MN_ACTIVATION_TANH));
    mn_sequential_add(net, "relu2", mn_relu_layer(context));
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    const problem p = {MN_F32, 8, 3, true, false, 0};
    mn_tensor *x = draw(context, MN_F32, &p, 0);
    for (unsigned i = 0; i < 2; i++) {
        if (i == 1)
            ck_assert_int_eq(mn_autocast_set_rules(context, "relu=FP32"), MN_OK);
        mn_autocast_begin(context, MN_BF16);
        ck_assert_int_eq(mn_tensor_dtype(mn_module_forward(net, x)), i == 0 ? MN_BF16 : MN_F32);
        mn_autocast_end(context);
        ck_assert_uint_eq(mn_op_calls(context, MN_OP_linear_relu), 1);
        ck_assert_uint_eq(mn_op_calls(context, MN_OP_linear), 1 + 2 * i);
    }
    mn_module_free(net);
    mn_context_free(context);
}
END_TEST

static Suite *fusion_suite(void)
{
    Suite *suite = suite_create("fusion");
    TCase *tests = tcase_create("fusion");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, one_op_gives_the_bits_of_three, MN_KERNELS_REFERENCE,
                        MN_KERNELS_AVX512 + 1);
    tcase_add_loop_test(tests, products_with_relu, MN_KERNELS_REFERENCE, MN_KERNELS_AVX512 + 1);
    tcase_add_loop_test(tests, moments_of_products, MN_KERNELS_REFERENCE, MN_KERNELS_AVX512 + 1);
    tcase_add_loop_test(tests, models_with_and_without, 0, 18);
    tcase_add_test(tests, rules_are_kept);
    tcase_add_loop_test(tests, order_of_sums_is_kept, 0, 2);
    tcase_add_test(tests, rules_of_products_are_kept);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return mn_test_run(fusion_suite(), CK_FORK_GETENV);
}
