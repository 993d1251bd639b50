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

/* Up to eight rows of up to eight; masks touch nothing beyond them. */
static void transpose8(int64_t rows, int64_t columns, const float *src, int64_t src_ld, float *dst,
                       int64_t dst_ld)
{
    const __m256i in = mask_of(columns), out = mask_of(rows);
    __m256 a[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_maskload_ps(src + mn_min(i, rows - 1) * src_ld, in);
    mn_transpose8(a);
    for (int j = 0; j < 8 && j < columns; j++, dst += dst_ld)
        if (rows >= 8)
            _mm256_storeu_ps(dst, a[j]);
        else
            _mm256_maskstore_ps(dst, out, a[j]);
}

void mn_planes_transpose_avx2(int64_t rows, int64_t columns, const float *src, int64_t src_ld,
                              float *dst, int64_t dst_ld)
{
    for (int64_t i = 0; i < rows; i += 8)
        for (int64_t j = 0; j < columns; j += 8)
            transpose8(rows - i, columns - j, src + i * src_ld + j, src_ld, dst + j * dst_ld + i,
                       dst_ld);
}
