/* ops/dispatch.c: from a checked call of an op to device work. */
#include "ops/internal.h"

#include <string.h>

/* ---- state ----------------------------------------------------------------------------------- */

uint64_t mn_widened_calls(const mn_context *context)
{
    const mn_ops_state *state = context ? context->slots[MN_SLOT_OPS].state : NULL;
    return state ? state->widened : 0;
}

uint64_t mn_op_calls(const mn_context *context, mn_op_id id)
{
    const mn_ops_state *state = context ? context->slots[MN_SLOT_OPS].state : NULL;
    return state ? state->calls[id] : 0;
}

/* For a built-in op. */
static mn_status count_call(mn_context *context, const mn_op *op)
{
    mn_ops_state *state = mn_ops_state_get(context);
    const uintptr_t at = (uintptr_t)op, first = (uintptr_t)mn_ops;
    if (!state)
        return mn_error_status(context);
    if (at >= first && at < (uintptr_t)(mn_ops + MN_OP_COUNT))
        state->calls[(at - first) / sizeof *op]++;
    return MN_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

mn_status mn_op_validate(mn_context *context, const mn_op *op)
{
    MN_TRY(mn_error_status(context));
    if (!op)
        return mn_fail(context, MN_ERR_ARGUMENT, "the op is NULL");
    if (op->size != sizeof(mn_op) || !op->name || !op->infer)
        return mn_fail(context, MN_ERR_ARGUMENT, "op descriptor: size, name or infer is missing");
    if (op->min_inputs < 0 || op->max_inputs > MN_MAX_INPUTS || op->outputs < 0 ||
        op->outputs > MN_MAX_OUTPUTS)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: at most %d inputs and %d outputs", op->name,
                       MN_MAX_INPUTS, MN_MAX_OUTPUTS);
    if ((op->flags & MN_OP_VIEW) && (op->outputs != 1 || op->min_inputs < 1 || op->mutates))
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: a view has one output and mutates nothing",
                       op->name);
    if (op->differentiable && !op->backward)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: differentiable, but without backward",
                       op->name);
    if (op->attribute_bytes > MN_MAX_ATTRIBUTES)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: %zu bytes of attributes, at most %d",
                       op->name, op->attribute_bytes, MN_MAX_ATTRIBUTES);
    return MN_OK;
}

static bool overlap(const mn_tensor *a, const mn_tensor *b)
{
    return a->storage == b->storage && a->offset < b->offset + mn_tensor_bytes(b) &&
           b->offset < a->offset + mn_tensor_bytes(a);
}

/* Whether input i, which is written, may not share the memory of input j. It may only for an op
 * that works in place, element by element: one with outputs still reads the other input later. */
static bool is_alias(const mn_op *op, const mn_tensor *i, const mn_tensor *j, bool both_written)
{
    bool same =
        op->outputs == 0 && i->offset == j->offset && i->dtype == j->dtype && i->numel == j->numel;
    return overlap(i, j) && (!same || both_written);
}

static mn_status check_inputs(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                              int count)
{
    if (count < op->min_inputs || count > op->max_inputs)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: %d inputs, takes %d to %d", op->name, count,
                       op->min_inputs, op->max_inputs);
    for (int i = 0; i < count; i++) {
        bool required = i < op->min_inputs && !(op->optional >> i & 1u);
        if (!inputs[i] && required)
            return mn_fail(context, MN_ERR_ARGUMENT, "%s: argument %d is NULL", op->name, i + 1);
        if (inputs[i] && inputs[i]->context != context)
            return mn_fail(context, MN_ERR_ARGUMENT,
                           "%s: argument %d belongs to another context, on %s, not %s", op->name,
                           i + 1, inputs[i]->context->device->name, context->device->name);
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < count && inputs[i] && op->mutates >> i & 1u; j++) {
            if (i != j && inputs[j] && is_alias(op, inputs[i], inputs[j], op->mutates >> j & 1u))
                return mn_fail(context, MN_ERR_ARGUMENT,
                               "%s: argument %d is written, but shares memory with argument %d",
                               op->name, i + 1, j + 1);
        }
    }
    return MN_OK;
}

/* ---- shape rule ------------------------------------------------------------------------------ */

static void start_call(mn_context *context, const mn_op *op, mn_tensor *const *inputs, int count,
                       const void *attributes, mn_call *call)
{
    memset(call, 0, sizeof *call);
    call->op = op;
    call->input_count = count;
    call->output_count = op->outputs;
    call->cpu = &context->cpu;
    call->fault = context->device->fault;
    call->stores = context->stores;
    for (int i = 0; i < count; i++)
        call->in[i] = mn_tensor_as_view(inputs[i]);
    if (attributes)
        memcpy(call->attributes.bytes, attributes, op->attribute_bytes);
}

/* Fills call->out but for data. */
static mn_status infer_outputs(mn_context *context, mn_call *call, bool f32_output)
{
    mn_infer infer = {.context = context,
                      .op = call->op,
                      .input_count = call->input_count,
                      .attributes = call->attributes.bytes,
                      .f32_output = f32_output,
                      .output_count = call->output_count};
    memcpy(infer.in, call->in, sizeof infer.in);
    for (int i = 0; i < call->input_count; i++)
        infer.in[i].data = NULL;
    mn_status status = call->op->infer(&infer);
    if (status != MN_OK)
        return mn_fail(context, status, "%s: the shape rule refused the inputs", call->op->name);
    for (int i = 0; i < call->output_count; i++) {
        mn_view *out = &infer.out[i];
        MN_TRY(mn_shape_check(context, out->dtype, out->ndim, out->shape, &out->numel, NULL));
        out->present = true;
        out->data = NULL;
        call->out[i] = *out;
    }
    return MN_OK;
}

static mn_status make_view(mn_context *context, const mn_call *call, mn_tensor *const *inputs,
                           mn_tensor **outputs)
{
    const mn_view *out = &call->out[0];
    if ((uint64_t)out->numel * mn_dtype_size(out->dtype) > mn_tensor_bytes(inputs[0]))
        return mn_fail(context, MN_ERR_SHAPE, "%s: the view is larger than its input",
                       call->op->name);
    outputs[0] =
        mn_tensor_view(inputs[0]->storage, inputs[0]->offset, out->dtype, out->ndim, out->shape);
    return outputs[0] ? MN_OK : mn_error_status(context);
}

/* The output of a kernel that may be written where input 0 is read, -1: none. Elements of both must
 * be read and written together, the input's before. */
static int output_in_place(const mn_call *call)
{
    if (call->op == &mn_ops[MN_OP_relu_backward] || call->op == &mn_ops[MN_OP_batch_norm_backward])
        return 0;
    if (call->op != &mn_ops[MN_OP_batch_norm_relu_backward])
        return -1;
    return mn_has_input(call, 3) ? 0 : 3; /* with a residual its gradient is what g becomes */
}

static bool same_kind(const mn_view *a, const mn_view *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

/* On failure the tensors made so far stay with the scope. */
static mn_status make_outputs(mn_context *context, mn_served_by served, mn_call *call,
                              const mn_tensor *spent, mn_tensor **outputs)
{
    const int in_place =
        served == MN_SERVED_KERNEL && spent && spent->spent ? output_in_place(call) : -1;
    for (int i = 0; i < call->output_count; i++) {
        mn_view *out = &call->out[i];
        mn_tensor *tensor =
            i == in_place && same_kind(out, &call->in[0])
                ? mn_tensor_view(spent->storage, spent->offset, out->dtype, out->ndim, out->shape)
                : mn_tensor_new(context, out->dtype, out->ndim, out->shape);
        if (!tensor)
            return mn_error_status(context);
        outputs[i] = tensor;
        out->data = mn_tensor_address(tensor);
    }
    return MN_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

mn_dtype mn_kernel_dtype(const mn_call *call)
{
    for (int i = 0; i < call->input_count; i++)
        if (call->in[i].present)
            return call->in[i].dtype;
    return call->out[0].dtype;
}

mn_served_by mn_op_served_by(const mn_context *context, const mn_op *op, mn_dtype dtype)
{
    mn_device_type device = context->device->type;
    const mn_kernel *kernel = &op->kernels[device];
    bool has_reference = op->reference && device == MN_DEVICE_CPU;
    if (op->flags & MN_OP_VIEW)
        return MN_SERVED_KERNEL;
    if (has_reference && context->cpu.kernels == MN_KERNELS_REFERENCE)
        return MN_SERVED_REFERENCE;
    if (kernel->run && kernel->dtypes >> dtype & 1u)
        return MN_SERVED_KERNEL;
    if (has_reference)
        return MN_SERVED_REFERENCE;
    /* Not f64: that would narrow. */
    if (mn_is_16_bit(dtype) && kernel->run && kernel->dtypes >> MN_F32 & 1u)
        return MN_SERVED_WIDENED;
    return MN_SERVED_NONE;
}

static void run_on_cpu(const void *record)
{
    const mn_call *call = record;
    call->op->kernels[MN_DEVICE_CPU].run(call);
}

static void run_on_cuda(const void *record)
{
    const mn_call *call = record;
    call->op->kernels[MN_DEVICE_CUDA].run(call);
}

typedef void (*work_fn)(const void *record);

/* Plan, workspace and the function that the device is to run. */
static mn_status prepare(mn_context *context, mn_served_by served, mn_call *call, work_fn *work)
{
    static const work_fn runners[MN_DEVICE_TYPE_COUNT] = {run_on_cpu, run_on_cuda};
    mn_device_type device = context->device->type;
    if (served == MN_SERVED_KERNEL) {
        *work = runners[device];
        return mn_plan_find(context, &call->op->kernels[device], call);
    }
    *work = mn_reference_run;
    if (mn_reference_prepare(call, &call->workspace_bytes) == MN_OK)
        return MN_OK;
    return mn_fail(context, MN_ERR_MEMORY, "%s: the operands are too large for the reference",
                   call->op->name);
}

/* Hands the call to the device and counts the writes of its inputs. */
static mn_status enqueue(mn_context *context, work_fn work, const mn_call *call,
                         mn_tensor *const *inputs)
{
    mn_device *device = context->device;
    if (context->rehearsing)
        return MN_OK;
    mn_status status = device->enqueue(device, work, call, sizeof *call);
    if (status != MN_OK)
        return mn_fail(context, status, "%s: the device %s refused the work", call->op->name,
                       device->name);
    for (int i = 0; i < call->input_count; i++) {
        if (inputs[i] && call->op->mutates >> i & 1u)
            inputs[i]->storage->version++;
    }
    return device->host_visible ? mn_check_fault(context) : MN_OK;
}

static mn_status run_call(mn_context *context, mn_served_by served, mn_call *call,
                          mn_tensor *const *inputs, mn_tensor **outputs)
{
    work_fn work = NULL;
    MN_TRY(prepare(context, served, call, &work));
    MN_TRY(make_outputs(context, served, call, inputs[0], outputs));
    call->workspace = mn_pool_alloc(context, call->workspace_bytes);
    if (!call->workspace && call->workspace_bytes > 0)
        return mn_error_status(context);
    mn_status status = enqueue(context, work, call, inputs);
    mn_pool_free(context, call->workspace, call->workspace_bytes);
    return status;
}

/* ---- widening -------------------------------------------------------------------------------- */

static mn_tensor *cast_to(mn_context *context, mn_tensor *x, mn_dtype dtype)
{
    mn_cast_attributes attributes = {.dtype = dtype};
    if (!x || x->dtype == dtype)
        return x;
    return mn_dispatch1(context, MN_OP_cast, &x, 1, &attributes);
}

/* Written inputs back from their f32 copies, outputs to the dtypes that the call promised. */
static mn_status narrow(mn_context *context, const mn_call *call, mn_tensor *const *inputs,
                        mn_tensor *const *wide, mn_tensor **outputs)
{
    for (int i = 0; i < call->output_count; i++) {
        outputs[i] = cast_to(context, outputs[i], call->out[i].dtype);
        if (!outputs[i])
            return mn_error_status(context);
    }
    for (int i = 0; i < call->input_count; i++) {
        if (!(call->op->mutates >> i & 1u) || wide[i] == inputs[i])
            continue;
        mn_tensor *const pair[2] = {inputs[i], wide[i]};
        MN_TRY(mn_dispatch(context, &mn_ops[MN_OP_assign], pair, 2, NULL, false, NULL));
    }
    return MN_OK;
}

static mn_status run_in_f32(mn_context *context, const mn_call *call, mn_tensor *const *inputs,
                            mn_tensor **outputs)
{
    mn_tensor *wide[MN_MAX_INPUTS] = {NULL};
    for (int i = 0; i < call->input_count; i++) {
        wide[i] = mn_is_16_bit(call->in[i].dtype) ? cast_to(context, inputs[i], MN_F32) : inputs[i];
        if (inputs[i] && !wide[i])
            return mn_error_status(context);
    }
    MN_TRY(mn_dispatch(context, call->op, wide, call->input_count, call->attributes.bytes, false,
                       outputs));
    return narrow(context, call, inputs, wide, outputs);
}

static mn_status run_widened(mn_context *context, const mn_call *call, mn_tensor *const *inputs,
                             mn_tensor **outputs)
{
    mn_ops_state *state = mn_ops_state_get(context);
    if (!state)
        return mn_error_status(context);
    mn_scope scope = mn_scope_begin(context);
    mn_status status = mn_error_status(context);
    if (status == MN_OK)
        status = run_in_f32(context, call, inputs, outputs);
    for (int i = 0; i < call->output_count && status == MN_OK; i++)
        mn_scope_keep(outputs[i]);
    mn_scope_end(context, scope);
    if (status == MN_OK)
        state->widened++;
    return status;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static mn_status serve(mn_context *context, mn_call *call, mn_tensor *const *inputs,
                       mn_tensor **outputs)
{
    MN_TRY(count_call(context, call->op));
    if (call->op->flags & MN_OP_VIEW)
        return make_view(context, call, inputs, outputs);
    mn_dtype dtype = mn_kernel_dtype(call);
    mn_served_by served = mn_op_served_by(context, call->op, dtype);
    if (served == MN_SERVED_NONE)
        return mn_fail(context, MN_ERR_UNSUPPORTED, "%s: no kernel for %s on device %s",
                       call->op->name, mn_dtype_name(dtype), context->device->name);
    if (served == MN_SERVED_WIDENED)
        return run_widened(context, call, inputs, outputs);
    return run_call(context, served, call, inputs, outputs);
}

mn_status mn_dispatch(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                      int input_count, const void *attributes, bool f32_output, mn_tensor **outputs)
{
    mn_tensor *results[MN_MAX_OUTPUTS] = {NULL};
    mn_call call;
    MN_TRY(mn_op_validate(context, op));
    for (int i = 0; i < op->outputs; i++)
        outputs[i] = NULL;
    MN_TRY(check_inputs(context, op, inputs, input_count));
    start_call(context, op, inputs, input_count, attributes, &call);
    MN_TRY(infer_outputs(context, &call, f32_output));
    if (context->observers && !context->observing)
        MN_TRY(mn_observe(context, &call, inputs, results, serve));
    else
        MN_TRY(serve(context, &call, inputs, results));
    for (int i = 0; i < op->outputs; i++)
        outputs[i] = results[i];
    return MN_OK;
}

mn_tensor *mn_dispatch1(mn_context *context, mn_op_id id, mn_tensor *const *inputs, int input_count,
                        const void *attributes)
{
    mn_tensor *outputs[MN_MAX_OUTPUTS] = {NULL};
    mn_dispatch(context, &mn_ops[id], inputs, input_count, attributes, false, outputs);
    return outputs[0];
}

mn_tensor *mn_apply1(mn_op_id id, mn_tensor *const *inputs, int input_count, const void *attributes)
{
    mn_tensor *outputs[MN_MAX_OUTPUTS] = {NULL};
    mn_context *context = NULL;
    for (int i = 0; i < input_count && !context; i++)
        context = mn_tensor_context(inputs[i]);
    if (!context)
        return NULL;
    mn_apply(context, &mn_ops[id], inputs, input_count, attributes, outputs);
    return outputs[0];
}
