/* Data types: names, sizes, and conversions of single 16-bit values. */
#include "include/minim.h"
#include "core/half.h"

typedef struct dtype_info {
    const char *name;
    size_t size;
    bool is_float;
} dtype_info;

static const dtype_info dtypes[MN_DTYPE_COUNT] = {
    [MN_F64] = {"f64", 8, true},   [MN_F32] = {"f32", 4, true},  [MN_F16] = {"f16", 2, true},
    [MN_BF16] = {"bf16", 2, true}, [MN_I64] = {"i64", 8, false}, [MN_I32] = {"i32", 4, false},
    [MN_U8] = {"u8", 1, false},
};

static bool is_dtype(mn_dtype dtype)
{
    return (unsigned)dtype < MN_DTYPE_COUNT;
}

const char *mn_dtype_name(mn_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

size_t mn_dtype_size(mn_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].size : 0;
}

bool mn_dtype_is_float(mn_dtype dtype)
{
    return is_dtype(dtype) && dtypes[dtype].is_float;
}

float mn_f16_to_f32(mn_f16 value)
{
    return mn_f16_bits_to_f32(value.bits);
}

mn_f16 mn_f16_from_f32(float value)
{
    return (mn_f16){mn_f16_bits_from_f32(value)};
}

float mn_bf16_to_f32(mn_bf16 value)
{
    return mn_bf16_bits_to_f32(value.bits);
}

mn_bf16 mn_bf16_from_f32(float value)
{
    return (mn_bf16){mn_bf16_bits_from_f32(value)};
}

/* Drops `shift` low bits, 1 to 63, to nearest even. */
static uint64_t shift_to_even(uint64_t value, int shift)
{
    uint64_t half = UINT64_C(1) << (shift - 1);
    uint64_t rest = value & (2 * half - 1);
    uint64_t whole = value >> shift;
    return whole + (rest > half || (rest == half && (whole & 1)));
}

/* Rounds once from f64 to 1 sign bit, exponent_bits and mantissa_bits. */
static uint16_t narrow_f64(double value, int exponent_bits, int mantissa_bits)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t sign = bits >> 48 & 0x8000;
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
    int from = (int)(bits >> 52 & 0x7FF);
    int top = (1 << exponent_bits) - 1; /* exponent of infinity and NaN */
    uint64_t infinity = (uint64_t)top << mantissa_bits;
    int drop = 52 - mantissa_bits;
    if (from == 0x7FF && mantissa != 0)
        return (uint16_t)(sign | infinity | UINT64_C(1) << (mantissa_bits - 1) | mantissa >> drop);
    int exponent = from - 1023 + (top >> 1);
    if (exponent >= top)
        return (uint16_t)(sign | infinity);
    /* Below the smallest normal, the exponent stays and more bits are dropped. */
    if (exponent < 1) {
        drop += 1 - exponent;
        exponent = 1;
    }
    if (drop > 53 || from == 0) /* less than half of the smallest subnormal */
        return (uint16_t)sign;
    /* The leading one counts as one more exponent, and so does a carry, up to infinity. */
    uint64_t rounded = shift_to_even(mantissa | UINT64_C(1) << 52, drop);
    return (uint16_t)(sign | (((uint64_t)(exponent - 1) << mantissa_bits) + rounded));
}

mn_f16 mn_f16_from_f64(double value)
{
    return (mn_f16){narrow_f64(value, 5, 10)};
}

mn_bf16 mn_bf16_from_f64(double value)
{
    return (mn_bf16){narrow_f64(value, 8, 7)};
}
