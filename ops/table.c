/* ops/table.c: the table of built-in ops, made from ops.def. */
#include "ops/internal.h"

/* What the words in ops.def's columns stand for. */
#define BIT(dtype)      (1u << (dtype))
#define BITS_NONE       0
#define BITS_F32        BIT(MN_F32)
#define BITS_LOWP       (BITS_F32 | BIT(MN_F16) | BIT(MN_BF16))
#define BITS_FLOAT      (BITS_LOWP | BIT(MN_F64))
#define BITS_ANY        (BITS_FLOAT | BIT(MN_I64) | BIT(MN_I32) | BIT(MN_U8))
#define RUN_NONE(name)  NULL
#define RUN_F32(name)   mn_cpu_##name
#define RUN_LOWP(name)  mn_cpu_##name
#define RUN_FLOAT(name) mn_cpu_##name
#define RUN_ANY(name)   mn_cpu_##name
#define PREP_YES(name)  mn_cpu_##name##_prepare
#define PREP_NO(name)   NULL
#define BACK_YES(name)  mn_backward_##name
#define BACK_NO(name)   NULL
#define REF_YES(name)   mn_ref_##name
#define REF_NO(name)    NULL
#define FLAGS_NONE      0
#define FLAGS_VIEW      MN_OP_VIEW

#define MN_OP(op, least, most, results, flag, mutated, diff, sin, sout, cast, back, ref, prep,     \
              cpu, text)                                                                           \
    [MN_OP_##op] = {                                                                               \
        .size = sizeof(mn_op),                                                                     \
        .name = #op,                                                                               \
        .summary = text,                                                                           \
        .min_inputs = least,                                                                       \
        .max_inputs = most,                                                                        \
        .outputs = results,                                                                        \
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
