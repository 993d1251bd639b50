/* State that amp keeps in a context, and the parts of a grad scaler. Private to this folder. */
#ifndef MN_AMP_INTERNAL_H
#define MN_AMP_INTERNAL_H

#include "amp/amp.h"
#include "autograd/section.h"
#include "core/json_write.h"

typedef struct mn_autocast {
    mn_sections regions;
    bool overridden[MN_OP_COUNT];
    mn_cast_rule rules[MN_OP_COUNT]; /* where overridden */
} mn_autocast;

/* The context's state, made when it is not there; NULL records an error. */
mn_autocast *mn_autocast_state(mn_context *context);
/* Casts an op's inputs by its rule: the context's cast hook. */
mn_status mn_autocast_inputs(mn_context *context, const mn_op *op, mn_tensor **inputs, int count,
                             mn_cast_choice *choice);

/* One call; its tensors, first the inputs, and its strings lie behind it. */
typedef struct mn_trace_block {
    struct mn_trace_block *next; /* among the spare ones */
    size_t bytes;
    mn_trace_entry entry;
    mn_trace_tensor tensors[];
} mn_trace_block;

struct mn_trace {
    mn_observer observer; /* first */
    mn_context *context;
    mn_trace_options options;
    mn_list blocks; /* mn_trace_block *, with room for the pending one and all spare ones */
    int64_t lost;
    mn_trace_block *pending; /* of the call that is running */
    mn_trace_block *spare;   /* made by rehearsals, in order, for calls that must not fail */
    int64_t spare_count;
    bool rehearsed; /* the last call was a rehearsal */
    bool full;      /* a call had no place */
};

struct mn_grad_scaler {
    mn_context *context;
    mn_grad_scaler_options options;
    mn_tensor *record;     /* f64 [MN_RECORD_SIZE] */
    mn_optimizer *touched; /* optimizers that left READY since the last update */
    int checks;            /* optimizers unscaled since the last update */
    uint64_t scaling;      /* tells its scale from its earlier ones and from other scalers' */
};

/* MN_OK if the pointer is there and nothing is pending. */
mn_status mn_grad_scaler_check(const mn_grad_scaler *scaler);
/* MN_OK between steps; else the error, which names the caller. */
mn_status mn_grad_scaler_idle(mn_grad_scaler *scaler, const char *caller);
/* All options but init_scale. */
mn_status mn_grad_scaler_check_options(mn_context *context, const mn_grad_scaler_options *options);

#endif
