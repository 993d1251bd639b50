/* The bodies behind body_table.h, written once in plain C that compilers vectorise; included by the
 * one file per kernel set that fills its table, whose name is MN_BODIES. Results do not depend on
 * where a row is cut, except for folds, total and sum_squares, whose order depends on n alone. */
#ifndef MN_OPS_CPU_BODIES_H
#define MN_OPS_CPU_BODIES_H

#include "core/math.h"
#include "core/philox.h"
#include "ops/cpu/bodies_loss.h"
#include "ops/cpu/bodies_elementwise.h"
#include "ops/cpu/bodies_norm.h"
#include "ops/cpu/bodies_winograd.h"
#include "ops/cpu/body_table.h"

#include <math.h>

/* ---- elementwise ----------------------------------------------------------------------------- */

static void body_relu_backward(size_t n, const float *restrict g, const float *restrict y,
                               float *restrict dx)
{
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

/* ---- pooling --------------------------------------------------------------------------------- */

/* The larger one; NaN wins. */
static inline float larger(float a, float b)
{
    float known = b <= a ? a : b;
    return a != a ? a : known;
}

/* Rows of channels are often too short to be worth a vector of eight: 6 of them are a vector of
 * four, which `count` being a constant makes of a loop, and two more. */
static inline __attribute__((always_inline)) void pool_pixel(size_t count, size_t channels,
                                                             const float *restrict top,
                                                             const float *restrict bottom,
                                                             float *restrict y)
{
    for (size_t c = 0; c < count; c++)
        y[c] = larger(larger(top[c], top[channels + c]), larger(bottom[c], bottom[channels + c]));
}

static void body_pool2x2(size_t n, size_t channels, const float *restrict top,
                         const float *restrict bottom, float *restrict y)
{
    if (channels == 1) {
        for (size_t q = 0; q < n; q++)
            y[q] = larger(larger(top[2 * q], top[2 * q + 1]),
                          larger(bottom[2 * q], bottom[2 * q + 1]));
        return;
    }
    const size_t eights = channels & ~(size_t)7, fours = channels & ~(size_t)3;
    for (size_t q = 0; q < n; q++, top += 2 * channels, bottom += 2 * channels, y += channels) {
        pool_pixel(eights, channels, top, bottom, y);
        if (fours > eights)
            pool_pixel(4, channels, top + eights, bottom + eights, y + eights);
        pool_pixel(channels & 3, channels, top + fours, bottom + fours, y + fours);
    }
}

/* 1 if b, later in the window, takes the maximum over from a. */
static inline uint32_t takes_over(float a, float b)
{
    return (uint32_t)(a == a) & (uint32_t) !(b <= a);
}

/* Number of each window's first largest pixel: 0 and 1 in the top row, 2 and 3 below. `step` is the
 * distance from window to window. */
static inline void find_largest(size_t n, size_t step, const float *const restrict pixel[4],
                                uint32_t *restrict winner)
{
    const float *a = pixel[0], *b = pixel[1], *d = pixel[2], *e = pixel[3];
    for (size_t i = 0; i < n; i++) {
        size_t j = i * step;
        uint32_t below = takes_over(larger(a[j], b[j]), larger(d[j], e[j]));
        winner[i] = mn_pick(below, 2 + takes_over(d[j], e[j]), takes_over(a[j], b[j]));
    }
}

static inline void give_to_winner(size_t n, size_t step, const float *restrict g,
                                  const uint32_t *restrict winner, uint32_t number,
                                  float *restrict dx)
{
    for (size_t i = 0; i < n; i++)
        dx[i * step] = masked((uint32_t)(winner[i] == number), g[i]);
}

/* One row of windows of one channel, or `n` channels of a window from the `at`-th element on. */
static inline __attribute__((always_inline)) void pool_back(size_t n, size_t step, size_t channels,
                                                            size_t at, const float *g,
                                                            const float *const rows[2],
                                                            float *const dx[2])
{
    uint32_t winner[MN_POOL_LIMIT];
    const float *top = rows[0] + at, *bottom = rows[1] + at;
    const float *const pixel[4] = {top, top + channels, bottom, bottom + channels};
    find_largest(n, step, pixel, winner);
    for (uint32_t i = 0; i < 4; i++)
        give_to_winner(n, step, g, winner, i, dx[i / 2] + at + (i & 1) * channels);
}

static void body_pool2x2_backward(size_t n, size_t channels, const float *g, const float *rows[2],
                                  float *dx[2])
{
    const size_t eights = channels & ~(size_t)7, fours = channels & ~(size_t)3;
    if (channels == 1) {
        pool_back(n, 2, 1, 0, g, rows, dx);
        return;
    }
    for (size_t q = 0; q < n; q++, g += channels) {
        const size_t at = 2 * q * channels;
        pool_back(eights, 1, channels, at, g, rows, dx);
        if (fours > eights)
            pool_back(4, 1, channels, at + eights, g + eights, rows, dx);
        pool_back(channels & 3, 1, channels, at + fours, g + fours, rows, dx);
    }
}

static void body_average2x2(size_t n, size_t channels, const float *restrict top,
                            const float *restrict bottom, float *restrict y)
{
    for (size_t q = 0; q < n; q++, top += 2 * channels, bottom += 2 * channels, y += channels)
        for (size_t c = 0; c < channels; c++)
            y[c] = ((top[c] + top[channels + c]) + (bottom[c] + bottom[channels + c])) * 0.25F;
}

static void body_average2x2_backward(size_t n, size_t channels, const float *g, float *dx[2])
{
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < 2 * n; i++) {
            const float *restrict from = g + i / 2 * channels;
            float *restrict to = dx[r] + i * channels;
            for (size_t c = 0; c < channels; c++)
                to[c] = from[c] * 0.25F;
        }
}

static void body_max_index(size_t n, const float *restrict x, float number, float *restrict largest,
                           float *restrict index)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t take = takes_over(largest[i], x[i]);
        index[i] = mn_f32_from_bits(mn_pick(take, mn_f32_bits(number), mn_f32_bits(index[i])));
        largest[i] = larger(largest[i], x[i]);
    }
}

static void body_pick_index(size_t n, const float *restrict g, const float *restrict index,
                            float number, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = masked((uint32_t)(index[i] == number), g[i]);
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
    .winograd_image = {winograd2_image, winograd4_image},
    .winograd_result = {winograd2_result, winograd4_result},
    .winograd_gradient = {winograd2_gradient, winograd4_gradient},
    .winograd_filter = {winograd2_filter, winograd4_filter},
    .winograd_filter_gradient = {winograd2_filter_gradient, winograd4_filter_gradient},
};

#endif
