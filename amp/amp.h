/* amp: what train sees of the grad scaler. */
#ifndef MN_AMP_AMP_H
#define MN_AMP_AMP_H

#include "optim/optim.h"

/* The scaler's record, f64 [MN_RECORD_SIZE]; there also when the scaler is disabled (scale 1). */
mn_tensor *mn_grad_scaler_record(mn_grad_scaler *scaler);
/* Load with a dry run: apply false only checks. */
mn_status mn_grad_scaler_load(mn_grad_scaler *scaler, const mn_state_dict *dict, bool apply);
/* The op's rule in this context, and whether it is other than that of the table. */
mn_cast_rule mn_autocast_rule(const mn_context *context, const mn_op *op, bool *overridden);
/* Rule overrides of the context as "op=RULE,op=RULE" in op order ("" if none), for the identity of
 * a run; the reverse of mn_autocast_set_rules. */
mn_status mn_autocast_rules_text(mn_context *context, char *buffer, size_t size);

#endif
