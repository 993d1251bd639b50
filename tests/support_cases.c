/* The op case list as a whole, and the values of its inputs. */
#include "tests/support_cases.h"

#include "core/philox.h"

#include <stdlib.h>

static const op_case *const parts[] = {mn_cases_math, mn_cases_shape, mn_cases_image, mn_cases_loss,
                                       mn_cases_step};
enum { PARTS = sizeof parts / sizeof *parts };

const op_case *mn_case_at(int index)
{
    for (int i = 0; i < PARTS; i++)
        for (const op_case *c = parts[i]; c->name != NULL; c++)
            if (index-- == 0)
                return c;
    return NULL;
}

int mn_case_count(void)
{
    int count = 0;
    while (mn_case_at(count) != NULL)
        count++;
    return count;
}

int mn_case_inputs(const op_case *c)
{
    int count = 0;
    while (count < CASE_INPUTS && c->inputs[count].kind != NOTHING)
        count++;
    return count;
}

mn_tensor *mn_case_build(mn_context *context, mn_tensor **inputs, const op_case *c)
{
    if (c->unary != NULL)
        return c->unary(inputs[0]);
    return c->binary != NULL ? c->binary(inputs[0], inputs[1]) : c->build(context, inputs, c);
}

static double round_to(double value, mn_dtype dtype)
{
    switch (dtype) {
    case MN_F32:
        return (double)(float)value;
    case MN_F16:
        return (double)mn_f16_to_f32(mn_f16_from_f64(value));
    case MN_BF16:
        return (double)mn_bf16_to_f32(mn_bf16_from_f64(value));
    default:
        return value;
    }
}

static double draw_one(const op_case *c, input_kind kind, mn_dtype rounded, mn_stream *stream)
{
    switch (kind) {
    case LABELS:
        return (double)mn_stream_below(stream, (uint64_t)c->p[0]);
    case MASK:
        return (double)mn_stream_below(stream, 2);
    case COUNT:
        return 0.0;
    case STATE:
        return (double)(float)(0.5 + (double)mn_stream_uniform(stream));
    case POSITIVE:
        return round_to(0.5 + (double)mn_stream_uniform(stream), rounded);
    case UNIT:
        return round_to(0.05 + 0.9 * (double)mn_stream_uniform(stream), rounded);
    default:
        return round_to(mn_stream_normal(stream), kind == PARAM ? MN_F32 : rounded);
    }
}

void mn_case_draw(const op_case *c, int index, mn_dtype rounded, int64_t count, double *values)
{
    mn_stream stream = mn_stream_open(7, MN_STREAM_TEST, c->name, (uint64_t)index);
    input_kind kind = c->inputs[index].kind;
    int64_t *order = calloc((size_t)count + 1, sizeof *order);
    if (kind == DISTINCT)
        mn_stream_permutation(&stream, count, order);
    for (int64_t i = 0; i < count; i++)
        values[i] = kind == DISTINCT /* small enough to be exact in bf16 for up to 256 values */
                        ? round_to((double)(order[i] - count / 2) / 8.0 + 0.0625, rounded)
                        : draw_one(c, kind, rounded, &stream);
    free(order);
}

mn_dtype mn_case_dtype(input_kind kind, mn_dtype dtype)
{
    if (kind == LABELS || kind == COUNT)
        return MN_I64;
    if (kind == MASK)
        return MN_U8;
    if (kind == STATE || kind == PARAM)
        return dtype == MN_F64 ? MN_F64 : MN_F32;
    return dtype;
}

bool mn_case_wants_gradient(const op_case *c, int index)
{
    input_kind kind = c->inputs[index].kind;
    return !c->forward_only && kind != STATE && mn_dtype_is_float(mn_case_dtype(kind, MN_F32));
}
