/* ops/table.c: the table of built-in ops, made from ops.def, and as users see it; and records of
 * what a descriptor was checked as. */
#include "ops/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What the words in ops.def's columns stand for. */
#define BIT(dtype)  (1u << (dtype))
#define BITS_NONE   0
#define BITS_U8     BIT(MN_U8)
#define BITS_F32    BIT(MN_F32)
#define BITS_F64    BIT(MN_F64)
#define BITS_WIDE   (BITS_F32 | BITS_F64)
#define BITS_LOWP   (BITS_F32 | BIT(MN_F16) | BIT(MN_BF16))
#define BITS_FLOAT  (BITS_LOWP | BITS_F64)
#define BITS_ANY    (BITS_FLOAT | BIT(MN_I64) | BIT(MN_I32) | BIT(MN_U8))
#define SIZE(attrs) sizeof(mn_##attrs##_attributes)
/* What an op refused in autocast regions says to use. */
#define HINT_KEEP           NULL
#define HINT_LOWER          NULL
#define HINT_FP32           NULL
#define HINT_FP32_OUT       NULL
#define HINT_PROMOTE        NULL
#define HINT_REFUSE         "mn_binary_cross_entropy_with_logits"
#define mn_backward_NONE    NULL
#define mn_ref_NONE         NULL
#define mn_cpu_NONE         NULL
#define mn_cpu_NONE_prepare NULL

#define MN_OP(op, least, most, results, flag, opt, mutated, diff, sin, sout, cast, rule_of_shapes, \
              back, ref, ref_dtypes, prep, cpu, cpu_dtypes, attrs, text)                           \
    [MN_OP_##op] = {                                                                               \
        .size = sizeof(mn_op),                                                                     \
        .name = &("mn_" #op)[3], /* also the tail of its public function's name */                 \
        .summary = text,                                                                           \
        .min_inputs = least,                                                                       \
        .max_inputs = most,                                                                        \
        .outputs = results,                                                                        \
        .optional = opt,                                                                           \
        .attribute_bytes = attrs,                                                                  \
        .flags = flag,                                                                             \
        .mutates = mutated,                                                                        \
        .differentiable = diff,                                                                    \
        .saves_inputs = sin,                                                                       \
        .saves_outputs = sout,                                                                     \
        .rule = {[MN_DEVICE_CPU] = MN_CAST_##cast, [MN_DEVICE_CUDA] = MN_CAST_##cast},             \
        .refuse_hint = HINT_##cast,                                                                \
        .infer = mn_infer_##rule_of_shapes,                                                        \
        .backward = mn_backward_##back,                                                            \
        .reference = mn_ref_##ref,                                                                 \
        .kernels = {[MN_DEVICE_CPU] = {.dtypes = BITS_##cpu_dtypes,                                \
                                       .prepare = mn_cpu_##prep##_prepare,                         \
                                       .run = mn_cpu_##cpu}},                                      \
    },
const mn_op mn_ops[] = {
#include "ops/ops.def"
};
#undef MN_OP

_Static_assert(sizeof mn_ops / sizeof mn_ops[0] == MN_OP_COUNT, "one row per op");

#define MN_OP(op, least, most, results, flag, opt, mutated, diff, sin, sout, cast, infer, back,    \
              ref, ref_dtypes, ...)                                                                \
    [MN_OP_##op] = BITS_##ref_dtypes,
static const uint32_t reference_dtypes[] = {
#include "ops/ops.def"
};
#undef MN_OP

/* Public functions of the ops that are not run by the one of their own name alone. "": an op that
 * only backward, or another op's public function on the way, runs. */
static const struct {
    mn_op_id op;
    const char *functions;
} other_functions[] = {
    {MN_OP_copy, "mn_clone"},
    {MN_OP_fill, "mn_full mn_tensor_fill"},
    {MN_OP_assign, "mn_tensor_copy"},
    {MN_OP_expand, ""},    /* backward of sums and means; operands broadcast without it */
    {MN_OP_reduce_to, ""}, /* backward of broadcasting */
    {MN_OP_mean, "mn_mean mn_global_avg_pool2d"},
    {MN_OP_pad, "mn_pad mn_slice"},
    {MN_OP_scatter_add, "mn_scatter_add mn_one_hot"},
    {MN_OP_compare, "mn_eq mn_ne mn_lt mn_le mn_gt mn_ge"},
    {MN_OP_affine, "mn_neg mn_add_scalar mn_mul_scalar"},
    {MN_OP_conv2d_moments, ""}, /* layers run it before a batch norm */
    {MN_OP_batch_norm_inference, "mn_batch_norm"},
    {MN_OP_batch_norm_inference_relu, "mn_batch_norm_relu"},
    {MN_OP_batch_norm_relu_pool, ""}, /* layers run these two before a pooling */
    {MN_OP_batch_norm_inference_relu_pool, ""},
    {MN_OP_batch_norm_relu_again, ""}, /* backward, which needs a result that was not kept */
    {MN_OP_blend, "mn_tensor_add mn_ema_update"},
    {MN_OP_adjust, "mn_tensor_scale mn_tensor_clamp mn_clip_grad_value"},
    {MN_OP_grad_unscale, "mn_grad_scaler_unscale mn_grad_scaler_step"},
    {MN_OP_grad_norm, "mn_clip_grad_norm"},
    {MN_OP_grad_clip, "mn_clip_grad_norm"},
    {MN_OP_sgd_step, "mn_optimizer_step mn_grad_scaler_step"},
    {MN_OP_adam_step, "mn_optimizer_step mn_grad_scaler_step"},
    {MN_OP_rmsprop_step, "mn_optimizer_step mn_grad_scaler_step"},
    {MN_OP_optimizer_finish, "mn_optimizer_step mn_grad_scaler_step"},
    {MN_OP_scaler_scale, "mn_grad_scaler_scale mn_grad_scaler_backward"},
    {MN_OP_scaler_update, "mn_grad_scaler_update"},
    {MN_OP_report_loss, "mn_step_report mn_evaluate"},
    {MN_OP_report_step, "mn_train"},
};

static const char *functions_of(int op)
{
    for (size_t i = 0; i < sizeof other_functions / sizeof *other_functions; i++)
        if (other_functions[i].op == (mn_op_id)op)
            return other_functions[i].functions;
    return strstr(mn_ops[op].name, "_backward") ? "" : mn_ops[op].name - 3;
}

static const char *const rule_names[] = {
    [MN_CAST_KEEP] = "KEEP",         [MN_CAST_LOWER] = "LOWER",     [MN_CAST_FP32] = "FP32",
    [MN_CAST_FP32_OUT] = "FP32_OUT", [MN_CAST_PROMOTE] = "PROMOTE", [MN_CAST_REFUSE] = "REFUSE",
};

const char *mn_cast_rule_name(mn_cast_rule rule)
{
    size_t index = (size_t)rule;
    return index < sizeof rule_names / sizeof *rule_names ? rule_names[index] : "unknown";
}

const char *mn_direction_name(mn_direction direction)
{
    static const char *const names[] = {"forward", "backward", "update"};
    size_t index = (size_t)direction;
    return index < sizeof names / sizeof *names ? names[index] : "unknown";
}

const char *mn_served_by_name(mn_served_by served)
{
    static const char *const names[] = {"none", "kernel", "reference", "widened", "view", "shadow"};
    size_t index = (size_t)served;
    return index < sizeof names / sizeof *names ? names[index] : "unknown";
}

int mn_op_count(void)
{
    return MN_OP_COUNT;
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
        .reference_dtypes = reference_dtypes[index],
        .cpu_dtypes = op->kernels[MN_DEVICE_CPU].dtypes,
        .summary = op->summary,
        .functions = functions_of(index),
    };
    return true;
}

/* ---- records of checks ----------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return mn_hash(hash, text ? text : "", text ? strlen(text) + 1 : 0);
}

/* Of all that a descriptor says; of its functions, which are there. */
static uint64_t fingerprint(const mn_op *op)
{
    const mn_kernel *kernels = op->kernels;
    const uint64_t said[] = {(uint64_t)op->min_inputs,
                             (uint64_t)op->max_inputs,
                             (uint64_t)op->outputs,
                             op->optional,
                             op->attribute_bytes,
                             op->flags,
                             op->mutates,
                             op->differentiable,
                             op->saves_inputs,
                             op->saves_outputs,
                             op->rule[0],
                             op->rule[1],
                             kernels[0].dtypes,
                             kernels[1].dtypes,
                             kernels[0].run != NULL,
                             kernels[1].run != NULL,
                             op->reference != NULL};
    uint64_t hash = mn_hash(MN_HASH_START, said, sizeof said);
    return hash_text(hash_text(hash_text(hash, op->name), op->summary), op->refuse_hint);
}

void mn_op_record(const mn_context *context, const mn_op *op, char *text, size_t size)
{
    const mn_context_info info = mn_context_info_get(context);
    snprintf(text, size,
             "op %.100s %016" PRIx64
             "; minim %s; compiler %.100s; device %s; kernels %s; features %s",
             op->name, fingerprint(op), mn_version(), info.compiler, info.device, info.kernels,
             info.features);
}

mn_status mn_op_check_current(const mn_context *context, const mn_op *op, const char *record,
                              mn_error *error)
{
    char now[sizeof((mn_op_check_report *)NULL)->record];
    if (!context || !op || op->size != sizeof *op || !op->name || !record)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "op check: context, op or record is missing");
    mn_op_record(context, op, now, sizeof now);
    size_t same = 0, begin = 0;
    for (; now[same] && now[same] == record[same]; same++)
        begin = now[same] == ';' ? same + 2 : begin;
    if (now[same] == record[same])
        return MN_OK;
    return mn_error_fill(error, MN_ERR_MISMATCH,
                         "op check: the check was not made with \"%.*s\" and does not count",
                         (int)strcspn(now + begin, ";"), now + begin);
}
