/* Cases of realistic size, for bench/ops.c only: the layers of cnn-small and resnet20 with a batch
 * of
 * 64. f[3] is the number of multiply-adds of one element of the result, 0 where bytes count. */
#include "tests/support_cases.h"

enum { BATCH = 64 };

/* parameters: stride; padding keeps the size */
static mn_tensor *conv(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_conv2d_options o = mn_conv2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.stride[i] = (int)c->p[0];
        o.padding[i] = (int)c->inputs[1].shape[1] / 2;
    }
    return mn_conv2d(in[0], in[1], NULL, &o);
}

static mn_tensor *linear(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_linear(in[0], in[1], in[2]);
}

static mn_tensor *norm(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = true;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    return mn_batch_norm(in[0], in[1], in[2], running, &o);
}

static mn_tensor *max_pool(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_max_pool2d(in[0], NULL);
}

static mn_tensor *softmax(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_softmax(in[0], -1);
}

static mn_tensor *cross_entropy(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    (void)c;
    return mn_cross_entropy(in[0], in[1], NULL);
}

#define CONV(size, from, to, kernel, by)                                                           \
    .build = conv, .inputs = {N(BATCH, size, size, from), N(to, kernel, kernel, from)}, .p = {by}, \
    .f = {0, 0, 0, (from) * (kernel) * (kernel)}
#define LINEAR(from, to)                                                                           \
    .build = linear, .inputs = {N(BATCH, from), N(to, from), N(to)}, .f = {0, 0, 0, from}
#define NORM(size, c)                                                                              \
    .build = norm, .inputs = {N(BATCH, size, size, c), INPUT(PARAM, c), INPUT(PARAM, c),           \
                              INPUT(STATE, c), INPUT(STATE, c)}
#define LOSS(classes)                                                                              \
    .build = cross_entropy, .inputs = {N(BATCH, classes), INPUT(LABELS, BATCH)}, .p = {classes}

const op_case mn_cases_large[] = {
    CASE("large conv 3x3 1->32 28x28", CONV(28, 1, 32, 3, 1)),
    CASE("large conv 3x3 32->64 28x28", CONV(28, 32, 64, 3, 1)),
    CASE("large conv 3x3 64->128 14x14", CONV(14, 64, 128, 3, 1)),
    CASE("large conv 3x3 16->16 32x32", CONV(32, 16, 16, 3, 1)),
    CASE("large conv 3x3/2 16->32 32x32", CONV(32, 16, 32, 3, 2)),
    CASE("large conv 1x1/2 16->32 32x32", CONV(32, 16, 32, 1, 2)),
    CASE("large conv 3x3 32->32 16x16", CONV(16, 32, 32, 3, 1)),
    CASE("large conv 3x3 64->64 8x8", CONV(8, 64, 64, 3, 1)),
    CASE("large batch norm 28x28x64", NORM(28, 64)),
    CASE("large batch norm 32x32x16", NORM(32, 16)),
    CASE("large relu 28x28x64", .unary = mn_relu, .inputs = {N(BATCH, 28, 28, 64)}),
    CASE("large add 32x32x16", .binary = mn_add,
         .inputs = {N(BATCH, 32, 32, 16), N(BATCH, 32, 32, 16)}),
    CASE("large max pool 28x28x64", .build = max_pool, .inputs = {N(BATCH, 28, 28, 64)}),
    CASE("large average pool 8x8x64", .unary = mn_global_avg_pool2d,
         .inputs = {N(BATCH, 8, 8, 64)}),
    CASE("large linear 400->120", LINEAR(400, 120)),
    CASE("large linear 6272->10", LINEAR(6272, 10)),
    CASE("large linear 1024->1024", LINEAR(1024, 1024)),
    CASE("large softmax 1000", .build = softmax, .inputs = {N(BATCH, 1000)}),
    CASE("large cross entropy 10", LOSS(10)),
    CASE("large cross entropy 1000", LOSS(1000)),
    {0},
};
