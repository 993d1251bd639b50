/* Cases of convolution, pooling and normalisation. */
#include "tests/support_cases.h"

#include "ops/ops.h"

/* parameters: stride h w, padding h w, dilation h w, groups, bias; 1 with ReLU */
static mn_tensor *build_conv2d(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_conv2d_options o = mn_conv2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.stride[i] = (int)c->p[i];
        o.padding[i] = (int)c->p[2 + i];
        o.dilation[i] = (int)c->p[4 + i];
    }
    o.groups = (int)c->p[6];
    return (c->p[8] ? mn_conv2d_relu : mn_conv2d)(in[0], in[1], c->p[7] ? in[2] : NULL, &o);
}

/* parameters: kernel h w, stride h w, padding h w, of avg_pool2d: 1 or with exclude_padding 2 */
static mn_tensor *build_pool(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_pool2d_options o = mn_pool2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = (int)c->p[i];
        o.stride[i] = (int)c->p[2 + i];
        o.padding[i] = (int)c->p[4 + i];
    }
    o.exclude_padding = c->p[6] == 2;
    return c->p[6] ? mn_avg_pool2d(in[0], &o) : mn_max_pool2d(in[0], &o);
}

/* parameters: height, width, mode, align_corners */
static mn_tensor *build_upsample(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_upsample2d_options o = mn_upsample2d_options_default();
    o.height = (int)c->p[0];
    o.width = (int)c->p[1];
    o.mode = (mn_upsample_mode)c->p[2];
    o.align_corners = c->p[3] != 0;
    return mn_upsample2d(in[0], &o);
}

/* parameters: training */
static mn_tensor *build_batch_norm(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = c->p[0] != 0;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    return mn_batch_norm(in[0], in[1], in[2], running, &o);
}

/* parameters: training, a residual */
static mn_tensor *build_batch_norm_relu(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = c->p[0] != 0;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    return mn_batch_norm_relu(in[0], in[1], in[2], running, c->p[1] ? in[5] : NULL, &o);
}

/* parameters: training */
static mn_tensor *build_batch_norm_pool(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = c->p[0] != 0;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    return mn_batch_norm_of(in[0], in[1], in[2], running, NULL, NULL, MN_NORM_RELU_POOL, &o);
}

/* The convolution's work on each element is enough for its input to be made again in backward. */
static mn_tensor *build_norm_conv2d(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = true;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    mn_conv2d_options conv = mn_conv2d_options_default();
    return mn_conv2d(mn_batch_norm_relu(in[0], in[1], in[2], running, NULL, &o), in[5], NULL,
                     &conv);
}

/* A convolution that makes the statistics of the batch norm after it.
 * parameters: stride, padding, with ReLU, groups */
static mn_tensor *build_conv_batch_norm(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_batch_norm_options norm = mn_batch_norm_options_default();
    mn_conv2d_options conv = mn_conv2d_options_default();
    mn_tensor *running[3] = {in[4], in[5], NULL}, *moments = NULL;
    norm.training = true;
    for (int i = 0; i < 2; i++) {
        conv.stride[i] = (int)c->p[0];
        conv.padding[i] = (int)c->p[1];
    }
    conv.groups = (int)c->p[3];
    mn_tensor *y = mn_conv2d_moments(in[0], in[1], NULL, &conv, &moments);
    return mn_batch_norm_of(y, in[2], in[3], running, NULL, moments,
                            c->p[2] ? MN_NORM_RELU : MN_NORM_ALONE, &norm);
}

/* parameters: groups, or axes of a layer norm, negative; 1: the second input is the bias */
static mn_tensor *build_group_norm(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    const int groups = (int)c->p[0];
    mn_tensor *weight = c->p[1] || c->inputs[1].kind == NOTHING ? NULL : in[1];
    mn_tensor *bias = c->p[1] ? in[1] : c->inputs[2].kind == NOTHING ? NULL : in[2];
    return groups > 0 ? mn_group_norm(in[0], groups, weight, bias, 1e-5)
                      : mn_layer_norm(in[0], -groups, weight, bias, 1e-5);
}

#define BN_INPUTS(x, c) x, INPUT(PARAM, c), INPUT(PARAM, c), INPUT(STATE, c), INPUT(STATE, c)

const op_case mn_cases_image[] = {
    CASE("conv 1x1", .build = build_conv2d, .inputs = {N(1, 1, 1, 1), N(1, 1, 1, 1), N(1)},
         .p = {1, 1, 0, 0, 1, 1, 1, 1}),
    CASE("conv 3x3 pad", .build = build_conv2d, .inputs = {N(2, 5, 7, 3), N(5, 3, 3, 3), N(5)},
         .p = {1, 1, 1, 1, 1, 1, 1, 1}),
    CASE("conv 5x5 lenet", .build = build_conv2d, .inputs = {N(2, 9, 8, 1), N(6, 5, 5, 1), N(6)},
         .p = {1, 1, 2, 2, 1, 1, 1, 1}),
    CASE("conv stride h", .build = build_conv2d, .inputs = {N(1, 7, 6, 2), N(3, 3, 2, 2)},
         .p = {2, 1, 1, 0, 1, 1, 1, 0}),
    CASE("conv stride w", .build = build_conv2d, .inputs = {N(2, 6, 9, 3), N(2, 2, 3, 3)},
         .p = {1, 3, 0, 2, 1, 1, 1, 0}),
    CASE("conv dilation", .build = build_conv2d, .inputs = {N(1, 9, 8, 2), N(3, 3, 2, 2), N(3)},
         .p = {1, 1, 2, 1, 2, 3, 1, 1}),
    CASE("conv groups", .build = build_conv2d, .inputs = {N(2, 5, 4, 6), N(4, 3, 3, 3), N(4)},
         .p = {1, 1, 1, 1, 1, 1, 2, 1}),
    CASE("conv depthwise", .build = build_conv2d, .inputs = {N(1, 5, 6, 5), N(5, 3, 3, 1)},
         .p = {2, 2, 1, 1, 1, 1, 5, 0}),
    CASE("conv channels 13->17", .build = build_conv2d, .inputs = {N(1, 4, 5, 13), N(17, 3, 3, 13)},
         .p = {1, 1, 1, 1, 1, 1, 1, 0}),
    CASE("conv relu", .build = build_conv2d, .inputs = {N(2, 5, 7, 3), N(5, 3, 3, 3), N(5)},
         .p = {2, 1, 1, 1, 1, 1, 1, 1, 1}),
    CASE("conv relu groups", .build = build_conv2d, .inputs = {N(2, 5, 4, 6), N(4, 3, 3, 3)},
         .p = {1, 1, 1, 1, 1, 1, 2, 0, 1}),
    CASE("conv empty batch", .build = build_conv2d, .inputs = {N(0, 5, 5, 2), N(3, 3, 3, 2), N(3)},
         .p = {1, 1, 1, 1, 1, 1, 1, 1}, .no_tail = true),
    CASE("max pool 2x2", .build = build_pool, .inputs = {D(2, 6, 4, 3)}, .p = {2, 2, 0, 0, 0, 0},
         .once = true),
    CASE("max pool 2x2 c 1", .build = build_pool, .inputs = {D(3, 4, 6, 1)},
         .p = {2, 2, 0, 0, 0, 0}, .once = true),
    CASE("max pool 2x2 odd", .build = build_pool, .inputs = {D(2, 5, 7, 17)},
         .p = {2, 2, 0, 0, 0, 0}, .no_tail = true, .once = true),
    CASE("max pool overlap", .build = build_pool, .inputs = {D(1, 7, 8, 5)},
         .p = {3, 3, 2, 1, 1, 1}, .once = true),
    CASE("max pool 3x2", .build = build_pool, .inputs = {D(1, 6, 5, 2)}, .p = {3, 2, 1, 2, 0, 1},
         .once = true),
    CASE("global average pool", .unary = mn_global_avg_pool2d, .inputs = {N(3, 5, 2, 7)}),
    CASE("global average pool 1x1", .unary = mn_global_avg_pool2d, .inputs = {N(2, 1, 1, 3)}),
    CASE("average pool 2x2", .build = build_pool, .inputs = {N(2, 6, 4, 3)},
         .p = {2, 2, 0, 0, 0, 0, 1}),
    CASE("average pool 2x2 odd", .build = build_pool, .inputs = {N(2, 5, 7, 17)},
         .p = {2, 2, 0, 0, 0, 0, 1}, .no_tail = true),
    CASE("average pool overlap", .build = build_pool, .inputs = {N(1, 7, 8, 5)},
         .p = {3, 3, 2, 1, 1, 1, 1}),
    CASE("average pool exclude", .build = build_pool, .inputs = {N(1, 7, 8, 5)},
         .p = {3, 2, 2, 1, 1, 1, 2}),
    CASE("average pool gaps", .build = build_pool, .inputs = {N(1, 6, 7, 2)},
         .p = {1, 2, 2, 3, 0, 1, 2}, .no_tail = true),
    CASE("average pool c 521", .build = build_pool, .inputs = {N(1, 2, 3, 521)},
         .p = {2, 3, 1, 1, 0, 0, 1}),
    CASE("upsample nearest", .build = build_upsample, .inputs = {N(2, 3, 5, 3)}, .p = {7, 10}),
    CASE("upsample nearest down", .build = build_upsample, .inputs = {N(1, 7, 5, 2)}, .p = {3, 5},
         .no_tail = true),
    CASE("upsample bilinear", .build = build_upsample, .inputs = {N(2, 3, 4, 3)},
         .p = {7, 8, 1, 0}),
    CASE("upsample corners", .build = build_upsample, .inputs = {N(1, 5, 3, 2)},
         .p = {3, 11, 1, 1}),
    CASE("upsample to 1", .build = build_upsample, .inputs = {N(1, 4, 3, 2)}, .p = {1, 1, 1, 1},
         .no_tail = true),
    CASE("upsample from 1", .build = build_upsample, .inputs = {N(1, 1, 1, 2)}, .p = {13, 7, 1, 0}),
    CASE("upsample c 521", .build = build_upsample, .inputs = {N(1, 2, 1, 521)}, .p = {3, 2, 1}),
    CASE("upsample wide", .build = build_upsample, .inputs = {N(1, 2, 71, 1)}, .p = {2, 131, 1}),
    CASE("upsample empty", .build = build_upsample, .inputs = {N(0, 2, 3, 2)}, .p = {4, 5, 1},
         .no_tail = true),
    CASE("batch norm", .build = build_batch_norm, .inputs = {BN_INPUTS(N(3, 5, 2, 7), 7)}, .p = {1},
         .once = true),
    CASE("batch norm 2d", .build = build_batch_norm, .inputs = {BN_INPUTS(N(11, 3), 3)}, .p = {1},
         .once = true),
    CASE("batch norm c 1", .build = build_batch_norm, .inputs = {BN_INPUTS(N(2, 3, 5, 1), 1)},
         .p = {1}, .once = true),
    CASE("batch norm c 32", .build = build_batch_norm, .inputs = {BN_INPUTS(N(2, 3, 3, 32), 32)},
         .p = {1}, .once = true),
    CASE("batch norm eval", .build = build_batch_norm, .inputs = {BN_INPUTS(N(2, 3, 2, 5), 5)},
         .once = true),
    CASE("batch norm relu", .build = build_batch_norm_relu, .inputs = {BN_INPUTS(N(3, 5, 2, 7), 7)},
         .p = {1}, .once = true),
    CASE("batch norm relu c 1", .build = build_batch_norm_relu, .inputs = {BN_INPUTS(N(13, 1), 1)},
         .p = {1}, .once = true),
    CASE("batch norm add relu", .build = build_batch_norm_relu,
         .inputs = {BN_INPUTS(N(2, 3, 2, 5), 5), N(2, 3, 2, 5)}, .p = {1, 1}, .once = true),
    CASE("batch norm relu conv", .build = build_norm_conv2d,
         .inputs = {BN_INPUTS(N(3, 2, 2, 3), 3), N(128, 2, 2, 3)}, .once = true),
    CASE("batch norm relu eval", .build = build_batch_norm_relu,
         .inputs = {BN_INPUTS(N(2, 3, 2, 5), 5)}, .once = true),
    CASE("batch norm add relu eval", .build = build_batch_norm_relu,
         .inputs = {BN_INPUTS(N(2, 3, 2, 5), 5), N(2, 3, 2, 5)}, .p = {0, 1}, .once = true),
    CASE("batch norm relu pool", .build = build_batch_norm_pool,
         .inputs = {BN_INPUTS(N(2, 4, 6, 7), 7)}, .p = {1}, .once = true),
    CASE("batch norm relu pool odd", .build = build_batch_norm_pool,
         .inputs = {BN_INPUTS(N(1, 5, 3, 18), 18)}, .p = {1}, .no_tail = true, .once = true),
    CASE("batch norm relu pool eval", .build = build_batch_norm_pool,
         .inputs = {BN_INPUTS(N(1, 4, 5, 5), 5)}, .no_tail = true, .once = true),
    CASE("conv batch norm", .build = build_conv_batch_norm,
         .inputs = {N(2, 5, 4, 3), N(5, 3, 3, 3), INPUT(PARAM, 5), INPUT(PARAM, 5), INPUT(STATE, 5),
                    INPUT(STATE, 5)},
         .p = {1, 1, 0, 1}, .once = true),
    CASE("conv batch norm relu", .build = build_conv_batch_norm,
         .inputs = {N(2, 5, 6, 4), N(18, 3, 3, 2), INPUT(PARAM, 18), INPUT(PARAM, 18),
                    INPUT(STATE, 18), INPUT(STATE, 18)},
         .p = {2, 1, 1, 2}, .once = true),
    CASE("layer norm", .build = build_group_norm,
         .inputs = {N(5, 3, 31), INPUT(PARAM, 31), INPUT(PARAM, 31)}, .p = {-1}, .once = true),
    CASE("layer norm 2 axes", .build = build_group_norm,
         .inputs = {N(2, 5, 61), INPUT(PARAM, 5, 61), INPUT(PARAM, 5, 61)}, .p = {-2},
         .once = true),
    CASE("layer norm 1031", .build = build_group_norm,
         .inputs = {N(2, 1031), INPUT(PARAM, 1031), INPUT(PARAM, 1031)}, .p = {-1}, .once = true),
    CASE("layer norm bare", .build = build_group_norm, .inputs = {N(17)}, .p = {-1}, .once = true),
    CASE("layer norm bias", .build = build_group_norm, .inputs = {N(3, 13), INPUT(PARAM, 13)},
         .p = {-1, 1}, .once = true),
    CASE("layer norm empty", .build = build_group_norm, .inputs = {N(0, 3), INPUT(PARAM, 3)},
         .p = {-1}, .no_tail = true, .once = true),
    CASE("group norm", .build = build_group_norm,
         .inputs = {N(2, 3, 5, 12), INPUT(PARAM, 12), INPUT(PARAM, 12)}, .p = {3}, .once = true),
    CASE("group norm 1 group", .build = build_group_norm, .inputs = {N(3, 7, 5), INPUT(PARAM, 5)},
         .p = {1}, .once = true),
    CASE("group norm instance", .build = build_group_norm,
         .inputs = {N(2, 11, 7), INPUT(PARAM, 7), INPUT(PARAM, 7)}, .p = {7}, .once = true),
    CASE("group norm 2d", .build = build_group_norm, .inputs = {N(3, 24)}, .p = {2}, .once = true),
    CASE("group norm wide", .build = build_group_norm,
         .inputs = {N(1, 2, 521), INPUT(PARAM, 521), INPUT(PARAM, 521)}, .p = {1}, .once = true),
    CASE("group norm many", .build = build_group_norm,
         .inputs = {N(1, 3, 309), INPUT(PARAM, 309), INPUT(PARAM, 309)}, .p = {3}, .once = true),
    {0},
};
