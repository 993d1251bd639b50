/* ops/table.c: the table of built-in ops, made from ops.def. */
#include "ops/internal.h"

/* What the words in ops.def's columns stand for. */
#define BIT(dtype)       (1u << (dtype))
#define BITS_NONE        0
#define BITS_F32         BIT(MN_F32)
#define BITS_LOWP        (BITS_F32 | BIT(MN_F16) | BIT(MN_BF16))
#define BITS_FLOAT       (BITS_LOWP | BIT(MN_F64))
#define BITS_ANY         (BITS_FLOAT | BIT(MN_I64) | BIT(MN_I32) | BIT(MN_U8))
#define RUN_NONE(name)   NULL
#define RUN_F32(name)    mn_cpu_##name
#define RUN_LOWP(name)   mn_cpu_##name
#define RUN_FLOAT(name)  mn_cpu_##name
#define RUN_ANY(name)    mn_cpu_##name
#define PREP_YES(name)   mn_cpu_##name##_prepare
#define PREP_NO(name)    NULL
#define BACK_YES(name)   mn_backward_##name
#define BACK_NO(name)    NULL
#define REF_YES(name)    mn_ref_##name
#define REF_NO(name)     NULL
#define FLAGS_NONE       0
#define FLAGS_VIEW       MN_OP_VIEW
#define ATTRS_NONE       0
#define ATTRS_shape      sizeof(mn_shape_attributes)
#define ATTRS_cast       sizeof(mn_cast_attributes)
#define ATTRS_value      sizeof(mn_value_attributes)
#define ATTRS_permute    sizeof(mn_permute_attributes)
#define ATTRS_matmul     sizeof(mn_matmul_attributes)
#define ATTRS_conv2d     sizeof(mn_conv2d_attributes)
#define ATTRS_pool2d     sizeof(mn_pool2d_attributes)
#define ATTRS_extent     sizeof(mn_extent_attributes)
#define ATTRS_batch_norm sizeof(mn_batch_norm_attributes)
#define ATTRS_axis       sizeof(mn_axis_attributes)
#define ATTRS_reduce     sizeof(mn_reduce_attributes)
#define ATTRS_norm       sizeof(mn_norm_attributes)
#define ATTRS_sgd        sizeof(mn_sgd_attributes)
#define ATTRS_schedule   sizeof(mn_schedule_attributes)
#define ATTRS_weight     sizeof(mn_weight_attributes)
#define ATTRS_scaler     sizeof(mn_scaler_attributes)
#define ATTRS_report     sizeof(mn_report_attributes)

/* The one op with a missing input before one that is needed: no momentum. */
#define OPTIONAL(id) ((id) == MN_OP_sgd_step ? 1u << 2 : 0u)

#define MN_OP(op, least, most, results, flag, mutated, diff, sin, sout, cast, back, ref, prep,     \
              cpu, attrs, text)                                                                    \
    [MN_OP_##op] = {                                                                               \
        .size = sizeof(mn_op),                                                                     \
        .name = #op,                                                                               \
        .summary = text,                                                                           \
        .min_inputs = least,                                                                       \
        .max_inputs = most,                                                                        \
        .outputs = results,                                                                        \
        .optional = OPTIONAL(MN_OP_##op),                                                          \
        .attribute_bytes = ATTRS_##attrs,                                                          \
        .flags = FLAGS_##flag,                                                                     \
        .mutates = mutated,                                                                        \
        .differentiable = diff,                                                                    \
        .saves_inputs = sin,                                                                       \
        .saves_outputs = sout,                                                                     \
        .rule = {[MN_DEVICE_CPU] = MN_CAST_##cast, [MN_DEVICE_CUDA] = MN_CAST_##cast},             \
        .infer = mn_infer_##op,                                                                    \
        .backward = BACK_##back(op),                                                               \
        .reference = REF_##ref(op),                                                                \
        .kernels = {[MN_DEVICE_CPU] = {.dtypes = BITS_##cpu,                                       \
                                       .prepare = PREP_##prep(op),                                 \
                                       .run = RUN_##cpu(op)}},                                     \
    },

const mn_op mn_ops[] = {
#include "ops/ops.def"
};
#undef MN_OP

_Static_assert(sizeof mn_ops / sizeof mn_ops[0] == MN_OP_COUNT, "one row per op");
