/* ops/info.c: the op table as users see it. */
#include "ops/internal.h"

static const char *const rule_names[] = {
    [MN_CAST_KEEP] = "KEEP",         [MN_CAST_LOWER] = "LOWER",     [MN_CAST_FP32] = "FP32",
    [MN_CAST_FP32_OUT] = "FP32_OUT", [MN_CAST_PROMOTE] = "PROMOTE", [MN_CAST_REFUSE] = "REFUSE",
};

const char *mn_cast_rule_name(mn_cast_rule rule)
{
    size_t index = (size_t)rule;
    return index < sizeof rule_names / sizeof *rule_names ? rule_names[index] : "unknown";
}

int mn_op_count(void)
{
    return MN_OP_COUNT;
}

/* dtypes of input 0 that the op's shape rule lets through to the reference kernel. */
static uint32_t reference_dtypes(int index)
{
    const uint32_t f64 = 1u << MN_F64;
    const uint32_t wide = f64 | 1u << MN_F32;
    const uint32_t floats = wide | 1u << MN_F16 | 1u << MN_BF16;
    const uint32_t any = floats | 1u << MN_I64 | 1u << MN_I32 | 1u << MN_U8;
    if (!mn_ops[index].reference)
        return 0;
    switch (index) {
    case MN_OP_cast:
    case MN_OP_copy:
    case MN_OP_fill:
    case MN_OP_assign:
    case MN_OP_permute:
    case MN_OP_expand:
    case MN_OP_reduce_to:
    case MN_OP_add:
    case MN_OP_mul:
    case MN_OP_relu:
    case MN_OP_sum:
    case MN_OP_argmax:
        return any;
    case MN_OP_cross_entropy_backward:
    case MN_OP_accumulate:
    case MN_OP_grad_unscale:
    case MN_OP_grad_norm:
    case MN_OP_grad_clip:
        return wide;
    case MN_OP_optimizer_finish:
    case MN_OP_scaler_update:
    case MN_OP_report_loss:
    case MN_OP_report_step:
        return f64;
    default:
        return floats;
    }
}

bool mn_op_info_get(int index, mn_op_info *info)
{
    if (index < 0 || index >= MN_OP_COUNT || !info)
        return false;
    const mn_op *op = &mn_ops[index];
    *info = (mn_op_info){
        .name = op->name,
        .rule_cpu = op->rule[MN_DEVICE_CPU],
        .rule_cuda = op->rule[MN_DEVICE_CUDA],
        .differentiable = op->differentiable != 0,
        .reference_dtypes = reference_dtypes(index),
        .cpu_dtypes = op->kernels[MN_DEVICE_CPU].dtypes,
        .summary = op->summary,
    };
    return true;
}
