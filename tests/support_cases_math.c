/* Cases of elementwise ops and matrix products. */
#include "tests/support_cases.h"

static mn_tensor *build_matmul(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_matmul(in[0], in[1]);
}

static mn_tensor *build_linear(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_linear(in[0], in[1], c->p[0] ? in[2] : NULL);
}

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
    CASE("mul stretched", .binary = mn_mul, .inputs = {N(1, 3, 1), N(2, 1, 5)}),
    CASE("relu 13x7", .unary = mn_relu, .inputs = {D(13, 7)}),
    CASE("relu tail 1031", .unary = mn_relu, .inputs = {D(1031)}),
    CASE("relu empty", .unary = mn_relu, .inputs = {D(0)}, .no_tail = true),
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
    CASE("linear empty", .build = build_linear, .inputs = {N(0, 3), N(2, 3), N(2)}, .p = {1},
         .no_tail = true),
    {0},
};
