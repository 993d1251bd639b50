/* Between tensors and state dictionaries; numbers are kept as small tensors. */
#ifndef MN_CORE_STATE_DICT_H
#define MN_CORE_STATE_DICT_H

#include "core/core.h"

/* Adds the tensor under `name` in file order (filters [K,R,S,C] as [K,C,R,S]); waits. */
mn_status mn_state_dict_put_tensor(mn_state_dict *dict, const char *name, const mn_tensor *tensor,
                                   mn_layout layout);
/* Checks that `name` is there with the tensor's (file order) shape and its dtype, or both floating,
 * and, if apply, writes it into the tensor, rounded to nearest even (bumping its version). Errors
 * are the tensor's context's. */
mn_status mn_state_dict_get_tensor(const mn_state_dict *dict, const char *name, mn_tensor *tensor,
                                   mn_layout layout, bool apply);
mn_status mn_state_dict_put_i64(mn_state_dict *dict, const char *name, int64_t value);
mn_status mn_state_dict_put_f64(mn_state_dict *dict, const char *name, double value);
/* Scalars; absent or of another kind is MN_ERR_MISMATCH naming it, in the context given. */
mn_status mn_state_dict_get_i64(mn_context *context, const mn_state_dict *dict, const char *name,
                                int64_t *value);
mn_status mn_state_dict_get_f64(mn_context *context, const mn_state_dict *dict, const char *name,
                                double *value);
mn_context *mn_state_dict_context(const mn_state_dict *dict);
/* MN_OK if an object of the context may load from the dictionary, which may be of another one, or
 * (the second) save into it, which allocates there; else the error, in the object's own context.
 * `what` begins it. */
mn_status mn_state_dict_readable(mn_context *context, const mn_state_dict *dict, const char *what);
mn_status mn_state_dict_writable(mn_context *context, const mn_state_dict *dict, const char *what);

/* For readers: adds an entry whose elements the caller fills in at *data (NULL if it has none), and
 * takes the newest entry back out. entry->data is ignored. */
mn_status mn_state_dict_reserve(mn_state_dict *dict, const mn_state_entry *entry, void **data);
void mn_state_dict_drop(mn_state_dict *dict);
/* The two strings that files hold for themselves; dictionaries do not. */
#define MN_STATE_KEY_FORMAT   "minim.format"
#define MN_STATE_KEY_CHECKSUM "minim.checksum"

#endif
