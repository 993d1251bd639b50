/* Products of stacks of matrices, leading axes broadcast as NumPy does, and linear layers. */
#include "ops/cpu/gemm.h"

/* Sizes of y = a b, each transposed or not. */
static mn_gemm product(const mn_call *call, bool a_transposed, bool b_transposed)
{
    mn_view a = call->in[0], b = call->in[1];
    const mn_view *y = &call->out[0];
    mn_gemm g = {.call = call,
                 .m = a.ndim > 1 ? a.shape[a.ndim - (a_transposed ? 1 : 2)] : 1,
                 .n = y->shape[y->ndim - 1],
                 .k = b.shape[b.ndim - (b_transposed ? 1 : 2)],
                 .a_transposed = a_transposed,
                 .b_transposed = b_transposed,
                 .batch_ndim = y->ndim > 2 ? y->ndim - 2 : 0,
                 .batches = 1,
                 .b_items = 1};
    int64_t a_items = 1;
    a.ndim = a.ndim > 2 ? a.ndim - 2 : 0;
    b.ndim -= 2;
    for (int d = 0; d < g.batch_ndim; d++) {
        g.batch_shape[d] = y->shape[d];
        g.batches *= y->shape[d];
    }
    for (int d = 0; d < a.ndim; d++)
        a_items *= a.shape[d];
    for (int d = 0; d < b.ndim; d++)
        g.b_items *= b.shape[d];
    mn_steps(&a, g.batch_ndim, g.a_step);
    mn_steps(&b, g.batch_ndim, g.b_step);
    /* One b for all rows of all a: a single tall product. */
    if (g.b_items == 1 && a_items == g.batches && !a_transposed) {
        g.m *= g.batches;
        g.batches = 1;
        g.batch_ndim = 0;
    }
    return g;
}

static mn_gemm matmul(const mn_call *call)
{
    const mn_matmul_attributes *a = (const void *)call->attributes.bytes;
    return product(call, a->transpose_a != 0, a->transpose_b != 0);
}

/* y = x w^T + b, the leading axes of x taken together. */
static mn_gemm linear(const mn_call *call)
{
    mn_gemm g = product(call, false, true);
    g.bias = mn_has_input(call, 2) ? &call->in[2] : NULL;
    return g;
}

static mn_status prepare(mn_gemm g, size_t *workspace_bytes)
{
    mn_status status = mn_gemm_plan(&g);
    *workspace_bytes = g.workspace_bytes;
    return status;
}

static void run(mn_gemm g)
{
    if (mn_gemm_plan(&g) == MN_OK)
        mn_gemm_run(&g);
}

mn_status mn_cpu_matmul_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    (void)plan;
    return prepare(matmul(call), workspace_bytes);
}

mn_status mn_cpu_linear_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    (void)plan;
    return prepare(linear(call), workspace_bytes);
}

void mn_cpu_matmul(const mn_call *call)
{
    run(matmul(call));
}

void mn_cpu_linear(const mn_call *call)
{
    run(linear(call));
}
