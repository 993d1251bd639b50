/* The op case list: every op over odd shapes (1, primes, tails, empty, non-square). */
#include "tests/support_cases.h"

#include "ops/ops.h"

/* ---- how each kind of case is built ---------------------------------------------------------- */

static mn_tensor *build_add(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_add(in[0], in[1]);
}

static mn_tensor *build_mul(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_mul(in[0], in[1]);
}

static mn_tensor *build_relu(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_relu(in[0]);
}

static mn_tensor *build_clone(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_clone(in[0]);
}

/* To f32 (f64 stays, so that finite differences can be taken) and multiplied, to see the gradient.
 */
static mn_tensor *build_cast(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    mn_tensor *wide = mn_cast(in[0], mn_tensor_dtype(in[0]) == MN_F64 ? MN_F64 : MN_F32);
    return mn_mul(wide, wide);
}

static mn_tensor *build_reshape(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    return mn_mul(mn_reshape(in[0], (int)p[0], p + 1), mn_reshape(in[0], (int)p[0], p + 1));
}

static mn_tensor *build_permute(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    int axes[MN_MAX_DIMS] = {0};
    for (int i = 0; i < mn_tensor_ndim(in[0]) && i < MN_MAX_DIMS; i++)
        axes[i] = (int)p[i];
    return mn_permute(in[0], mn_tensor_ndim(in[0]), axes);
}

/* fill and assign change in place, so they are shown on a fresh tensor. */
static mn_tensor *build_assign(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)p;
    mn_tensor *dst = mn_full(ctx, MN_F32, mn_tensor_ndim(in[0]), mn_tensor_shape(in[0]), 3.5);
    if (mn_tensor_fill(dst, -2.25) != MN_OK || mn_tensor_copy(dst, in[0]) != MN_OK)
        return NULL;
    return dst;
}

static mn_tensor *build_matmul(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_matmul(in[0], in[1]);
}

static mn_tensor *build_linear(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    return mn_linear(in[0], in[1], p[0] ? in[2] : NULL);
}

/* parameters: stride h w, padding h w, dilation h w, groups, bias */
static mn_tensor *build_conv2d(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    mn_conv2d_options o = mn_conv2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.stride[i] = (int)p[i];
        o.padding[i] = (int)p[2 + i];
        o.dilation[i] = (int)p[4 + i];
    }
    o.groups = (int)p[6];
    return mn_conv2d(in[0], in[1], p[7] ? in[2] : NULL, &o);
}

/* parameters: kernel h w, stride h w, padding h w */
static mn_tensor *build_max_pool(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    mn_pool2d_options o = mn_pool2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = (int)p[i];
        o.stride[i] = (int)p[2 + i];
        o.padding[i] = (int)p[4 + i];
    }
    return mn_max_pool2d(in[0], &o);
}

static mn_tensor *build_average_pool(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_global_avg_pool2d(in[0]);
}

/* parameters: training */
static mn_tensor *build_batch_norm(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    mn_batch_norm_options o = mn_batch_norm_options_default();
    o.training = p[0] != 0;
    mn_tensor *running[3] = {in[3], in[4], NULL};
    return mn_batch_norm(in[0], in[1], in[2], running, &o);
}

static mn_tensor *build_log_softmax(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    return mn_log_softmax(in[0], (int)p[0]);
}

static mn_tensor *build_softmax(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    return mn_softmax(in[0], (int)p[0]);
}

static mn_tensor *build_cross_entropy(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_cross_entropy(in[0], in[1]);
}

/* parameters: number of axes, keep, axes */
static mn_tensor *build_sum(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    int axes[4] = {(int)p[2], (int)p[3], (int)p[4], (int)p[5]};
    return mn_sum(in[0], (int)p[0], axes, p[1] != 0);
}

static mn_tensor *build_mean(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    int axes[4] = {(int)p[2], (int)p[3], (int)p[4], (int)p[5]};
    return mn_mean(in[0], (int)p[0], axes, p[1] != 0);
}

static mn_tensor *build_dot(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    (void)p;
    return mn_dot(in[0], in[1]);
}

static mn_tensor *build_argmax(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)ctx;
    return mn_argmax(in[0], (int)p[0]);
}

/* One scaled, clipped SGD step of a parameter with momentum, then the parameter: the ops that work
 * on gradients and records. */
static mn_tensor *build_step(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)p;
    mn_tensor *x = mn_cast(in[0], MN_F32);
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, mn_tensor_ndim(x), mn_tensor_shape(x),
                                       MN_LAYOUT_PLAIN);
    if (w == NULL || mn_tensor_fill(w, 0.5) != MN_OK)
        return NULL;
    mn_sgd_options o = mn_sgd_options_default();
    o.momentum = 0.9;
    o.weight_decay = 0.01;
    mn_optimizer *opt = mn_sgd_create(ctx, &w, 1, &o);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    for (int i = 0; i < 2; i++) { /* two uses: the second gradient is accumulated */
        mn_tensor *loss = mn_sum(mn_mul(mn_mul(w, x), mn_mul(w, x)), 0, NULL, false);
        mn_grad_scaler_backward(scaler, loss, 0.5);
    }
    mn_grad_scaler_unscale(scaler, opt);
    mn_clip_grad_norm(opt, 0.75, NULL);
    mn_grad_scaler_step(scaler, opt, NULL);
    mn_grad_scaler_update(scaler);
    mn_tensor *result = mn_clone(w);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(opt);
    mn_release(w);
    return result != NULL ? mn_detach(result) : NULL;
}

/* The report ring: loss and correct count of two micro-batches, then the step's outcome. */
static mn_tensor *build_report(mn_context *ctx, mn_tensor **in, const int64_t *p)
{
    (void)p;
    const int64_t ring_shape[2] = {2, MN_RECORD_SIZE}, record_shape[1] = {MN_RECORD_SIZE};
    mn_tensor *ring = mn_full(ctx, MN_F64, 2, ring_shape, 0.0);
    mn_tensor *record = mn_full(ctx, MN_F64, 1, record_shape, 0.25);
    mn_tensor *loss = mn_cross_entropy(in[0], in[1]);
    for (int i = 0; i < 2; i++) {
        mn_report_attributes attributes = {.entry = 1, .first = i == 0, .weight = 0.5};
        mn_tensor *inputs[4] = {ring, loss, in[0], in[1]};
        mn_dispatch1(ctx, MN_OP_report_loss, inputs, 4, &attributes);
    }
    mn_report_attributes attributes = {.entry = 1, .first = 0, .weight = 0.0};
    mn_tensor *inputs[3] = {ring, record, record};
    mn_dispatch1(ctx, MN_OP_report_step, inputs, 3, &attributes);
    return mn_ok(ctx) ? ring : NULL;
}

/* ---- the list -------------------------------------------------------------------------------- */

#define T0()                                                                                       \
    0,                                                                                             \
    {                                                                                              \
        0                                                                                          \
    }
#define T1(a)                                                                                      \
    1,                                                                                             \
    {                                                                                              \
        a                                                                                          \
    }
#define T2(a, b)                                                                                   \
    2,                                                                                             \
    {                                                                                              \
        a, b                                                                                       \
    }
#define T3(a, b, c)                                                                                \
    3,                                                                                             \
    {                                                                                              \
        a, b, c                                                                                    \
    }
#define T4(a, b, c, d)                                                                             \
    4,                                                                                             \
    {                                                                                              \
        a, b, c, d                                                                                 \
    }
#define N(...)                                                                                     \
    {                                                                                              \
        NORMAL, __VA_ARGS__                                                                        \
    }
#define D(...)                                                                                     \
    {                                                                                              \
        DISTINCT, __VA_ARGS__                                                                      \
    }
#define CONV    "conv2d conv2d_backward_input conv2d_backward_weight sum"
#define BN      "batch_norm batch_norm_backward"
#define BN_EVAL "batch_norm_inference batch_norm_inference_backward"
#define BN_INPUTS(x, c)                                                                            \
    {                                                                                              \
        x, {PARAM, T1(c)}, {PARAM, T1(c)}, {STATE, T1(c)},                                         \
        {                                                                                          \
            STATE, T1(c)                                                                           \
        }                                                                                          \
    }

const op_case op_cases[] = {
    /* element by element and broadcasting */
    {"add 7x5", "add", build_add, {N(T2(7, 5)), N(T2(7, 5))}, 2, {0}, 0, 0},
    {"add 1", "add", build_add, {N(T1(1)), N(T1(1))}, 2, {0}, 0, 0},
    {"add tail 521", "add", build_add, {N(T1(521)), N(T1(521))}, 2, {0}, 0, 0},
    {"add empty", "add", build_add, {N(T2(0, 3)), N(T2(0, 3))}, 2, {0}, 0, 1},
    {"add bias", "add reduce_to", build_add, {N(T3(3, 5, 7)), N(T1(7))}, 2, {0}, 0, 0},
    {"add scalar", "add reduce_to", build_add, {N(T2(5, 3)), N(T0())}, 2, {0}, 0, 0},
    {"add both stretched", "add reduce_to", build_add, {N(T3(3, 1, 5)), N(T2(7, 1))}, 2, {0}, 0, 0},
    {"mul 11x3", "mul", build_mul, {N(T2(11, 3)), N(T2(11, 3))}, 2, {0}, 0, 0},
    {"mul column", "mul reduce_to", build_mul, {N(T2(5, 7)), N(T2(5, 1))}, 2, {0}, 0, 0},
    {"mul stretched", "mul reduce_to", build_mul, {N(T3(1, 3, 1)), N(T3(2, 1, 5))}, 2, {0}, 0, 0},
    {"relu 13x7", "relu relu_backward", build_relu, {D(T2(13, 7))}, 1, {0}, 0, 0},
    {"relu tail 1031", "relu relu_backward", build_relu, {D(T1(1031))}, 1, {0}, 0, 0},
    {"relu empty", "relu relu_backward", build_relu, {D(T1(0))}, 1, {0}, 0, 1},
    {"copy", "copy", build_clone, {N(T2(3, 17))}, 1, {0}, 0, 0},
    {"cast", "cast mul", build_cast, {N(T2(3, 19))}, 1, {0}, 0, 0},
    {"fill and assign", "fill assign", build_assign, {N(T2(3, 19))}, 1, {0}, 1, 0},
    {"reshape", "reshape mul", build_reshape, {N(T2(6, 5))}, 1, {3, 2, -1, 3}, 0, 0},
    {"permute nhwc", "permute", build_permute, {N(T4(2, 3, 5, 7))}, 1, {0, 3, 1, 2}, 0, 0},
    {"permute 3d", "permute", build_permute, {N(T3(2, 3, 5))}, 1, {2, 0, 1}, 0, 0},
    {"permute one channel", "permute", build_permute, {N(T4(3, 5, 2, 1))}, 1, {0, 3, 1, 2}, 0, 0},
    /* matrix products */
    {"matmul 1x1x1", "matmul", build_matmul, {N(T2(1, 1)), N(T2(1, 1))}, 2, {0}, 0, 0},
    {"matmul 7x5x3", "matmul", build_matmul, {N(T2(7, 5)), N(T2(5, 3))}, 2, {0}, 0, 0},
    {"matmul 13x17x19", "matmul", build_matmul, {N(T2(13, 17)), N(T2(17, 19))}, 2, {0}, 0, 0},
    {"matmul k 0", "matmul", build_matmul, {N(T2(3, 0)), N(T2(0, 2))}, 2, {0}, 0, 1},
    {"matmul batch", "matmul", build_matmul, {N(T3(3, 5, 2)), N(T3(3, 2, 7))}, 2, {0}, 0, 0},
    {"matmul broadcast",
     "matmul reduce_to",
     build_matmul,
     {N(T4(2, 1, 3, 5)), N(T3(3, 5, 2))},
     2,
     {0},
     0,
     0},
    {"linear 5x7->11",
     "linear matmul sum",
     build_linear,
     {N(T2(5, 7)), N(T2(11, 7)), N(T1(11))},
     3,
     {1},
     0,
     0},
    {"linear 1->1",
     "linear matmul sum",
     build_linear,
     {N(T2(1, 1)), N(T2(1, 1)), N(T1(1))},
     3,
     {1},
     0,
     0},
    {"linear no bias", "linear matmul", build_linear, {N(T2(3, 17)), N(T2(10, 17))}, 2, {0}, 0, 0},
    {"linear 3d",
     "linear matmul sum",
     build_linear,
     {N(T3(2, 3, 5)), N(T2(4, 5)), N(T1(4))},
     3,
     {1},
     0,
     0},
    {"linear empty",
     "linear matmul sum",
     build_linear,
     {N(T2(0, 3)), N(T2(2, 3)), N(T1(2))},
     3,
     {1},
     0,
     1},
    /* convolutions: stride, padding, dilation, groups, bias */
    {"conv 1x1",
     CONV,
     build_conv2d,
     {N(T4(1, 1, 1, 1)), N(T4(1, 1, 1, 1)), N(T1(1))},
     3,
     {1, 1, 0, 0, 1, 1, 1, 1},
     0,
     0},
    {"conv 3x3 pad",
     CONV,
     build_conv2d,
     {N(T4(2, 5, 7, 3)), N(T4(5, 3, 3, 3)), N(T1(5))},
     3,
     {1, 1, 1, 1, 1, 1, 1, 1},
     0,
     0},
    {"conv 5x5 lenet",
     CONV,
     build_conv2d,
     {N(T4(2, 9, 8, 1)), N(T4(6, 5, 5, 1)), N(T1(6))},
     3,
     {1, 1, 2, 2, 1, 1, 1, 1},
     0,
     0},
    {"conv stride h",
     CONV,
     build_conv2d,
     {N(T4(1, 7, 6, 2)), N(T4(3, 3, 2, 2))},
     2,
     {2, 1, 1, 0, 1, 1, 1, 0},
     0,
     0},
    {"conv stride w",
     CONV,
     build_conv2d,
     {N(T4(2, 6, 9, 3)), N(T4(2, 2, 3, 3))},
     2,
     {1, 3, 0, 2, 1, 1, 1, 0},
     0,
     0},
    {"conv dilation",
     CONV,
     build_conv2d,
     {N(T4(1, 9, 8, 2)), N(T4(3, 3, 2, 2)), N(T1(3))},
     3,
     {1, 1, 2, 1, 2, 3, 1, 1},
     0,
     0},
    {"conv groups",
     CONV,
     build_conv2d,
     {N(T4(2, 5, 4, 6)), N(T4(4, 3, 3, 3)), N(T1(4))},
     3,
     {1, 1, 1, 1, 1, 1, 2, 1},
     0,
     0},
    {"conv depthwise",
     CONV,
     build_conv2d,
     {N(T4(1, 5, 6, 5)), N(T4(5, 3, 3, 1))},
     2,
     {2, 2, 1, 1, 1, 1, 5, 0},
     0,
     0},
    {"conv channels 13->17",
     CONV,
     build_conv2d,
     {N(T4(1, 4, 5, 13)), N(T4(17, 3, 3, 13))},
     2,
     {1, 1, 1, 1, 1, 1, 1, 0},
     0,
     0},
    {"conv empty batch",
     CONV,
     build_conv2d,
     {N(T4(0, 5, 5, 2)), N(T4(3, 3, 3, 2)), N(T1(3))},
     3,
     {1, 1, 1, 1, 1, 1, 1, 1},
     0,
     1},
    /* pooling */
    {"max pool 2x2",
     "max_pool2d max_pool2d_backward",
     build_max_pool,
     {D(T4(2, 6, 4, 3))},
     1,
     {2, 2, 0, 0, 0, 0},
     0,
     0},
    {"max pool 2x2 c 1",
     "max_pool2d max_pool2d_backward",
     build_max_pool,
     {D(T4(3, 4, 6, 1))},
     1,
     {2, 2, 0, 0, 0, 0},
     0,
     0},
    {"max pool 2x2 odd",
     "max_pool2d max_pool2d_backward",
     build_max_pool,
     {D(T4(2, 5, 7, 17))},
     1,
     {2, 2, 0, 0, 0, 0},
     0,
     1},
    {"max pool overlap",
     "max_pool2d max_pool2d_backward",
     build_max_pool,
     {D(T4(1, 7, 8, 5))},
     1,
     {3, 3, 2, 1, 1, 1},
     0,
     0},
    {"max pool 3x2",
     "max_pool2d max_pool2d_backward",
     build_max_pool,
     {D(T4(1, 6, 5, 2))},
     1,
     {3, 2, 1, 2, 0, 1},
     0,
     0},
    {"average pool",
     "global_avg_pool2d global_avg_pool2d_backward",
     build_average_pool,
     {N(T4(3, 5, 2, 7))},
     1,
     {0},
     0,
     0},
    {"average pool 1x1",
     "global_avg_pool2d global_avg_pool2d_backward",
     build_average_pool,
     {N(T4(2, 1, 1, 3))},
     1,
     {0},
     0,
     0},
    /* normalisation */
    {"batch norm", BN, build_batch_norm, BN_INPUTS(N(T4(3, 5, 2, 7)), 7), 5, {1}, 0, 0},
    {"batch norm 2d", BN, build_batch_norm, BN_INPUTS(N(T2(11, 3)), 3), 5, {1}, 0, 0},
    {"batch norm c 1", BN, build_batch_norm, BN_INPUTS(N(T4(2, 3, 5, 1)), 1), 5, {1}, 0, 0},
    {"batch norm c 32", BN, build_batch_norm, BN_INPUTS(N(T4(2, 3, 3, 32)), 32), 5, {1}, 0, 0},
    {"batch norm eval", BN_EVAL, build_batch_norm, BN_INPUTS(N(T4(2, 3, 2, 5)), 5), 5, {0}, 0, 0},
    /* softmax family and reductions */
    {"log softmax",
     "log_softmax log_softmax_backward",
     build_log_softmax,
     {N(T2(5, 10))},
     1,
     {-1},
     0,
     0},
    {"log softmax axis 0",
     "log_softmax log_softmax_backward",
     build_log_softmax,
     {N(T3(7, 3, 2))},
     1,
     {0},
     0,
     0},
    {"softmax", "softmax softmax_backward", build_softmax, {N(T2(3, 17))}, 1, {1}, 0, 0},
    {"softmax axis 1", "softmax softmax_backward", build_softmax, {N(T3(2, 5, 3))}, 1, {1}, 0, 0},
    {"softmax one class", "softmax softmax_backward", build_softmax, {N(T2(4, 1))}, 1, {1}, 0, 0},
    {"cross entropy",
     "cross_entropy cross_entropy_backward",
     build_cross_entropy,
     {N(T2(7, 10)), {LABELS, T1(7)}},
     2,
     {10},
     0,
     0},
    {"cross entropy 1",
     "cross_entropy cross_entropy_backward",
     build_cross_entropy,
     {N(T2(1, 3)), {LABELS, T1(1)}},
     2,
     {3},
     0,
     0},
    {"cross entropy 513 rows",
     "cross_entropy cross_entropy_backward",
     build_cross_entropy,
     {N(T2(513, 2)), {LABELS, T1(513)}},
     2,
     {2},
     0,
     0},
    {"sum all", "sum expand", build_sum, {N(T2(7, 11))}, 1, {0}, 0, 0},
    {"sum rows", "sum expand", build_sum, {N(T2(7, 11))}, 1, {1, 0, 0}, 0, 0},
    {"sum nhw", "sum expand", build_sum, {N(T4(3, 2, 5, 7))}, 1, {3, 0, 0, 1, 2}, 0, 0},
    {"sum last keep", "sum expand", build_sum, {N(T3(3, 5, 7))}, 1, {1, 1, -1}, 0, 0},
    {"sum middle", "sum expand", build_sum, {N(T3(3, 5, 7))}, 1, {1, 0, 1}, 0, 0},
    {"sum empty", "sum expand", build_sum, {N(T2(0, 5))}, 1, {1, 0, 0}, 0, 1},
    {"mean all", "mean expand", build_mean, {N(T2(13, 3))}, 1, {0}, 0, 0},
    {"mean outer", "mean expand", build_mean, {N(T3(3, 5, 2))}, 1, {2, 0, 0, 2}, 0, 0},
    {"dot", "dot", build_dot, {N(T1(37)), N(T1(37))}, 2, {0}, 0, 0},
    {"dot empty", "dot", build_dot, {N(T1(0)), N(T1(0))}, 2, {0}, 0, 1},
    {"argmax", "argmax", build_argmax, {D(T2(7, 10))}, 1, {1}, 1, 1},
    {"argmax axis 0", "argmax", build_argmax, {D(T3(3, 5, 2))}, 1, {0}, 1, 1},
    /* gradients, optimizer, scaler, reports */
    {"step",
     "accumulate assign grad_unscale grad_norm grad_clip sgd_step optimizer_finish "
     "scaler_scale scaler_update",
     build_step,
     {N(T2(7, 5))},
     1,
     {0},
     1,
     1},
    {"step tail",
     "accumulate assign grad_unscale grad_norm grad_clip sgd_step",
     build_step,
     {N(T1(4099))},
     1,
     {0},
     1,
     1},
    {"report",
     "report_loss report_step",
     build_report,
     {N(T2(7, 10)), {LABELS, T1(7)}},
     2,
     {10},
     1,
     1},
};
const int op_case_count = (int)(sizeof op_cases / sizeof op_cases[0]);
