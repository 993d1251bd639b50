/* Cases of gradients, optimizers, scaler and reports. */
#include "ops/ops.h"
#include "tests/support_cases.h"

/* Number c->p[0]: SGD with momentum, AdamW, RMSprop with momentum. */
static mn_optimizer *optimizer_of(mn_context *ctx, mn_tensor *w, const op_case *c)
{
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_adam_options adamw = mn_adamw_options_default();
    mn_rmsprop_options rmsprop = mn_rmsprop_options_default();
    sgd.momentum = rmsprop.momentum = 0.9;
    sgd.weight_decay = rmsprop.weight_decay = 0.01;
    adamw.eps = rmsprop.eps = 0.1;
    if (c->p[0] == 0)
        return mn_sgd_create(ctx, &w, 1, &sgd);
    return c->p[0] == 1 ? mn_adam_create(ctx, &w, 1, &adamw)
                        : mn_rmsprop_create(ctx, &w, 1, &rmsprop);
}

/* One scaled, clipped step of a parameter with its average, then the sum of both: the ops that work
 * on gradients and records. */
static mn_tensor *build_step(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    mn_tensor *x = mn_cast(in[0], MN_F32);
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, mn_tensor_ndim(x), mn_tensor_shape(x),
                                       MN_LAYOUT_PLAIN);
    if (w == NULL || mn_tensor_fill(w, 0.5) != MN_OK)
        return NULL;
    mn_optimizer *opt = optimizer_of(ctx, w, c);
    mn_ema *ema = mn_ema_create(ctx, &w, 1, NULL);
    mn_grad_scaler *scaler = mn_grad_scaler_create(ctx, NULL);
    for (int i = 0; i < 2; i++) { /* two uses: the second gradient is accumulated */
        mn_tensor *loss = mn_sum(mn_mul(mn_mul(w, x), mn_mul(w, x)), 0, NULL, false);
        mn_grad_scaler_backward(scaler, loss, 0.5);
    }
    mn_grad_scaler_unscale(scaler, opt);
    mn_clip_grad_norm(opt, 0.75, NULL);
    mn_clip_grad_value(opt, 0.25);
    mn_grad_scaler_step(scaler, opt, NULL);
    mn_grad_scaler_update(scaler);
    mn_ema_update(ema, opt);
    mn_tensor *result = mn_clone(w);
    mn_ema_swap(ema);
    if (result != NULL && mn_tensor_add(mn_detach(result), w, 0.5) != MN_OK)
        result = NULL;
    mn_ema_free(ema);
    mn_grad_scaler_free(scaler);
    mn_optimizer_free(opt);
    mn_release(w);
    return result != NULL ? mn_detach(result) : NULL;
}

/* The report ring: loss and correct count of two micro-batches, then the step's outcome. */
static mn_tensor *build_report(mn_context *ctx, mn_tensor **in, const op_case *c)
{
    (void)c;
    const int64_t ring_shape[2] = {2, MN_RECORD_SIZE}, record_shape[1] = {MN_RECORD_SIZE};
    mn_tensor *ring = mn_full(ctx, MN_F64, 2, ring_shape, 0.0);
    mn_tensor *record = mn_full(ctx, MN_F64, 1, record_shape, 0.25);
    mn_tensor *loss = mn_cross_entropy(in[0], in[1], NULL);
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

const op_case mn_cases_step[] = {
    CASE("step", .build = build_step, .inputs = {N(7, 5)}, .forward_only = true, .no_tail = true),
    CASE("step tail", .build = build_step, .inputs = {N(4099)}, .forward_only = true,
         .no_tail = true),
    CASE("step of AdamW", .build = build_step, .inputs = {N(1031)}, .p = {1}, .forward_only = true,
         .no_tail = true),
    CASE("step of RMSprop", .build = build_step, .inputs = {N(521)}, .p = {2}, .forward_only = true,
         .no_tail = true),
    CASE("report", .build = build_report, .inputs = {N(7, 10), INPUT(LABELS, 7)}, .p = {10},
         .forward_only = true, .no_tail = true),
    {0},
};
