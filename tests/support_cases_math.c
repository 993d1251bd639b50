/* Cases of elementwise ops and matrix products. */
#include "tests/support_cases.h"

#include "ops/ops.h"

#include <math.h>

static mn_tensor *build_matmul(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_matmul(in[0], in[1]);
}

static mn_tensor *build_linear(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return (c->p[1] ? mn_linear_relu : mn_linear)(in[0], in[1], c->p[0] ? in[2] : NULL);
}

static mn_tensor *build_compare(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    static mn_tensor *(*const ops[])(mn_tensor *, mn_tensor *) = {mn_eq, mn_ne, mn_lt,
                                                                  mn_le, mn_gt, mn_ge};
    (void)ctx;
    return ops[c->p[0]](in[0], in[1]);
}

static mn_tensor *build_where(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_where(in[2], in[0], in[1]);
}

static mn_tensor *build_scalar(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    static mn_tensor *(*const ops[])(mn_tensor *, double) = {mn_add_scalar, mn_mul_scalar,
                                                             mn_leaky_relu, mn_pow_scalar};
    (void)ctx;
    return ops[c->p[0]](in[0], c->f[0]);
}

static mn_tensor *build_clamp(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_clamp(in[0], c->f[0], c->f[1]);
}

/* The derivative of a function as an op of its own, of g and what the function saves. */
static mn_tensor *build_derivative(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    const mn_function_attributes attributes = {
        .function = c->p[0], .order = 1, .a = c->f[0], .b = c->f[1]};
    (void)ctx;
    return mn_apply1(MN_OP_unary_backward, in, 2, &attributes);
}

#define P(...) INPUT(POSITIVE, __VA_ARGS__)
#define M(...) INPUT(MASK, __VA_ARGS__)

const op_case mn_cases_math[] = {
    CASE("add 7x5", .binary = mn_add, .inputs = {N(7, 5), N(7, 5)}),
    CASE("add 1", .binary = mn_add, .inputs = {N(1), N(1)}),
    CASE("add tail 521", .binary = mn_add, .inputs = {N(521), N(521)}),
    CASE("add empty", .binary = mn_add, .inputs = {N(0, 3), N(0, 3)}, .no_tail = true),
    CASE("add bias", .binary = mn_add, .inputs = {N(3, 5, 7), N(7)}),
    CASE("add scalar", .binary = mn_add, .inputs = {N(5, 3), SCALAR(NORMAL)}),
    CASE("add both stretched", .binary = mn_add, .inputs = {N(3, 1, 5), N(7, 1)}),
    CASE("mul 11x3", .binary = mn_mul, .inputs = {N(11, 3), N(11, 3)}),
    CASE("mul column", .binary = mn_mul, .inputs = {N(5, 7), N(5, 1)}),
    CASE("mul short rows", .binary = mn_mul, .inputs = {N(331, 1, 5), N(331, 7, 1)}),
    CASE("mul stretched", .binary = mn_mul, .inputs = {N(1, 3, 1), N(2, 1, 5)}),
    CASE("relu 13x7", .unary = mn_relu, .inputs = {D(13, 7)}),
    CASE("relu tail 1031", .unary = mn_relu, .inputs = {D(1031)}),
    CASE("relu empty", .unary = mn_relu, .inputs = {D(0)}, .no_tail = true),
    CASE("sub 7x5", .binary = mn_sub, .inputs = {N(7, 5), N(7, 5)}),
    CASE("sub tail 1031", .binary = mn_sub, .inputs = {N(1031), N(1031)}),
    CASE("sub row", .binary = mn_sub, .inputs = {N(41, 7), N(7)}),
    CASE("sub row first", .binary = mn_sub, .inputs = {N(7), N(41, 7)}),
    CASE("sub column first", .binary = mn_sub, .inputs = {N(5, 1), N(5, 7)}),
    CASE("sub scalar first", .binary = mn_sub, .inputs = {SCALAR(NORMAL), N(5, 3)}),
    CASE("sub stretched", .binary = mn_sub, .inputs = {N(3, 1, 5), N(7, 1)}),
    CASE("sub empty", .binary = mn_sub, .inputs = {N(0, 3), N(3)}, .no_tail = true),
    CASE("div 521", .binary = mn_div, .inputs = {N(521), P(521)}),
    CASE("div scalar", .binary = mn_div, .inputs = {N(5, 3), SCALAR(POSITIVE)}),
    CASE("div scalar first", .binary = mn_div, .inputs = {N(1), P(7, 3)}),
    CASE("div column", .binary = mn_div, .inputs = {N(3, 7), P(3, 1)}),
    CASE("pow 521", .binary = mn_pow, .inputs = {P(521), N(521)}),
    CASE("pow row first", .binary = mn_pow, .inputs = {P(5), N(7, 5)}),
    CASE("minimum 7x11", .binary = mn_minimum, .inputs = {N(7, 11), N(7, 11)}),
    CASE("maximum 521", .binary = mn_maximum, .inputs = {N(521), N(521)}),
    CASE("maximum row first", .binary = mn_maximum, .inputs = {N(5), N(7, 5)}),
    CASE("eq", .build = build_compare, .inputs = {D(7, 3), D(7, 3)}, .p = {0},
         .forward_only = true),
    CASE("ne", .build = build_compare, .inputs = {D(7, 3), D(7, 3)}, .p = {1},
         .forward_only = true),
    CASE("lt row first", .build = build_compare, .inputs = {N(5), N(7, 5)}, .p = {2},
         .forward_only = true),
    CASE("le 1031", .build = build_compare, .inputs = {N(1031), N(1031)}, .p = {3},
         .forward_only = true),
    CASE("gt row", .build = build_compare, .inputs = {N(7, 5), N(5)}, .p = {4},
         .forward_only = true),
    CASE("ge scalar first", .build = build_compare, .inputs = {SCALAR(NORMAL), N(7, 5)}, .p = {5},
         .forward_only = true),
    CASE("where 521", .build = build_where, .inputs = {N(521), N(521), M(521)}),
    CASE("where stretched", .build = build_where, .inputs = {N(3, 1, 5), N(7, 1), M(2, 1, 1, 1)}),
    CASE("where scalars", .build = build_where, .inputs = {N(1), SCALAR(NORMAL), M(3, 5)}),
    CASE("where empty", .build = build_where, .inputs = {N(0, 3), N(3), M(0, 3)}, .no_tail = true),
    CASE("neg 7x5", .unary = mn_neg, .inputs = {N(7, 5)}),
    CASE("add_scalar 521", .build = build_scalar, .inputs = {N(521)}, .p = {0}, .f = {0.75}),
    CASE("mul_scalar 7x5", .build = build_scalar, .inputs = {N(7, 5)}, .p = {1}, .f = {-2.5}),
    CASE("leaky_relu 521", .build = build_scalar, .inputs = {D(521)}, .p = {2}, .f = {0.25}),
    CASE("pow_scalar 521", .build = build_scalar, .inputs = {P(521)}, .p = {3}, .f = {2.5}),
    CASE("pow_scalar inverse", .build = build_scalar, .inputs = {P(7, 3)}, .p = {3}, .f = {-1}),
    CASE("pow_scalar root", .build = build_scalar, .inputs = {P(7, 3)}, .p = {3}, .f = {0.5}),
    CASE("pow_scalar cube", .build = build_scalar, .inputs = {D(7, 3)}, .p = {3}, .f = {3}),
    CASE("clamp 7x11", .build = build_clamp, .inputs = {D(7, 11)}, .f = {-1.5, 2}),
    CASE("clamp 521", .build = build_clamp, .inputs = {D(521)}, .f = {-(double)INFINITY, 2}),
    CASE("abs 521", .unary = mn_abs, .inputs = {D(521)}),
    CASE("exp 521", .unary = mn_exp, .inputs = {N(521)}),
    CASE("exp empty", .unary = mn_exp, .inputs = {N(0)}, .no_tail = true),
    CASE("log 521", .unary = mn_log, .inputs = {P(521)}),
    CASE("sqrt 521", .unary = mn_sqrt, .inputs = {P(521)}),
    CASE("rsqrt 521", .unary = mn_rsqrt, .inputs = {P(521)}),
    CASE("tanh 521", .unary = mn_tanh, .inputs = {N(521)}),
    CASE("sigmoid 521", .unary = mn_sigmoid, .inputs = {N(521)}),
    CASE("silu 521", .unary = mn_silu, .inputs = {N(521)}),
    CASE("gelu 521", .unary = mn_gelu, .inputs = {N(521)}),
    CASE("gelu tail 1031", .unary = mn_gelu, .inputs = {N(1031)}),
    CASE("derivative of exp", .build = build_derivative, .inputs = {N(521), N(521)},
         .p = {MN_OP_exp}, .once = true),
    CASE("derivative of log", .build = build_derivative, .inputs = {N(521), P(521)},
         .p = {MN_OP_log}, .once = true),
    CASE("derivative of sqrt", .build = build_derivative, .inputs = {N(521), P(521)},
         .p = {MN_OP_sqrt}, .once = true),
    CASE("derivative of rsqrt", .build = build_derivative, .inputs = {N(521), P(521)},
         .p = {MN_OP_rsqrt}, .once = true),
    CASE("derivative of tanh", .build = build_derivative, .inputs = {N(521), N(521)},
         .p = {MN_OP_tanh}, .once = true),
    CASE("derivative of sigmoid", .build = build_derivative, .inputs = {N(521), P(521)},
         .p = {MN_OP_sigmoid}, .once = true),
    CASE("derivative of silu", .build = build_derivative, .inputs = {N(521), N(521)},
         .p = {MN_OP_silu}, .once = true),
    CASE("derivative of gelu", .build = build_derivative, .inputs = {N(521), N(521)},
         .p = {MN_OP_gelu}, .once = true),
    CASE("derivative of pow_scalar", .build = build_derivative, .inputs = {N(521), P(521)},
         .p = {MN_OP_pow_scalar}, .f = {3.5}, .once = true),
    CASE("matmul 1x1x1", .build = build_matmul, .inputs = {N(1, 1), N(1, 1)}),
    CASE("matmul 7x5x3", .build = build_matmul, .inputs = {N(7, 5), N(5, 3)}),
    CASE("matmul 13x17x19", .build = build_matmul, .inputs = {N(13, 17), N(17, 19)}),
    CASE("matmul k 0", .build = build_matmul, .inputs = {N(3, 0), N(0, 2)}, .no_tail = true),
    CASE("matmul batch", .build = build_matmul, .inputs = {N(3, 5, 2), N(3, 2, 7)}),
    CASE("matmul broadcast", .build = build_matmul, .inputs = {N(2, 1, 3, 5), N(3, 5, 2)}),
    CASE("linear 5x7->11", .build = build_linear, .inputs = {N(5, 7), N(11, 7), N(11)}, .p = {1}),
    CASE("linear 1->1", .build = build_linear, .inputs = {N(1, 1), N(1, 1), N(1)}, .p = {1}),
    CASE("linear no bias", .build = build_linear, .inputs = {N(3, 17), N(10, 17)}),
    CASE("linear 3d", .build = build_linear, .inputs = {N(2, 3, 5), N(4, 5), N(4)}, .p = {1}),
    CASE("linear relu", .build = build_linear, .inputs = {N(5, 7), N(11, 7), N(11)}, .p = {1, 1}),
    CASE("linear relu 3d", .build = build_linear, .inputs = {N(2, 3, 5), N(4, 5)}, .p = {0, 1}),
    CASE("linear empty", .build = build_linear, .inputs = {N(0, 3), N(2, 3), N(2)}, .p = {1},
         .no_tail = true),
    {0},
};
