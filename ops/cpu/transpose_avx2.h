/* Transposition in AVX2 registers. */
#ifndef MN_OPS_CPU_TRANSPOSE_AVX2_H
#define MN_OPS_CPU_TRANSPOSE_AVX2_H

#include <immintrin.h>

/* Eight rows of eight become their columns. */
static inline void mn_transpose8(__m256 a[8])
{
    __m256 b[8], c[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 8; i += 2)
    {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    {
        c[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        c[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
        c[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        c[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        a[i] = _mm256_permute2f128_ps(c[i], c[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(c[i], c[i + 4], 0x31);
    }
}

#endif
