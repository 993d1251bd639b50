/* Prototypes of what the rows of ops.def name: shape rules, backwards, reference and CPU kernels.
 * Every name is declared; which of them exist is what the columns say. */
#ifndef MN_OPS_KERNELS_H
#define MN_OPS_KERNELS_H

#include "include/minim_ext.h"

#define MN_OP(name, ...)                                                                           \
    mn_status mn_infer_##name(mn_infer *infer);                                                    \
    mn_status mn_backward_##name(mn_backward_call *call);                                          \
    void mn_ref_##name(const mn_call *call, double *const in[], double *const out[]);              \
    mn_status mn_cpu_##name##_prepare(const mn_call *call, mn_plan *plan,                          \
                                      size_t *workspace_bytes);                                    \
    void mn_cpu_##name(const mn_call *call);
#include "ops/ops.def"
#undef MN_OP

#endif
