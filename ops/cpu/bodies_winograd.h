/* Transforms of Winograd's convolution F(m, 3) for m = 2 and 4 (Lavin and Gray,
 * "Fast Algorithms for Convolutional Neural Networks", 2015). F(4, 3) stands on the points 0, +-A,
 * +-B and infinity: A = 11/16 and B = 11/8 instead of 1 and 2 halve the rms error, and their
 * squares are exact in f32. */
#ifndef MN_OPS_CPU_BODIES_WINOGRAD_H
#define MN_OPS_CPU_BODIES_WINOGRAD_H

#include "ops/cpu/body_table.h"

#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

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

/* a b + c */
static inline lanes mul_add_lanes(lanes a, lanes b, lanes c)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline lanes mul_add(lanes a, float factor, lanes c)
{
    return mul_add_lanes(a, factor - (lanes){0}, c);
}

/* ---- along one axis -------------------------------------------------------------------------- */

#define TRANSFORM static inline __attribute__((always_inline)) void
typedef void transform_fn(const lanes *d, lanes *r);

/* B^T d */
TRANSFORM image2(const lanes *d, lanes *r)
{
    r[0] = d[0] - d[2];
    r[1] = d[1] + d[2];
    r[2] = d[2] - d[1];
    r[3] = d[1] - d[3];
}

TRANSFORM image4(const lanes *d, lanes *r)
{
    const lanes e = mul_add(d[2], -SQUARE_B, d[4]), o = POINT_A * mul_add(d[1], -SQUARE_B, d[3]);
    const lanes f = mul_add(d[2], -SQUARE_A, d[4]), q = POINT_B * mul_add(d[1], -SQUARE_A, d[3]);
    r[0] = mul_add(d[0], SQUARE_A * SQUARE_B, mul_add(d[2], -(SQUARE_A + SQUARE_B), d[4]));
    r[1] = e + o;
    r[2] = e - o;
    r[3] = f + q;
    r[4] = f - q;
    r[5] = mul_add(d[1], SQUARE_A * SQUARE_B, mul_add(d[3], -(SQUARE_A + SQUARE_B), d[5]));
}

/* A^T m */
TRANSFORM result2(const lanes *d, lanes *r)
{
    r[0] = d[0] + (d[1] + d[2]);
    r[1] = (d[1] - d[2]) - d[3];
}

TRANSFORM result4(const lanes *d, lanes *r)
{
    const lanes a = d[1] + d[2], b = d[1] - d[2];
    const lanes c = d[3] + d[4], e = d[3] - d[4];
    r[0] = d[0] + (a + c);
    r[1] = mul_add(b, POINT_A, POINT_B * e);
    r[2] = mul_add(a, SQUARE_A, SQUARE_B * c);
    r[3] = mul_add(b, POINT_A * SQUARE_A, mul_add(e, POINT_B * SQUARE_B, d[5]));
}

/* A g */
TRANSFORM gradient2(const lanes *d, lanes *r)
{
    r[0] = d[0];
    r[1] = d[0] + d[1];
    r[2] = d[0] - d[1];
    r[3] = -d[1];
}

TRANSFORM gradient4(const lanes *d, lanes *r)
{
    const lanes e = mul_add(d[2], SQUARE_A, d[0]), o = POINT_A * mul_add(d[3], SQUARE_A, d[1]);
    const lanes f = mul_add(d[2], SQUARE_B, d[0]), q = POINT_B * mul_add(d[3], SQUARE_B, d[1]);
    r[0] = d[0];
    r[1] = e + o;
    r[2] = e - o;
    r[3] = f + q;
    r[4] = f - q;
    r[5] = d[3];
}

/* G w, and G^T u */
#define HALF 0.5F
#define ONE  (1 / (SQUARE_A * SQUARE_B))
#define GA   (1 / (2 * SQUARE_A * (SQUARE_A - SQUARE_B)))
#define GB   (1 / (2 * SQUARE_B * (SQUARE_B - SQUARE_A)))
TRANSFORM filter2(const lanes *d, lanes *r)
{
    const lanes e = HALF * (d[0] + d[2]), o = HALF * d[1];
    r[0] = d[0];
    r[1] = e + o;
    r[2] = e - o;
    r[3] = d[2];
}

TRANSFORM filter4(const lanes *d, lanes *r)
{
    const lanes e = GA * (d[0] + SQUARE_A * d[2]), o = (GA * POINT_A) * d[1];
    const lanes f = GB * (d[0] + SQUARE_B * d[2]), q = (GB * POINT_B) * d[1];
    r[0] = ONE * d[0];
    r[1] = e + o;
    r[2] = e - o;
    r[3] = f + q;
    r[4] = f - q;
    r[5] = d[2];
}

TRANSFORM filter_gradient2(const lanes *d, lanes *r)
{
    const lanes a = HALF * (d[1] + d[2]);
    r[0] = d[0] + a;
    r[1] = HALF * (d[1] - d[2]);
    r[2] = a + d[3];
}

TRANSFORM filter_gradient4(const lanes *d, lanes *r)
{
    const lanes a = GA * (d[1] + d[2]), b = GA * (d[1] - d[2]);
    const lanes c = GB * (d[3] + d[4]), e = GB * (d[3] - d[4]);
    r[0] = ONE * d[0] + (a + c);
    r[1] = POINT_A * b + POINT_B * e;
    r[2] = SQUARE_A * a + (SQUARE_B * c + d[5]);
}

/* ---- along both ------------------------------------------------------------------------------ */

#define LARGEST 6

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 6")
#endif
/* Whole tiles, for speed; not where registers are few, nor for filters. */
#if defined(__AVX__) || defined(__aarch64__)
#define UNROLLED true
#else
#define UNROLLED false
#endif
/* Keeps compilers from making an address of each load and store ahead, and fetching all those from
 * memory, where a few distances would do. */
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

TRANSFORM transform_column(const mn_winograd_tiles *t, const float *in, lanes (*half)[LARGEST],
                           int x, transform_fn *transform, int from, int to)
{
    lanes d[LARGEST], r[LARGEST];
    OPAQUE(in);
    UNROLL for (int y = 0; y < from; y++) lanes_load(&d[y], in + y * t->in_row);
    transform(d, r);
    UNROLL for (int y = 0; y < to; y++) half[y][x] = r[y];
}

TRANSFORM transform_row(const mn_winograd_tiles *t, const lanes *half, float *out,
                        const lanes *bias, lanes *bad, transform_fn *transform, int to)
{
    lanes r[LARGEST];
    OPAQUE(out);
    transform(half, r);
    UNROLL for (int x = 0; x < to; x++)
    {
        if (bias) {
            r[x] += *bias;
            *bad = mul_add(r[x], 0, *bad); /* NaN, if it is not finite */
        }
        lanes_store(out + x * t->out_step, &r[x]);
    }
}

/* Down the columns of one register's tile, then across the rows. Unrolled, most of what lies
 * between stays in registers. */
TRANSFORM transform_tile(const mn_winograd_tiles *t, const float *in, float *out, const lanes *bias,
                         lanes *bad, transform_fn *transform, int from, int to, bool unrolled)
{
    lanes half[LARGEST][LARGEST];
    if (unrolled) {
        UNROLL for (int x = 0; x < from; x++, in += t->in_step)
            transform_column(t, in, half, x, transform, from, to);
        UNROLL for (int y = 0; y < to; y++, out += t->out_row)
            transform_row(t, half[y], out, bias, bad, transform, to);
        return;
    }
    for (int x = 0; x < from; x++, in += t->in_step)
        transform_column(t, in, half, x, transform, from, to);
    for (int y = 0; y < to; y++, out += t->out_row)
        transform_row(t, half[y], out, bias, bad, transform, to);
}

TRANSFORM transform_tiles(const mn_winograd_tiles *t, const float *in, float *out,
                          transform_fn *transform, int from, int to, bool unrolled)
{
    const mn_winograd_tiles own = *t; /* stores cannot change it */
    for (int64_t tile = 0; tile < own.count; tile++, in += own.in_next, out += own.out_next)
        for (int64_t i = 0; i < own.n; i += LANES)
            transform_tile(&own, in + i, out + i, NULL, NULL, transform, from, to, unrolled);
}

static inline __attribute__((always_inline)) bool
transform_results(const mn_winograd_tiles *t, const float *in, float *out, const float *bias,
                  transform_fn *transform, int from, int to)
{
    const mn_winograd_tiles own = *t;
    lanes bad = {0};
    for (int64_t tile = 0; tile < own.count; tile++, in += own.in_next, out += own.out_next)
        for (int64_t i = 0; i < own.n; i += LANES) {
            lanes b;
            lanes_load(&b, bias + i);
            transform_tile(&own, in + i, out + i, &b, &bad, transform, from, to, UNROLLED);
        }
    bool finite = true;
    for (int i = 0; i < LANES; i++)
        finite = finite && bad[i] == 0;
    return finite;
}

#define WINOGRAD(name, from, to, unrolled)                                                         \
    static void winograd_##name(const mn_winograd_tiles *t, const float *in, float *out)           \
    {                                                                                              \
        transform_tiles(t, in, out, name, from, to, unrolled);                                     \
    }
WINOGRAD(image2, 4, 4, UNROLLED)
WINOGRAD(image4, 6, 6, UNROLLED)
WINOGRAD(gradient2, 2, 4, UNROLLED)
WINOGRAD(gradient4, 4, 6, UNROLLED)
WINOGRAD(filter2, 3, 4, false)
WINOGRAD(filter4, 3, 6, false)
WINOGRAD(filter_gradient2, 4, 3, false)
WINOGRAD(filter_gradient4, 6, 3, false)

static bool winograd_result2(const mn_winograd_tiles *t, const float *in, float *out,
                             const float *bias)
{
    return transform_results(t, in, out, bias, result2, 4, 2);
}

static bool winograd_result4(const mn_winograd_tiles *t, const float *in, float *out,
                             const float *bias)
{
    return transform_results(t, in, out, bias, result4, 6, 4);
}

#define WINOGRAD_BODIES                                                                            \
    {                                                                                              \
        .image = {winograd_image2, winograd_image4},                                               \
        .result = {winograd_result2, winograd_result4},                                            \
        .gradient = {winograd_gradient2, winograd_gradient4},                                      \
        .filter = {winograd_filter2, winograd_filter4}, .filter_gradient = {                       \
            winograd_filter_gradient2,                                                             \
            winograd_filter_gradient4                                                              \
        }                                                                                          \
    }

#endif
