/* Part of bodies.h: elementwise ops of one and of two operands. */
#ifndef MN_OPS_CPU_BODIES_ELEMENTWISE_H
#define MN_OPS_CPU_BODIES_ELEMENTWISE_H

#include "core/math.h"
#include "ops/cpu/body_table.h"
#include "ops/ops.h"

#include <math.h>

/* Of a loop whose result may lie where an operand does, element on element: neither is restrict
 * then, and compilers are told that iterations do not wait for each other. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* sanitizers keep loops as they are */
#define IN_STEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define IN_STEP _Pragma("GCC ivdep")
#endif

/* Selects by bits, since selects of floats become jumps. */
static inline float either(int condition, float if_true, float if_false)
{
    return mn_f32_from_bits(
        mn_pick((uint32_t)condition, mn_f32_bits(if_true), mn_f32_bits(if_false)));
}

/* g where mask is 1, else 0: by bits, since selects of floats become jumps without blends. */
static inline float masked(uint32_t mask, float g)
{
    return mn_f32_from_bits(mn_pick(mask, mn_f32_bits(g), 0));
}

/* The distribution function of the standard normal distribution, and its density. */
static inline float normal_below(float x)
{
    return 0.5F + 0.5F * mn_erff(x * 0x1.6a09e6p-1F);
}

static inline float normal_density(float x)
{
    return 0x1.988454p-2F * mn_expf(-0.5F * x * x);
}

/* ---- functions of one operand, named by their op --------------------------------------------- */

static inline float function_value(int64_t function, float x, float a, float b)
{
    switch (function) {
    case MN_OP_affine:
        return a * x + b;
    case MN_OP_abs:
        return mn_f32_from_bits(mn_f32_bits(x) & 0x7FFFFFFFU);
    case MN_OP_exp:
        return mn_expf(x);
    case MN_OP_log:
        return mn_logf(x);
    case MN_OP_sqrt:
        return sqrtf(x);
    case MN_OP_rsqrt:
        return 1.0F / sqrtf(x);
    case MN_OP_tanh:
        return mn_tanhf(x);
    case MN_OP_sigmoid:
        return mn_sigmoidf(x);
    case MN_OP_silu:
        return x * mn_sigmoidf(x);
    case MN_OP_gelu:
        return x * normal_below(x);
    case MN_OP_leaky_relu:
        return either(x <= 0.0F, a * x, x);
    default: /* clamp */
        x = either(x < a, a, x);
        return either(x > b, b, x);
    }
}

/* g times the first derivative in what the op saves: s is its input x or its result y. Where that
 * is 0 or 1 it is a mask, so that no infinity meets a 0; as in relu, g passes where s is NaN. */
static inline float function_first(int64_t function, float g, float s, float a, float b)
{
    float p;
    switch (function) {
    case MN_OP_affine:
        return a * g;
    case MN_OP_abs:
        return either(s < 0.0F, -g, either(s == 0.0F, 0.0F, g));
    case MN_OP_exp:
        return g * s;
    case MN_OP_log:
        return g / s;
    case MN_OP_sqrt:
        return 0.5F * g / s;
    case MN_OP_rsqrt:
        return g * (-0.5F * s * s * s);
    case MN_OP_tanh:
        return g * (1.0F - s * s);
    case MN_OP_sigmoid:
        return g * (s * (1.0F - s));
    case MN_OP_silu:
        p = mn_sigmoidf(s);
        return g * (p * (1.0F + s * mn_sigmoidf(-s)));
    case MN_OP_gelu:
        return g * (normal_below(s) + s * normal_density(s));
    case MN_OP_leaky_relu:
        return either(s <= 0.0F, a * g, g);
    default: /* clamp */
        return either((s < a) | (s > b), 0.0F, g);
    }
}

/* g times the derivative in s of the first derivative. */
static inline float function_second(int64_t function, float g, float s)
{
    float p;
    switch (function) {
    case MN_OP_exp:
        return g;
    case MN_OP_log:
        return -g / (s * s);
    case MN_OP_sqrt:
        return -0.5F * g / (s * s);
    case MN_OP_rsqrt:
        return g * (-1.5F * s * s);
    case MN_OP_tanh:
        return g * (-2.0F * s);
    case MN_OP_sigmoid:
        return g * (1.0F - 2.0F * s);
    case MN_OP_silu:
        p = mn_sigmoidf(s);
        return g * (p * mn_sigmoidf(-s) * (2.0F + s * (1.0F - 2.0F * p)));
    case MN_OP_gelu:
        return g * (normal_density(s) * (2.0F - s * s));
    default: /* bent lines */
        return 0.0F;
    }
}

/* Inlined with `function` a constant, whose code alone is left in the loops. */
static inline __attribute__((always_inline)) void map(size_t n, int64_t function,
                                                      const mn_function_attributes *f,
                                                      const float *restrict g,
                                                      const float *restrict s, float *restrict y)
{
    const float a = (float)f->a, b = (float)f->b;
    if (f->order == 0) {
        for (size_t i = 0; i < n; i++)
            y[i] = function_value(function, s[i], a, b);
    } else if (f->order == 1) {
        for (size_t i = 0; i < n; i++)
            y[i] = function_first(function, g[i], s[i], a, b);
    } else if (MN_ORDERS > 1) {
        for (size_t i = 0; i < n; i++)
            y[i] = function_second(function, g[i], s[i]);
    }
}

/* As powf has it: the root of -0 is 0, that of -infinity is infinity. */
static inline float root(float x)
{
    return either(x == -INFINITY, INFINITY, sqrtf(x + 0.0F));
}

/* Inlined with twice the exponent a constant. */
static inline __attribute__((always_inline)) float half_power(int twice, float x)
{
    const float inverse = 1.0F / x;
    switch (twice) {
    case -4:
        return inverse * inverse;
    case -2:
        return inverse;
    case -1:
        return 1.0F / root(x);
    case 1:
        return root(x);
    case 2:
        return x;
    case 4:
        return x * x;
    default: /* 6 */
        return x * x * x;
    }
}

static inline __attribute__((always_inline)) void
map_power(size_t n, int twice, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = half_power(twice, x[i]);
}

/* x^exponent; those that are met often, as their derivatives are, take no logarithm. */
static void raise_to(size_t n, float exponent, const float *restrict x, float *restrict y)
{
    if (exponent == -2.0F)
        map_power(n, -4, x, y);
    else if (exponent == -1.0F)
        map_power(n, -2, x, y);
    else if (exponent == -0.5F)
        map_power(n, -1, x, y);
    else if (exponent == 0.5F)
        map_power(n, 1, x, y);
    else if (exponent == 1.0F)
        map_power(n, 2, x, y);
    else if (exponent == 2.0F)
        map_power(n, 4, x, y);
    else if (exponent == 3.0F)
        map_power(n, 6, x, y);
    else
        for (size_t i = 0; i < n; i++)
            y[i] = mn_powf(x[i], exponent);
}

/* pow_scalar and its derivatives of any order. */
static void power(size_t n, const mn_function_attributes *f, const float *restrict g,
                  const float *restrict s, float *restrict y)
{
    float factor = 1.0F, exponent = (float)f->a;
    for (int64_t k = 0; k < f->order; k++)
        factor *= exponent--;
    raise_to(n, exponent, s, y);
    for (size_t i = 0; i < n && f->order > 0; i++)
        y[i] = either(factor == 0.0F, 0.0F, g[i] * (factor * y[i]));
}

static void body_function(size_t n, const mn_function_attributes *f, const float *g, const float *s,
                          float *y)
{
    if (f->order > MN_ORDERS) {
        mn_bodies_portable.function(n, f, g, s, y);
        return;
    }
    switch (f->function) {
    case MN_OP_affine:
        map(n, MN_OP_affine, f, g, s, y);
        break;
    case MN_OP_abs:
        map(n, MN_OP_abs, f, g, s, y);
        break;
    case MN_OP_exp:
        map(n, MN_OP_exp, f, g, s, y);
        break;
    case MN_OP_log:
        map(n, MN_OP_log, f, g, s, y);
        break;
    case MN_OP_sqrt:
        map(n, MN_OP_sqrt, f, g, s, y);
        break;
    case MN_OP_rsqrt:
        map(n, MN_OP_rsqrt, f, g, s, y);
        break;
    case MN_OP_tanh:
        map(n, MN_OP_tanh, f, g, s, y);
        break;
    case MN_OP_sigmoid:
        map(n, MN_OP_sigmoid, f, g, s, y);
        break;
    case MN_OP_silu:
        map(n, MN_OP_silu, f, g, s, y);
        break;
    case MN_OP_gelu:
        map(n, MN_OP_gelu, f, g, s, y);
        break;
    case MN_OP_leaky_relu:
        map(n, MN_OP_leaky_relu, f, g, s, y);
        break;
    case MN_OP_clamp:
        map(n, MN_OP_clamp, f, g, s, y);
        break;
    default:
        power(n, f, g, s, y);
    }
}

/* ---- functions of two operands --------------------------------------------------------------- */

static void body_sub(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] - b[i];
}

static void body_div(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] / b[i];
}

static void body_minimum(size_t n, const float *restrict a, const float *restrict b,
                         float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = either((a[i] < b[i]) | (a[i] != a[i]), a[i], b[i]);
}

static void body_maximum(size_t n, const float *restrict a, const float *restrict b,
                         float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = either((a[i] > b[i]) | (a[i] != a[i]), a[i], b[i]);
}

static void body_pow(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_powf(a[i], b[i]);
}

static void body_eq(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(a[i] == b[i]);
}

static void body_ne(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(a[i] != b[i]);
}

static void body_lt(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(a[i] < b[i]);
}

static void body_le(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(a[i] <= b[i]);
}

#endif
