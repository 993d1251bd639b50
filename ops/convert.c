/* ops/convert.c: elements of any dtype as f64 and back, for casts and the reference kernels. */
#include "ops/internal.h"

void mn_to_f64(mn_dtype dtype, int64_t n, const void *from, double *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_F64)
            to[i] = ((const double *)from)[i];
        else if (dtype == MN_F32)
            to[i] = (double)((const float *)from)[i];
        else if (dtype == MN_F16)
            to[i] = (double)mn_f16_to_f32(((const mn_f16 *)from)[i]);
        else if (dtype == MN_BF16)
            to[i] = (double)mn_bf16_to_f32(((const mn_bf16 *)from)[i]);
        else if (dtype == MN_I64)
            to[i] = (double)((const int64_t *)from)[i];
        else if (dtype == MN_I32)
            to[i] = ((const int32_t *)from)[i];
        else
            to[i] = ((const uint8_t *)from)[i];
    }
}

/* Toward zero, within i64 if it wraps later, else within the dtype. NaN gives 0. */
static int64_t to_integer(mn_dtype dtype, bool wrap, double value)
{
    if (!wrap && dtype == MN_I32)
        value = value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value;
    else if (!wrap && dtype == MN_U8)
        value = value < 0.0 ? 0.0 : value > UINT8_MAX ? UINT8_MAX : value;
    if (!(value > -0x1p63)) /* also NaN */
        return value <= -0x1p63 ? INT64_MIN : 0;
    return value >= 0x1p63 ? INT64_MAX : (int64_t)value;
}

void mn_from_f64(mn_dtype dtype, bool wrap, int64_t n, const double *from, void *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_F64)
            ((double *)to)[i] = from[i];
        else if (dtype == MN_F32)
            ((float *)to)[i] = (float)from[i];
        else if (dtype == MN_F16)
            ((mn_f16 *)to)[i] = mn_f16_from_f64(from[i]);
        else if (dtype == MN_BF16)
            ((mn_bf16 *)to)[i] = mn_bf16_from_f64(from[i]);
        else if (dtype == MN_I64)
            ((int64_t *)to)[i] = to_integer(dtype, wrap, from[i]);
        else if (dtype == MN_I32)
            ((int32_t *)to)[i] = (int32_t)(uint32_t)to_integer(dtype, wrap, from[i]);
        else
            ((uint8_t *)to)[i] = (uint8_t)to_integer(dtype, wrap, from[i]);
    }
}
