/* Register tiles with AVX-512: 6 x 64, 8 x 32 and 16 x 16. Wide and low ones need the fewest
 * broadcasts, each of which is a load, per multiply-add. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_ahead.h"

#include <immintrin.h>

#define INLINE      __attribute__((always_inline)) static inline
#define MAX_ROWS    16
#define MAX_VECTORS 4

/* Row after row: compilers that load many rows' values at once move sums out of registers. */
#define IN_ORDER() __asm__ volatile("" ::: "memory")
/* These loops' bounds are constant once `run` is inlined; unrolled, sums stay in registers. */
#define EACH_ROW(i)    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)
#define EACH_VECTOR(j) _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)

/* Rows from `first` on, and the first `vectors` of a panel's registers. */
INLINE void run(const mn_tile *tile, int first, int rows, int vectors, int columns)
{
    const bool goes_on = tile->accumulate && !tile->apart;
    const ptrdiff_t ldc = tile->ldc, step = goes_on ? ldc : 0;
    float *c = tile->c + first * ldc;
    const float *a[MAX_ROWS], *b = tile->b, *from = goes_on ? c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    mn_fetch next = mn_fetch_of(tile, columns == 16 ? 6 : columns == 32 ? 7 : 8);
    __m512 sum[MAX_ROWS][MAX_VECTORS];
    EACH_ROW(i)
    {
        a[i] = tile->a[first + i];
        EACH_VECTOR(j)
        sum[i][j] = _mm512_loadu_ps(from + i * step + 16 * j);
    }
    for (; at != end; at++, b += columns) {
        __m512 of_b[MAX_VECTORS];
        const ptrdiff_t k = *at;
        mn_fetch_next(&next, b);
        EACH_VECTOR(j)
        of_b[j] = _mm512_loadu_ps(b + 16 * j);
        EACH_ROW(i)
        {
            const __m512 x = _mm512_set1_ps(a[i][k]);
            EACH_VECTOR(j)
            sum[i][j] = _mm512_fmadd_ps(x, of_b[j], sum[i][j]);
            IN_ORDER();
        }
    }
    if (tile->apart)
        EACH_ROW(i)
    EACH_VECTOR(j)
    sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_loadu_ps(c + i * ldc + 16 * j));
    EACH_ROW(i)
    EACH_VECTOR(j)
    _mm512_storeu_ps(c + i * ldc + 16 * j, sum[i][j]);
}

static void wide64(const mn_tile *tile)
{
    run(tile, 0, 6, 4, 64);
}

static void narrow64(const mn_tile *tile)
{
    run(tile, 0, 6, 2, 64);
}

static void wide32(const mn_tile *tile)
{
    run(tile, 0, 8, 2, 32);
}

/* Sixteen rows' addresses do not fit the registers: eight at a time are taken. These two need
 * fewer: rows that are one float apart; and rows that are equally far apart, with depths (a
 * multiple of four) side by side. */
INLINE void adjacent16(const mn_tile *tile, __m512 sum[16])
{
    const int rows = 16;
    const float *b = tile->b;
    mn_fetch next = mn_fetch_of(tile, 6);
    for (int64_t k = 0; k < tile->depth; k++, b += 16) {
        const float *a = tile->a[0] + tile->offsets[k];
        const __m512 of_b = _mm512_loadu_ps(b);
        mn_fetch_next(&next, b);
        EACH_ROW(i)
        {
            sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(a[i]), of_b, sum[i]);
            IN_ORDER();
        }
    }
}

INLINE void strided16(const mn_tile *tile, __m512 sum[16])
{
    const int rows = 16;
    const ptrdiff_t step = tile->a[1] - tile->a[0], step3 = 3 * step;
    const float *b = tile->b, *end = b + 16 * tile->depth;
    const float *a[4] = {tile->a[0], tile->a[4], tile->a[8], tile->a[12]};
    mn_fetch next = mn_fetch_of(tile, 6);
    for (; b != end; b += 64) {
        for (int u = 0; u < 4; u++)
            mn_fetch_next(&next, b + 16 * u);
        _Pragma("GCC unroll 4") for (int u = 0; u < 4; u++)
        {
            const __m512 of_b = _mm512_loadu_ps(b + 16 * u);
            EACH_ROW(i)
            {
                const float x = a[i / 4][(i % 4 == 3 ? step3 : i % 4 * step) + u];
                sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(x), of_b, sum[i]);
                IN_ORDER();
            }
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) a[i] += 4;
    }
}

static bool even16(const mn_tile *tile, ptrdiff_t step)
{
    const int rows = 16;
    bool even = true;
    EACH_ROW(i)
    even &= tile->a[i] == tile->a[0] + i * step;
    return even;
}

/* GCC would spill addresses to vector registers, and fetch them from there through a port of the
 * multiply-adds. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((target("tune=skylake-avx512")))
#endif
static void
wide16(const mn_tile *tile)
{
    const int rows = 16;
    const ptrdiff_t step = tile->row_step ? tile->row_step : tile->a[1] - tile->a[0];
    if ((tile->row_step == 0 && !even16(tile, step)) ||
        (step != 1 && !(tile->contiguous && tile->depth % 4 == 0))) {
        run(tile, 0, 8, 1, 16);
        run(tile, 8, 8, 1, 16);
        return;
    }
    const bool goes_on = tile->accumulate && !tile->apart;
    const float *from = goes_on ? tile->c : tile->start;
    const ptrdiff_t next = goes_on ? tile->ldc : 0;
    __m512 sum[16];
    EACH_ROW(i)
    {
        sum[i] = _mm512_loadu_ps(from);
        from += next;
        IN_ORDER();
    }
    if (step == 1)
        adjacent16(tile, sum);
    else
        strided16(tile, sum);
    if (tile->apart)
        EACH_ROW(i)
    sum[i] = _mm512_add_ps(sum[i], _mm512_loadu_ps(tile->c + i * tile->ldc));
    EACH_ROW(i)
    _mm512_storeu_ps(tile->c + i * tile->ldc, sum[i]);
}

static void transpose64(const float *const *rows, int64_t n, float *dst)
{
    mn_transpose_avx2(rows, 64, n, dst);
}

static void transpose32(const float *const *rows, int64_t n, float *dst)
{
    mn_transpose_avx2(rows, 32, n, dst);
}

static void transpose16(const float *const *rows, int64_t n, float *dst)
{
    mn_transpose_avx2(rows, 16, n, dst);
}

/* Masked loads touch nothing beyond the n values. */
static void copy(const float *src, int64_t ld, int64_t n, int64_t rows, int columns, float *dst)
{
    const uint64_t mask = n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
    for (int64_t k = 0; k < rows; k++, src += ld, dst += columns)
        for (int j = 0; j < columns; j += 16)
            _mm512_storeu_ps(dst + j, _mm512_maskz_loadu_ps((__mmask16)(mask >> j), src + j));
}

static void copy64(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    copy(src, ld, n, rows, 64, dst);
}

static void copy32(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    copy(src, ld, n, rows, 32, dst);
}

static void copy16(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    copy(src, ld, n, rows, 16, dst);
}

const mn_gemm_kernels mn_gemm_avx512[] = {{16, 16, wide16, wide16, transpose16, copy16},
                                          {8, 32, wide32, wide32, transpose32, copy32},
                                          {6, 64, wide64, narrow64, transpose64, copy64}};
