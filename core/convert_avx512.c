/* Conversions of rows between f32 and the other floating types with AVX-512. */
#include "core/cpu.h"
#include "core/lanes_avx512.h"

#define WIDTH 16

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
    widen(n, src, dst, mn_lanes_load_f16);
}

static void f16_from_f32(size_t n, const float *src, void *dst)
{
    narrow(n, src, dst, mn_lanes_store_f16);
}

static void bf16_to_f32(size_t n, const void *src, float *dst)
{
    widen(n, src, dst, mn_lanes_load_bf16);
}

static void bf16_from_f32(size_t n, const float *src, void *dst)
{
    narrow(n, src, dst, mn_lanes_store_bf16);
}

const mn_converter mn_converters_avx512[MN_DTYPE_COUNT] = {
    [MN_F32] = {mn_f32_copy, mn_f32_copy_from},
    [MN_F16] = {f16_to_f32, f16_from_f32},
    [MN_BF16] = {bf16_to_f32, bf16_from_f32},
};
