/* Conversions of rows between f32 and the other floating types, in portable C. */
#include "core/cpu.h"
#include "core/half.h"

void mn_f32_copy(size_t n, const void *src, float *dst)
{
    if (n > 0)
        memcpy(dst, src, n * sizeof *dst);
}

void mn_f32_copy_from(size_t n, const float *src, void *dst)
{
    mn_f32_copy(n, src, dst);
}

static void f16_to_f32(size_t n, const void *src, float *restrict dst)
{
    const uint16_t *restrict half = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = mn_f16_bits_to_f32(half[i]);
}

static void f16_from_f32(size_t n, const float *restrict src, void *dst)
{
    uint16_t *restrict half = dst;
    for (size_t i = 0; i < n; i++)
        half[i] = mn_f16_bits_from_f32(src[i]);
}

static void bf16_to_f32(size_t n, const void *src, float *restrict dst)
{
    const uint16_t *restrict half = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = mn_bf16_bits_to_f32(half[i]);
}

static void bf16_from_f32(size_t n, const float *restrict src, void *dst)
{
    uint16_t *restrict half = dst;
    for (size_t i = 0; i < n; i++)
        half[i] = mn_bf16_bits_from_f32(src[i]);
}

const mn_converter mn_converters_portable[MN_DTYPE_COUNT] = {
    [MN_F32] = {mn_f32_copy, mn_f32_copy_from},
    [MN_F16] = {f16_to_f32, f16_from_f32},
    [MN_BF16] = {bf16_to_f32, bf16_from_f32},
};

const mn_converter *mn_converters(mn_kernel_set set)
{
#if defined(MINIM_AVX2)
    if (set == MN_KERNELS_AUTO)
        set = mn_cpu_best_kernels();
    if (set == MN_KERNELS_AVX512)
        return mn_converters_avx512;
    if (set == MN_KERNELS_AVX2)
        return mn_converters_avx2;
#elif defined(MINIM_NEON)
    if (set == MN_KERNELS_AUTO || set == MN_KERNELS_NEON)
        return mn_converters_neon;
#else
    (void)set;
#endif
    return mn_converters_portable;
}
