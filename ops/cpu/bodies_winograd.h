/* One-dimensional transforms of Winograd's convolution F(m, 3) for m = 2 and 4 (Lavin and Gray,
 * "Fast Algorithms for Convolutional Neural Networks", 2015). F(4, 3) stands on the points 0, +-A,
 * +-B and infinity: A = 11/16 and B = 11/8 instead of 1 and 2 halve the rms error, and their
 * squares are exact in f32. */
#ifndef MN_OPS_CPU_BODIES_WINOGRAD_H
#define MN_OPS_CPU_BODIES_WINOGRAD_H

#include "ops/cpu/body_table.h"

#include <string.h>

#define POINT_A  0.6875F
#define POINT_B  1.375F
#define SQUARE_A (POINT_A * POINT_A)
#define SQUARE_B (POINT_B * POINT_B)

/* Compilers do not vectorise loops over so many rows that may overlap. */
typedef float lanes __attribute__((vector_size(32)));

static inline void lanes_load(lanes *v, const float *from)
{
    memcpy(v, from, sizeof *v);
}

static inline void lanes_store(float *to, const lanes *v)
{
    memcpy(to, v, sizeof *v);
}

#define LOAD(k)                                                                                    \
    lanes d##k;                                                                                    \
    lanes_load(&d##k, from + (k)*l->in_step)
#define LOAD2                                                                                      \
    LOAD(0);                                                                                       \
    LOAD(1)
#define LOAD4                                                                                      \
    LOAD2;                                                                                         \
    LOAD(2);                                                                                       \
    LOAD(3)
#define LOAD6                                                                                      \
    LOAD4;                                                                                         \
    LOAD(4);                                                                                       \
    LOAD(5)
#define STORE(k, value)                                                                            \
    do {                                                                                           \
        const lanes result = value;                                                                \
        lanes_store(to + (k)*l->out_step, &result);                                                \
    } while (0)

#define WINOGRAD(name, ...)                                                                        \
    static void name(const mn_winograd_lines *l, const float *in, float *out)                      \
    {                                                                                              \
        for (int64_t row = 0; row < l->count; row++, in += l->in_next, out += l->out_next)         \
            for (int64_t i = 0; i < l->n; i += 8) {                                                \
                const float *from = in + i;                                                        \
                float *to = out + i;                                                               \
                __VA_ARGS__;                                                                       \
            }                                                                                      \
    }

/* B^T d */
WINOGRAD(winograd2_image, LOAD4; STORE(0, d0 - d2); STORE(1, d1 + d2); STORE(2, d2 - d1);
         STORE(3, d1 - d3))
WINOGRAD(winograd4_image, LOAD6; const lanes e = d4 - SQUARE_B * d2;
         const lanes o = POINT_A * (d3 - SQUARE_B * d1); const lanes f = d4 - SQUARE_A * d2;
         const lanes q = POINT_B * (d3 - SQUARE_A * d1);
         STORE(0, SQUARE_A *SQUARE_B *d0 + (d4 - (SQUARE_A + SQUARE_B) * d2)); STORE(1, e + o);
         STORE(2, e - o); STORE(3, f + q); STORE(4, f - q);
         STORE(5, SQUARE_A *SQUARE_B *d1 + (d5 - (SQUARE_A + SQUARE_B) * d3)))

/* A^T m */
WINOGRAD(winograd2_result, LOAD4; STORE(0, d0 + (d1 + d2)); STORE(1, (d1 - d2) - d3))
WINOGRAD(winograd4_result, LOAD6; const lanes a = d1 + d2; const lanes b = POINT_A * (d1 - d2);
         const lanes c = d3 + d4; const lanes e = POINT_B * (d3 - d4); STORE(0, d0 + (a + c));
         STORE(1, b + e); STORE(2, SQUARE_A *a + SQUARE_B * c);
         STORE(3, SQUARE_A *b + (SQUARE_B * e + d5)))

/* A g */
WINOGRAD(winograd2_gradient, LOAD2; STORE(0, d0); STORE(1, d0 + d1); STORE(2, d0 - d1);
         STORE(3, -d1))
WINOGRAD(winograd4_gradient, LOAD4; const lanes e = d0 + SQUARE_A * d2;
         const lanes o = POINT_A * (d1 + SQUARE_A * d3); const lanes f = d0 + SQUARE_B * d2;
         const lanes q = POINT_B * (d1 + SQUARE_B * d3); STORE(0, d0); STORE(1, e + o);
         STORE(2, e - o); STORE(3, f + q); STORE(4, f - q); STORE(5, d3))

/* G of F(2, 3) and F(4, 3). */
#define FACTOR_A (2 * SQUARE_A * (SQUARE_A - SQUARE_B))
#define FACTOR_B (2 * SQUARE_B * (SQUARE_B - SQUARE_A))
static const float winograd2_filter[4][3] = {
    {1, 0, 0}, {0.5F, 0.5F, 0.5F}, {0.5F, -0.5F, 0.5F}, {0, 0, 1}};
static const float winograd4_filter[6][3] = {
    {1 / (SQUARE_A * SQUARE_B), 0, 0},
    {1 / FACTOR_A, POINT_A / FACTOR_A, SQUARE_A / FACTOR_A},
    {1 / FACTOR_A, -POINT_A / FACTOR_A, SQUARE_A / FACTOR_A},
    {1 / FACTOR_B, POINT_B / FACTOR_B, SQUARE_B / FACTOR_B},
    {1 / FACTOR_B, -POINT_B / FACTOR_B, SQUARE_B / FACTOR_B},
    {0, 0, 1}};

/* out[r] = sum over c of t[r row + c column] in[c] */
static void winograd_mix(const mn_winograd_lines *l, const float *t, int row, int column,
                         const float *in, float *out)
{
    const int rows = row == 3 ? l->points : 3, columns = row == 3 ? 3 : l->points;
    for (int64_t i = 0; i < l->n; i += 8) {
        lanes sum[6];
        for (int r = 0; r < rows; r++) {
            sum[r] = (lanes){0};
            for (int c = 0; c < columns; c++) {
                lanes d;
                lanes_load(&d, in + c * l->in_step + i);
                sum[r] += t[r * row + c * column] * d;
            }
        }
        for (int r = 0; r < rows; r++)
            lanes_store(out + r * l->out_step + i, &sum[r]);
    }
}

/* G w, and G^T u: filters are few beside pixels, and one loop serves both sizes. */
static void winograd_filter(const mn_winograd_lines *l, const float *in, float *out)
{
    winograd_mix(l, l->points == 6 ? *winograd4_filter : *winograd2_filter, 3, 1, in, out);
}

static void winograd_filter_gradient(const mn_winograd_lines *l, const float *in, float *out)
{
    winograd_mix(l, l->points == 6 ? *winograd4_filter : *winograd2_filter, 1, 3, in, out);
}

#endif
