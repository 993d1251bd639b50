/* Convolution of each channel by itself: a register is some channels of a pixel. */
#ifndef MN_OPS_CPU_BODIES_DEPTHWISE_H
#define MN_OPS_CPU_BODIES_DEPTHWISE_H

#include "ops/cpu/bodies_winograd.h"

/* Points, or taps, whose sums are in registers: with fewer, each multiply-add waits for the last.
 */
#define TOGETHER 8
#define TAPS     9

/* First of the lanes from i on: the last ones overlap those before. */
static inline int64_t lanes_from(int64_t i, int64_t n)
{
    return i + LANES <= n ? i : n - LANES;
}

TRANSFORM gather_lanes(const mn_depthwise *d, const float *w, const float *start, const int points,
                       const float *const *x, float *c, ptrdiff_t ldc)
{
    lanes sum[TOGETHER], factor, value;
    lanes_load(&sum[0], start);
    for (int j = 1; j < points; j++)
        sum[j] = sum[0];
    for (int64_t t = 0; t < d->taps; t++) {
        lanes_load(&factor, w + t * d->n);
        _Pragma("GCC unroll 8") for (int j = 0; j < points; j++)
        {
            lanes_load(&value, x[j] + d->offsets[t]);
            sum[j] = mul_add_lanes(value, factor, sum[j]);
        }
    }
    for (int j = 0; j < points; j++)
        lanes_store(c + j * ldc, &sum[j]);
}

/* Fewer channels than lanes. */
static void gather_few(const mn_depthwise *d, const float *w, const float *start, const float *x,
                       float *c)
{
    for (int64_t i = 0; i < d->n; i++) {
        float sum = start[i];
        for (int64_t t = 0; t < d->taps; t++)
            sum += w[t * d->n + i] * x[d->offsets[t] + i];
        c[i] = sum;
    }
}

static void depthwise_gather(const mn_depthwise *d, const float *w, const float *start,
                             int64_t points, const float *const *x, float *c, ptrdiff_t ldc)
{
    for (int64_t p = 0, some; p < points; p += some) {
        const float *at[TOGETHER];
        some = points - p >= TOGETHER ? TOGETHER : 1;
        if (d->n < LANES)
            for (int64_t j = 0; j < some; j++)
                gather_few(d, w, start, x[p + j], c + (p + j) * ldc);
        for (int64_t i = 0; i < d->n && d->n >= LANES; i += LANES) {
            const int64_t from = lanes_from(i, d->n);
            float *to = c + p * ldc + from;
            for (int64_t j = 0; j < some; j++)
                at[j] = x[p + j] + from;
            if (some == TOGETHER)
                gather_lanes(d, w + from, start + from, TOGETHER, at, to, ldc);
            else
                gather_lanes(d, w + from, start + from, 1, at, to, ldc);
        }
    }
}

TRANSFORM weight_lanes(const mn_depthwise *d, int64_t first, const int taps, const float *x,
                       const ptrdiff_t *places, int64_t points, const float *g, int64_t ld,
                       float *sums)
{
    lanes sum[TAPS], gradient, value;
    for (int t = 0; t < taps; t++)
        sum[t] = (lanes){0};
    for (int64_t p = 0; p < points; p++) {
        const float *at = x + places[p];
        lanes_load(&gradient, g + p * ld);
        _Pragma("GCC unroll 9") for (int t = 0; t < taps; t++)
        {
            lanes_load(&value, at + d->offsets[first + t]);
            sum[t] = mul_add_lanes(value, gradient, sum[t]);
        }
    }
    for (int t = 0; t < taps; t++)
        lanes_store(sums + (first + t) * d->n, &sum[t]);
}

static void weight_few(const mn_depthwise *d, const float *x, const ptrdiff_t *places,
                       int64_t points, const float *g, int64_t ld, float *sums)
{
    for (int64_t t = 0; t < d->taps; t++)
        for (int64_t i = 0; i < d->n; i++) {
            float sum = 0;
            for (int64_t p = 0; p < points; p++)
                sum += x[places[p] + d->offsets[t] + i] * g[p * ld + i];
            sums[t * d->n + i] = sum;
        }
}

static void depthwise_weight(const mn_depthwise *d, const float *x, const ptrdiff_t *places,
                             int64_t points, const float *g, int64_t ld, float *sums)
{
    if (d->n < LANES) {
        weight_few(d, x, places, points, g, ld, sums);
        return;
    }
    for (int64_t i = 0; i < d->n; i += LANES) {
        const int64_t from = lanes_from(i, d->n);
        for (int64_t t = 0, some; t < d->taps; t += some) {
            some = d->taps - t >= TAPS ? TAPS : 1;
            if (some == TAPS)
                weight_lanes(d, t, TAPS, x + from, places, points, g + from, ld, sums + from);
            else
                weight_lanes(d, t, 1, x + from, places, points, g + from, ld, sums + from);
        }
    }
}

#define DEPTHWISE_BODIES                                                                           \
    {                                                                                              \
        .gather = depthwise_gather, .weight = depthwise_weight                                     \
    }

#endif
