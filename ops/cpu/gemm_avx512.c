/* Register tile with AVX-512: 12 x 32, twenty-four accumulators. */
#include "ops/cpu/gemm.h"

#include <immintrin.h>

#define ROWS    12
#define COLUMNS 32

/* Rows whose addresses are kept in registers, of which there are not enough for all. */
#define KEPT 8
/* Row after row: compilers that load many rows' values at once move sums out of registers. */
#define IN_ORDER() __asm__ volatile("" ::: "memory")
/* Loops over rows have constant bounds and are unrolled, so that the sums stay in registers. */
#define EACH_ROW(i) _Pragma("GCC unroll 12") for (int i = 0; i < ROWS; i++)

static void wide(const mn_tile *tile)
{
    const float *a[KEPT], *b = tile->b, *from = tile->accumulate ? tile->c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    const ptrdiff_t ldc = tile->ldc, step = tile->accumulate ? ldc : 0;
    __m512 low[ROWS], high[ROWS];
    EACH_ROW(i)
    {
        if (i < KEPT)
            a[i] = tile->a[i];
        low[i] = _mm512_loadu_ps(from + i * step);
        high[i] = _mm512_loadu_ps(from + i * step + 16);
    }
    for (; at != end; at++, b += COLUMNS) {
        const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        const ptrdiff_t k = *at;
        EACH_ROW(i)
        {
            const __m512 x = _mm512_set1_ps((i < KEPT ? a[i] : tile->a[i])[k]);
            low[i] = _mm512_fmadd_ps(x, b0, low[i]);
            high[i] = _mm512_fmadd_ps(x, b1, high[i]);
            IN_ORDER();
        }
    }
    EACH_ROW(i)
    {
        _mm512_storeu_ps(tile->c + i * ldc, low[i]);
        _mm512_storeu_ps(tile->c + i * ldc + 16, high[i]);
    }
}

static void narrow(const mn_tile *tile)
{
    const float *a[KEPT], *b = tile->b, *from = tile->accumulate ? tile->c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    const ptrdiff_t ldc = tile->ldc, step = tile->accumulate ? ldc : 0;
    __m512 sum[ROWS];
    EACH_ROW(i)
    {
        if (i < KEPT)
            a[i] = tile->a[i];
        sum[i] = _mm512_loadu_ps(from + i * step);
    }
    for (; at != end; at++, b += COLUMNS) {
        const __m512 b0 = _mm512_loadu_ps(b);
        const ptrdiff_t k = *at;
        EACH_ROW(i)
        {
            const __m512 x = _mm512_set1_ps((i < KEPT ? a[i] : tile->a[i])[k]);
            sum[i] = _mm512_fmadd_ps(x, b0, sum[i]);
            IN_ORDER();
        }
    }
    EACH_ROW(i)
    _mm512_storeu_ps(tile->c + i * ldc, sum[i]);
}

static void transpose(const float *const *rows, int64_t n, float *dst)
{
    mn_transpose_avx2(rows, COLUMNS, n, dst);
}

/* Masked loads touch nothing beyond the n values. */
static void copy(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    const uint32_t mask = (uint32_t)(((uint64_t)1 << n) - 1);
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> 16);
    for (int64_t k = 0; k < rows; k++, src += ld, dst += COLUMNS) {
        _mm512_storeu_ps(dst, _mm512_maskz_loadu_ps(low, src));
        _mm512_storeu_ps(dst + 16, _mm512_maskz_loadu_ps(high, src + 16));
    }
}

const mn_gemm_kernels mn_gemm_avx512 = {ROWS, COLUMNS, wide, narrow, transpose, copy};
