/* Cases of softmax and losses. */
#include "ops/ops.h"
#include "tests/support_cases.h"

/* ---- softmax --------------------------------------------------------------------------------- */

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

/* The gradient of softmax (p[1]: of log-softmax), from x and g, as a function of both. */
static mn_tensor *build_softmax_backward(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    const mn_axis_attributes along = {.axis = c->p[0]};
    mn_tensor *y = c->p[1] ? mn_log_softmax(in[0], (int)c->p[0]) : mn_softmax(in[0], (int)c->p[0]);
    mn_tensor *const inputs[2] = {in[1], y};
    return mn_apply1(c->p[1] ? MN_OP_log_softmax_backward : MN_OP_softmax_backward, inputs, 2,
                     &along);
}

/* ---- losses over classes --------------------------------------------------------------------- */

/* p: classes, ignored label or 0, reduction, whether the input holds log-probabilities; f[0]:
 * smoothing. Inputs: x, target, class weights. */
static mn_tensor *build_class_loss(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)ctx;
    mn_cross_entropy_options o = mn_cross_entropy_options_default();
    o.ignore_index = c->p[1] ? c->p[1] : o.ignore_index;
    o.reduction = (mn_reduction)c->p[2];
    o.label_smoothing = c->f[0];
    o.weight = mn_case_inputs(c) > 2 ? in[2] : NULL;
    return c->p[3] ? mn_nll_loss(in[0], in[1], &o) : mn_cross_entropy(in[0], in[1], &o);
}

/* ---- losses element by element --------------------------------------------------------------- */

/* p[0]: kind, p[1]: reduction; a mask as the target becomes 1/4 and 3/4. */
static mn_tensor *build_pointwise(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    const mn_dtype dtype = mn_tensor_dtype(in[0]);
    const mn_reduction reduction = (mn_reduction)c->p[1];
    mn_tensor *target = in[1];
    if (c->inputs[1].kind == MASK)
        target = mn_add(mn_mul(mn_cast(target, dtype), mn_full(ctx, dtype, 0, NULL, 0.5)),
                        mn_full(ctx, dtype, 0, NULL, 0.25));
    switch ((mn_loss_kind)c->p[0]) {
    case MN_LOSS_MSE:
        return mn_mse_loss(in[0], target, reduction);
    case MN_LOSS_L1:
        return mn_l1_loss(in[0], target, reduction);
    case MN_LOSS_HUBER:
        return mn_huber_loss(in[0], target, c->f[0], reduction);
    case MN_LOSS_BCE_WITH_LOGITS:
        return mn_binary_cross_entropy_with_logits(in[0], target, reduction);
    default:
        return mn_binary_cross_entropy(in[0], target, reduction);
    }
}

#define SOFTMAX_CASE(...)   CASE(__VA_ARGS__, .build = build_softmax)
#define BACKWARD_CASE(...)  CASE(__VA_ARGS__, .build = build_softmax_backward)
#define CLASS_CASE(...)     CASE(__VA_ARGS__, .build = build_class_loss, .once = true)
#define POINTWISE_CASE(...) CASE(__VA_ARGS__, .build = build_pointwise, .once = true)

const op_case mn_cases_loss[] = {
    CASE("log softmax", .build = build_log_softmax, .inputs = {N(5, 10)}, .p = {-1}),
    CASE("log softmax axis 0", .build = build_log_softmax, .inputs = {N(7, 3, 2)}),
    SOFTMAX_CASE("softmax", .inputs = {N(3, 17)}, .p = {1}),
    SOFTMAX_CASE("softmax axis 1", .inputs = {N(2, 5, 3)}, .p = {1}),
    SOFTMAX_CASE("softmax one class", .inputs = {N(4, 1)}, .p = {1}),
    BACKWARD_CASE("softmax backward", .inputs = {N(3, 7), N(3, 7)}, .p = {1, 0}),
    BACKWARD_CASE("softmax backward axis 1", .inputs = {N(2, 3, 2), N(2, 3, 2)}, .p = {1, 0}),
    BACKWARD_CASE("log softmax backward", .inputs = {N(3, 7), N(3, 7)}, .p = {1, 1}),
    BACKWARD_CASE("log softmax backward axis 0", .inputs = {N(5, 2, 2), N(5, 2, 2)}, .p = {0, 1}),

    CLASS_CASE("cross entropy", .inputs = {N(7, 10), INPUT(LABELS, 7)}, .p = {10}),
    CLASS_CASE("cross entropy 1", .inputs = {N(1, 3), INPUT(LABELS, 1)}, .p = {3}),
    CLASS_CASE("cross entropy 513 rows", .inputs = {N(513, 2), INPUT(LABELS, 513)}, .p = {2}),
    CLASS_CASE("cross entropy 1031 classes", .inputs = {N(5, 1031), INPUT(LABELS, 5)}, .p = {1031}),
    CLASS_CASE("cross entropy ignores", .inputs = {N(11, 3), INPUT(LABELS, 11)}, .p = {3, 2}),
    CLASS_CASE("cross entropy weights", .inputs = {N(11, 4), INPUT(LABELS, 11), INPUT(STATE, 4)},
               .p = {4, 1}),
    CLASS_CASE("cross entropy weights, sum", .inputs = {N(5, 7), INPUT(LABELS, 5), INPUT(STATE, 7)},
               .p = {7, 0, 1}),
    CLASS_CASE("cross entropy none", .inputs = {N(11, 3), INPUT(LABELS, 11)}, .p = {3, 1, 2}),
    CLASS_CASE("cross entropy smooth", .inputs = {N(5, 1031), INPUT(LABELS, 5)}, .p = {1031},
               .f = {0.25}),
    CLASS_CASE("cross entropy smooth, weights, ignores",
               .inputs = {N(11, 4), INPUT(LABELS, 11), INPUT(STATE, 4)}, .p = {4, 1}, .f = {0.125}),
    CLASS_CASE("cross entropy smooth, weights, none",
               .inputs = {N(11, 4), INPUT(LABELS, 11), INPUT(STATE, 4)}, .p = {4, 1, 2},
               .f = {0.125}),
    CLASS_CASE("cross entropy soft", .inputs = {N(5, 7), INPUT(STATE, 5, 7)}),
    CLASS_CASE("cross entropy soft 521",
               .inputs = {N(1, 521), INPUT(STATE, 1, 521), INPUT(STATE, 521)}, .f = {0.5}),
    CLASS_CASE("cross entropy soft, smooth, weights, none",
               .inputs = {N(5, 3), INPUT(STATE, 5, 3), INPUT(STATE, 3)}, .p = {0, 0, 2},
               .f = {0.125}),
    CLASS_CASE("cross entropy no rows", .inputs = {N(0, 3), INPUT(LABELS, 0)}, .p = {3, 0, 1}),
    CLASS_CASE("nll", .inputs = {N(7, 10), INPUT(LABELS, 7)}, .p = {10, 0, 0, 1}),
    CLASS_CASE("nll weights", .inputs = {N(521, 2), INPUT(LABELS, 521), INPUT(STATE, 2)},
               .p = {2, 0, 0, 1}),
    CLASS_CASE("nll weights, ignores, none",
               .inputs = {N(11, 3), INPUT(LABELS, 11), INPUT(STATE, 3)}, .p = {3, 2, 2, 1}),

    POINTWISE_CASE("mse", .inputs = {N(7, 5), N(7, 5)}, .p = {MN_LOSS_MSE}),
    POINTWISE_CASE("mse 1", .inputs = {N(1), N(1)}, .p = {MN_LOSS_MSE, MN_REDUCTION_SUM}),
    POINTWISE_CASE("mse scalar", .inputs = {SCALAR(NORMAL), SCALAR(NORMAL)},
                   .p = {MN_LOSS_MSE, MN_REDUCTION_NONE}),
    POINTWISE_CASE("mse empty", .inputs = {N(0, 3), N(0, 3)}, .p = {MN_LOSS_MSE, MN_REDUCTION_SUM}),
    POINTWISE_CASE("mse 40009", .inputs = {N(40009), N(40009)}, .p = {MN_LOSS_MSE}),
    POINTWISE_CASE("mse none", .inputs = {N(2, 3, 87), N(2, 3, 87)},
                   .p = {MN_LOSS_MSE, MN_REDUCTION_NONE}),
    POINTWISE_CASE("l1", .inputs = {N(521), N(521)}, .p = {MN_LOSS_L1, MN_REDUCTION_SUM}),
    POINTWISE_CASE("l1 none", .inputs = {N(7, 5), N(7, 5)}, .p = {MN_LOSS_L1, MN_REDUCTION_NONE}),
    POINTWISE_CASE("huber", .inputs = {N(521), N(521)}, .p = {MN_LOSS_HUBER}, .f = {0.75}),
    POINTWISE_CASE("huber none", .inputs = {N(7, 5), N(7, 5)},
                   .p = {MN_LOSS_HUBER, MN_REDUCTION_NONE}, .f = {1.5}),
    POINTWISE_CASE("bce with logits", .inputs = {N(1031), INPUT(MASK, 1031)},
                   .p = {MN_LOSS_BCE_WITH_LOGITS}),
    POINTWISE_CASE("bce with logits none", .inputs = {N(7, 5), INPUT(MASK, 7, 5)},
                   .p = {MN_LOSS_BCE_WITH_LOGITS, MN_REDUCTION_NONE}),
    POINTWISE_CASE("bce", .inputs = {INPUT(UNIT, 521), INPUT(MASK, 521)}, .p = {MN_LOSS_BCE}),
    POINTWISE_CASE("bce none", .inputs = {INPUT(UNIT, 7, 5), INPUT(MASK, 7, 5)},
                   .p = {MN_LOSS_BCE, MN_REDUCTION_NONE}),
    {0},
};
