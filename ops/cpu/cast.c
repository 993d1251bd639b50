/* Copies and conversions between all data types. Between f32 and the 16-bit floats rows go through
 * the kernel set's converters; all else through f64, or through i64 between integers. To integers:
 * truncated toward zero, what does not fit becomes the nearest that does, NaN becomes 0. */
#include "ops/cpu/run.h"

#include <string.h>

typedef union wide {
    double f[MN_BLOCK];
    int64_t i[MN_BLOCK];
} wide;

static bool has_converter(const mn_call *call, mn_dtype dtype)
{
    return call->cpu->converters[dtype].to_f32 != NULL;
}

static void load_f64(mn_dtype dtype, int64_t n, const void *from, double *to)
{
    for (int64_t i = 0; i < n; i++) {
        switch (dtype) {
        case MN_F64:
            to[i] = ((const double *)from)[i];
            break;
        case MN_F32:
            to[i] = (double)((const float *)from)[i];
            break;
        case MN_F16:
            to[i] = (double)mn_f16_to_f32(((const mn_f16 *)from)[i]);
            break;
        case MN_BF16:
            to[i] = (double)mn_bf16_to_f32(((const mn_bf16 *)from)[i]);
            break;
        case MN_I64:
            to[i] = (double)((const int64_t *)from)[i];
            break;
        case MN_I32:
            to[i] = ((const int32_t *)from)[i];
            break;
        case MN_U8:
            to[i] = ((const uint8_t *)from)[i];
            break;
        }
    }
}

static void store_float(mn_dtype dtype, int64_t n, const double *from, void *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_F64)
            ((double *)to)[i] = from[i];
        else if (dtype == MN_F32)
            ((float *)to)[i] = (float)from[i];
        else if (dtype == MN_F16)
            ((mn_f16 *)to)[i] = mn_f16_from_f64(from[i]);
        else
            ((mn_bf16 *)to)[i] = mn_bf16_from_f64(from[i]);
    }
}

/* Toward zero; what the integer type cannot hold saturates, NaN gives 0. */
static int64_t truncated(mn_dtype dtype, double value)
{
    if (dtype == MN_I32)
        value = value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value;
    else if (dtype == MN_U8)
        value = value < 0.0 ? 0.0 : value > UINT8_MAX ? UINT8_MAX : value;
    if (!(value > -0x1p63)) /* also NaN */
        return value <= -0x1p63 ? INT64_MIN : 0;
    return value >= 0x1p63 ? INT64_MAX : (int64_t)value;
}

static void load_i64(mn_dtype dtype, int64_t n, const void *from, int64_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_I64)
            to[i] = ((const int64_t *)from)[i];
        else if (dtype == MN_I32)
            to[i] = ((const int32_t *)from)[i];
        else
            to[i] = ((const uint8_t *)from)[i];
    }
}

/* Wraps where the type is smaller. */
static void store_integer(mn_dtype dtype, int64_t n, const int64_t *from, void *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_I64)
            ((int64_t *)to)[i] = from[i];
        else if (dtype == MN_I32)
            ((int32_t *)to)[i] = (int32_t)(uint32_t)from[i];
        else
            ((uint8_t *)to)[i] = (uint8_t)from[i];
    }
}

/* f64 would round twice where i64 has more than 53 bits. */
static void i64_to_f32(int64_t n, const int64_t *from, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)from[i];
}

static void convert_block(const mn_view *x, const mn_view *y, int64_t start, int64_t n)
{
    const void *from = mn_element(x, start);
    void *to = mn_element(y, start);
    wide block;
    if (x->dtype == MN_I64 && y->dtype == MN_F32) {
        i64_to_f32(n, from, to);
    } else if (mn_dtype_is_float(y->dtype)) {
        load_f64(x->dtype, n, from, block.f);
        store_float(y->dtype, n, block.f, to);
    } else if (mn_dtype_is_float(x->dtype)) {
        double values[MN_BLOCK];
        load_f64(x->dtype, n, from, values);
        for (int64_t i = 0; i < n; i++)
            block.i[i] = truncated(y->dtype, values[i]);
        store_integer(y->dtype, n, block.i, to);
    } else {
        load_i64(x->dtype, n, from, block.i);
        store_integer(y->dtype, n, block.i, to);
    }
}

/* Source and destination of a conversion, which may be the same tensor. */
typedef struct conversion {
    const mn_call *call;
    const mn_view *x, *y;
} conversion;

static void run_convert(void *arg, int64_t begin, int64_t end)
{
    const conversion *c = arg;
    const bool rows = has_converter(c->call, c->x->dtype) && has_converter(c->call, c->y->dtype);
    float scratch[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        int64_t n = mn_min64(end - i, MN_BLOCK);
        if (!rows) {
            convert_block(c->x, c->y, i, n);
        } else if (c->y->dtype == MN_F32) {
            c->call->cpu->converters[c->x->dtype].to_f32((size_t)n, mn_element(c->x, i),
                                                         mn_element(c->y, i));
        } else {
            const float *row = mn_row_load(c->call, c->x, i, n, scratch);
            c->call->cpu->converters[c->y->dtype].from_f32((size_t)n, row, mn_element(c->y, i));
        }
    }
}

static void run_copy(void *arg, int64_t begin, int64_t end)
{
    const conversion *c = arg;
    memmove(mn_element(c->y, begin), mn_element(c->x, begin),
            (size_t)(end - begin) * mn_dtype_size(c->x->dtype));
}

static void convert(const mn_call *call, const mn_view *x, const mn_view *y)
{
    conversion c = {call, x, y};
    mn_run_ranges(call, y->numel, MN_CHUNK, x->dtype == y->dtype ? run_copy : run_convert, &c);
}

void mn_cpu_cast(const mn_call *call)
{
    convert(call, &call->in[0], &call->out[0]);
}

void mn_cpu_copy(const mn_call *call)
{
    convert(call, &call->in[0], &call->out[0]);
}

void mn_cpu_assign(const mn_call *call)
{
    convert(call, &call->in[1], &call->in[0]);
}

/* ---- fill ------------------------------------------------------------------------------------ */

typedef struct filling {
    const mn_view *view;
    size_t size;
    unsigned char value[8]; /* one element */
} filling;

static void run_fill(void *arg, int64_t begin, int64_t end)
{
    const filling *f = arg;
    unsigned char *to = mn_element(f->view, begin);
    size_t bytes = (size_t)(end - begin) * f->size;
    memcpy(to, f->value, f->size);
    for (size_t done = f->size; done < bytes; done *= 2)
        memcpy(to + done, to, done < bytes - done ? done : bytes - done);
}

void mn_cpu_fill(const mn_call *call)
{
    const mn_value_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *view = &call->in[0];
    filling f = {.view = view, .size = mn_dtype_size(view->dtype)};
    const int64_t integer = truncated(view->dtype, a->value);
    if (mn_dtype_is_float(view->dtype))
        store_float(view->dtype, 1, &a->value, f.value);
    else
        store_integer(view->dtype, 1, &integer, f.value);
    mn_run_ranges(call, view->numel, MN_CHUNK, run_fill, &f);
}
