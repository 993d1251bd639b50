/* Products of stacks of matrices, leading axes broadcast as NumPy does. */
#include "ops/cpu/gemm.h"
#include "ops/kernels.h"
#include "ops/ops.h"

/* Steps, in matrices, of an operand's leading axes, aligned with those of y; its number of
 * matrices. */
static int64_t batch_steps(const mn_view *operand, int batch_ndim, int64_t *step)
{
    int64_t items = 1;
    for (int d = batch_ndim - 1; d >= 0; d--) {
        int axis = d - batch_ndim + operand->ndim - 2;
        int64_t size = axis < 0 ? 1 : operand->shape[axis];
        step[d] = size == 1 ? 0 : items;
        items *= size;
    }
    return items;
}

static mn_status plan(const mn_call *call, mn_gemm *gemm)
{
    const mn_matmul_attributes *attributes = (const void *)call->attributes.bytes;
    const mn_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    const int a_axis = attributes->transpose_a ? a->ndim - 2 : a->ndim - 1;
    *gemm = (mn_gemm){.call = call,
                      .m = y->shape[y->ndim - 2],
                      .n = y->shape[y->ndim - 1],
                      .k = a->shape[a_axis],
                      .a_transposed = attributes->transpose_a != 0,
                      .b_transposed = attributes->transpose_b != 0,
                      .batch_ndim = y->ndim - 2,
                      .batches = 1};
    for (int d = 0; d < gemm->batch_ndim; d++) {
        gemm->batch_shape[d] = y->shape[d];
        gemm->batches *= y->shape[d];
    }
    int64_t a_items = batch_steps(a, gemm->batch_ndim, gemm->a_step);
    gemm->b_items = batch_steps(b, gemm->batch_ndim, gemm->b_step);
    /* One b for all rows of all a: a single tall product. */
    if (gemm->b_items == 1 && a_items == gemm->batches && !gemm->a_transposed) {
        gemm->m *= gemm->batches;
        gemm->batches = 1;
        gemm->batch_ndim = 0;
    }
    return mn_gemm_plan(gemm);
}

mn_status mn_cpu_matmul_prepare(const mn_call *call, mn_plan *unused, size_t *workspace_bytes)
{
    (void)unused;
    mn_gemm gemm;
    mn_status status = plan(call, &gemm);
    *workspace_bytes = gemm.workspace_bytes;
    return status;
}

void mn_cpu_matmul(const mn_call *call)
{
    mn_gemm gemm;
    if (plan(call, &gemm) == MN_OK)
        mn_gemm_run(&gemm);
}
