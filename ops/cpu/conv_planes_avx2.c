/* Lanes of pixels with AVX2. */
#define MN_PLANES mn_planes_avx2
#define TRANSPOSE mn_planes_transpose_avx2
#include "ops/cpu/conv_planes_tile.h"
#include "ops/cpu/transpose_avx2.h"

/* n lanes of eight. */
static inline __m256i mask_of(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)mn_min(n, 8)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Up to eight rows of up to eight; masks touch nothing beyond them but for the zeros. */
static void transpose8(int64_t rows, int64_t columns, const float *src, int64_t src_ld, float *dst,
                       int64_t dst_ld, bool dense)
{
    const __m256i in = mask_of(columns);
    __m256 a[8];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) a[i] =
        i < rows ? _mm256_maskload_ps(src + i * src_ld, in) : _mm256_setzero_ps();
    mn_transpose8(a);
    /* A store through a mask takes many cycles on some processors. */
    _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++)
    {
        if (j >= columns)
            continue;
        if (!dense || (columns - j) * rows >= 8)
            _mm256_storeu_ps(dst + j * dst_ld, a[j]);
        else
            _mm256_maskstore_ps(dst + j * dst_ld, mask_of(rows), a[j]);
    }
}

void mn_planes_transpose_avx2(int64_t rows, int64_t columns, const float *src, int64_t src_ld,
                              float *dst, int64_t dst_ld)
{
    for (int64_t i = 0; i < rows; i += 8)
        for (int64_t j = 0; j < columns; j += 8)
            transpose8(rows - i, columns - j, src + i * src_ld + j, src_ld, dst + j * dst_ld + i,
                       dst_ld, dst_ld == rows);
}
