/* Conversions of rows between f32 and the other floating types with NEON, bit for bit those of
 * convert.c. The last n % 4 elements go through a padded copy. */
#include "core/cpu.h"

#include <arm_neon.h>
#include <string.h>

#define WIDTH 4

/* The instructions for f16 obey the mode: they round as it says, may make every NaN the default one
 * and may mean another format of halves. Where any of its bits is set, portable code is right. */
static inline bool usual_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode == 0;
}

static inline float32x4_t load_f16(const uint16_t *src)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src)));
}

static inline void store_f16(uint16_t *dst, float32x4_t x)
{
    vst1_u16(dst, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

static inline float32x4_t load_bf16(const uint16_t *src)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(src), 16));
}

static inline void store_bf16(uint16_t *dst, float32x4_t x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint16x4_t top = vshrn_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint16x4_t rounded = vaddhn_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF));
    const uint16x4_t is_nan = vmovn_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7F800000)));
    vst1_u16(dst, vbsl_u16(is_nan, vorr_u16(top, vdup_n_u16(0x40)), rounded));
}

/* Inlined with the loads and stores, which are constants. */
static inline __attribute__((always_inline)) void widen(size_t n, const uint16_t *src, float *dst,
                                                        float32x4_t (*load)(const uint16_t *src))
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vst1q_f32(dst + i, load(src + i));
    if (i == n)
        return;
    uint16_t tail[WIDTH] = {0};
    float wide[WIDTH];
    memcpy(tail, src + i, (n - i) * sizeof *tail);
    vst1q_f32(wide, load(tail));
    memcpy(dst + i, wide, (n - i) * sizeof *wide);
}

static inline __attribute__((always_inline)) void
narrow(size_t n, const float *src, uint16_t *dst, void (*store)(uint16_t *dst, float32x4_t x))
{
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        store(dst + i, vld1q_f32(src + i));
    if (i == n)
        return;
    float wide[WIDTH] = {0};
    uint16_t tail[WIDTH];
    memcpy(wide, src + i, (n - i) * sizeof *wide);
    store(tail, vld1q_f32(wide));
    memcpy(dst + i, tail, (n - i) * sizeof *tail);
}

static void f16_to_f32(size_t n, const void *src, float *dst)
{
    if (usual_mode())
        widen(n, src, dst, load_f16);
    else
        mn_converters_portable[MN_F16].to_f32(n, src, dst);
}

static void f16_from_f32(size_t n, const float *src, void *dst)
{
    if (usual_mode())
        narrow(n, src, dst, store_f16);
    else
        mn_converters_portable[MN_F16].from_f32(n, src, dst);
}

static void bf16_to_f32(size_t n, const void *src, float *dst)
{
    widen(n, src, dst, load_bf16);
}

static void bf16_from_f32(size_t n, const float *src, void *dst)
{
    narrow(n, src, dst, store_bf16);
}

const mn_converter mn_converters_neon[MN_DTYPE_COUNT] = {
    [MN_F32] = {mn_f32_copy, mn_f32_copy_from},
    [MN_F16] = {f16_to_f32, f16_from_f32},
    [MN_BF16] = {bf16_to_f32, bf16_from_f32},
};
