/* Normalisation's part of bodies.h. */
#ifndef MN_OPS_CPU_BODIES_NORM_H
#define MN_OPS_CPU_BODIES_NORM_H

#include "ops/cpu/bodies_elementwise.h"
#include "ops/cpu/bodies_moments.h"

/* g through ReLU after the normalisation; as normalize computes it. */
static inline float through_relu(float g, float centred, float slope, float bias, float limit)
{
    return masked((uint32_t) !(centred * slope + bias <= limit), g);
}

/* A register of lanes while rows go by. */
static inline __attribute__((always_inline)) void
gradients_of_lanes(const bool relu, int64_t rows, int64_t ld, const float *restrict g,
                   const float *restrict x, const mn_norm_tables *tables, int64_t at,
                   float *restrict sum, float *restrict product)
{
    typedef int32_t bits __attribute__((vector_size(SUM_LANES * sizeof(int32_t))));
    const float limit = tables->limit;
    sum_lanes s, p, mean, rstd, slope = {0}, bias = {0}, given, centred;
    memcpy(&s, sum + at, sizeof s);
    memcpy(&p, product + at, sizeof p);
    memcpy(&mean, tables->mean + at, sizeof mean);
    memcpy(&rstd, tables->scale + at, sizeof rstd);
    if (relu) {
        memcpy(&slope, tables->slope + at, sizeof slope);
        memcpy(&bias, tables->bias + at, sizeof bias);
    }
    for (int64_t i = at; i < rows * ld; i += ld) {
        memcpy(&given, g + i, sizeof given);
        memcpy(&centred, x + i, sizeof centred);
        centred -= mean;
        if (relu)
            given = (sum_lanes)((bits)given & ~(centred * slope + bias <= limit));
        s += given;
        p += given * (centred * rstd);
    }
    memcpy(sum + at, &s, sizeof s);
    memcpy(product + at, &p, sizeof p);
}

static inline __attribute__((always_inline)) void
gradients_of_rows(const bool relu, int64_t rows, int64_t n, const float *restrict g,
                  const float *restrict x, const mn_norm_tables *t, float *restrict sum,
                  float *restrict product)
{
    int64_t at = 0;
    for (; at + SUM_LANES <= n; at += SUM_LANES)
        gradients_of_lanes(relu, rows, n, g, x, t, at, sum, product);
    for (int64_t r = 0; r < rows && at < n; r++)
        for (int64_t k = at; k < n; k++) {
            const float centred = x[r * n + k] - t->mean[k], from = g[r * n + k];
            const float given =
                relu ? through_relu(from, centred, t->slope[k], t->bias[k], t->limit) : from;
            sum[k] += given;
            product[k] += given * (centred * t->scale[k]);
        }
}

static void body_add_gradients(int64_t rows, int64_t n, const float *g, const float *x,
                               const mn_norm_tables *tables, float *sum, float *product)
{
    gradients_of_rows(false, rows, n, g, x, tables, sum, product);
}

static void body_add_masked_gradients(int64_t rows, int64_t n, const float *g, const float *x,
                                      const mn_norm_tables *tables, float *sum, float *product)
{
    gradients_of_rows(true, rows, n, g, x, tables, sum, product);
}

static void body_normalize(size_t n, const float *restrict x, const mn_norm_tables *tables,
                           float *restrict y)
{
    const float *restrict mean = tables->mean, *restrict scale = tables->scale;
    const float *restrict shift = tables->shift;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean[i]) * scale[i] + shift[i];
}

static void body_normalize_backward(size_t n, const float *restrict g, const float *restrict x,
                                    const mn_norm_tables *tables, float *restrict dx)
{
    const float *restrict mean = tables->mean, *restrict scale = tables->scale;
    const float *restrict shift = tables->shift, *restrict gradient = tables->gradient;
    for (size_t i = 0; i < n; i++)
        dx[i] = scale[i] * ((g[i] - shift[i]) - (x[i] - mean[i]) * gradient[i]);
}

static void body_masked_backward(size_t n, const float *restrict g, const float *restrict x,
                                 const mn_norm_tables *tables, float *restrict dx)
{
    const float *restrict mean = tables->mean, *restrict scale = tables->scale;
    const float *restrict shift = tables->shift, *restrict gradient = tables->gradient;
    const float *restrict slope = tables->slope, *restrict bias = tables->bias;
    const float limit = tables->limit;
    for (size_t i = 0; i < n; i++) {
        const float centred = x[i] - mean[i];
        const float given = through_relu(g[i], centred, slope[i], bias[i], limit);
        dx[i] = scale[i] * ((given - shift[i]) - centred * gradient[i]);
    }
}

#endif
