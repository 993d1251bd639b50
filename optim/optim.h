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

#define MN_OPTIMIZER_STATES 2
#define MN_MASTER           MN_OPTIMIZER_STATES /* after them */

/* What tells the kinds of optimizers apart. */
typedef struct mn_optimizer_kind {
    const char *name; /* in messages */
    mn_op_id op;
    const char *states[MN_OPTIMIZER_STATES]; /* names, PyTorch's */
} mn_optimizer_kind;

/* Parameters up to `end`, from where the group before ends. */
typedef struct mn_param_group {
    int end;
    double lr, weight_decay;
} mn_param_group;

/* One optimizer's choices: lr and weight_decay in `step` are replaced by each group's. */
typedef struct mn_recipe {
    const mn_optimizer_kind *kind;
    int states; /* so many are kept per parameter, the first ones of the kind */
    mn_step_attributes step;
    mn_schedule schedule;
    mn_rounding rounding;
} mn_recipe;

struct mn_optimizer {
    mn_context *context;
    mn_recipe recipe;
    int count;
    mn_tensor **parameters;                      /* retained */
    mn_tensor **states[MN_OPTIMIZER_STATES + 1]; /* f32 (f64 for f64 parameters), or NULL; masters
                                                    are of 16-bit parameters only */
    int group_count;
    mn_param_group *groups;
    mn_tensor *record; /* f64 [MN_RECORD_SIZE] */
    bool begun;        /* stepped or loaded: there will be no more groups */
    mn_optimizer_stage stage;
    uint64_t stage_errors; /* the context's errors_cleared when the stage was entered */
    bool stale;            /* its scaler went away before what it had found was used */
    bool broken_off;       /* after an error zero_grad has taken the gradients of the stage */
    /* The list, of the scaler that set the stage, of optimizers to return to READY. */
    mn_optimizer **stage_list, *stage_next;
};

/* Checks what all kinds share, and makes the optimizer; NULL on an error. */
mn_optimizer *mn_optimizer_create(mn_context *context, const mn_recipe *recipe,
                                  mn_tensor *const *parameters, int count);
/* MN_OK if these are distinct floating leaves. `what` begins errors. */
mn_status mn_check_parameters(mn_context *context, const char *what, mn_tensor *const *parameters,
                              int count);
/* MN_OK if the value is finite and at least 0. */
mn_status mn_check_amount(mn_context *context, const char *kind, const char *name, double value);
/* New zeros for the caller, of the shape and precision of a parameter's state; NULL on failure. */
mn_tensor *mn_state_like(const mn_tensor *parameter);

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
/* The same for what a scaler that is gone has measured. */
mn_status mn_optimizer_refresh(mn_optimizer *optimizer);
/* Ends a step on a record: counts it, and sets the factor of the learning rates. */
mn_status mn_optimizer_finish(mn_optimizer *optimizer, mn_tensor *record);
/* Load with a dry run: apply false only checks. */
mn_status mn_optimizer_load(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply);
/* "<room>.<parameter>" or, with a state, "<room>.<parameter>.<state>", for a dictionary; parameters
 * without a name go by their number. */
enum { MN_ENTRY_NAME = 512 };
mn_status mn_entry_name(const mn_tensor *parameter, int index, const char *room, const char *state,
                        char name[MN_ENTRY_NAME]);

/* Records, f64 [MN_RECORD_SIZE]: a new one for the caller; reading one, which waits; and setting
 * `count` entries from `slot` on. */
mn_tensor *mn_record_create(mn_context *context, const double values[MN_RECORD_SIZE]);
mn_status mn_record_read(const mn_tensor *record, double values[MN_RECORD_SIZE]);
mn_status mn_record_set(mn_tensor *record, int slot, int count, double value);

/* to[i] = from[i] for all, or if memory is short for none. */
mn_status mn_assign_all(mn_context *context, int count, mn_tensor **to, mn_tensor **from);

#endif
