/* Contexts on both CPU devices, and checks that the tests of training share. */
#ifndef MN_TESTS_SUPPORT_TRAINING_H
#define MN_TESTS_SUPPORT_TRAINING_H

#include "amp/amp.h"

/* "cpu" and "cpu-deferred": index of a loop test. */
extern const char *const mn_check_devices[2];

/* A context with one thread. */
mn_context *mn_check_context(const char *device);
/* Nothing is pending; frees the context. */
void mn_check_done(mn_context *context);
/* The pending error has this status, and part is in its message; clears it. */
void mn_check_expect(mn_context *context, mn_status status, const char *part);
/* Element `index` of a small tensor. */
double mn_check_at(const mn_tensor *x, int64_t index);
/* An f32 tensor of numbers between -1.75 and 2.25 that follow from the seed. */
mn_tensor *mn_check_draw(mn_context *context, int ndim, const int64_t *shape, uint32_t seed);
/* Sum of all elements. */
mn_tensor *mn_check_total(mn_tensor *x);

/* One parameter w = {0.5, -1} with its optimizer (learning rate 1) and a grad scaler. */
typedef struct mn_check_run {
    mn_context *ctx;
    mn_tensor *w;
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
} mn_check_run;

mn_check_run mn_check_run_open(const char *device, const mn_grad_scaler_options *options);
mn_check_run mn_check_run_scale(const char *device, double scale);
void mn_check_run_close(mn_check_run *r);
mn_tensor *mn_check_parameter(mn_context *ctx, const char *name, int64_t count,
                              const double *values);
mn_optimizer *mn_check_sgd_of(mn_context *ctx, mn_tensor **parameters, int count);
mn_grad_scaler_stats mn_check_stats_of(mn_grad_scaler *scaler);

/* sum(w) times g, so that every true gradient is g; its scaled backward; and a whole step of it. */
mn_tensor *mn_check_loss_of(mn_tensor *w, double g);
mn_status mn_check_backward(mn_check_run *r, double g);
mn_step_outcome mn_check_whole_step(mn_check_run *r, double g);
/* Puts g into the gradients as if a scaled backward had given it. */
void mn_check_give_scaled(mn_tensor *w, double g);

/* A leaf of three elements that start so; its gradient in a step by formula; and a backward that
 * makes it p's gradient, scaled if there is a scaler. */
extern const double mn_check_start[3];
mn_tensor *mn_check_leaf(mn_context *ctx, const char *name, mn_dtype dtype);
double mn_check_gradient_at(int step, int i);
void mn_check_give_gradient(mn_tensor *p, int step, mn_grad_scaler *scaler);

#endif
