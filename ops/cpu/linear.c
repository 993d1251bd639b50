/* Linear layers: y = x w^T + b, the leading axes of x taken together. */
#include "ops/cpu/gemm.h"
#include "ops/kernels.h"

static mn_status plan(const mn_call *call, mn_gemm *gemm)
{
    const mn_view *x = &call->in[0], *w = &call->in[1];
    int64_t m = 1;
    for (int d = 0; d < x->ndim - 1; d++)
        m *= x->shape[d];
    *gemm = (mn_gemm){.call = call,
                      .bias = call->input_count > 2 ? &call->in[2] : NULL,
                      .m = m,
                      .n = w->shape[0],
                      .k = w->shape[1],
                      .b_transposed = true,
                      .batches = 1,
                      .b_items = 1};
    return mn_gemm_plan(gemm);
}

mn_status mn_cpu_linear_prepare(const mn_call *call, mn_plan *unused, size_t *workspace_bytes)
{
    (void)unused;
    mn_gemm gemm;
    mn_status status = plan(call, &gemm);
    *workspace_bytes = gemm.workspace_bytes;
    return status;
}

void mn_cpu_linear(const mn_call *call)
{
    mn_gemm gemm;
    if (plan(call, &gemm) == MN_OK)
        mn_gemm_run(&gemm);
}
