/* Conversions of rows between f32 and the other floating types with AVX2 and F16C, bit for bit
 * those of convert.c. The last n % 8 elements go through a padded copy. */
#include "core/cpu.h"

#include <immintrin.h>
#include <string.h>

#define WIDTH 8

static inline __m256 load_f16(const uint16_t *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
}

static inline void store_f16(uint16_t *dst, __m256 x)
{
    __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128((__m128i *)(void *)dst, half);
}

static inline __m256 load_bf16(const uint16_t *src)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline void store_bf16(uint16_t *dst, __m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i top = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    __m256i nan = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
    __m256i wide = _mm256_blendv_epi8(rounded, nan, is_nan);
    __m128i low = _mm256_castsi256_si128(wide);
    __m128i packed = _mm_packus_epi32(low, _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128((__m128i *)(void *)dst, packed);
}

/* Inlined with the loads and stores, which are constants. */
static inline __attribute__((always_inline)) void widen(size_t n, const uint16_t *src, float *dst,
                                                        __m256 (*load)(const uint16_t *src))
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        _mm256_storeu_ps(dst + i, load(src + i));
    if (i == n)
        return;
    uint16_t tail[WIDTH] = {0};
    float wide[WIDTH];
    memcpy(tail, src + i, (n - i) * sizeof *tail);
    _mm256_storeu_ps(wide, load(tail));
    memcpy(dst + i, wide, (n - i) * sizeof *wide);
}

static inline __attribute__((always_inline)) void narrow(size_t n, const float *src, uint16_t *dst,
                                                         void (*store)(uint16_t *dst, __m256 x))
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        store(dst + i, _mm256_loadu_ps(src + i));
    if (i == n)
        return;
    float wide[WIDTH] = {0};
    uint16_t tail[WIDTH];
    memcpy(wide, src + i, (n - i) * sizeof *wide);
    store(tail, _mm256_loadu_ps(wide));
    memcpy(dst + i, tail, (n - i) * sizeof *tail);
}

static void f16_to_f32(size_t n, const void *src, float *dst)
{
    widen(n, src, dst, load_f16);
}

static void f16_from_f32(size_t n, const float *src, void *dst)
{
    narrow(n, src, dst, store_f16);
}

static void bf16_to_f32(size_t n, const void *src, float *dst)
{
    widen(n, src, dst, load_bf16);
}

static void bf16_from_f32(size_t n, const float *src, void *dst)
{
    narrow(n, src, dst, store_bf16);
}

const mn_converter mn_converters_avx2[MN_DTYPE_COUNT] = {
    [MN_F32] = {mn_f32_copy, mn_f32_copy_from},
    [MN_F16] = {f16_to_f32, f16_from_f32},
    [MN_BF16] = {bf16_to_f32, bf16_from_f32},
};
