/* autograd: recording, backward, gradient state of leaves. Internal interface. */
#ifndef MN_AUTOGRAD_AUTOGRAD_H
#define MN_AUTOGRAD_AUTOGRAD_H

#include "ops/ops.h"

/* Records op with outputs that exist already (such as a cast served by a parameter's shadow), as
 * mn_apply would have; nothing happens under no-grad or when no input requires a gradient. */
mn_status mn_record(mn_context *context, const mn_op *op, mn_tensor *const *inputs, int input_count,
                    const void *attributes, mn_tensor *const *outputs);
/* What backward from a loss on its way through this one gives is scaled; `scaling` (not 0) tells by
 * which scaler at which of its scales. */
void mn_mark_scaled(mn_tensor *loss, uint64_t scaling);
/* Backward from root with gradient `seed` (root's shape) whose leaves become `state` (PLAIN or
 * SCALED), SCALED in any case where it passes a loss marked so. Refuses to mix states; a scaled
 * backward also refuses gradients that a finished step has consumed. */
mn_status mn_backward_from(mn_tensor *root, mn_tensor *seed, mn_grad_state state);
bool mn_is_recording(const mn_context *context);

#endif
