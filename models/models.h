/* models: what train sees of modules beyond the public header. */
#ifndef MN_MODELS_MODELS_H
#define MN_MODELS_MODELS_H

#include "amp/amp.h"

/* Load with a dry run: apply false only checks. */
mn_status mn_module_load(mn_module *module, const mn_state_dict *dict, bool apply);
bool mn_module_is_training(const mn_module *module);
/* Puts a tree into evaluation mode for a while, and back: each module gets the mode that it had.
 * Also while an error is pending. */
void mn_module_evaluating(mn_module *module, bool evaluating);
mn_context *mn_module_context(const mn_module *module);

#endif
