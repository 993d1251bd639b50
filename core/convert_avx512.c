/* Conversions of rows between f32 and the other floating types with AVX-512, bit for bit those of
 * convert.c. The processor's own conversion to bf16 takes subnormals for zero and is not used. */
#include "core/cpu.h"

#include <immintrin.h>

#define WIDTH 16

static inline __m512 load_f16(__m256i half)
{
    return _mm512_cvtph_ps(half);
}

static inline __m256i store_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m512 load_bf16(__m256i half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline __m256i store_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), top = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40)));
}

static inline __mmask16 first(size_t n)
{
    return (__mmask16)((1U << n) - 1);
}

/* Inlined with the loads and stores, which are constants. Masks are for the last elements alone:
 * what a masked store wrote, the next load has to wait for. */
static inline __attribute__((always_inline)) void widen(size_t n, const uint16_t *src, float *dst,
                                                        __m512 (*load)(__m256i half))
{
    for (; n >= WIDTH; n -= WIDTH, src += WIDTH, dst += WIDTH)
        _mm512_storeu_ps(dst, load(_mm256_loadu_si256((const __m256i *)(const void *)src)));
    if (n > 0)
        _mm512_mask_storeu_ps(dst, first(n), load(_mm256_maskz_loadu_epi16(first(n), src)));
}

static inline __attribute__((always_inline)) void narrow(size_t n, const float *src, uint16_t *dst,
                                                         __m256i (*store)(__m512 x))
{
    for (; n >= WIDTH; n -= WIDTH, src += WIDTH, dst += WIDTH)
        _mm256_storeu_si256((__m256i *)(void *)dst, store(_mm512_loadu_ps(src)));
    if (n > 0)
        _mm256_mask_storeu_epi16(dst, first(n), store(_mm512_maskz_loadu_ps(first(n), src)));
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

const mn_converter mn_converters_avx512[MN_DTYPE_COUNT] = {
    [MN_F32] = {mn_f32_copy, mn_f32_copy_from},
    [MN_F16] = {f16_to_f32, f16_from_f32},
    [MN_BF16] = {bf16_to_f32, bf16_from_f32},
};
