/* Register tile in portable C, and the choice of a table. The loops over columns have constant
 * bounds, so that compilers vectorize them. */
#include "ops/cpu/gemm.h"

#include <string.h>

#define ROWS    6
#define COLUMNS 16

/* Two rows of the tile in steps of eight columns: what 16 registers of four hold. */
static void strip(const mn_tile *tile, int row, int column, float out[ROWS][COLUMNS])
{
    const float *a0 = tile->a[row], *a1 = tile->a[row + 1], *b = tile->b + column;
    const float *c0 = tile->c + row * tile->ldc + column, *c1 = c0 + tile->ldc;
    float sum0[8], sum1[8];
    const bool goes_on = tile->accumulate && !tile->apart;
    memcpy(sum0, goes_on ? c0 : tile->start + column, sizeof sum0);
    memcpy(sum1, goes_on ? c1 : tile->start + column, sizeof sum1);
    for (int64_t k = 0; k < tile->depth; k++, b += COLUMNS) {
        const float x0 = a0[tile->offsets[k]], x1 = a1[tile->offsets[k]];
        for (int j = 0; j < 8; j++) {
            sum0[j] += x0 * b[j];
            sum1[j] += x1 * b[j];
        }
    }
    for (int j = 0; j < 8 && tile->apart; j++) {
        sum0[j] += c0[j];
        sum1[j] += c1[j];
    }
    memcpy(out[row] + column, sum0, sizeof sum0);
    memcpy(out[row + 1] + column, sum1, sizeof sum1);
}

/* Stores come last, row by row, as mn_tile promises. */
static void run(const mn_tile *tile, int columns)
{
    float out[ROWS][COLUMNS];
    for (int row = 0; row < ROWS; row += 2)
        for (int column = 0; column < columns; column += 8)
            strip(tile, row, column, out);
    for (int row = 0; row < ROWS; row++)
        memcpy(tile->c + row * tile->ldc, out[row], (size_t)columns * sizeof(float));
}

static void narrow(const mn_tile *tile)
{
    run(tile, COLUMNS / 2);
}

static void wide(const mn_tile *tile)
{
    run(tile, COLUMNS);
}

static void transpose(const float *const *rows, int64_t n, float *dst)
{
    for (int64_t k = 0; k < n; k++)
        for (int j = 0; j < COLUMNS; j++)
            dst[k * COLUMNS + j] = rows[j][k];
}

static void copy(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    for (int64_t k = 0; k < rows; k++, src += ld, dst += COLUMNS) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        memset(dst + n, 0, (size_t)(COLUMNS - n) * sizeof *dst);
    }
}

const mn_gemm_kernels mn_gemm_portable = {ROWS, COLUMNS, wide, narrow, transpose, copy};

const mn_gemm_kernels *mn_gemm_kernels_for(const mn_call *call, int64_t columns)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512 && columns > mn_gemm_avx2.columns / 2)
        return &mn_gemm_avx512[columns > 32 ? 2 : columns > 16];
    if (call->cpu->kernels >= MN_KERNELS_AVX2)
        return &mn_gemm_avx2;
#elif defined(MINIM_NEON)
    if (call->cpu->kernels == MN_KERNELS_NEON)
        return &mn_gemm_neon;
#else
    (void)call;
    (void)columns;
#endif
    return &mn_gemm_portable;
}

const mn_gemm_kernels *mn_gemm_kernels_filled(const mn_call *call, int64_t columns)
{
    return mn_gemm_kernels_for(call, columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16);
}

void mn_tile_run(const mn_gemm_kernels *kernels, const mn_tile *tile, int64_t columns)
{
    if (columns <= kernels->columns / 2)
        kernels->narrow(tile);
    else
        kernels->wide(tile);
}
