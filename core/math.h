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

/* 1 / (1 + e^-x) by way of e^-|x|, which never overflows; within 2.5 ulp. */
static inline float mn_sigmoidf(float x)
{
    uint32_t sign = mn_f32_bits(x) & 0x80000000U;
    float e = mn_expf(mn_f32_from_bits(mn_f32_bits(x) | 0x80000000U));
    float top = mn_f32_from_bits(mn_pick(sign >> 31, mn_f32_bits(e), 0x3F800000U));
    return top / (1.0F + e);
}

/* Below 5/8, x + x^3 p(x^2) with p minimax of degree 4; 1 - 2 / (e^2x + 1) above. Within 1.5 ulp.
 */
static inline float mn_tanhf(float x)
{
    uint32_t sign = mn_f32_bits(x) & 0x80000000U;
    float magnitude = mn_f32_from_bits(mn_f32_bits(x) ^ sign);
    float square = magnitude * magnitude;
    float p = -0x1.75e1c2p-8F;
    p = p * square + 0x1.522698p-6F;
    p = p * square - 0x1.b83c5ap-5F;
    p = p * square + 0x1.110726p-3F;
    p = p * square - 0x1.555532p-2F;
    float small = magnitude + magnitude * (square * p);
    float large = 1.0F - 2.0F / (mn_expf(magnitude + magnitude) + 1.0F);
    uint32_t is_small = mn_above(0x3F200000U, mn_f32_bits(magnitude));
    return mn_f32_from_bits(sign | mn_pick(is_small, mn_f32_bits(small), mn_f32_bits(large)));
}

/* The error function: below 1, x + x p(x^2) with p minimax of degree 6; above, 1 - e^-q(x) with q
 * of degree 6 minimax for 1 - erf(x), up to 4, where f32 has reached 1. Within 1.5 ulp. */
static inline float mn_erff(float x)
{
    uint32_t sign = mn_f32_bits(x) & 0x80000000U;
    uint32_t bits = mn_f32_bits(x) ^ sign;
    float t = mn_f32_from_bits(mn_pick(mn_above(bits, 0x40800000U), 0x40800000U, bits));
    float square = t * t;
    float p = 0x1.496a3p-14F;
    p = p * square - 0x1.a3f7p-11F;
    p = p * square + 0x1.5405b2p-8F;
    p = p * square - 0x1.b7f90ep-6F;
    p = p * square + 0x1.ce2cf8p-4F;
    p = p * square - 0x1.81273ep-2F;
    p = p * square + 0x1.06eba8p-3F;
    float small = t + t * p;
    float q = -0x1.852cdep-13F;
    q = q * t + 0x1.814c9cp-9F;
    q = q * t - 0x1.654206p-6F;
    q = q * t + 0x1.a60a74p-4F;
    q = q * t + 0x1.46c586p-1F;
    q = q * t + 0x1.2085b2p0F;
    q = q * t + 0x1.72e8d4p-12F;
    float large = 1.0F - mn_expf(-q);
    uint32_t is_small = mn_above(0x3F800000U, bits);
    uint32_t result = mn_pick(is_small, mn_f32_bits(small), mn_f32_bits(large));
    return mn_keep_nan(x, mn_f32_from_bits(sign | result));
}

/* As mn_pick, of numbers in f64. */
static inline double mn_pick_wide(uint32_t condition, double if_true, double if_false)
{
    uint64_t a, b;
    memcpy(&a, &if_true, sizeof a);
    memcpy(&b, &if_false, sizeof b);
    b ^= (a ^ b) & -(uint64_t)condition;
    memcpy(&if_false, &b, sizeof b);
    return if_false;
}

/* log2 of |x|, with 1e300 for infinity and minus that for 0, so that products keep their signs:
 * e + log(m) / log(2) with m in [sqrt(1/2), sqrt(2)), log(m) = 2 artanh(s), s = (m - 1) / (m + 1),
 * by its power series: |s| < 0.172, so that what is left out is below 2^-44. */
static inline double mn_log2_magnitude(float x)
{
    const uint32_t least = 0x3F3504F3U; /* sqrt(1/2) */
    uint32_t magnitude = mn_f32_bits(x) & 0x7FFFFFFFU;
    uint32_t subnormal = mn_above(0x00800000U, magnitude);
    float scale = mn_f32_from_bits(mn_pick(subnormal, 0x4B000000U, 0x3F800000U));
    uint32_t bits = mn_f32_bits(mn_f32_from_bits(magnitude) * scale);
    uint32_t steps = (bits - least + (128U << 23)) >> 23;
    double m = (double)mn_f32_from_bits(bits - ((steps - 128U) << 23));
    double e = (double)((int32_t)steps - 128 - (int32_t)mn_pick(subnormal, 23, 0));
    double s = (m - 1) / (m + 1), square = s * s;
    double p = 1.0 / 15;
    p = p * square + 1.0 / 13;
    p = p * square + 1.0 / 11;
    p = p * square + 1.0 / 9;
    p = p * square + 1.0 / 7;
    p = p * square + 1.0 / 5;
    p = p * square + 1.0 / 3;
    double y = e + (s + s * square * p) * 0x1.71547652b82fep1; /* 2 / ln 2 */
    y = mn_pick_wide(mn_above(magnitude, 0x7F7FFFFFU), 1e300, y);
    return mn_pick_wide(mn_above(1, magnitude), -1e300, y);
}

/* 2^t in f64, t taken as within +-200: 2^n e^r with |r| <= ln(2) / 2, e^r by its power series,
 * which leaves out less than 2^-38. */
static inline double mn_exp2_wide(double t)
{
    const double shifter = 0x1.8p52;
    t = mn_pick_wide((uint32_t)(t > -200), t, -200);
    t = mn_pick_wide((uint32_t)(t < 200), t, 200);
    double shifted = t + shifter;
    double r = (t - (shifted - shifter)) * 0x1.62e42fefa39efp-1;
    double y = 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * r + 1;
    y = y * r + 1;
    uint64_t bits;
    double power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

/* x^y = 2^(y log2 |x|) in f64 and rounded once, within 0.51 ulp; signs and special cases as C's
 * powf, so x^0 and 1^y are 1 even for NaN. */
static inline __attribute__((always_inline)) float mn_powf(float x, float y)
{
    const uint32_t infinite = 0x7F800000U, even = 0x4B800000U; /* 2^24, and all above, is even */
    uint32_t negative = mn_f32_bits(x) >> 31;
    uint32_t a = mn_f32_bits(x) & 0x7FFFFFFFU, b = mn_f32_bits(y) & 0x7FFFFFFFU;
    /* Infinity becomes the largest finite value, so that infinity times log2(1) is 0. */
    uint32_t finite = mn_pick(mn_above(b, 0x7F7FFFFFU), 0x7F7FFFFFU, b);
    float exponent = mn_f32_from_bits((mn_f32_bits(y) & 0x80000000U) | finite);
    float power = (float)mn_exp2_wide((double)exponent * mn_log2_magnitude(x));
    float limited = mn_f32_from_bits(mn_pick(mn_above(b, even), even, b));
    uint32_t whole = (uint32_t)(int32_t)limited;
    uint32_t is_whole = (uint32_t)((float)(int32_t)limited == limited);
    uint32_t result = mn_f32_bits(power) | (negative & is_whole & whole) << 31;
    uint32_t nan = mn_above(a, infinite) | mn_above(b, infinite);
    nan &= mn_above(b, 0) & (uint32_t)(mn_f32_bits(x) != 0x3F800000U);
    /* A finite number below 0 has no roots. */
    nan |= negative & (is_whole ^ 1U) & mn_above(a, 0) & mn_above(infinite, a);
    return mn_f32_from_bits(mn_pick(nan, 0x7FC00000U, result));
}

#endif
