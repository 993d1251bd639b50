/* ops/reference_run.c: runs an op's reference kernel: operands widened to f64 in the workspace,
 * results narrowed from there, each rounded once. Integers beyond 2^53 lose their low bits. */
#include "ops/internal.h"

#include <string.h>

/* Elements of f64 in 64 bytes: every operand starts aligned. */
enum { ALIGNED = 8 };

static size_t padded(const mn_view *view)
{
    return view->present ? ((size_t)view->numel + ALIGNED - 1) / ALIGNED * ALIGNED : 0;
}

static double *take(const mn_view *view, double **space)
{
    double *start = *space;
    if (padded(view) > 0) /* nothing is added to NULL */
        *space += padded(view);
    return view->present ? start : NULL;
}

mn_status mn_reference_prepare(const mn_call *call, size_t *workspace_bytes)
{
    size_t elements = 0;
    bool fits = true;
    for (int i = 0; i < call->input_count; i++)
        fits = fits && mn_size_add(elements, padded(&call->in[i]), &elements);
    for (int i = 0; i < call->output_count; i++)
        fits = fits && mn_size_add(elements, padded(&call->out[i]), &elements);
    return fits && mn_size_mul(elements, sizeof(double), workspace_bytes) ? MN_OK : MN_ERR_MEMORY;
}

void mn_reference_run(const void *record)
{
    const mn_call *call = record;
    double *in[MN_MAX_INPUTS] = {NULL};
    double *out[MN_MAX_OUTPUTS] = {NULL};
    const bool wrap = call->input_count > 0 && !mn_dtype_is_float(call->in[0].dtype);
    double *space = call->workspace;
    for (int i = 0; i < call->input_count; i++) {
        in[i] = take(&call->in[i], &space);
        if (in[i])
            mn_to_f64(call->in[i].dtype, call->in[i].numel, call->in[i].data, in[i]);
    }
    for (int i = 0; i < call->output_count; i++) {
        out[i] = take(&call->out[i], &space);
        if (call->out[i].numel > 0)
            memset(out[i], 0, (size_t)call->out[i].numel * sizeof(double));
    }
    call->op->reference(call, in, out);
    for (int i = 0; i < call->output_count; i++) {
        const mn_view *view = &call->out[i];
        mn_from_f64(view->dtype, wrap, view->numel, out[i], view->data);
        mn_count_stores_f64(call->stores, view->dtype, view->numel, out[i], view->data);
    }
    for (int i = 0; i < call->input_count; i++) {
        const mn_view *view = &call->in[i];
        if (view->present && call->op->mutates >> i & 1u) {
            mn_from_f64(view->dtype, wrap, view->numel, in[i], view->data);
            mn_count_stores_f64(call->stores, view->dtype, view->numel, in[i], view->data);
        }
    }
}
