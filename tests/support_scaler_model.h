/* tests/support_scaler_model.h: what a grad scaler and its optimizers have to do, written a second
 * time: the order of calls, scale, counters, gradients and parameters, on the host and in double.
 * Each function gives the status that the library's call has to give. Infinities and NaN are kinds
 * of numbers here, so that the model holds under -ffast-math. */
#ifndef MN_TESTS_SUPPORT_SCALER_MODEL_H
#define MN_TESTS_SUPPORT_SCALER_MODEL_H

#include "include/minim.h"

enum { MN_MODEL_LEAVES = 3, MN_MODEL_OPTIMIZERS = 2, MN_MODEL_ELEMENTS = 2 };

typedef enum mn_model_kind { MN_FINITE, MN_INFINITE, MN_NOT_A_NUMBER } mn_model_kind;
typedef struct mn_model_number {
    mn_model_kind kind;
    double value; /* of an infinity: its sign */
} mn_model_number;
/* As the library has it; and whether it is that, up to 1e-5 reach. */
double mn_model_value(mn_model_number x);
bool mn_model_same(mn_model_number wanted, double got, double reach);

typedef enum mn_model_gradient { MN_NONE, MN_PLAIN, MN_SCALED, MN_UNSCALED } mn_model_gradient;
typedef struct mn_model_leaf {
    mn_model_number p[MN_MODEL_ELEMENTS], g[MN_MODEL_ELEMENTS];
    mn_model_number state[2][MN_MODEL_ELEMENTS]; /* the optimizer's */
    mn_model_gradient gradient;
    bool consumed;
    long scaling, version;
    double reach; /* largest finite |p| and |g| so far, which bounds rounding */
} mn_model_leaf;

typedef enum mn_model_stage { MN_READY, MN_DIVIDED, MN_STEPPED } mn_model_stage;
typedef struct mn_model_optimizer {
    int first, end; /* leaves */
    bool adam;      /* lr 0.125; else SGD with lr 0.25 and momentum 0.5 */
    mn_model_stage stage;
    bool broken_off, found, bad_norm;
    long errors; /* cleared when the stage was entered */
    long applied, skipped, nonfinite;
    mn_model_number norm;
    mn_step_outcome outcome;
} mn_model_optimizer;

typedef struct mn_model_scaler {
    mn_grad_scaler_options options;
    double scale;
    long tracker, updates, backoffs;
    bool found, collapsed;
    int checks;
    long scaling; /* number of the present scale */
} mn_model_scaler;

typedef struct mn_model {
    mn_status pending;
    long errors, scalings;
    mn_model_scaler scaler;
    mn_model_optimizer optimizer[MN_MODEL_OPTIMIZERS];
    mn_model_leaf leaf[MN_MODEL_LEAVES];
} mn_model;

/* sum over leaves of sum(w c), made at given versions of the leaves. */
typedef struct mn_model_loss {
    bool with[MN_MODEL_LEAVES];
    mn_model_number c[MN_MODEL_LEAVES][MN_MODEL_ELEMENTS];
    long version[MN_MODEL_LEAVES];
    double factor; /* of the gradients */
    long scaling;  /* 0: plain */
} mn_model_loss;

/* Leaves 0 and 1 are SGD's, leaf 2 is Adam's; all begin at 0.5. */
void mn_model_begin(mn_model *m, const mn_grad_scaler_options *options);
void mn_model_clear_error(mn_model *m);
mn_status mn_model_scale(mn_model *m, mn_model_loss *loss, double weight, bool finite_weight);
mn_status mn_model_backward(mn_model *m, const mn_model_loss *loss);
mn_status mn_model_unscale(mn_model *m, mn_model_optimizer *o);
mn_status mn_model_step(mn_model *m, mn_model_optimizer *o);
mn_status mn_model_plain_step(mn_model *m, mn_model_optimizer *o);
mn_status mn_model_clip_norm(mn_model *m, mn_model_optimizer *o, double max_norm);
mn_status mn_model_clip_value(mn_model *m, mn_model_optimizer *o, double limit);
mn_status mn_model_update(mn_model *m);
mn_status mn_model_zero_grad(mn_model *m, mn_model_optimizer *o);
mn_status mn_model_set_scale(mn_model *m, double scale, bool finite);
mn_status mn_model_set_interval(mn_model *m, int64_t interval);
/* MN_OK between steps: the scaler can be saved and loaded. */
mn_status mn_model_idle(mn_model *m);
void mn_model_load_scaler(mn_model *m, const mn_model_scaler *saved);
mn_status mn_model_load_optimizer(mn_model *m, int optimizer, const mn_model *saved);
/* Records an error, if none is pending. */
mn_status mn_model_fail(mn_model *m, mn_status status);

#endif
