/* models: what train sees of modules beyond the public header. */
#ifndef MN_MODELS_MODELS_H
#define MN_MODELS_MODELS_H

#include "amp/amp.h"

/* Load with a dry run: apply false only checks. */
mn_status mn_module_load(mn_module *module, const mn_state_dict *dict, bool apply);
bool mn_module_is_training(const mn_module *module);
mn_context *mn_module_context(const mn_module *module);

#endif
