/* Sums of a batch norm's statistics over rows of channels. A lane's terms are added in order of
 * rows, whatever a register holds. */
#ifndef MN_OPS_CPU_BODIES_MOMENTS_H
#define MN_OPS_CPU_BODIES_MOMENTS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define SUM_LANES 16
#elif defined(__AVX__)
#define SUM_LANES 8
#else
#define SUM_LANES 4
#endif
typedef float sum_lanes __attribute__((vector_size(SUM_LANES * sizeof(float))));

/* `count` registers of lanes: enough chains of additions to keep the adders busy. */
static inline __attribute__((always_inline)) void moments_of_lanes(const int count, int64_t rows,
                                                                   int64_t ld, const float *x,
                                                                   const float *mean, float *sum,
                                                                   float *square)
{
    sum_lanes s[4], q[4], about[4], d;
    for (int k = 0; k < count; k++) {
        memcpy(&s[k], sum + k * SUM_LANES, sizeof d);
        memcpy(&q[k], square + k * SUM_LANES, sizeof d);
        memcpy(&about[k], mean + k * SUM_LANES, sizeof d);
    }
    for (int64_t r = 0; r < rows; r++, x += ld)
        for (int k = 0; k < count; k++) {
            memcpy(&d, x + k * SUM_LANES, sizeof d);
            d -= about[k];
            s[k] += d;
            q[k] += d * d;
        }
    for (int k = 0; k < count; k++) {
        memcpy(sum + k * SUM_LANES, &s[k], sizeof d);
        memcpy(square + k * SUM_LANES, &q[k], sizeof d);
    }
}

static void body_add_moments(int64_t rows, int64_t n, int64_t ld, const float *restrict x,
                             const float *restrict mean, float *restrict sum,
                             float *restrict square)
{
    int64_t i = 0;
    for (; i + 4 * SUM_LANES <= n; i += 4 * SUM_LANES)
        moments_of_lanes(4, rows, ld, x + i, mean + i, sum + i, square + i);
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        moments_of_lanes(1, rows, ld, x + i, mean + i, sum + i, square + i);
    for (int64_t r = 0; r < rows && i < n; r++)
        for (int64_t k = i; k < n; k++) {
            const float d = x[r * ld + k] - mean[k];
            sum[k] += d;
            square[k] += d * d;
        }
}

#endif
