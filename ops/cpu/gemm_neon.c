/* Register tile with NEON: 6 x 16, twenty-four accumulators of 32 registers. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_ahead.h"

#include <arm_neon.h>
#include <string.h>

#define ROWS    6
#define COLUMNS 16

/* Row after row: compilers that load many rows' values at once move sums out of registers. */
#define IN_ORDER() __asm__ volatile("" ::: "memory")
/* Loops over rows have constant bounds and are unrolled, so that the sums stay in registers. */
#define EACH_ROW(i) _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)

/* Inlined with a constant. */
static inline __attribute__((always_inline)) void run(const mn_tile *tile, bool whole)
{
    const bool goes_on = tile->accumulate && !tile->apart;
    const float *a[ROWS], *b = tile->b, *from = goes_on ? tile->c : tile->start;
    const ptrdiff_t *at = tile->offsets, *end = at + tile->depth;
    const ptrdiff_t ldc = tile->ldc, step = goes_on ? ldc : 0;
    mn_fetch next = mn_fetch_of(tile, 6);
    float *c = tile->c;
    float32x4_t s0[ROWS], s1[ROWS], s2[ROWS], s3[ROWS];
    EACH_ROW(i)
    {
        a[i] = tile->a[i];
        s0[i] = vld1q_f32(from);
        s1[i] = vld1q_f32(from + 4);
        if (whole) {
            s2[i] = vld1q_f32(from + 8);
            s3[i] = vld1q_f32(from + 12);
        }
        from += step;
        IN_ORDER();
    }
    for (; at != end; at++, b += COLUMNS) {
        mn_fetch_next(&next, b);
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4);
        const float32x4_t b2 = vld1q_f32(b + 8), b3 = vld1q_f32(b + 12);
        const ptrdiff_t k = *at;
        EACH_ROW(i)
        {
            const float x = a[i][k];
            s0[i] = vfmaq_n_f32(s0[i], b0, x);
            s1[i] = vfmaq_n_f32(s1[i], b1, x);
            if (whole) {
                s2[i] = vfmaq_n_f32(s2[i], b2, x);
                s3[i] = vfmaq_n_f32(s3[i], b3, x);
            }
            IN_ORDER();
        }
    }
    EACH_ROW(i)
    {
        if (tile->apart) {
            s0[i] = vaddq_f32(s0[i], vld1q_f32(c));
            s1[i] = vaddq_f32(s1[i], vld1q_f32(c + 4));
            if (whole) {
                s2[i] = vaddq_f32(s2[i], vld1q_f32(c + 8));
                s3[i] = vaddq_f32(s3[i], vld1q_f32(c + 12));
            }
        }
        vst1q_f32(c, s0[i]);
        vst1q_f32(c + 4, s1[i]);
        if (whole) {
            vst1q_f32(c + 8, s2[i]);
            vst1q_f32(c + 12, s3[i]);
        }
        c += ldc;
    }
}

static void narrow(const mn_tile *tile)
{
    run(tile, false);
}

static void wide(const mn_tile *tile)
{
    run(tile, true);
}

/* Four rows of four become four columns of four. */
static inline void transpose4(const float *const *rows, int64_t at, float *dst)
{
    const float32x4_t r0 = vld1q_f32(rows[0] + at), r1 = vld1q_f32(rows[1] + at);
    const float32x4_t r2 = vld1q_f32(rows[2] + at), r3 = vld1q_f32(rows[3] + at);
    const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1));
    const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3));
    const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
    const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
    vst1q_f32(dst, vreinterpretq_f32_f64(vtrn1q_f64(even01, even23)));
    vst1q_f32(dst + COLUMNS, vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23)));
    vst1q_f32(dst + 2 * COLUMNS, vreinterpretq_f32_f64(vtrn2q_f64(even01, even23)));
    vst1q_f32(dst + 3 * COLUMNS, vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23)));
}

static void transpose(const float *const *rows, int64_t n, float *dst)
{
    int64_t k = 0;
    for (; k + 4 <= n; k += 4)
        for (int j = 0; j < COLUMNS; j += 4)
            transpose4(rows + j, k, dst + k * COLUMNS + j);
    for (; k < n; k++)
        for (int j = 0; j < COLUMNS; j++)
            dst[k * COLUMNS + j] = rows[j][k];
}

static void copy(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst)
{
    if (n < COLUMNS) { /* as wide a panel as this one */
        mn_gemm_portable.copy(src, ld, n, rows, dst);
        return;
    }
    for (int64_t k = 0; k < rows; k++, src += ld, dst += COLUMNS)
        memcpy(dst, src, COLUMNS * sizeof *dst);
}

const mn_gemm_kernels mn_gemm_neon = {ROWS, COLUMNS, wide, narrow, transpose, copy};
