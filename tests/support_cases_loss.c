/* Cases of softmax and losses. */
#include "tests/support_cases.h"

static mn_tensor *build_log_softmax(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_log_softmax(in[0], (int)c->p[0]);
}

static mn_tensor *build_softmax(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    return mn_softmax(in[0], (int)c->p[0]);
}

static mn_tensor *build_cross_entropy(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_cross_entropy(in[0], in[1]);
}

const op_case mn_cases_loss[] = {
    CASE("log softmax", .build = build_log_softmax, .inputs = {N(5, 10)}, .p = {-1}),
    CASE("log softmax axis 0", .build = build_log_softmax, .inputs = {N(7, 3, 2)}),
    CASE("softmax", .build = build_softmax, .inputs = {N(3, 17)}, .p = {1}),
    CASE("softmax axis 1", .build = build_softmax, .inputs = {N(2, 5, 3)}, .p = {1}),
    CASE("softmax one class", .build = build_softmax, .inputs = {N(4, 1)}, .p = {1}),
    CASE("cross entropy", .build = build_cross_entropy, .inputs = {N(7, 10), INPUT(LABELS, 7)},
         .p = {10}, .once = true),
    CASE("cross entropy 1", .build = build_cross_entropy, .inputs = {N(1, 3), INPUT(LABELS, 1)},
         .p = {3}, .once = true),
    CASE("cross entropy 513 rows", .build = build_cross_entropy,
         .inputs = {N(513, 2), INPUT(LABELS, 513)}, .p = {2}, .once = true),
    {0},
};
