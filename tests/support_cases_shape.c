/* Cases of ops that move, convert or reduce elements. */
#include "tests/support_cases.h"

#include "ops/ops.h"

#include <math.h>

static mn_tensor *build_clone(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_clone(in[0]);
}

/* To f32 (f64 stays, so that finite differences can be taken) and multiplied, to see the gradient.
 */
static mn_tensor *build_cast(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    mn_tensor *wide = mn_cast(in[0], mn_tensor_dtype(in[0]) == MN_F64 ? MN_F64 : MN_F32);
    return mn_mul(wide, wide);
}

static mn_tensor *build_reshape(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_mul(mn_reshape(in[0], (int)c->p[0], c->p + 1),
                  mn_reshape(in[0], (int)c->p[0], c->p + 1));
}

static mn_tensor *build_permute(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[MN_MAX_DIMS] = {0};
    for (int i = 0; i < mn_tensor_ndim(in[0]) && i < MN_MAX_DIMS; i++)
        axes[i] = (int)c->p[i];
    return mn_permute(in[0], mn_tensor_ndim(in[0]), axes);
}

/* fill and assign change in place, so they are shown on a fresh tensor. */
static mn_tensor *build_assign(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)c;
    mn_tensor *dst = mn_full(ctx, MN_F32, mn_tensor_ndim(in[0]), mn_tensor_shape(in[0]), 3.5);
    if (mn_tensor_fill(dst, -2.25) != MN_OK || mn_tensor_copy(dst, in[0]) != MN_OK)
        return NULL;
    return dst;
}

/* parameters: number of axes, keep, axes */
static mn_tensor *build_sum(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_sum(in[0], (int)c->p[0], axes, c->p[1] != 0);
}

static mn_tensor *build_mean(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_mean(in[0], (int)c->p[0], axes, c->p[1] != 0);
}

static mn_tensor *build_dot(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_dot(in[0], in[1]);
}

static mn_tensor *build_argmax(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_argmax(in[0], (int)c->p[0]);
}

static mn_tensor *build_slice(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_slice(in[0], (int)c->p[0], c->p[1], c->p[2]);
}

/* parameters: before, then after, of two axes; number: the value */
static mn_tensor *build_pad(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_pad(in[0], c->p, c->p + 2, c->f[0]);
}

/* parameter: the axis, also below; then how many of the inputs */
static mn_tensor *build_concat(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_concat(in, (int)c->p[1], (int)c->p[0]);
}

/* parameters: extent of the axis, the axis */
static mn_tensor *build_gather(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_gather(in[0], (int)c->p[1], in[1]);
}

static mn_tensor *build_scatter(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_scatter_add(in[0], (int)c->p[1], in[2], in[1]);
}

static mn_tensor *build_one_hot(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_one_hot(in[0], c->p[0], MN_F16);
}

static mn_tensor *build_dropout(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    mn_random_position(ctx, 3, 1);
    return mn_dropout(in[0], c->f[0], true);
}

/* parameters as of sum; number: p, or the correction */
static mn_tensor *build_amax(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_amax(in[0], (int)c->p[0], axes, c->p[1] != 0);
}

static mn_tensor *build_amin(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_amin(in[0], (int)c->p[0], axes, c->p[1] != 0);
}

static mn_tensor *build_norm(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_norm(in[0], c->f[0], (int)c->p[0], axes, c->p[1] != 0);
}

static mn_tensor *build_var(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    int axes[4] = {(int)c->p[2], (int)c->p[3], (int)c->p[4], (int)c->p[5]};
    return mn_var(in[0], c->f[0], (int)c->p[0], axes, c->p[1] != 0);
}

/* The backward of norms and extremes over axis 1 as an op of its own, of independent g, x and y
 * (for p = 2), or with y made from x. Times x, so that it has a gradient. */
static mn_tensor *build_norm_backward(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    static const int last[1] = {1};
    const mn_reduce_attributes attributes = {.axes = 2, .p = c->f[0]};
    mn_tensor *y = in[2];
    (void)ctx;
    if (c->f[0] == 0)
        y = mn_amax(in[1], 1, last, false);
    else if (c->f[0] != 2)
        y = mn_norm(in[1], c->f[0], 1, last, false);
    mn_tensor *const inputs[3] = {in[0], in[1], y};
    return mn_mul(mn_apply1(MN_OP_norm_backward, inputs, 3, &attributes), in[1]);
}

const op_case mn_cases_shape[] = {
    CASE("copy", .build = build_clone, .inputs = {N(3, 17)}),
    CASE("cast", .build = build_cast, .inputs = {N(3, 19)}),
    CASE("fill and assign", .build = build_assign, .inputs = {N(3, 19)}, .forward_only = true),
    CASE("reshape", .build = build_reshape, .inputs = {N(6, 5)}, .p = {3, 2, -1, 3}),
    CASE("permute nhwc", .build = build_permute, .inputs = {N(2, 3, 5, 7)}, .p = {0, 3, 1, 2}),
    CASE("permute 3d", .build = build_permute, .inputs = {N(2, 3, 5)}, .p = {2, 0, 1}),
    CASE("permute one channel", .build = build_permute, .inputs = {N(3, 5, 2, 1)},
         .p = {0, 3, 1, 2}),
    CASE("slice", .build = build_slice, .inputs = {N(3, 7, 5)}, .p = {1, 2, -1}),
    CASE("slice rows", .build = build_slice, .inputs = {N(3, 521)}, .p = {-2, -2, INT64_MAX}),
    CASE("slice nothing", .build = build_slice, .inputs = {N(3, 5)}, .p = {1, 4, 2}),
    CASE("pad", .build = build_pad, .inputs = {N(3, 5)}, .p = {1, 3, 2, 4}, .f = {1.5}),
    CASE("pad and cut", .build = build_pad, .inputs = {N(7, 5)}, .p = {-2, 2, 1, -1}),
    CASE("pad past the tensor", .build = build_pad, .inputs = {N(3, 2)}, .p = {0, -4, 0, 5},
         .f = {-2}),
    CASE("concat", .build = build_concat, .inputs = {N(2, 3, 5), N(2, 1, 5), N(2, 4, 5)},
         .p = {1, 3}),
    CASE("concat vectors", .build = build_concat, .inputs = {N(521), N(0), N(3), N(1)},
         .p = {-1, 4}),
    CASE("gather", .build = build_gather, .inputs = {N(5, 7), INPUT(LABELS, 3, 7)}, .p = {5}),
    CASE("gather middle", .build = build_gather, .inputs = {N(3, 5, 7), INPUT(LABELS, 2, 11, 4)},
         .p = {5, 1}),
    CASE("gather repeats", .build = build_gather, .inputs = {N(1, 3), INPUT(LABELS, 1, 1031)},
         .p = {3, -1}),
    CASE("scatter_add", .build = build_scatter, .inputs = {N(5, 7), N(11, 6), INPUT(LABELS, 11, 6)},
         .p = {5}),
    CASE("scatter_add last", .build = build_scatter,
         .inputs = {N(3, 5, 521), N(2, 5, 3), INPUT(LABELS, 2, 5, 3)}, .p = {521, 2}),
    CASE("scatter_add long", .build = build_scatter,
         .inputs = {N(2, 3), N(2, 1031), INPUT(LABELS, 2, 1031)}, .p = {3, 1}),
    CASE("one_hot", .build = build_one_hot, .inputs = {INPUT(LABELS, 3, 5)}, .p = {7},
         .forward_only = true, .no_tail = true),
    CASE("dropout", .build = build_dropout, .inputs = {N(3, 521)}, .f = {0.3}),
    CASE("dropout many", .build = build_dropout, .inputs = {N(5, 7, 1031)}, .f = {0.5}),
    CASE("amax all", .build = build_amax, .inputs = {D(13, 17)}),
    CASE("amax outer keep", .build = build_amax, .inputs = {D(3, 5, 7)}, .p = {2, 1, 0, 2}),
    CASE("amax rows", .build = build_amax, .inputs = {D(521, 3)}, .p = {1}),
    CASE("amax leaves", .build = build_amax, .inputs = {D(40009)}),
    CASE("amin last", .build = build_amin, .inputs = {D(2, 521)}, .p = {1, 0, -1}),
    CASE("amin middle", .build = build_amin, .inputs = {D(3, 5, 7)}, .p = {1, 0, 1}),
    CASE("amin scalar", .build = build_amin, .inputs = {SCALAR(NORMAL)}),
    CASE("norm 1", .build = build_norm, .inputs = {N(5, 7)}, .p = {1}, .f = {1}),
    CASE("norm 2", .build = build_norm, .inputs = {N(5, 7)}, .p = {1, 1, 1}, .f = {2}),
    CASE("norm 2 all", .build = build_norm, .inputs = {N(2, 521)}, .f = {2}),
    CASE("norm 2 strips", .build = build_norm, .inputs = {N(2, 3, 521)}, .p = {1, 0, 1}, .f = {2}),
    CASE("norm inf", .build = build_norm, .inputs = {N(7, 11)}, .p = {1, 0, 1},
         .f = {(double)INFINITY}),
    CASE("norm 1 leaves", .build = build_norm, .inputs = {N(40009)}, .f = {1}),
    CASE("norm inf leaves", .build = build_norm, .inputs = {N(40009)}, .f = {(double)INFINITY}),
    CASE("norm empty", .build = build_norm, .inputs = {N(0, 3)}, .p = {1}, .f = {2},
         .no_tail = true),
    CASE("var", .build = build_var, .inputs = {N(5, 7)}, .p = {1, 0, 1}, .f = {1}),
    CASE("var rows", .build = build_var, .inputs = {N(521, 2)}, .p = {1, 1}),
    CASE("var all", .build = build_var, .inputs = {N(3, 5, 2)}, .f = {1.5}),
    CASE("var leaves", .build = build_var, .inputs = {N(66, 2, 521)}, .p = {2, 1, 0, 2}, .f = {1}),
    CASE("norm_backward 2", .build = build_norm_backward,
         .inputs = {N(5), N(5, 7), INPUT(POSITIVE, 5)}, .f = {2}),
    CASE("norm_backward 1", .build = build_norm_backward, .inputs = {N(5), N(5, 7)}, .f = {1}),
    CASE("norm_backward inf", .build = build_norm_backward, .inputs = {N(5), N(5, 7)},
         .f = {(double)INFINITY}),
    CASE("amax backward", .build = build_norm_backward, .inputs = {N(5), D(5, 7)}),
    CASE("sum all", .build = build_sum, .inputs = {N(7, 11)}),
    CASE("sum rows", .build = build_sum, .inputs = {N(7, 11)}, .p = {1, 0, 0}),
    CASE("sum nhw", .build = build_sum, .inputs = {N(3, 2, 5, 7)}, .p = {3, 0, 0, 1, 2}),
    CASE("sum last keep", .build = build_sum, .inputs = {N(3, 5, 7)}, .p = {1, 1, -1}),
    CASE("sum short lines", .build = build_sum, .inputs = {N(521, 3)}, .p = {1, 0, 1}),
    CASE("sum middle", .build = build_sum, .inputs = {N(3, 5, 7)}, .p = {1, 0, 1}),
    CASE("sum empty", .build = build_sum, .inputs = {N(0, 5)}, .p = {1, 0, 0}, .no_tail = true),
    CASE("mean all", .build = build_mean, .inputs = {N(13, 3)}),
    CASE("mean outer", .build = build_mean, .inputs = {N(3, 5, 2)}, .p = {2, 0, 0, 2}),
    CASE("dot", .build = build_dot, .inputs = {N(37), N(37)}),
    CASE("dot empty", .build = build_dot, .inputs = {N(0), N(0)}, .no_tail = true),
    CASE("argmax", .build = build_argmax, .inputs = {D(7, 10)}, .p = {1}, .forward_only = true,
         .no_tail = true),
    CASE("argmax axis 0", .build = build_argmax, .inputs = {D(3, 5, 2)}, .forward_only = true,
         .no_tail = true),
    {0},
};
