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
    void *stage_owner;     /* the scaler that set the stage; NULL while READY */
    uint64_t stage_errors; /* the context's errors_cleared when the stage was entered */
    bool broken_off;       /* after an error zero_grad has taken the gradients of the stage */
    /* The owner's list of optimizers to return to READY; both ends unlink in O(1). */
    mn_optimizer *stage_next, **stage_link;
};

/* Enters a stage on behalf of owner, joining the list that starts at *head; ready leaves it. */
void mn_optimizer_enter(mn_optimizer *optimizer, mn_optimizer_stage stage, void *owner,
                        mn_optimizer **head);
void mn_optimizer_ready(mn_optimizer *optimizer);

/* The step itself, gradients being plain or unscaled: updates, shadows, counters, consumed marks.
 */
mn_status mn_optimizer_apply(mn_optimizer *optimizer);
/* Number of parameters that have a gradient now; an error names which are in another state than
 * wanted (pass MN_GRAD_NONE to accept any). */
mn_status mn_optimizer_gradients(mn_optimizer *optimizer, mn_grad_state wanted, int *count);
/* MN_OK if the pointer is there and nothing is pending. */
mn_status mn_optimizer_check(const mn_optimizer *optimizer);
/* The error for a step without gradients. */
mn_status mn_optimizer_no_gradient(mn_optimizer *optimizer);
/* Forgets what was measured for a step that is not going to happen. */
mn_status mn_optimizer_forget_step(mn_optimizer *optimizer);
/* Reads the record; waits. */
mn_status mn_optimizer_read_record(mn_optimizer *optimizer, double record[MN_RECORD_SIZE]);
/* Host's view of a schedule, as the optimizer_finish op wants it. */
mn_schedule_attributes mn_optimizer_schedule(const mn_optimizer *optimizer);
/* Load with a dry run: apply false only checks. */
mn_status mn_optimizer_load(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply);

#endif
