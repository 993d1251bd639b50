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

/* One register: compilers do not vectorise loops over so many rows that may overlap. */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

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
#define LOAD3                                                                                      \
    LOAD2;                                                                                         \
    LOAD(2)
#define LOAD4                                                                                      \
    LOAD3;                                                                                         \
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
            for (int64_t i = 0; i < l->n; i += LANES) {                                            \
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

/* G w, and G^T u */
#define HALF 0.5F
#define ONE  (1 / (SQUARE_A * SQUARE_B))
#define GA   (1 / (2 * SQUARE_A * (SQUARE_A - SQUARE_B)))
#define GB   (1 / (2 * SQUARE_B * (SQUARE_B - SQUARE_A)))
WINOGRAD(winograd2_filter, LOAD3; const lanes e = HALF * (d0 + d2); const lanes o = HALF * d1;
         STORE(0, d0); STORE(1, e + o); STORE(2, e - o); STORE(3, d2))
WINOGRAD(winograd4_filter, LOAD3; const lanes e = GA * (d0 + SQUARE_A * d2);
         const lanes o = (GA * POINT_A) * d1; const lanes f = GB * (d0 + SQUARE_B * d2);
         const lanes q = (GB * POINT_B) * d1; STORE(0, ONE *d0); STORE(1, e + o); STORE(2, e - o);
         STORE(3, f + q); STORE(4, f - q); STORE(5, d2))
WINOGRAD(winograd2_filter_gradient, LOAD4; const lanes a = HALF * (d1 + d2); STORE(0, d0 + a);
         STORE(1, HALF *(d1 - d2)); STORE(2, a + d3))
WINOGRAD(winograd4_filter_gradient, LOAD6; const lanes a = GA * (d1 + d2);
         const lanes b = GA * (d1 - d2); const lanes c = GB * (d3 + d4);
         const lanes e = GB * (d3 - d4); STORE(0, ONE *d0 + (a + c));
         STORE(1, POINT_A *b + POINT_B * e); STORE(2, SQUARE_A *a + (SQUARE_B * c + d5)))

#define WINOGRAD_BODIES                                                                            \
    {                                                                                              \
        .image = {winograd2_image, winograd4_image},                                               \
        .result = {winograd2_result, winograd4_result},                                            \
        .gradient = {winograd2_gradient, winograd4_gradient},                                      \
        .filter = {winograd2_filter, winograd4_filter}, .filter_gradient = {                       \
            winograd2_filter_gradient,                                                             \
            winograd4_filter_gradient                                                              \
        }                                                                                          \
    }

#endif
