/* What the tests of training share. */
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const mn_check_devices[2] = {"cpu", "cpu-deferred"};

mn_context *mn_check_context(const char *device)
{
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.threads = 1;
    mn_error error = {.status = MN_OK};
    mn_context *context = mn_context_create(&options, &error);
    ck_assert_msg(context != NULL, "%s", error.message);
    return context;
}

void mn_check_done(mn_context *context)
{
    ck_assert_msg(mn_error_status(context) == MN_OK, "%s", mn_error_message(context));
    mn_context_free(context);
}

void mn_check_expect(mn_context *context, mn_status status, const char *part)
{
    ck_assert_msg(mn_error_status(context) == status, "status %d: %s",
                  (int)mn_error_status(context), mn_error_message(context));
    ck_assert_msg(strstr(mn_error_message(context), part) != NULL, "\"%s\" is not in \"%s\"", part,
                  mn_error_message(context));
    mn_error_clear(context);
}

double mn_check_at(const mn_tensor *x, int64_t index)
{
    double values[16];
    ck_assert_ptr_nonnull(x);
    ck_assert(index >= 0 && index < mn_tensor_numel(x) && mn_tensor_numel(x) <= 16);
    ck_assert_int_eq(mn_tensor_read_f64(x, values, mn_tensor_numel(x)), MN_OK);
    return values[index];
}

mn_tensor *mn_check_draw(mn_context *context, int ndim, const int64_t *shape, uint32_t seed)
{
    mn_tensor *x = mn_tensor_create(context, MN_F32, ndim, shape);
    const int64_t count = mn_tensor_numel(x);
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        values[i] = (double)(seed >> 24) / 64 - 1.75;
    }
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    free(values);
    return x;
}

mn_tensor *mn_check_total(mn_tensor *x)
{
    return mn_sum(x, 0, NULL, false);
}

/* ---- grad scaler ----------------------------------------------------------------------------- */

mn_tensor *mn_check_parameter(mn_context *ctx, const char *name, int64_t count,
                              const double *values)
{
    mn_tensor *p = mn_parameter_create(ctx, name, MN_F32, 1, &count, MN_LAYOUT_PLAIN);
    ck_assert_int_eq(mn_tensor_write_f64(p, values, count), MN_OK);
    return p;
}

mn_optimizer *mn_check_sgd_of(mn_context *ctx, mn_tensor **parameters, int count)
{
    mn_sgd_options options = mn_sgd_options_default();
    options.lr = 1;
    mn_optimizer *sgd = mn_sgd_create(ctx, parameters, count, &options);
    ck_assert_ptr_nonnull(sgd);
    return sgd;
}

mn_check_run mn_check_run_open(const char *device, const mn_grad_scaler_options *options)
{
    const double start[2] = {0.5, -1};
    mn_check_run r = {.ctx = mn_check_context(device)};
    r.w = mn_check_parameter(r.ctx, "w", 2, start);
    r.sgd = mn_check_sgd_of(r.ctx, &r.w, 1);
    r.scaler = mn_grad_scaler_create(r.ctx, options);
    ck_assert_msg(r.scaler != NULL, "%s", mn_error_message(r.ctx));
    return r;
}

mn_check_run mn_check_run_scale(const char *device, double scale)
{
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.init_scale = scale;
    return mn_check_run_open(device, &options);
}

void mn_check_run_close(mn_check_run *r)
{
    ck_assert_msg(mn_ok(r->ctx), "%s", mn_error_message(r->ctx));
    mn_grad_scaler_free(r->scaler);
    mn_optimizer_free(r->sgd);
    mn_release(r->w);
    mn_context_free(r->ctx);
}

mn_grad_scaler_stats mn_check_stats_of(mn_grad_scaler *scaler)
{
    mn_grad_scaler_stats stats;
    ck_assert_int_eq(mn_grad_scaler_stats_get(scaler, &stats), MN_OK);
    return stats;
}

mn_tensor *mn_check_loss_of(mn_tensor *w, double g)
{
    mn_tensor *factor = mn_full(w->context, MN_F32, 0, NULL, g);
    return mn_sum(mn_mul(w, factor), 0, NULL, false);
}

mn_status mn_check_backward(mn_check_run *r, double g)
{
    mn_scope scope = mn_scope_begin(r->ctx);
    mn_status status = mn_grad_scaler_backward(r->scaler, mn_check_loss_of(r->w, g), 1);
    mn_scope_end(r->ctx, scope);
    return status;
}

void mn_check_give_scaled(mn_tensor *w, double g)
{
    mn_scope scope = mn_scope_begin(w->context);
    mn_tensor *root = mn_sum(w, 0, NULL, false);
    mn_tensor *seed = mn_full(w->context, MN_F32, 0, NULL, g);
    ck_assert_int_eq(mn_backward_from(root, seed, MN_GRAD_SCALED), MN_OK);
    mn_scope_end(w->context, scope);
}

mn_step_outcome mn_check_whole_step(mn_check_run *r, double g)
{
    mn_step_outcome outcome = MN_STEP_SKIPPED;
    ck_assert_int_eq(mn_check_backward(r, g), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_step(r->scaler, r->sgd, &outcome), MN_OK);
    ck_assert_int_eq(mn_grad_scaler_update(r->scaler), MN_OK);
    ck_assert_int_eq(mn_optimizer_zero_grad(r->sgd), MN_OK);
    return outcome;
}

const double mn_check_start[3] = {0.5, -1.25, 2};

mn_tensor *mn_check_leaf(mn_context *ctx, const char *name, mn_dtype dtype)
{
    const int64_t count = 3;
    mn_tensor *p = mn_parameter_create(ctx, name, dtype, 1, &count, MN_LAYOUT_PLAIN);
    ck_assert_int_eq(mn_tensor_write_f64(p, mn_check_start, count), MN_OK);
    return p;
}

double mn_check_gradient_at(int step, int i)
{
    return sin(0.7 * step + 1.3 * i) * (1 + i);
}

void mn_check_give_gradient(mn_tensor *p, int step, mn_grad_scaler *scaler)
{
    const int64_t count = 3;
    double g[3];
    for (int i = 0; i < 3; i++)
        g[i] = mn_check_gradient_at(step, i);
    mn_scope scope = mn_scope_begin(p->context);
    mn_tensor *factor = mn_tensor_create(p->context, p->dtype, 1, &count);
    mn_tensor_write_f64(factor, g, count);
    mn_tensor *loss = mn_check_total(mn_mul(p, factor));
    mn_status status = scaler ? mn_grad_scaler_backward(scaler, loss, 1) : mn_backward(loss, 1);
    ck_assert_int_eq(status, MN_OK);
    mn_scope_end(p->context, scope);
}
