/* Register tile with AVX2 and FMA: 6 x 16, twelve accumulators. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_ahead.h"
#include "ops/cpu/transpose_avx2.h"

#include <immintrin.h>

#define ROWS    6
#define COLUMNS 16

/* Sums are named one by one: compilers keep arrays of them in memory. */
static void wide(const mn_tile *tile)
{
    const float *a0 = tile->a[0], *a1 = tile->a[1], *a2 = tile->a[2];
    const float *a3 = tile->a[3], *a4 = tile->a[4], *a5 = tile->a[5];
    const bool goes_on = tile->accumulate && !tile->apart;
    const float *b = tile->b, *from = goes_on ? tile->c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    const ptrdiff_t ldc = tile->ldc, step = goes_on ? ldc : 0;
    __m256 s00 = _mm256_loadu_ps(from), s01 = _mm256_loadu_ps(from + 8);
    __m256 s10 = _mm256_loadu_ps(from + step), s11 = _mm256_loadu_ps(from + step + 8);
    __m256 s20 = _mm256_loadu_ps(from + 2 * step), s21 = _mm256_loadu_ps(from + 2 * step + 8);
    __m256 s30 = _mm256_loadu_ps(from + 3 * step), s31 = _mm256_loadu_ps(from + 3 * step + 8);
    __m256 s40 = _mm256_loadu_ps(from + 4 * step), s41 = _mm256_loadu_ps(from + 4 * step + 8);
    __m256 s50 = _mm256_loadu_ps(from + 5 * step), s51 = _mm256_loadu_ps(from + 5 * step + 8);
    mn_fetch next = mn_fetch_of(tile, 6);
    for (; at != end; at++, b += COLUMNS) {
        mn_fetch_next(&next, b);
        const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        __m256 x = _mm256_broadcast_ss(a0 + *at), y = _mm256_broadcast_ss(a1 + *at);
        s00 = _mm256_fmadd_ps(x, b0, s00);
        s01 = _mm256_fmadd_ps(x, b1, s01);
        s10 = _mm256_fmadd_ps(y, b0, s10);
        s11 = _mm256_fmadd_ps(y, b1, s11);
        x = _mm256_broadcast_ss(a2 + *at), y = _mm256_broadcast_ss(a3 + *at);
        s20 = _mm256_fmadd_ps(x, b0, s20);
        s21 = _mm256_fmadd_ps(x, b1, s21);
        s30 = _mm256_fmadd_ps(y, b0, s30);
        s31 = _mm256_fmadd_ps(y, b1, s31);
        x = _mm256_broadcast_ss(a4 + *at), y = _mm256_broadcast_ss(a5 + *at);
        s40 = _mm256_fmadd_ps(x, b0, s40);
        s41 = _mm256_fmadd_ps(x, b1, s41);
        s50 = _mm256_fmadd_ps(y, b0, s50);
        s51 = _mm256_fmadd_ps(y, b1, s51);
    }
    __m256 sums[ROWS][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}, {s40, s41}, {s50, s51}};
    for (int i = 0; i < ROWS && tile->apart; i++)
        for (int j = 0; j < 2; j++)
            sums[i][j] = _mm256_add_ps(sums[i][j], _mm256_loadu_ps(tile->c + i * ldc + 8 * j));
    for (int i = 0; i < ROWS; i++) {
        _mm256_storeu_ps(tile->c + i * ldc, sums[i][0]);
        _mm256_storeu_ps(tile->c + i * ldc + 8, sums[i][1]);
    }
}

static void narrow(const mn_tile *tile)
{
    const float *a0 = tile->a[0], *a1 = tile->a[1], *a2 = tile->a[2];
    const float *a3 = tile->a[3], *a4 = tile->a[4], *a5 = tile->a[5];
    const float *b = tile->b, *from = tile->accumulate ? tile->c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    const ptrdiff_t ldc = tile->ldc, step = tile->accumulate ? ldc : 0;
    __m256 s0 = _mm256_loadu_ps(from), s1 = _mm256_loadu_ps(from + step);
    __m256 s2 = _mm256_loadu_ps(from + 2 * step), s3 = _mm256_loadu_ps(from + 3 * step);
    __m256 s4 = _mm256_loadu_ps(from + 4 * step), s5 = _mm256_loadu_ps(from + 5 * step);
    for (; at != end; at++, b += COLUMNS) {
        const __m256 b0 = _mm256_loadu_ps(b);
        s0 = _mm256_fmadd_ps(_mm256_broadcast_ss(a0 + *at), b0, s0);
        s1 = _mm256_fmadd_ps(_mm256_broadcast_ss(a1 + *at), b0, s1);
        s2 = _mm256_fmadd_ps(_mm256_broadcast_ss(a2 + *at), b0, s2);
        s3 = _mm256_fmadd_ps(_mm256_broadcast_ss(a3 + *at), b0, s3);
        s4 = _mm256_fmadd_ps(_mm256_broadcast_ss(a4 + *at), b0, s4);
        s5 = _mm256_fmadd_ps(_mm256_broadcast_ss(a5 + *at), b0, s5);
    }
    const __m256 sums[ROWS] = {s0, s1, s2, s3, s4, s5};
    for (int i = 0; i < ROWS; i++)
        _mm256_storeu_ps(tile->c + i * ldc, sums[i]);
}

static inline void transpose8(const float *const *rows, int64_t at, int columns, float *dst)
{
    __m256 a[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(rows[i] + at);
    mn_transpose8(a);
    for (int i = 0; i < 8; i++)
        _mm256_storeu_ps(dst + i * columns, a[i]);
}

void mn_transpose_avx2(const float *const *rows, int columns, int64_t n, float *dst)
{
    int64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int j = 0; j < columns; j += 8)
            transpose8(rows + j, k, columns, dst + k * columns + j);
    for (; k < n; k++)
        for (int j = 0; j < columns; j++)
            dst[k * columns + j] = rows[j][k];
}

static void transpose(const float *const *rows, int64_t n, float *dst)
{
    mn_transpose_avx2(rows, COLUMNS, n, dst);
}

static void copy_whole(const float *src, int64_t ld, int64_t rows, float *dst)
{
    for (int64_t k = 0; k < rows; k++, src += ld, dst += COLUMNS) {
        _mm256_storeu_ps(dst, _mm256_loadu_ps(src));
        _mm256_storeu_ps(dst + 8, _mm256_loadu_ps(src + 8));
    }
}

static void copy(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    if (n == COLUMNS) {
        copy_whole(src, ld, rows, dst);
        return;
    }
    /* Masked loads touch nothing beyond the n values. */
    const __m256i count = _mm256_set1_epi32((int)n),
                  lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i low = _mm256_cmpgt_epi32(count, lane);
    const __m256i high = _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
    for (int64_t k = 0; k < rows; k++, src += ld, dst += COLUMNS) {
        _mm256_storeu_ps(dst, _mm256_maskload_ps(src, low));
        _mm256_storeu_ps(dst + 8, n > 8 ? _mm256_maskload_ps(src + 8, high) : _mm256_setzero_ps());
    }
}

const mn_gemm_kernels mn_gemm_avx2 = {ROWS, COLUMNS, wide, narrow, transpose, copy};
