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

/* Row by row: few registers would hold few lanes, and their columns be read with gaps. */
static inline __attribute__((always_inline)) void
gradients_of_rows(const bool relu, int64_t rows, int64_t n, const float *restrict g,
                  const float *restrict x, const mn_norm_tables *tables, float *restrict sum,
                  float *restrict product)
{
    const float *restrict mean = tables->mean, *restrict rstd = tables->scale;
    const float *restrict slope = tables->slope, *restrict bias = tables->bias;
    const float limit = tables->limit;
    for (int64_t r = 0; r < rows; r++, g += n, x += n)
        for (int64_t i = 0; i < n; i++) {
            const float centred = x[i] - mean[i];
            const float given = relu ? through_relu(g[i], centred, slope[i], bias[i], limit) : g[i];
            sum[i] += given;
            product[i] += given * (centred * rstd[i]);
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

static void body_normalize_backward(size_t n, const float *g, const float *restrict x,
                                    const mn_norm_tables *tables, float *dx)
{
    const float *restrict mean = tables->mean, *restrict scale = tables->scale;
    const float *restrict shift = tables->shift, *restrict gradient = tables->gradient;
    IN_STEP
    for (size_t i = 0; i < n; i++)
        dx[i] = scale[i] * ((g[i] - shift[i]) - (x[i] - mean[i]) * gradient[i]);
}

static void body_masked_backward(size_t n, const float *g, const float *restrict x,
                                 const mn_norm_tables *tables, float *dx)
{
    const float *restrict mean = tables->mean, *restrict scale = tables->scale;
    const float *restrict shift = tables->shift, *restrict gradient = tables->gradient;
    const float *restrict slope = tables->slope, *restrict bias = tables->bias;
    const float limit = tables->limit;
    IN_STEP
    for (size_t i = 0; i < n; i++) {
        const float centred = x[i] - mean[i];
        const float given = through_relu(g[i], centred, slope[i], bias[i], limit);
        dx[i] = scale[i] * ((given - shift[i]) - centred * gradient[i]);
    }
}

#endif
