/* Bodies of the losses element by element and of their slopes in x, part of bodies.h. NaN comes
 * through all of them. */
#ifndef MN_OPS_CPU_BODIES_LOSS_H
#define MN_OPS_CPU_BODIES_LOSS_H

#include "core/math.h"

#include <math.h>

static void loss_mse(size_t n, const float *restrict x, const float *restrict t, float delta,
                     float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - t[i]) * (x[i] - t[i]);
}

static void slope_mse(size_t n, const float *restrict x, const float *restrict t, float delta,
                      float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++)
        y[i] = 2.0F * (x[i] - t[i]);
}

static void loss_l1(size_t n, const float *restrict x, const float *restrict t, float delta,
                    float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++)
        y[i] = fabsf(x[i] - t[i]);
}

static void slope_l1(size_t n, const float *restrict x, const float *restrict t, float delta,
                     float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++) {
        float d = x[i] - t[i];
        y[i] = mn_keep_nan(d, (float)((d > 0.0F) - (d < 0.0F)));
    }
}

static void loss_huber(size_t n, const float *restrict x, const float *restrict t, float delta,
                       float *restrict y)
{
    for (size_t i = 0; i < n; i++) {
        float d = fabsf(x[i] - t[i]);
        float m = d > delta ? delta : d;
        y[i] = m * (d - 0.5F * m);
    }
}

static void slope_huber(size_t n, const float *restrict x, const float *restrict t, float delta,
                        float *restrict y)
{
    for (size_t i = 0; i < n; i++) {
        float d = x[i] - t[i];
        float least = d < -delta ? -delta : d;
        y[i] = least > delta ? delta : least;
    }
}

/* max(x, 0) - x t as |x| (1 - t) above 0 and |x| t below, which cancels nothing; 0 also where an
 * infinite x is right. */
static void loss_bce_with_logits(size_t n, const float *restrict x, const float *restrict t,
                                 float delta, float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++) {
        float size = fabsf(x[i]);
        float share = x[i] > 0.0F ? 1.0F - t[i] : t[i];
        float product = size * share;
        y[i] = (share == 0.0F ? 0.0F : product) + mn_log1pf(mn_expf(-size));
    }
}

/* sigmoid(x) - t; above 0 from sigmoid(x) = 1 - sigmoid(-x), which keeps small differences. */
static void slope_bce_with_logits(size_t n, const float *restrict x, const float *restrict t,
                                  float delta, float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++) {
        float e = mn_expf(-fabsf(x[i]));
        float tail = e / (1.0F + e);
        y[i] = x[i] > 0.0F ? (1.0F - t[i]) - tail : tail - t[i];
    }
}

static inline float at_least(float x, float least)
{
    return x < least ? least : x;
}

static void loss_bce(size_t n, const float *restrict x, const float *restrict t, float delta,
                     float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++)
        y[i] = (t[i] - 1.0F) * at_least(mn_log1pf(-x[i]), -100.0F) -
               t[i] * at_least(mn_logf(x[i]), -100.0F);
}

static void slope_bce(size_t n, const float *restrict x, const float *restrict t, float delta,
                      float *restrict y)
{
    (void)delta;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - t[i]) / at_least((1.0F - x[i]) * x[i], 1e-12F);
}

#endif
