/* The bodies behind body_table.h, written once in plain C that compilers vectorise; included by the
 * one file per kernel set that fills its table, whose name is MN_BODIES. Results do not depend on
 * where a row is cut, except for folds, total and sum_squares, whose order depends on n alone. */
#ifndef MN_OPS_CPU_BODIES_H
#define MN_OPS_CPU_BODIES_H

#include "core/math.h"
#include "core/philox.h"
#include "ops/cpu/bodies_loss.h"
#include "ops/cpu/bodies_elementwise.h"
#include "ops/cpu/bodies_pool.h"
#include "ops/cpu/bodies_norm.h"
#include "ops/cpu/bodies_depthwise.h"
#include "ops/cpu/bodies_winograd.h"
#include "ops/cpu/body_table.h"

#include <math.h>

/* ---- elementwise ----------------------------------------------------------------------------- */

static void body_relu_backward(size_t n, const float *g, const float *restrict y, float *dx)
{
    IN_STEP
    for (size_t i = 0; i < n; i++)
        dx[i] = masked((uint32_t) !(y[i] <= 0.0F), g[i]);
}

static void body_add(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void body_mul(size_t n, const float *restrict a, const float *restrict b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

static void body_add_scalar(size_t n, const float *restrict a, float b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b;
}

static void body_mul_scalar(size_t n, const float *restrict a, float b, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] * b;
}

static void body_accumulate(size_t n, float *sum, const float *x)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static void body_add_scaled(size_t n, const float *restrict x, float factor, float *restrict sum)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += factor * x[i];
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void body_add_product(size_t n, const float *a, const float *b, float *restrict sum)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += a[i] * b[i];
}

static void body_flush(size_t n, float *restrict acc, double *restrict sum)
{
    for (size_t i = 0; i < n; i++) {
        sum[i] += (double)acc[i];
        acc[i] = 0.0F;
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

static void body_keep_factors(size_t blocks, const mn_keep *keep, uint32_t first,
                              float *restrict factors)
{
    const uint32_t threshold = keep->threshold, key[2] = {keep->key[0], keep->key[1]};
    const uint32_t call = keep->call, low = keep->position[0], high = keep->position[1];
    const float scale = keep->scale;
    for (size_t b = 0; b < blocks; b++) {
        const uint32_t counter[4] = {first + (uint32_t)b, call, low, high};
        uint32_t words[4];
        mn_philox4x32(key, counter, words);
        for (size_t i = 0; i < 4; i++)
            factors[4 * b + i] = masked((uint32_t)(words[i] >= threshold), scale);
    }
}

static double body_total(size_t n, const double *x)
{
    double lane[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            lane[j] += x[i + j];
    for (size_t j = 0; i + j < n; j++)
        lane[j] += x[i + j];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void body_max(size_t n, const float *restrict x, float *restrict largest)
{
    for (size_t i = 0; i < n; i++) {
        float known = x[i] <= largest[i] ? largest[i] : x[i]; /* x also if one is NaN */
        largest[i] = largest[i] != largest[i] ? largest[i] : known;
    }
}

static void body_min(size_t n, const float *restrict x, float *restrict smallest)
{
    for (size_t i = 0; i < n; i++) {
        float known = x[i] >= smallest[i] ? smallest[i] : x[i];
        smallest[i] = smallest[i] != smallest[i] ? smallest[i] : known;
    }
}

static void body_max_number(size_t n, const float *restrict x, float *restrict largest)
{
    for (size_t i = 0; i < n; i++)
        largest[i] = x[i] > largest[i] ? x[i] : largest[i];
}

/* Both folds halve the row until one element is left. */
static float body_fold_sum(size_t n, float *x)
{
    while (n > 1) {
        size_t half = (n + 1) / 2;
        body_accumulate(n - half, x, x + half);
        n = half;
    }
    return x[0];
}

static float body_fold_max(size_t n, float *x)
{
    while (n > 1) {
        size_t half = (n + 1) / 2;
        body_max_number(n - half, x + half, x);
        n = half;
    }
    return x[0];
}

static void body_add_exp(size_t n, const float *restrict x, const float *restrict largest,
                         float *restrict sum)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += mn_expf(x[i] - largest[i]);
}

static void body_softmax(size_t n, const float *restrict x, const float *restrict largest,
                         const float *restrict sum, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_expf(x[i] - largest[i]) / sum[i];
}

static void body_log_softmax(size_t n, const float *restrict x, const float *restrict largest,
                             const float *restrict log_sum, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - largest[i]) - log_sum[i];
}

static void body_log(size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = mn_logf(x[i]);
}

static void body_softmax_backward(size_t n, const float *restrict g, const float *restrict y,
                                  const float *restrict sum, float *restrict dx)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = y[i] * (g[i] - sum[i]);
}

static void body_log_softmax_backward(size_t n, const float *restrict g, const float *restrict y,
                                      const float *restrict sum, float *restrict dx)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = g[i] - mn_expf(y[i]) * sum[i];
}

static void body_scaled_exp(size_t n, const float *restrict x, float lse, float factor,
                            float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_expf(x[i] - lse) * factor;
}

/* ---- gradients and optimizers ---------------------------------------------------------------- */

static void body_scale(size_t n, float factor, float *g)
{
    for (size_t i = 0; i < n; i++)
        g[i] *= factor;
}

/* Adding 1 to an exponent of all ones carries into the top bit. */
static inline uint32_t not_finite(float value)
{
    return (mn_f32_bits(value) & 0x7F800000U) + 0x00800000U;
}

static bool body_unscale(size_t n, float factor, float *g)
{
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        float result = g[i] * factor;
        found |= not_finite(g[i]) | not_finite(result);
        g[i] = result;
    }
    return found >> 31;
}

static bool body_finite(size_t n, const float *x)
{
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++)
        found |= not_finite(x[i]);
    return found >> 31 == 0;
}

static double body_sum_squares(size_t n, const float *g)
{
    double lane[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            lane[j] += (double)g[i + j] * (double)g[i + j];
    for (size_t j = 0; i + j < n; j++)
        lane[j] += (double)g[i + j] * (double)g[i + j];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

static void body_blend(size_t n, float a, float b, float *y, const float *x)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a * y[i] + b * x[i];
}

static void body_adjust(size_t n, const float limits[2], float scale, float shift, float *x)
{
    const float low = limits[0], high = limits[1];
    for (size_t i = 0; i < n; i++) {
        float y = scale * x[i] + shift;
        y = low > y ? low : y;
        x[i] = high < y ? high : y;
    }
}

/* Without weight decay an infinite p is left out of the gradient, as 0 p is NaN. */
static inline float decayed(float g, float decay, float p)
{
    return g + masked((uint32_t)(decay != 0.0F), decay * p);
}

static inline void momentum_step(size_t n, const mn_step_factors *f, bool nesterov,
                                 const float *restrict g, float *restrict p, float *restrict v)
{
    const float lr = f->lr, decay = f->weight_decay, momentum = f->rate[0];
    for (size_t i = 0; i < n; i++) {
        float gradient = decayed(g[i], decay, p[i]);
        float velocity = momentum * v[i] + gradient;
        v[i] = velocity;
        p[i] -= lr * (nesterov ? gradient + momentum * velocity : velocity);
    }
}

static inline void plain_step(size_t n, const mn_step_factors *f, const float *restrict g,
                              float *restrict p)
{
    const float lr = f->lr, decay = f->weight_decay;
    for (size_t i = 0; i < n; i++)
        p[i] -= lr * decayed(g[i], decay, p[i]);
}

static void body_sgd(size_t n, const mn_step_factors *f, const float *g, float *p, float *v,
                     float *none)
{
    (void)none;
    if (!v)
        plain_step(n, f, g, p);
    else if (f->variant)
        momentum_step(n, f, true, g, p, v);
    else
        momentum_step(n, f, false, g, p, v);
}

static void body_adam(size_t n, const mn_step_factors *f, const float *restrict g,
                      float *restrict p, float *restrict mean, float *restrict square)
{
    const mn_step_factors k = *f;
    for (size_t i = 0; i < n; i++) {
        float gradient = decayed(g[i], k.weight_decay, p[i]);
        mean[i] = k.rate[0] * mean[i] + k.rest[0] * gradient;
        square[i] = k.rate[1] * square[i] + k.rest[1] * gradient * gradient;
        p[i] = k.keep * p[i] - k.lr * mean[i] / (sqrtf(square[i]) * k.root + k.eps);
    }
}

static inline void rmsprop_step(size_t n, const mn_step_factors *f, const float *restrict g,
                                float *restrict p, float *restrict square, float *restrict v)
{
    const mn_step_factors k = *f;
    for (size_t i = 0; i < n; i++) {
        float gradient = decayed(g[i], k.weight_decay, p[i]);
        square[i] = k.rate[0] * square[i] + k.rest[0] * gradient * gradient;
        float step = gradient / (sqrtf(square[i]) + k.eps);
        if (v)
            step = v[i] = k.rate[1] * v[i] + step;
        p[i] -= k.lr * step;
    }
}

static void body_rmsprop(size_t n, const mn_step_factors *f, const float *g, float *p,
                         float *square, float *v)
{
    if (v)
        rmsprop_step(n, f, g, p, square, v);
    else
        rmsprop_step(n, f, g, p, square, NULL);
}

/* Adding the draw to the bits that bf16 has not carries into those that it has with the probability
 * of that part. Infinities and NaN stay. */
static void body_round_bf16(size_t blocks, const mn_draw *draw, uint32_t first, float *restrict x)
{
    const mn_draw d = *draw;
    for (size_t b = 0; b < blocks; b++) {
        const uint32_t counter[4] = {first + (uint32_t)b, 0, d.step[0], d.step[1]};
        uint32_t words[4], bits[8];
        mn_philox4x32(d.key, counter, words);
        memcpy(bits, x + 8 * b, sizeof bits);
        for (size_t i = 0; i < 8; i++) {
            uint32_t drawn = i < 4 ? words[i] & 0xFFFF : words[i - 4] >> 16;
            bool finite = (bits[i] & 0x7F800000) != 0x7F800000;
            bits[i] = finite ? (bits[i] + drawn) & 0xFFFF0000 : bits[i];
        }
        memcpy(x + 8 * b, bits, sizeof bits);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

const mn_bodies MN_BODIES = {
    .binary = {[MN_OP_add] = body_add,
               [MN_OP_mul] = body_mul,
               [MN_OP_relu] = body_relu_backward,
               [MN_OP_relu_backward] = body_relu_backward,
               [MN_OP_sub] = body_sub,
               [MN_OP_div] = body_div,
               [MN_OP_pow] = body_pow,
               [MN_OP_minimum] = body_minimum,
               [MN_OP_maximum] = body_maximum},
    .compare = {[MN_EQ] = body_eq, [MN_NE] = body_ne, [MN_LT] = body_lt, [MN_LE] = body_le},
    .add_scalar = body_add_scalar,
    .mul_scalar = body_mul_scalar,
    .function = body_function,
    .accumulate = body_accumulate,
    .add_scaled = body_add_scaled,
    .add_product = body_add_product,
    .add_moments = body_add_moments,
    .add_gradients = body_add_gradients,
    .add_masked_gradients = body_add_masked_gradients,
    .flush = body_flush,
    .keep_factors = body_keep_factors,
    .total = body_total,
    .normalize = body_normalize,
    .normalize_backward = body_normalize_backward,
    .masked_backward = body_masked_backward,
    .max = body_max,
    .min = body_min,
    .max_number = body_max_number,
    .fold_sum = body_fold_sum,
    .fold_max = body_fold_max,
    .add_exp = body_add_exp,
    .softmax = body_softmax,
    .log_softmax = body_log_softmax,
    .log = body_log,
    .softmax_backward = body_softmax_backward,
    .log_softmax_backward = body_log_softmax_backward,
    .scaled_exp = body_scaled_exp,
    .loss = {loss_mse, loss_l1, loss_huber, loss_bce_with_logits, loss_bce},
    .slope = {slope_mse, slope_l1, slope_huber, slope_bce_with_logits, slope_bce},
    .pool2x2 = body_pool2x2,
    .pool2x2_backward = body_pool2x2_backward,
    .average2x2 = body_average2x2,
    .average2x2_backward = body_average2x2_backward,
    .max_index = body_max_index,
    .pick_index = body_pick_index,
    .scale = body_scale,
    .unscale = body_unscale,
    .finite = body_finite,
    .sum_squares = body_sum_squares,
    .blend = body_blend,
    .adjust = body_adjust,
    .sgd = body_sgd,
    .adam = body_adam,
    .rmsprop = body_rmsprop,
    .round_bf16 = body_round_bf16,
    .winograd = WINOGRAD_BODIES,
    .depthwise = DEPTHWISE_BODIES,
};

#endif
