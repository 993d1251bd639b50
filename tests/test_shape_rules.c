/* Tests of shape rules: what they refuse and how they say it, what they make of the rest, promotion
 * and broadcasting against PyTorch's and NumPy's rules. */
#include "ops/internal.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors written as text: "[2,3] f32; none; [] i64" -------------------------------------- */

static mn_dtype parse_dtype(const char *name, size_t length)
{
    for (int i = 0; i < MN_DTYPE_COUNT; i++) {
        const char *known = mn_dtype_name((mn_dtype)i);
        if (strlen(known) == length && strncmp(known, name, length) == 0)
            return (mn_dtype)i;
    }
    ck_abort_msg("no dtype in \"%s\"", name);
    return MN_F32;
}

static mn_tensor *parse_tensor(mn_context *ctx, const char **text)
{
    int64_t shape[MN_MAX_DIMS];
    int ndim = 0;
    const char *at = *text + strspn(*text, " ;");
    if (strncmp(at, "none", 4) == 0) {
        *text = at + 4;
        return NULL;
    }
    ck_assert_msg(*at == '[', "\"%s\"", at);
    for (at++; *at != ']'; at += *at == ',')
        shape[ndim++] = strtoll(at, (char **)(uintptr_t)&at, 10);
    at += 2; /* "] " */
    size_t length = strcspn(at, ";");
    mn_tensor *t = mn_full(ctx, parse_dtype(at, length), ndim, ndim ? shape : NULL, 0);
    ck_assert_msg(t != NULL, "%s", mn_error_message(ctx));
    *text = at + length;
    return t;
}

static int parse_inputs(mn_context *ctx, const char *text, mn_tensor **inputs)
{
    int count = 0;
    while (*text)
        inputs[count++] = parse_tensor(ctx, &text);
    return count;
}

/* ---- attributes of the cases ----------------------------------------------------------------- */

static const mn_shape_attributes shape_2_3 = {.ndim = 2, .shape = {2, 3}, .scale = 1};
static const mn_shape_attributes shape_bad = {.ndim = 2, .shape = {2, -3}, .scale = 1};
static const mn_pad_attributes cut_3 = {.before = {-3}};
static const mn_dropout_attributes half = {.p = 0.5};
static const mn_cast_attributes to_f16 = {.dtype = MN_F16}, to_nothing = {.dtype = 9};
static const mn_permute_attributes swap = {.axes = {1, 0}}, twice = {.axes = {1, 1}};
static const mn_matmul_attributes transposed = {.transpose_a = 1, .transpose_b = 1};
static const mn_conv2d_attributes conv = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
static const mn_conv2d_attributes conv_2 = {
    .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .extent = {5, 6}};
static const mn_conv2d_attributes conv_2w = {
    .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .extent = {3, 2}};
static const mn_conv2d_attributes no_groups = {.stride = {1, 1}, .dilation = {1, 1}};
static const mn_conv2d_attributes no_stride = {.dilation = {1, 1}, .groups = 1};
static const mn_pool2d_attributes pool = {.kernel = {2, 2}, .stride = {2, 2}};
static const mn_pool2d_attributes pool_far = {
    .kernel = {2, 2}, .stride = {2, 2}, .padding = {2, 0}};
static const mn_pool2d_attributes pool_from = {
    .kernel = {2, 2}, .stride = {2, 2}, .extent = {5, 4}};
static const mn_resize_attributes resize = {.size = {3, 7}, .extent = {5, 4}};
static const mn_resize_attributes no_mode = {.size = {3, 7}, .mode = 2};
static const mn_group_norm_attributes groups_2 = {.eps = 1, .groups = 2};
static const mn_group_norm_attributes last_2 = {.eps = 1, .groups = 1, .axes = 2};
static const mn_batch_norm_attributes norm = {.eps = 1e-5, .momentum = 0.1};
static const mn_batch_norm_attributes bad_norm = {.eps = -1, .momentum = 0.1};
static const mn_axis_attributes axis_1 = {.axis = 1}, axis_2 = {.axis = 2};
static const mn_reduce_attributes over_0 = {.axes = 1}, over_0_keep = {.axes = 1, .keep = 1};
static const mn_reduce_attributes over_2 = {.axes = 4};
static const mn_report_attributes entry_1 = {.entry = 1}, entry_9 = {.entry = 9};
static const mn_class_loss_attributes labels = {.ignore_index = -100},
                                      none = {MN_REDUCTION_NONE, -100, 0, 0.0},
                                      ignored = {.ignore_index = 1},
                                      reduction_3 = {3, -100, 0, 0.0}, smooth = {0, -100, 0, 1.25},
                                      smooth_log = {0, -100, 1, 0.5}, is_log = {0, -100, 1, 0.0};
static const mn_pointwise_loss_attributes mse = {.kind = MN_LOSS_MSE},
                                          mse_none = {MN_LOSS_MSE, MN_REDUCTION_NONE, 0.0},
                                          mse_3 = {MN_LOSS_MSE, 3, 0.0},
                                          huber_0 = {.kind = MN_LOSS_HUBER};

#define WITH(attributes) &(attributes)
#define NO_ATTRIBUTES    NULL

/* ---- shape rules that refuse ----------------------------------------------------------------- */

typedef struct bad_case {
    mn_op_id op;
    const char *inputs;
    const void *attributes;
    mn_status status;
    const char *text;
} bad_case;

static const bad_case bad_cases[] = {
    {MN_OP_reshape, "[5] f32", WITH(shape_2_3), MN_ERR_SHAPE,
     "[2,3] holds 6 elements, the input has 5"},
    {MN_OP_reshape, "[5] f32", WITH(shape_bad), MN_ERR_SHAPE, "[2,-3] is not a shape"},
    {MN_OP_cast, "[5] f32", WITH(to_nothing), MN_ERR_DTYPE, "there is no dtype 9"},
    {MN_OP_assign, "[2] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the source is [3], that of the destination [2]"},
    {MN_OP_permute, "[2,3] f32", WITH(twice), MN_ERR_ARGUMENT, "[1,1] is not a permutation"},
    {MN_OP_expand, "[2] f32", WITH(shape_2_3), MN_ERR_SHAPE, "does not broadcast to [2,3]"},
    {MN_OP_reduce_to, "[3] f32", WITH(shape_2_3), MN_ERR_SHAPE,
     "[2,3] does not broadcast to the input"},
    {MN_OP_pad, "[2,3] f32", WITH(cut_3), MN_ERR_SHAPE, "-3 elements before and 0 after axis 0"},
    {MN_OP_concat, "[2,3] f32; [1,2] f32", WITH(axis_1), MN_ERR_SHAPE, "tensor 1 does not fit"},
    {MN_OP_concat, "[2,3] f32; [2,3] f16", WITH(axis_1), MN_ERR_DTYPE, "dtypes f32 and f16"},
    {MN_OP_gather, "[2,3] f32; [3,1] i64", WITH(axis_1), MN_ERR_SHAPE, "along axis 0: 3 > 2"},
    {MN_OP_scatter_add, "[2,3] f32; [2,1] f32; [1,2] i64", WITH(axis_1), MN_ERR_SHAPE,
     "the source is [2,1], that of the index [1,2]"},
    {MN_OP_dropout, "[2] i32", WITH(half), MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_add, "[2,3] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "[2,3] and [2] do not broadcast"},
    {MN_OP_add, "[2] f32; [2] f16", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "inputs have different dtypes f32 and f16: cast one, or run inside an autocast region (a [2] "
     "f32, b [2] f16)"},
    {MN_OP_mul, "[0] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "[0] and [2] do not broadcast"},
    {MN_OP_relu_backward, "[2] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "that of the result [3]"},
    {MN_OP_sub, "[3] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "[3] and [2] do not broadcast"},
    {MN_OP_div, "[3] i64; [3] i64", NO_ATTRIBUTES, MN_ERR_DTYPE, "a is i64, must be floating"},
    {MN_OP_pow, "[3] u8; [3] u8", NO_ATTRIBUTES, MN_ERR_DTYPE, "a is u8, must be floating"},
    {MN_OP_minimum, "[3] f32; [3] f64", NO_ATTRIBUTES, MN_ERR_DTYPE, "dtypes f32 and f64"},
    {MN_OP_maximum, "[3] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "do not broadcast"},
    {MN_OP_compare, "[3] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "do not broadcast"},
    {MN_OP_where, "[3] f32; [3] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the condition is f32, must be u8"},
    {MN_OP_where, "[3] u8; [3] f32; [3] f16", NO_ATTRIBUTES, MN_ERR_DTYPE, "dtypes f32 and f16"},
    {MN_OP_where, "[3] u8; [3] f32; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "[3] and [2] do not broadcast"},
    {MN_OP_where, "[3] u8; none; [2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "[3] and [2] do not broadcast"},
    {MN_OP_where, "[3] u8; none; none", NO_ATTRIBUTES, MN_ERR_ARGUMENT, "neither a nor b"},
    {MN_OP_affine, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_abs, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_exp, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_log, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_sqrt, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_rsqrt, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_tanh, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_sigmoid, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_silu, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_gelu, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_leaky_relu, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the input is i32, must be floating"},
    {MN_OP_clamp, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the input is i32, must be floating"},
    {MN_OP_pow_scalar, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the input is i32, must be floating"},
    {MN_OP_unary_backward, "[2] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "that of the result [3]"},
    {MN_OP_matmul, "[2,3] f32; [2,3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "inner extents 3 and 2"},
    {MN_OP_matmul, "[3] f32; [3,2] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "at least 2 axes"},
    {MN_OP_matmul, "[2,3] i32; [3,2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "a is i32, must be floating"},
    {MN_OP_matmul, "[2,1,1] f32; [3,1,1] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "do not broadcast"},
    {MN_OP_linear, "[4,5] f32; [2,6] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "weight [2,6] expects 6 input features, the input has 5"},
    {MN_OP_linear, "[4,5] f32; [2,5] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the bias is [3], must be [2]"},
    {MN_OP_linear, "[4,5] f16; [2,5] f32", NO_ATTRIBUTES, MN_ERR_DTYPE, "dtypes f16 and f32"},
    {MN_OP_linear_relu, "[4,5] f32; [2,5] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the bias is [3], must be [2]"},
    {MN_OP_conv2d_relu, "[8,8,4] f32; [3,3,3,4] f32", WITH(conv), MN_ERR_SHAPE,
     "the input must have 4 axes, not 3"},
    {MN_OP_conv2d_moments, "[8,8,4] f32; [3,3,3,4] f32", WITH(conv), MN_ERR_SHAPE,
     "the input must have 4 axes, not 3"},
    {MN_OP_conv2d, "[1,8,8,32] f32; [64,3,3,16] f32", WITH(conv), MN_ERR_SHAPE,
     "weight [64,3,3,16] expects 16 input channels per group, the input has 32"},
    {MN_OP_conv2d, "[1,2,8,4] f32; [2,3,3,4] f32", WITH(conv), MN_ERR_SHAPE,
     "height: a kernel of 3 (dilation 1) does not fit an image of 2 with padding 0"},
    {MN_OP_conv2d, "[1,8,8,4] f32; [3,3,3,2] f32", WITH(conv_2), MN_ERR_SHAPE,
     "3 output channels do not divide into 2 groups"},
    {MN_OP_conv2d, "[1,8,8,4] f32; [3,3,3,2] f32", WITH(no_groups), MN_ERR_ARGUMENT, "groups is 0"},
    {MN_OP_conv2d, "[1,8,8,4] f32; [3,3,3,4] f32", WITH(no_stride), MN_ERR_ARGUMENT, "stride 0"},
    {MN_OP_conv2d, "[8,8,4] f32; [3,3,3,4] f32", WITH(conv), MN_ERR_SHAPE,
     "the input must have 4 axes, not 3"},
    {MN_OP_conv2d, "[1,8,8,4] f32; [3,3,3,4] f32; [4] f32", WITH(conv), MN_ERR_SHAPE,
     "the bias is [4], must be [3]"},
    {MN_OP_conv2d_backward_input, "[1,9,9,4] f32; [4,3,2,1] f32", WITH(conv_2), MN_ERR_SHAPE,
     "the gradient is [1,9,9,4], must be [1,3,4,4]"},
    {MN_OP_conv2d_backward_weight, "[1,9,9,4] f32; [1,5,6,2] f32", WITH(conv_2w), MN_ERR_SHAPE,
     "must be [1,3,4,4]"},
    {MN_OP_max_pool2d, "[1,1,4,1] f32", WITH(pool), MN_ERR_SHAPE, "does not fit an image of 1"},
    {MN_OP_max_pool2d, "[1,0,4,1] f32", WITH(pool), MN_ERR_SHAPE, "the image has no height"},
    {MN_OP_max_pool2d, "[1,4,4,1] f32", WITH(pool_far), MN_ERR_ARGUMENT,
     "padding 2 is more than half the kernel of 2"},
    {MN_OP_max_pool2d_backward, "[1,4,4,1] f32; [1,4,4,1] f32", WITH(pool), MN_ERR_SHAPE,
     "must be [1,2,2,1]"},
    {MN_OP_avg_pool2d, "[1,1,4,1] f32", WITH(pool), MN_ERR_SHAPE, "does not fit an image of 1"},
    {MN_OP_avg_pool2d_backward, "[1,2,2,1] f32", WITH(pool), MN_ERR_ARGUMENT, "0 by 0"},
    {MN_OP_avg_pool2d_backward, "[1,4,4,1] f32", WITH(pool_from), MN_ERR_SHAPE,
     "must be [1,2,2,1]"},
    {MN_OP_upsample2d, "[1,4,4,1] f32", WITH(no_mode), MN_ERR_ARGUMENT, "there is no mode 2"},
    {MN_OP_upsample2d_backward, "[1,4,4,1] f32", WITH(resize), MN_ERR_SHAPE, "must be [1,3,7,1]"},
    {MN_OP_layer_norm, "[4] f32", WITH(last_2), MN_ERR_SHAPE, "over the last 2"},
    {MN_OP_group_norm, "[4,3] f32", WITH(groups_2), MN_ERR_ARGUMENT, "3 channels do not divide"},
    {MN_OP_group_norm_backward, "[4,6] f32; [4,6] f32; none; [4,2] f32; [4,3] f32", WITH(groups_2),
     MN_ERR_SHAPE, "rstd is [4,3], must be [4,2]"},
    {MN_OP_batch_norm, "[4,3] f16; [3] f16; [3] f32; [3] f32; [3] f32", WITH(norm), MN_ERR_DTYPE,
     "the weight is f16, must be f32"},
    {MN_OP_batch_norm, "[4,3] f32; [3] f32; [2] f32; [3] f32; [3] f32", WITH(norm), MN_ERR_SHAPE,
     "the bias is [2], must be [3]"},
    {MN_OP_batch_norm, "[1,3] f32; [3] f32; [3] f32; [3] f32; [3] f32", WITH(norm), MN_ERR_SHAPE,
     "more than 1 value per channel"},
    {MN_OP_batch_norm, "[4,3] f32; [3] f32; [3] f32; [3] f32; [3] f32; [] f32", WITH(norm),
     MN_ERR_DTYPE, "the count is f32, must be i64"},
    {MN_OP_batch_norm, "[4,3] f32; [3] f32; [3] f32; [3] f32; [3] f32", WITH(bad_norm),
     MN_ERR_ARGUMENT, "eps -1"},
    {MN_OP_batch_norm_backward, "[4,2] f32; [4,3] f32; [3] f32; [3] f32; [3] f32", WITH(norm),
     MN_ERR_SHAPE, "the gradient is [4,2]"},
    {MN_OP_batch_norm_inference, "[4,3] f64; [3] f32; [3] f64; [3] f64; [3] f64", WITH(norm),
     MN_ERR_DTYPE, "the weight is f32, must be f64"},
    {MN_OP_batch_norm_inference_backward, "[4,3] f32; [4,3] f16; [3] f32; [3] f32; [3] f32",
     WITH(norm), MN_ERR_DTYPE, "different dtypes"},
    {MN_OP_batch_norm_relu, "[4,3] f16; [3] f32; [3] f32; [3] f32; [3] f32; none; [4,3] f32",
     WITH(norm), MN_ERR_DTYPE, "different dtypes"},
    {MN_OP_batch_norm, "[4,3] f32; [3] f32; [3] f32; [3] f32; [3] f32; none; none; [2,4] f64",
     WITH(norm), MN_ERR_SHAPE, "shape of moments is [2,4]"},
    {MN_OP_batch_norm_inference_relu, "[4,3] f32; [3] f32; [3] f32; [3] f32; [3] f32; [1,3] f32",
     WITH(norm), MN_ERR_SHAPE, "the residual is [1,3]"},
    {MN_OP_batch_norm_relu_again, "[4,3] f32; [3] f32; [3] f32; [3] f32; [2] f32", WITH(norm),
     MN_ERR_SHAPE, "running var is [2]"},
    {MN_OP_batch_norm_relu_backward,
     "[4,3] f32; [4,3] f32; [3] f32; [2] f32; [3] f32; [3] f32; [4,3] f32", WITH(norm),
     MN_ERR_SHAPE, "the bias is [2]"},
    {MN_OP_batch_norm_relu_backward,
     "[4,3] f32; [4,3] f32; [3] f32; none; [3] f32; [3] f32; [3,4] f32", WITH(norm), MN_ERR_SHAPE,
     "the result is [3,4]"},
    {MN_OP_batch_norm_relu_pool, "[4,1,5,3] f32; [3] f32; [3] f32; [3] f32; [3] f32", WITH(norm),
     MN_ERR_SHAPE, "images of 1x5"},
    {MN_OP_batch_norm_relu_pool_backward, "[2] f32; [2] f32; [2] f32; [2] f32; [2] f32; [2] f32",
     WITH(norm), MN_ERR_SHAPE, "the input has 1 axes"},
    {MN_OP_batch_norm_inference_relu_pool, "[4,3] f32; [3] f32; [3] f32; [3] f32; [3] f32",
     WITH(norm), MN_ERR_SHAPE, "the input must have 4 axes"},
    {MN_OP_log_softmax, "[2,3] f32", WITH(axis_2), MN_ERR_SHAPE,
     "axis 2 is out of range for 2 axes"},
    {MN_OP_log_softmax_backward, "[2,3] f32; [2,4] f32", WITH(axis_1), MN_ERR_SHAPE,
     "the gradient is [2,3]"},
    {MN_OP_softmax, "[2,3] i64", WITH(axis_1), MN_ERR_DTYPE, "must be floating"},
    {MN_OP_softmax_backward, "[2,3] f32; [2,3] f16", WITH(axis_1), MN_ERR_DTYPE,
     "different dtypes"},
    {MN_OP_cross_entropy, "[2,3] f32; [2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the labels is i32, must be i64"},
    {MN_OP_cross_entropy, "[2,3] f32; [3] i64", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the labels is [3], must be [2]"},
    {MN_OP_cross_entropy, "[2,0] f32; [2] i64", NO_ATTRIBUTES, MN_ERR_SHAPE, "no classes"},
    {MN_OP_cross_entropy, "[2,3] f32; [2,4] f32", WITH(labels), MN_ERR_SHAPE,
     "the probabilities is [2,4], that of the logits [2,3]"},
    {MN_OP_cross_entropy, "[2,3] f32; [2,3] f32", WITH(ignored), MN_ERR_ARGUMENT,
     "ignore_index is for labels"},
    {MN_OP_cross_entropy, "[2,3] f32; [2] i64; [2] f32", WITH(labels), MN_ERR_SHAPE,
     "the class weights is [2], must be [3]"},
    {MN_OP_cross_entropy, "[2,3] f16; [2] i64; [3] f16", WITH(labels), MN_ERR_DTYPE,
     "the class weights is f16, must be f32"},
    {MN_OP_cross_entropy, "[2,3] f32; [2] i64", WITH(smooth), MN_ERR_ARGUMENT,
     "label_smoothing is 1.25, must be in [0, 1]"},
    {MN_OP_cross_entropy, "[2,3] f32; [2] i64", WITH(reduction_3), MN_ERR_ARGUMENT,
     "unknown reduction 3"},
    {MN_OP_nll_loss, "[2,3] f32; [2,3] f32", WITH(is_log), MN_ERR_DTYPE,
     "the labels is f32, must be i64"},
    {MN_OP_nll_loss, "[2,3] f32; [2] i64", WITH(smooth_log), MN_ERR_ARGUMENT,
     "use mn_cross_entropy"},
    {MN_OP_cross_entropy_backward, "[] f16; [2,3] f16; [2] i64; [2] f32", NO_ATTRIBUTES,
     MN_ERR_DTYPE, "the gradient is f16, must be f32"},
    {MN_OP_cross_entropy_backward, "[] f32; [2,3] f16; [2] i64; [2] f32", WITH(none), MN_ERR_SHAPE,
     "the gradient is [], must be [2]"},
    {MN_OP_mse_loss, "[2,3] f32; [3] f32", WITH(mse), MN_ERR_SHAPE,
     "the target is [3], that of the input [2,3]"},
    {MN_OP_l1_loss, "[2] f32; [2] f16", WITH(mse), MN_ERR_DTYPE, "different dtypes"},
    {MN_OP_huber_loss, "[2] f32; [2] f32", WITH(huber_0), MN_ERR_ARGUMENT,
     "delta is 0, must be above 0"},
    {MN_OP_binary_cross_entropy_with_logits, "[2] i64; [2] i64", WITH(mse), MN_ERR_DTYPE,
     "must be floating"},
    {MN_OP_binary_cross_entropy, "[2] f32; [2] f32", WITH(mse_3), MN_ERR_ARGUMENT,
     "unknown reduction 3"},
    {MN_OP_pointwise_loss_backward, "[] f32; [2] f16; [2] f16", WITH(mse_none), MN_ERR_SHAPE,
     "the gradient is [], must be [2]"},
    {MN_OP_sum, "[2,3] f32", WITH(over_2), MN_ERR_SHAPE, "axes 0x4 are out of range"},
    {MN_OP_mean, "[2,3] i64", WITH(over_0), MN_ERR_DTYPE, "must be floating"},
    {MN_OP_amax, "[0,3] f32", WITH(over_0), MN_ERR_SHAPE, "axis 0 is empty"},
    {MN_OP_amin, "[2,3] f32", WITH(over_2), MN_ERR_SHAPE, "axes 0x4 are out of range"},
    {MN_OP_norm, "[2,3] f32", WITH(over_0), MN_ERR_ARGUMENT, "p is 0, must be 1, 2 or INFINITY"},
    {MN_OP_norm_backward, "[2] f32; [2,3] f16; [2] f32", WITH(over_0), MN_ERR_SHAPE,
     "the gradient is [2], must be [3]"},
    {MN_OP_var, "[2,3] i64", WITH(over_0), MN_ERR_DTYPE, "must be floating"},
    {MN_OP_dot, "[2] f32; [3] f32", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "shape of b is [3], that of a [2]"},
    {MN_OP_dot, "[2,1] f32; [2,1] f32", NO_ATTRIBUTES, MN_ERR_SHAPE, "a must have 1 axes, not 2"},
    {MN_OP_argmax, "[2,0] f32", WITH(axis_1), MN_ERR_SHAPE, "axis 1 is empty"},
    {MN_OP_blend, "[2] f16; [2] i64", NO_ATTRIBUTES, MN_ERR_DTYPE, "the addend is i64"},
    {MN_OP_blend, "[2] f16; [2] f32; [16] f32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the optimizer's record is f32"},
    {MN_OP_adjust, "[2] i32", NO_ATTRIBUTES, MN_ERR_DTYPE, "the tensor is i32"},
    {MN_OP_grad_unscale, "[2] f32; [16] f64; [16] f32", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the optimizer's record is f32"},
    {MN_OP_grad_norm, "[2] f32; [15] f64", NO_ATTRIBUTES, MN_ERR_SHAPE, "must be [16]"},
    {MN_OP_grad_clip, "[2] bf16; [16] f64", NO_ATTRIBUTES, MN_ERR_DTYPE, "the gradient is bf16"},
    {MN_OP_sgd_step, "[2] f32; [3] f32; none; none; [16] f64", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the gradient is [3]"},
    {MN_OP_sgd_step, "[2] f32; [2] f32; none; none; [16] f64; none; [2] f16", NO_ATTRIBUTES,
     MN_ERR_DTYPE, "the shadow is f16, must be bf16"},
    {MN_OP_sgd_step, "[2] f32; [2] f32; none; none; [16] f64; none; none; [2] f32", NO_ATTRIBUTES,
     MN_ERR_DTYPE, "a parameter of f32 has no master"},
    {MN_OP_sgd_step, "[2] bf16; [2] f32; none; none; [16] f64; none; none; [2] bf16", NO_ATTRIBUTES,
     MN_ERR_DTYPE, "the master is bf16, must be f32"},
    {MN_OP_adam_step, "[2] f16; [2] f32; [2] f32; [2] f16; [16] f64", NO_ATTRIBUTES, MN_ERR_DTYPE,
     "the optimizer's state is f16, must be f32"},
    {MN_OP_rmsprop_step, "[2] f32; [2] f32; [3] f32; none; [16] f64", NO_ATTRIBUTES, MN_ERR_SHAPE,
     "the optimizer's state is [3]"},
    {MN_OP_optimizer_finish, "[16] f32", NO_ATTRIBUTES, MN_ERR_DTYPE, "must be f64"},
    {MN_OP_scaler_scale, "[] i64; [16] f64", NO_ATTRIBUTES, MN_ERR_DTYPE, "the loss is i64"},
    {MN_OP_scaler_update, "[1,16] f64", NO_ATTRIBUTES, MN_ERR_SHAPE, "must be [16]"},
    {MN_OP_report_loss, "[4,16] f64; [2] f32; [2,3] f32; [2] i64", WITH(entry_1), MN_ERR_SHAPE,
     "one element"},
    {MN_OP_report_step, "[4,16] f64; [16] f64; [16] f64", WITH(entry_9), MN_ERR_ARGUMENT,
     "entry 9 is out of range for 4 rows"},
};

enum { BAD_CASES = sizeof bad_cases / sizeof *bad_cases };

START_TEST(shape_rules_refuse)
{
    mn_context *ctx = mn_test_reference();
    bool seen[MN_OP_COUNT] = {[MN_OP_copy] = true, [MN_OP_fill] = true, [MN_OP_relu] = true};
    for (int i = 0; i < BAD_CASES; i++) {
        const bad_case *c = &bad_cases[i];
        mn_tensor *inputs[MN_MAX_INPUTS], *outputs[MN_MAX_OUTPUTS] = {NULL};
        char prefix[64];
        int count = parse_inputs(ctx, c->inputs, inputs);
        outputs[0] = inputs[0];
        mn_name_push(ctx, "conv1");
        ck_assert_int_eq(
            mn_dispatch(ctx, &mn_ops[c->op], inputs, count, c->attributes, false, outputs),
            c->status);
        mn_name_pop(ctx);
        if (mn_ops[c->op].outputs > 0)
            ck_assert_ptr_null(outputs[0]);
        snprintf(prefix, sizeof prefix, "conv1: %s: ", mn_ops[c->op].name);
        ck_assert_msg(strncmp(mn_error_message(ctx), prefix, strlen(prefix)) == 0, "%s",
                      mn_error_message(ctx));
        mn_test_expect(ctx, c->status, c->text);
        seen[c->op] = true;
    }
    for (int i = 0; i < MN_OP_COUNT; i++)
        ck_assert_msg(seen[i], "no bad case for %s", mn_ops[i].name);
    mn_context_free(ctx);
}
END_TEST

/* ---- shape rules that accept ----------------------------------------------------------------- */

typedef struct good_case {
    mn_op_id op;
    const char *inputs;
    const void *attributes;
    bool f32_output;
    const char *outputs;
} good_case;

static const good_case good_cases[] = {
    {MN_OP_reshape, "[3,2] f16", WITH(shape_2_3), false, "[2,3] f16"},
    {MN_OP_cast, "[] i64", WITH(to_f16), false, "[] f16"},
    {MN_OP_permute, "[2,3] u8", WITH(swap), false, "[3,2] u8"},
    {MN_OP_expand, "[3] f32", WITH(shape_2_3), false, "[2,3] f32"},
    {MN_OP_reduce_to, "[4,2,3] bf16", WITH(shape_2_3), false, "[2,3] bf16"},
    {MN_OP_add, "[4,1] f32; [3] f32", NO_ATTRIBUTES, false, "[4,3] f32"},
    {MN_OP_mul, "[0,1] f32; [3] f32", NO_ATTRIBUTES, false, "[0,3] f32"},
    {MN_OP_compare, "[4,1] i64; [3] i64", NO_ATTRIBUTES, false, "[4,3] u8"},
    {MN_OP_compare, "[4,1] bf16; [] bf16", NO_ATTRIBUTES, false, "[4,1] u8"},
    {MN_OP_where, "[4,1,1] u8; [3] i64; [2,1] i64", NO_ATTRIBUTES, false, "[4,2,3] i64"},
    {MN_OP_where, "[0,1] u8; none; [2] u8", NO_ATTRIBUTES, false, "[0,2] u8"},
    {MN_OP_minimum, "[] u8; [3] u8", NO_ATTRIBUTES, false, "[3] u8"},
    {MN_OP_matmul, "[5,1,3,2] f16; [4,4,3] f16", WITH(transposed), false, "[5,4,2,4] f16"},
    {MN_OP_linear, "[5] f32; [2,5] f32; [2] f32", NO_ATTRIBUTES, false, "[2] f32"},
    {MN_OP_linear, "[7,0,5] f32; [2,5] f32; none", NO_ATTRIBUTES, false, "[7,0,2] f32"},
    {MN_OP_linear_relu, "[7,0,5] f32; [2,5] f32; none", NO_ATTRIBUTES, false, "[7,0,2] f32"},
    {MN_OP_conv2d_relu, "[0,5,6,2] f32; [4,3,2,1] f32", WITH(conv_2), false, "[0,3,4,4] f32"},
    {MN_OP_conv2d_moments, "[0,5,6,2] f16; [4,3,2,1] f16", WITH(conv_2), false,
     "[0,3,4,4] f16; [2,4] f64"},
    {MN_OP_conv2d, "[2,5,6,2] f16; [4,3,2,1] f16; [4] f16", WITH(conv_2), false, "[2,3,4,4] f16"},
    {MN_OP_conv2d, "[0,5,6,2] f32; [4,3,2,1] f32", WITH(conv_2), false, "[0,3,4,4] f32"},
    {MN_OP_conv2d_backward_input, "[1,3,4,4] f32; [4,3,2,1] f32", WITH(conv_2), false,
     "[1,5,6,2] f32"},
    {MN_OP_conv2d_backward_weight, "[1,3,4,4] f32; [1,5,6,2] f32", WITH(conv_2w), false,
     "[4,3,2,1] f32"},
    {MN_OP_max_pool2d, "[2,5,4,3] f32", WITH(pool), false, "[2,2,2,3] f32"},
    {MN_OP_max_pool2d_backward, "[2,2,2,3] f32; [2,5,4,3] f32", WITH(pool), false, "[2,5,4,3] f32"},
    {MN_OP_avg_pool2d, "[2,5,4,3] f16", WITH(pool), false, "[2,2,2,3] f16"},
    {MN_OP_avg_pool2d_backward, "[2,2,2,3] f16", WITH(pool_from), false, "[2,5,4,3] f16"},
    {MN_OP_upsample2d, "[2,5,4,0] bf16", WITH(resize), false, "[2,3,7,0] bf16"},
    {MN_OP_upsample2d_backward, "[2,3,7,3] f16", WITH(resize), false, "[2,5,4,3] f16"},
    {MN_OP_layer_norm, "[2,5,3] f16; none; [5,3] f32", WITH(last_2), false,
     "[2,5,3] f16; [2,1] f32; [2,1] f32"},
    {MN_OP_group_norm, "[2,5,4] f64; [4] f64", WITH(groups_2), false,
     "[2,5,4] f64; [2,2] f64; [2,2] f64"},
    {MN_OP_group_norm_backward, "[0,5,4] bf16; [0,5,4] bf16; none; [0,2] f32; [0,2] f32",
     WITH(groups_2), false, "[0,5,4] bf16; [4] f32; [4] f32"},
    {MN_OP_batch_norm, "[2,5,3] f16; [3] f32; [3] f32; [3] f32; [3] f32; [] i64", WITH(norm), false,
     "[2,5,3] f16; [3] f32; [3] f32"},
    {MN_OP_batch_norm_backward, "[4,3] bf16; [4,3] bf16; [3] f32; [3] f32; [3] f32", WITH(norm),
     false, "[4,3] bf16; [3] f32; [3] f32"},
    {MN_OP_batch_norm_relu, "[4,3] f16; [3] f32; [3] f32; [3] f32; [3] f32; none; [4,3] f16",
     WITH(norm), false, "[4,3] f16; [3] f32; [3] f32"},
    {MN_OP_batch_norm_relu_again, "[4,3] f16; [3] f32; [3] f32; [3] f32; [3] f32", WITH(norm),
     false, "[4,3] f16"},
    {MN_OP_batch_norm_relu_backward, "[4,3] f16; [4,3] f16; [3] f32; [3] f32; [3] f32; [3] f32",
     WITH(norm), false, "[4,3] f16; [3] f32; [3] f32; [0] f16"},
    {MN_OP_batch_norm_relu_backward,
     "[4,3] f16; [4,3] f16; [3] f32; [3] f32; [3] f32; [3] f32; [4,3] f16", WITH(norm), false,
     "[4,3] f16; [3] f32; [3] f32; [0] f16"},
    {MN_OP_batch_norm_relu_backward,
     "[4,3] f16; [4,3] f16; [3] f32; none; [3] f32; [3] f32; [4,3] f16", WITH(norm), false,
     "[4,3] f16; [3] f32; [3] f32; [4,3] f16"},
    {MN_OP_batch_norm_relu_pool, "[4,5,2,3] f16; [3] f32; [3] f32; [3] f32; [3] f32", WITH(norm),
     false, "[4,2,1,3] f16; [3] f32; [3] f32"},
    {MN_OP_batch_norm_inference, "[1,3] f64; [3] f64; [3] f64; [3] f64; [3] f64", WITH(norm), false,
     "[1,3] f64"},
    {MN_OP_log_softmax, "[2,3] f16", WITH(axis_1), false, "[2,3] f16"},
    {MN_OP_log_softmax, "[2,3] f16", WITH(axis_1), true, "[2,3] f32"},
    {MN_OP_softmax, "[2,3] f64", WITH(axis_1), true, "[2,3] f64"},
    {MN_OP_cross_entropy, "[2,3] f16; [2] i64", NO_ATTRIBUTES, false, "[] f32; [2] f32"},
    {MN_OP_cross_entropy, "[2,3] f64; [2] i64", NO_ATTRIBUTES, true, "[] f64; [2] f64"},
    {MN_OP_cross_entropy_backward, "[] f32; [2,3] bf16; [2] i64; [2] f32", NO_ATTRIBUTES, false,
     "[2,3] bf16"},
    {MN_OP_cross_entropy, "[2,3] f16; [2,3] bf16; [3] f32", WITH(none), false, "[2] f32; [2] f32"},
    {MN_OP_nll_loss, "[2,3] f64; [2] i64; [3] f64", WITH(is_log), false, "[] f64; [2] f64"},
    {MN_OP_mse_loss, "[2,3] f16; [2,3] f16", WITH(mse), false, "[] f32"},
    {MN_OP_mse_loss, "[2,3] f64; [2,3] f64", WITH(mse_none), false, "[2,3] f64"},
    {MN_OP_pointwise_loss_backward, "[] f32; [2] bf16; [2] bf16", WITH(mse), false, "[2] bf16"},
    {MN_OP_sum, "[2,3] f16", WITH(over_0), true, "[3] f32"},
    {MN_OP_sum, "[2,3] u8", WITH(over_0_keep), false, "[1,3] i64"},
    {MN_OP_mean, "[2,3] f16", WITH(over_0), true, "[3] f16"},
    {MN_OP_dot, "[0] f16; [0] f16", NO_ATTRIBUTES, false, "[] f16"},
    {MN_OP_argmax, "[2,3] i32", WITH(axis_1), false, "[2] i64"},
    {MN_OP_sgd_step, "[2] f32; [2] f32; none; none; [16] f64; [2] f16; [2] bf16", NO_ATTRIBUTES,
     false, ""},
    {MN_OP_scaler_scale, "[] f16; [16] f64", NO_ATTRIBUTES, false, "[] f32"},
};

enum { GOOD_CASES = sizeof good_cases / sizeof *good_cases };

static void describe_all(const mn_op *op, mn_tensor *const *outputs, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < op->outputs; i++) {
        char one[128];
        const mn_view view = mn_tensor_as_view(outputs[i]);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "; " : "",
                                 mn_tensor_describe(&view, one, sizeof one));
    }
}

/* In every kernel set: kernels may not trip over what the rules let through. */
START_TEST(shape_rules_accept)
{
    static const mn_kernel_set sets[] = {MN_KERNELS_REFERENCE, MN_KERNELS_PORTABLE,
                                         MN_KERNELS_AUTO};
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    for (int i = 0; i < GOOD_CASES; i++) {
        const good_case *c = &good_cases[i];
        mn_tensor *inputs[MN_MAX_INPUTS], *outputs[MN_MAX_OUTPUTS] = {NULL};
        char text[256];
        int count = parse_inputs(ctx, c->inputs, inputs);
        mn_dispatch(ctx, &mn_ops[c->op], inputs, count, c->attributes, c->f32_output, outputs);
        mn_test_expect_ok(ctx);
        describe_all(&mn_ops[c->op], outputs, text, sizeof text);
        ck_assert_str_eq(text, c->outputs);
    }
    mn_context_free(ctx);
}
END_TEST

START_TEST(missing_and_foreign_arguments)
{
    mn_context *ctx = mn_test_reference(), *other = mn_test_reference();
    mn_tensor *mine = mn_full(ctx, MN_F32, 0, NULL, 1),
              *foreign = mn_full(other, MN_F32, 0, NULL, 1);
    for (int i = 0; i < MN_OP_COUNT; i++) {
        mn_tensor *inputs[MN_MAX_INPUTS] = {NULL}, *outputs[MN_MAX_OUTPUTS];
        mn_dispatch(ctx, &mn_ops[i], inputs, mn_ops[i].min_inputs, NULL, false, outputs);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, ": argument 1 is NULL");
        mn_dispatch(ctx, &mn_ops[i], inputs, mn_ops[i].max_inputs + 1, NULL, false, outputs);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, " inputs, takes ");
    }
    ck_assert_ptr_null(mn_add(mine, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "add: argument 2 is NULL");
    ck_assert_ptr_null(mn_linear(NULL, mine, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "linear: argument 1 is NULL");
    ck_assert_ptr_null(mn_add(mine, foreign));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "add: argument 2 belongs to another context");
    ck_assert_ptr_null(mn_add(NULL, NULL));
    ck_assert_ptr_null(mn_batch_norm(NULL, NULL, NULL, NULL, NULL));
    mn_test_expect_ok(ctx);
    mn_context_free(other);
    mn_context_free(ctx);
}
END_TEST

/* ---- promotion and broadcasting -------------------------------------------------------------- */

/* torch.promote_types over f64 f32 f16 bf16 i64 i32 u8. */
static const char *const promotions[MN_DTYPE_COUNT] = {
    "f64 f64 f64  f64  f64  f64  f64", "f64 f32 f32  f32  f32  f32  f32",
    "f64 f32 f16  f32  f16  f16  f16", "f64 f32 f32  bf16 bf16 bf16 bf16",
    "f64 f32 f16  bf16 i64  i64  i64", "f64 f32 f16  bf16 i64  i32  i32",
    "f64 f32 f16  bf16 i64  i32  u8",
};

static mn_dtype promote(mn_dtype a, int a_ndim, mn_dtype b, int b_ndim)
{
    const mn_view left = {.dtype = a, .ndim = a_ndim}, right = {.dtype = b, .ndim = b_ndim};
    ck_assert_int_eq(mn_promote(&left, &right), mn_promote(&right, &left));
    return mn_promote(&left, &right);
}

START_TEST(promotion)
{
    for (int i = 0; i < MN_DTYPE_COUNT; i++) {
        const char *at = promotions[i];
        for (int j = 0; j < MN_DTYPE_COUNT; j++) {
            size_t length = strcspn(at, " ");
            mn_dtype want = parse_dtype(at, length);
            ck_assert_int_eq(promote((mn_dtype)i, 1, (mn_dtype)j, 2), want);
            ck_assert_int_eq(promote((mn_dtype)i, 0, (mn_dtype)j, 0), want);
            at += length;
            at += strspn(at, " ");
        }
    }
    /* tensor with scalar */
    ck_assert_int_eq(promote(MN_F16, 1, MN_F64, 0), MN_F16);
    ck_assert_int_eq(promote(MN_F16, 1, MN_BF16, 0), MN_F16);
    ck_assert_int_eq(promote(MN_U8, 1, MN_I64, 0), MN_U8);
    ck_assert_int_eq(promote(MN_F32, 1, MN_I64, 0), MN_F32);
    ck_assert_int_eq(promote(MN_I64, 1, MN_F64, 0), MN_F64);
    ck_assert_int_eq(promote(MN_I64, 1, MN_F16, 0), MN_F16);
}
END_TEST

START_TEST(broadcasting)
{
    static const struct {
        mn_view a, b;
        int ndim; /* -1: do not fit */
        int64_t shape[3];
    } cases[] = {
        {{.ndim = 0}, {.ndim = 0}, 0, {0}},
        {{.ndim = 0}, {.ndim = 2, .shape = {2, 3}}, 2, {2, 3}},
        {{.ndim = 2, .shape = {2, 1}}, {.ndim = 1, .shape = {3}}, 2, {2, 3}},
        {{.ndim = 3, .shape = {4, 1, 3}}, {.ndim = 2, .shape = {2, 1}}, 3, {4, 2, 3}},
        {{.ndim = 1, .shape = {0}}, {.ndim = 1, .shape = {1}}, 1, {0}},
        {{.ndim = 1, .shape = {0}}, {.ndim = 1, .shape = {2}}, -1, {0}},
        {{.ndim = 2, .shape = {2, 3}}, {.ndim = 1, .shape = {2}}, -1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int flip = 0; flip < 2; flip++) {
            int ndim;
            int64_t shape[MN_MAX_DIMS];
            bool fits = mn_broadcast(flip ? &cases[i].b : &cases[i].a,
                                     flip ? &cases[i].a : &cases[i].b, &ndim, shape);
            ck_assert_int_eq(fits, cases[i].ndim >= 0);
            if (!fits)
                continue;
            ck_assert_int_eq(ndim, cases[i].ndim);
            ck_assert_mem_eq(shape, cases[i].shape, (size_t)ndim * sizeof *shape);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shape_rules");
    TCase *tc = tcase_create("shape_rules");
    tcase_add_test(tc, shape_rules_refuse);
    tcase_add_loop_test(tc, shape_rules_accept, 0, 3);
    tcase_add_test(tc, missing_and_foreign_arguments);
    tcase_add_test(tc, promotion);
    tcase_add_test(tc, broadcasting);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
