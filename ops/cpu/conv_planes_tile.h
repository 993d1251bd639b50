/* The register tiles behind conv_planes.h, written once for each kernel set: included by the one
 * file that fills its table. Loops over rows and vectors have constant bounds and are unrolled, so
 * that the sums stay in registers. */
#ifndef MN_OPS_CPU_CONV_PLANES_TILE_H
#define MN_OPS_CPU_CONV_PLANES_TILE_H

#include "ops/cpu/conv_planes.h"

#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
typedef __m512 lanes;
#elif defined(__AVX__)
#define LANES 8
typedef __m256 lanes;
#else
#define LANES 4
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
#endif

/* sum += a b */
static inline void add_product(lanes *sum, lanes a, lanes b)
{
#if defined(__AVX512F__)
    *sum = _mm512_fmadd_ps(a, b, *sum);
#elif defined(__FMA__)
    *sum = _mm256_fmadd_ps(a, b, *sum);
#else
    *sum += a * b;
#endif
}

static inline lanes load(const float *from)
{
    lanes v;
    memcpy(&v, from, sizeof v);
    return v;
}

#define UNROLLED _Pragma("GCC unroll 8") for
#define INLINE static inline __attribute__((always_inline)) void

INLINE gather(const mn_planes_tile *t, const int rows, const int vectors)
{
    lanes sum[8][4];
    const float *b[4], *w = t->weights;
    UNROLLED(int j = 0; j < vectors; j++)
    {
        b[j] = t->b[j];
        UNROLLED(int i = 0; i < rows; i++) sum[i][j] = t->start[i] - (lanes){0};
    }
    for (int64_t k = 0; k < t->depth; k++, w += t->ldw) {
        const ptrdiff_t at = t->offsets[k];
        lanes x[4];
        UNROLLED(int j = 0; j < vectors; j++) x[j] = load(b[j] + at);
        UNROLLED(int i = 0; i < rows; i++)
        {
            const lanes factor = w[i] - (lanes){0};
            UNROLLED(int j = 0; j < vectors; j++) add_product(&sum[i][j], factor, x[j]);
        }
    }
    UNROLLED(int i = 0; i < rows; i++)
    UNROLLED(int j = 0; j < vectors; j++)
    memcpy(t->c + i * t->ldc + j * t->c_step, &sum[i][j], sizeof(lanes));
}

INLINE products(const mn_planes_tile *t, const int rows, const int vectors)
{
    lanes sum[8][4];
    UNROLLED(int i = 0; i < rows; i++)
    UNROLLED(int j = 0; j < vectors; j++)
    sum[i][j] = t->accumulate ? load(t->c + (i * vectors + j) * LANES) : (lanes){0};
    for (int64_t image = 0; image < t->images; image++) {
        const float *a = t->weights + image * t->depth, *b[4];
        UNROLLED(int j = 0; j < vectors; j++) b[j] = t->b[j] + image * t->b_step;
        for (int64_t k = 0; k < t->depth; k += LANES) {
            lanes x[4];
            UNROLLED(int j = 0; j < vectors; j++) x[j] = load(b[j] + k);
            UNROLLED(int i = 0; i < rows; i++)
            {
                const lanes g = load(a + k + i * t->ldw);
                UNROLLED(int j = 0; j < vectors; j++) add_product(&sum[i][j], g, x[j]);
            }
        }
    }
    UNROLLED(int i = 0; i < rows; i++)
    UNROLLED(int j = 0; j < vectors; j++)
    memcpy(t->c + (i * vectors + j) * LANES, &sum[i][j], sizeof(lanes));
}

#if defined(__AVX512F__)
#define FEW  4 /* vectors of a tile of 6 rows, */
#define MANY 8 /* rows of a tile of 3 vectors: as many sums as there are registers for */
#else
#define FEW  2
#define MANY 4
#endif

static void gather_few(const mn_planes_tile *t)
{
    gather(t, 6, FEW);
}

static void gather_many(const mn_planes_tile *t)
{
    gather(t, MANY, 3);
}

static void products_few(const mn_planes_tile *t)
{
    products(t, 6, FEW);
}

const mn_planes_kernels MN_PLANES = {
    LANES, {{6, FEW, gather_few}, {MANY, 3, gather_many}}, products_few, TRANSPOSE};

#endif
