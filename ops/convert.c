/* ops/convert.c: elements of any dtype as f64 and back, for casts and the reference kernels. */
#include "ops/internal.h"

#include "core/half.h"

#include <stdatomic.h>

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

/* ---- what stores lose ------------------------------------------------------------------------ */

static void add_counts(mn_store_counts *counts, uint64_t stored, uint64_t lost)
{
    atomic_fetch_add_explicit(&counts->stored, stored, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->lost, lost, memory_order_relaxed);
}

void mn_count_stores(mn_store_counts *counts, int64_t n, const float *from, const void *to)
{
    const uint16_t *half = to;
    uint64_t stored = 0, lost = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool value = (mn_f32_bits(from[i]) & 0x7FFFFFFFU) != 0;
        stored += value;
        lost += value && (half[i] & 0x7FFFU) == 0;
    }
    add_counts(counts, stored, lost);
}

void mn_count_stores_f64(mn_store_counts *counts, mn_dtype dtype, int64_t n, const double *from,
                         const void *to)
{
    const uint16_t *half = to;
    uint64_t stored = 0, lost = 0;
    if (!counts || !mn_is_16_bit(dtype))
        return;
    for (int64_t i = 0; i < n; i++) {
        const bool value = mn_f64_bits(from[i]) << 1 != 0;
        stored += value;
        lost += value && (half[i] & 0x7FFFU) == 0;
    }
    add_counts(counts, stored, lost);
}
