/* Prototypes of what the rows of ops.def name: shape rules, backwards, reference and CPU kernels.
 */
#ifndef MN_OPS_KERNELS_H
#define MN_OPS_KERNELS_H

#include "include/minim_ext.h"

#define MN_OP(name, least, most, results, flag, opt, mutated, diff, sin, sout, cast, infer, back,  \
              ref, ref_dtypes, prep, cpu, cpu_dtypes, attrs, text)                                 \
    mn_status mn_infer_##infer(mn_infer *call);                                                    \
    mn_status mn_backward_##back(mn_backward_call *call);                                          \
    void mn_ref_##ref(const mn_call *call, double *const in[], double *const out[]);               \
    mn_status mn_cpu_##prep##_prepare(const mn_call *call, mn_plan *plan,                          \
                                      size_t *workspace_bytes);                                    \
    void mn_cpu_##cpu(const mn_call *call);
#include "ops/ops.def"
#undef MN_OP

#endif
