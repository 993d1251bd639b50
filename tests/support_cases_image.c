/* Cases of convolution, pooling and normalisation. */
#include "tests/support_cases.h"

/* parameters: stride h w, padding h w, dilation h w, groups, bias */
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
    return mn_conv2d(in[0], in[1], c->p[7] ? in[2] : NULL, &o);
}

/* parameters: kernel h w, stride h w, padding h w */
static mn_tensor *build_max_pool(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_pool2d_options o = mn_pool2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = (int)c->p[i];
        o.stride[i] = (int)c->p[2 + i];
        o.padding[i] = (int)c->p[4 + i];
    }
    return mn_max_pool2d(in[0], &o);
}

static mn_tensor *build_average_pool(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_global_avg_pool2d(in[0]);
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
    CASE("conv empty batch", .build = build_conv2d, .inputs = {N(0, 5, 5, 2), N(3, 3, 3, 2), N(3)},
         .p = {1, 1, 1, 1, 1, 1, 1, 1}, .no_tail = true),
    CASE("max pool 2x2", .build = build_max_pool, .inputs = {D(2, 6, 4, 3)},
         .p = {2, 2, 0, 0, 0, 0}, .once = true),
    CASE("max pool 2x2 c 1", .build = build_max_pool, .inputs = {D(3, 4, 6, 1)},
         .p = {2, 2, 0, 0, 0, 0}, .once = true),
    CASE("max pool 2x2 odd", .build = build_max_pool, .inputs = {D(2, 5, 7, 17)},
         .p = {2, 2, 0, 0, 0, 0}, .no_tail = true, .once = true),
    CASE("max pool overlap", .build = build_max_pool, .inputs = {D(1, 7, 8, 5)},
         .p = {3, 3, 2, 1, 1, 1}, .once = true),
    CASE("max pool 3x2", .build = build_max_pool, .inputs = {D(1, 6, 5, 2)},
         .p = {3, 2, 1, 2, 0, 1}, .once = true),
    CASE("average pool", .build = build_average_pool, .inputs = {N(3, 5, 2, 7)}),
    CASE("average pool 1x1", .build = build_average_pool, .inputs = {N(2, 1, 1, 3)}),
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
    {0},
};
