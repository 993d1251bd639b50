/* optim: what amp and train see of an optimizer. */
#ifndef MN_OPTIM_OPTIM_H
#define MN_OPTIM_OPTIM_H

#include "autograd/autograd.h"

/* Where an optimizer stands between two updates of the scaler (kept here, not in a map by
 * address). */
typedef enum mn_optimizer_stage {
    MN_STAGE_READY,
    MN_STAGE_UNSCALED,
    MN_STAGE_STEPPED
} mn_optimizer_stage;

struct mn_optimizer {
    mn_context *context;
    int count;
    mn_tensor **parameters; /* retained */
    mn_tensor **momenta;    /* f32 (f64 for f64 parameters), retained; NULL without momentum */
    mn_tensor *record;      /* f64 [MN_RECORD_SIZE] */
    mn_sgd_options options;
    mn_optimizer_stage stage;
    uint64_t stage_errors; /* the context's errors_cleared when the stage was entered */
    bool broken_off;       /* after an error zero_grad has taken the gradients of the stage */
    /* The list, of the scaler that set the stage, of optimizers to return to READY. */
    mn_optimizer **stage_list, *stage_next;
};

/* Enters a stage, joining a scaler's list; ready leaves it. */
void mn_optimizer_enter(mn_optimizer *optimizer, mn_optimizer_stage stage, mn_optimizer **list);
void mn_optimizer_ready(mn_optimizer *optimizer);

/* The step itself, gradients being plain or unscaled: updates, shadows, counters, consumed marks.
 */
mn_status mn_optimizer_apply(mn_optimizer *optimizer);
/* MN_OK if there are gradients, all in the wanted state; the error names one that is not. */
mn_status mn_optimizer_check_gradients(mn_optimizer *optimizer, mn_grad_state wanted);
/* MN_OK if the pointer is there and nothing is pending. */
mn_status mn_optimizer_check(const mn_optimizer *optimizer);
/* Forgets what was measured for a step that is not going to happen. */
mn_status mn_optimizer_forget_step(mn_optimizer *optimizer);
/* A schedule as the optimizer_finish op wants it. */
mn_schedule_attributes mn_optimizer_schedule(const mn_optimizer *optimizer);
/* Load with a dry run: apply false only checks. */
mn_status mn_optimizer_load(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply);

/* Records, f64 [MN_RECORD_SIZE]: a new one for the caller; reading one, which waits; and setting
 * `count` entries from `slot` on. */
mn_tensor *mn_record_create(mn_context *context, const double values[MN_RECORD_SIZE]);
mn_status mn_record_read(const mn_tensor *record, double values[MN_RECORD_SIZE]);
mn_status mn_record_set(mn_tensor *record, int slot, int count, double value);

#endif
