/* f32 functions for kernels, free of branches, so that loops over them vectorise, and of fused
 * multiply-adds, so that scalar and vector code of every kernel set give the same bits. They need
 * the library's floating-point mode and strict floating point; the tests of finiteness do not. */
#ifndef MN_CORE_MATH_H
#define MN_CORE_MATH_H

#include "core/half.h"

#include <stdbool.h>

/* ln 2 in two parts; the first has 15 bits, so that its product with an exponent is exact. */
#define MN_LN2_HIGH 0x1.62e4p-1F
#define MN_LN2_LOW  0x1.7f7d1cp-20F

/* By bit pattern, since -ffast-math folds comparisons with infinity and NaN. */
static inline bool mn_is_finite_bits(uint32_t f32_bits)
{
    return (f32_bits & 0x7F800000U) != 0x7F800000U;
}

static inline bool mn_isfinite_f32(float value)
{
    return mn_is_finite_bits(mn_f32_bits(value));
}

static inline bool mn_isfinite_f64(double value)
{
    const uint64_t exponent = UINT64_C(0x7FF) << 52;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & exponent) != exponent;
}

/* max(x, 0) that keeps NaN. */
static inline float mn_relu_f32(float x)
{
    return x <= 0.0F ? 0.0F : x;
}

/* The result of a function at x: NaN stays itself, made quiet. */
static inline float mn_keep_nan(float x, float result)
{
    uint32_t bits = mn_f32_bits(x);
    uint32_t is_nan = mn_above(bits & 0x7FFFFFFFU, 0x7F800000U);
    return mn_f32_from_bits(mn_pick(is_nan, bits | 0x00400000U, mn_f32_bits(result)));
}

/* e^x = 2^n * e^r with |r| <= ln(2) / 2, where e^r = 1 + r + r^2 q(r), q minimax of degree 4. */
static inline float mn_expf(float x)
{
    /* Outside [-104, 89], the result is infinity, or less than half of the smallest subnormal. By
     * bits: nested selects of floats become jumps. NaN takes a bound until the end. */
    uint32_t sign = mn_f32_bits(x) & 0x80000000U;
    uint32_t magnitude = mn_f32_bits(x) & 0x7FFFFFFFU;
    uint32_t bound = mn_pick(sign >> 31, 0x42D00000U, 0x42B20000U);
    magnitude = mn_pick(mn_above(magnitude, bound), bound, magnitude);
    float clamped = mn_f32_from_bits(sign | magnitude);
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float shifter = 0x1.8p23F;
    float shifted = clamped * 0x1.715476p0F + shifter;
    float n = shifted - shifter;
    float high = clamped - n * MN_LN2_HIGH; /* exact */
    float low = n * MN_LN2_LOW;
    float r = high - low;
    float lost = (high - r) - low;
    float q = 0x1.6db37ep-10F;
    q = q * r + 0x1.123b02p-7F;
    q = q * r + 0x1.55546p-5F;
    q = q * r + 0x1.55549p-3F;
    q = q * r + 0.5F;
    float y = 1.0F + (r + (r * r * q + lost));
    /* 2^n in two factors: one alone would leave the range of f32 before the result does. The first
     * product is exact, the second rounds once where the result is subnormal. */
    uint32_t biased = mn_f32_bits(shifted) - mn_f32_bits(shifter) + 2 * 127;
    uint32_t half = biased >> 1;
    y = y * mn_f32_from_bits(half << 23) * mn_f32_from_bits((biased - half) << 23);
    return mn_keep_nan(x, y);
}

/* log x = e ln 2 + log(1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), where log(1 + f) =
 * f - f^2 / 2 + f^3 p(f), p minimax of degree 8. log(0) = -inf; NaN below 0. */
static inline float mn_logf(float x)
{
    const uint32_t least = 0x3F3504F3U; /* sqrt(1/2) */
    uint32_t x_bits = mn_f32_bits(x);
    uint32_t subnormal = mn_above(0x00800000U, x_bits & 0x7FFFFFFFU);
    uint32_t bits = mn_f32_bits(x * mn_f32_from_bits(mn_pick(subnormal, 0x4B000000U, 0x3F800000U)));
    /* The exponent of bits / sqrt(1/2), counted from one that is never negative. */
    uint32_t steps = (bits - least + (128U << 23)) >> 23;
    float mantissa = mn_f32_from_bits(bits - ((steps - 128U) << 23));
    float e = (float)((int32_t)steps - 128 - (int32_t)mn_pick(subnormal, 23, 0));
    float f = mantissa - 1.0F;
    float p = 0x1.1b46fep-4F;
    p = p * f - 0x1.e2def2p-4F;
    p = p * f + 0x1.e6488p-4F;
    p = p * f - 0x1.fb44a6p-4F;
    p = p * f + 0x1.23337ap-3F;
    p = p * f - 0x1.5562dcp-3F;
    p = p * f + 0x1.99a53ap-3F;
    p = p * f - 0x1.ffffeep-3F;
    p = p * f + 0x1.555546p-2F;
    float square = f * f;
    /* The leading sum without its rounding error; |e| ln 2 > |f| unless e is 0. */
    float leading = e * MN_LN2_HIGH;
    float sum = leading + f;
    float lost = (leading - sum) + f;
    float y = sum + (lost + (e * MN_LN2_LOW + (square * f * p - 0.5F * square)));
    uint32_t y_bits = mn_pick(mn_above(x_bits & 0x7FFFFFFFU, 0x7F7FFFFFU), 0x7F800000U,
                              mn_f32_bits(y)); /* infinity stays */
    y_bits = mn_pick(x_bits >> 31, 0x7FC00000U, y_bits);
    y_bits = mn_pick(mn_above(1, x_bits & 0x7FFFFFFFU), 0xFF800000U, y_bits);
    return mn_keep_nan(x, mn_f32_from_bits(y_bits));
}

/* log(1 + x) = log u + log1p(c / u) for u = 1 + x as rounded and c what was lost. */
static inline float mn_log1pf(float x)
{
    float u = 1.0F + x;
    float lost = (x - (u - 1.0F)) / u;
    /* Nothing is lost where u is 0 or not finite, and the division would make NaN. */
    uint32_t magnitude = mn_f32_bits(u) & 0x7FFFFFFFU;
    uint32_t usual = mn_above(magnitude, 0) & mn_above(0x7F800000U, magnitude);
    return mn_logf(u) + mn_f32_from_bits(mn_pick(usual, mn_f32_bits(lost), 0));
}

#endif
