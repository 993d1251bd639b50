/* Sixteen elements of f16 or bf16 as f32 and back with AVX-512, bit for bit as convert.c does it.
 * The processor's own conversion to bf16 takes subnormals for zero and is not used. For files
 * compiled with its instructions. */
#ifndef MN_CORE_LANES_AVX512_H
#define MN_CORE_LANES_AVX512_H

#include <immintrin.h>

static inline __m512 mn_lanes_load_f16(__m256i half)
{
    return _mm512_cvtph_ps(half);
}

static inline __m256i mn_lanes_store_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m512 mn_lanes_load_bf16(__m256i half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Rounding carries into the upper words; the lower ones are left. */
static inline __m512i mn_lanes_carry_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    rounded = _mm512_mask_add_epi32(rounded, odd, rounded, one);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}

static inline __m512 mn_lanes_round_bf16(__m512 x)
{
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000);
    return _mm512_castsi512_ps(_mm512_and_si512(mn_lanes_carry_bf16(x), upper));
}

static inline __m256i mn_lanes_store_bf16(__m512 x)
{
    const __m512i upper = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1F001D, 0x1B0019, 0x170015,
                                           0x130011, 0xF000D, 0xB0009, 0x70005, 0x30001);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, mn_lanes_carry_bf16(x)));
}

#endif
