/* Cases of ops that move, convert or reduce elements. */
#include "tests/support_cases.h"

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

const op_case mn_cases_shape[] = {
    CASE("copy", .build = build_clone, .inputs = {N(3, 17)}),
    CASE("cast", .build = build_cast, .inputs = {N(3, 19)}),
    CASE("fill and assign", .build = build_assign, .inputs = {N(3, 19)}, .forward_only = true),
    CASE("reshape", .build = build_reshape, .inputs = {N(6, 5)}, .p = {3, 2, -1, 3}),
    CASE("permute nhwc", .build = build_permute, .inputs = {N(2, 3, 5, 7)}, .p = {0, 3, 1, 2}),
    CASE("permute 3d", .build = build_permute, .inputs = {N(2, 3, 5)}, .p = {2, 0, 1}),
    CASE("permute one channel", .build = build_permute, .inputs = {N(3, 5, 2, 1)},
         .p = {0, 3, 1, 2}),
    CASE("sum all", .build = build_sum, .inputs = {N(7, 11)}),
    CASE("sum rows", .build = build_sum, .inputs = {N(7, 11)}, .p = {1, 0, 0}),
    CASE("sum nhw", .build = build_sum, .inputs = {N(3, 2, 5, 7)}, .p = {3, 0, 0, 1, 2}),
    CASE("sum last keep", .build = build_sum, .inputs = {N(3, 5, 7)}, .p = {1, 1, -1}),
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
