/* ops/reference_run.c: runs an op's reference kernel: operands widened to f64 in the workspace,
 * results narrowed from there, each rounded once. Integers beyond 2^53 lose their low bits. */
#include "ops/internal.h"

#include <math.h>
#include <string.h>

/* Elements of f64 in 64 bytes: every operand starts aligned. */
enum { ALIGNED = 8 };

/* ---- prepare --------------------------------------------------------------------------------- */

static bool add_operand(const mn_view *view, size_t *elements)
{
    size_t numel = (size_t)view->numel, padded;
    return !view->present || (mn_size_add(numel, ALIGNED - 1, &padded) &&
                              mn_size_add(*elements, padded / ALIGNED * ALIGNED, elements));
}

mn_status mn_reference_prepare(const mn_call *call, size_t *workspace_bytes)
{
    size_t elements = 0;
    bool fits = true;
    for (int i = 0; i < call->input_count; i++)
        fits = fits && add_operand(&call->in[i], &elements);
    for (int i = 0; i < call->output_count; i++)
        fits = fits && add_operand(&call->out[i], &elements);
    return fits && mn_size_mul(elements, sizeof(double), workspace_bytes) ? MN_OK : MN_ERR_MEMORY;
}

static double *take(const mn_view *view, double **free_space)
{
    double *start = *free_space;
    if (!view->present)
        return NULL;
    size_t numel = (size_t)view->numel;
    if (numel > 0)
        *free_space += (numel + ALIGNED - 1) / ALIGNED * ALIGNED;
    return start;
}

/* ---- conversions ----------------------------------------------------------------------------- */

static void widen_float(const mn_view *view, double *to)
{
    size_t count = (size_t)view->numel;
    if (view->dtype == MN_F64) {
        if (count > 0)
            memcpy(to, view->data, count * sizeof *to);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (view->dtype == MN_F32)
            to[i] = (double)((const float *)view->data)[i];
        else if (view->dtype == MN_F16)
            to[i] = (double)mn_f16_to_f32(((const mn_f16 *)view->data)[i]);
        else
            to[i] = (double)mn_bf16_to_f32(((const mn_bf16 *)view->data)[i]);
    }
}

static void widen(const mn_view *view, double *to)
{
    if (mn_dtype_is_float(view->dtype)) {
        widen_float(view, to);
        return;
    }
    for (size_t i = 0; i < (size_t)view->numel; i++) {
        if (view->dtype == MN_I64)
            to[i] = (double)((const int64_t *)view->data)[i];
        else if (view->dtype == MN_I32)
            to[i] = (double)((const int32_t *)view->data)[i];
        else
            to[i] = (double)((const uint8_t *)view->data)[i];
    }
}

static void narrow_float(const mn_view *view, const double *from)
{
    size_t count = (size_t)view->numel;
    if (view->dtype == MN_F64) {
        if (count > 0)
            memcpy(view->data, from, count * sizeof *from);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (view->dtype == MN_F32)
            ((float *)view->data)[i] = (float)from[i];
        else if (view->dtype == MN_F16)
            ((mn_f16 *)view->data)[i] = mn_f16_from_f64(from[i]);
        else
            ((mn_bf16 *)view->data)[i] = mn_bf16_from_f64(from[i]);
    }
}

/* Truncates toward zero; what the type cannot hold saturates, NaN gives 0. */
static int64_t to_integer(double value, double least, double most)
{
    if (isnan(value))
        return 0;
    if (value >= 0x1p63 || value >= most)
        return most >= 0x1p63 ? INT64_MAX : (int64_t)most;
    return value <= least ? (int64_t)least : (int64_t)value;
}

/* Smaller integers wrap when they come from integers, as C's and PyTorch's do, and saturate when
 * they come from floating values. */
static void narrow(const mn_view *view, const double *from, bool wrap)
{
    if (mn_dtype_is_float(view->dtype)) {
        narrow_float(view, from);
        return;
    }
    double least = view->dtype == MN_I32 ? INT32_MIN : 0.0;
    double most = view->dtype == MN_I32 ? INT32_MAX : UINT8_MAX;
    if (view->dtype == MN_I64 || wrap) {
        least = -0x1p63;
        most = 0x1p63;
    }
    for (size_t i = 0; i < (size_t)view->numel; i++) {
        int64_t value = to_integer(from[i], least, most);
        if (view->dtype == MN_I64)
            ((int64_t *)view->data)[i] = value;
        else if (view->dtype == MN_I32)
            ((int32_t *)view->data)[i] = (int32_t)(uint32_t)value;
        else
            ((uint8_t *)view->data)[i] = (uint8_t)value;
    }
}

/* ---- run ------------------------------------------------------------------------------------- */

void mn_reference_run(const void *record)
{
    const mn_call *call = record;
    double *in[MN_MAX_INPUTS] = {NULL};
    double *out[MN_MAX_OUTPUTS] = {NULL};
    bool wrap = call->input_count > 0 && !mn_dtype_is_float(call->in[0].dtype);
    double *space = call->workspace;
    for (int i = 0; i < call->input_count; i++) {
        in[i] = take(&call->in[i], &space);
        if (in[i])
            widen(&call->in[i], in[i]);
    }
    for (int i = 0; i < call->output_count; i++) {
        out[i] = take(&call->out[i], &space);
        if (out[i] && call->out[i].numel > 0)
            memset(out[i], 0, (size_t)call->out[i].numel * sizeof(double));
    }
    call->op->reference(call, in, out);
    for (int i = 0; i < call->output_count; i++) {
        if (out[i])
            narrow(&call->out[i], out[i], wrap);
    }
    for (int i = 0; i < call->input_count; i++) {
        if (in[i] && call->op->mutates >> i & 1u)
            narrow(&call->in[i], in[i], wrap);
    }
}
