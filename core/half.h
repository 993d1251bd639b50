/* Conversions between f32 and the 16-bit floats on bit patterns, exact in any floating-point mode
 * and free of branches, so that loops over them vectorise.
 *
 * Narrowing rounds to nearest even, goes to infinity beyond the largest finite value, keeps
 * subnormals and the sign, and quiets NaNs keeping the top bits of their payload. Widening is
 * exact; it quiets f16 NaNs as the F16C instructions do, and moves bf16 NaNs unchanged. */
#ifndef MN_CORE_HALF_H
#define MN_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t mn_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mn_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* if_true where condition is 1, if_false where it is 0. */
static inline uint32_t mn_pick(uint32_t condition, uint32_t if_true, uint32_t if_false)
{
    uint32_t mask = 0U - condition;
    return (if_true & mask) | (if_false & ~mask);
}

/* 1 if a > b, both below 2^31: the sign of a difference, for want of an unsigned vector compare. */
static inline uint32_t mn_above(uint32_t a, uint32_t b)
{
    return (b - a) >> 31;
}

static inline float mn_f16_bits_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t magnitude = half & 0x7FFFU;
    /* Subnormals are multiples of 2^-24; the integer and the product are exact in f32. */
    uint32_t small = mn_f32_bits((float)(int32_t)magnitude * 0x1p-24F);
    uint32_t normal = (magnitude << 13) + ((127U - 15U) << 23);
    /* Infinities and NaNs: exponent all ones; NaNs get the quiet bit. */
    uint32_t special = (magnitude << 13) | 0x7F800000U | mn_above(magnitude, 0x7C00U) << 22;
    uint32_t bits = mn_pick(mn_above(magnitude, 0x7BFFU), special, normal);
    return mn_f32_from_bits(sign | mn_pick(mn_above(0x0400U, magnitude), small, bits));
}

static inline uint16_t mn_f16_bits_from_f32(float value)
{
    uint32_t bits = mn_f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000U;
    uint32_t magnitude = bits & 0x7FFFFFFFU;
    /* Normal results: drop 13 bits to nearest even; the carry may run into the exponent. */
    uint32_t normal = (magnitude - ((127U - 15U) << 23) + 0xFFFU + (magnitude >> 13 & 1U)) >> 13;
    /* Below 2^-14: units of 2^-24. The product, the truncation and the rest are exact, so the
     * rounding mode has no say; f32 subnormals are far below half a unit, flushed or not. */
    uint32_t is_small = mn_above(0x38800000U, magnitude);
    float units = mn_f32_from_bits(mn_pick(is_small, magnitude, 0)) * 0x1p24F;
    int32_t whole = (int32_t)units;
    uint32_t rest = mn_f32_bits(units - (float)whole) & 0x7FFFFFFFU; /* -0 when rounding down */
    uint32_t small = (uint32_t)whole + mn_above(rest + ((uint32_t)whole & 1U), 0x3F000000U);
    /* 65536 and more is infinity; what rounds up to it from below got there by the carry. */
    uint32_t nan = 0x7E00U | (magnitude >> 13 & 0x1FFU);
    uint32_t special = mn_pick(mn_above(magnitude, 0x7F800000U), nan, 0x7C00U);
    uint32_t large = mn_pick(mn_above(magnitude, 0x477FFFFFU), special, normal);
    return (uint16_t)(sign | mn_pick(is_small, small, large));
}

static inline float mn_bf16_bits_to_f32(uint16_t half)
{
    return mn_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t mn_bf16_bits_from_f32(float value)
{
    uint32_t bits = mn_f32_bits(value);
    uint32_t rounded = (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
    uint32_t nan = bits >> 16 | 0x40U;
    return (uint16_t)mn_pick(mn_above(bits & 0x7FFFFFFFU, 0x7F800000U), nan, rounded);
}

#endif
