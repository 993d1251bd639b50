/* Normalisation of rows with AVX-512, one loop for what bodies_norm.h does in several: 16 bit is
 * widened, worked on and narrowed in registers. The same bits. */
#include "core/lanes_avx512.h"
#include "ops/cpu/bodies_moments.h"
#include "ops/cpu/body_table.h"

#define WIDTH 16
#define MOST  4 /* registers of lanes at once: their factors and sums fill 24 */
/* The bound is constant once all is inlined; unrolled, sums and factors stay in registers. */
#define EACH(j) _Pragma("GCC unroll 4") for (int j = 0; j < count; j++)
#define INLINE  static inline __attribute__((always_inline))

typedef __m512 (*load_fn)(const void *x, int64_t i, __mmask16 k);
typedef void (*store_fn)(void *y, int64_t i, __mmask16 k, __m512 x);
typedef __m512 (*round_fn)(__m512 x);

/* How elements of a dtype are read and written. */
typedef struct format {
    load_fn load;
    store_fn store;
    round_fn round;
} format;

/* Lanes of elements from i on. */
INLINE __mmask16 lanes_at(int64_t n, int64_t i)
{
    return n - i >= WIDTH ? (__mmask16)0xFFFF : (__mmask16)((1U << (n - i)) - 1);
}

INLINE __m512 load_f32(const void *x, int64_t i, __mmask16 k)
{
    return _mm512_maskz_loadu_ps(k, (const float *)x + i);
}

INLINE __m512 load_f16(const void *x, int64_t i, __mmask16 k)
{
    return mn_lanes_load_f16(_mm256_maskz_loadu_epi16(k, (const uint16_t *)x + i));
}

INLINE __m512 load_bf16(const void *x, int64_t i, __mmask16 k)
{
    return mn_lanes_load_bf16(_mm256_maskz_loadu_epi16(k, (const uint16_t *)x + i));
}

INLINE void store_f32(void *y, int64_t i, __mmask16 k, __m512 x)
{
    _mm512_mask_storeu_ps((float *)y + i, k, x);
}

INLINE void store_f16(void *y, int64_t i, __mmask16 k, __m512 x)
{
    _mm256_mask_storeu_epi16((uint16_t *)y + i, k, mn_lanes_store_f16(x));
}

INLINE void store_bf16(void *y, int64_t i, __mmask16 k, __m512 x)
{
    _mm256_mask_storeu_epi16((uint16_t *)y + i, k, mn_lanes_store_bf16(x));
}

INLINE __m512 round_f32(__m512 x)
{
    return x;
}

INLINE __m512 round_f16(__m512 x)
{
    return mn_lanes_load_f16(mn_lanes_store_f16(x));
}

INLINE __m512 round_bf16(__m512 x)
{
    return mn_lanes_load_bf16(mn_lanes_store_bf16(x));
}

/* Factors of sixteen lanes, which stay in registers while rows go by. */
typedef struct factors {
    __m512 mean, scale, shift, gradient, slope, bias;
} factors;

INLINE __m512 table(const float *values, int64_t i, __mmask16 k)
{
    return _mm512_maskz_loadu_ps(k, values + i);
}

INLINE factors factors_at(const mn_norm_tables *t, int64_t i, __mmask16 k)
{
    return (factors){.mean = table(t->mean, i, k),
                     .scale = table(t->scale, i, k),
                     .shift = table(t->shift, i, k),
                     .gradient = table(t->gradient, i, k),
                     .slope = table(t->slope, i, k),
                     .bias = table(t->bias, i, k)};
}

/* x where y is above the limit or NaN, else 0; all of x in lanes that pass anyway. */
INLINE __m512 above(__m512 y, __m512 limit, __mmask16 pass, __m512 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, limit, _CMP_NLE_UQ) | pass, x);
}

/* g through ReLU after the normalisation. */
INLINE __m512 through_relu(const factors *t, float limit, __mmask16 pass, __m512 g, __m512 centred)
{
    const __m512 scaled = _mm512_mul_ps(centred, t->slope);
    return above(_mm512_add_ps(scaled, t->bias), _mm512_set1_ps(limit), pass, g);
}

/* Without ReLU: its loops serve then as well, and wait for memory anyway. */
INLINE __mmask16 passes(const mn_norm_rows *r)
{
    return r->relu ? 0 : 0xFFFF;
}

/* Wide rows one by one: several at once are streams that processors do not see coming, and cost
 * half as much again where they come from memory. */
INLINE int64_t rows_at_once(const mn_norm_rows *r)
{
    return r->n > MOST * WIDTH ? 1 : r->rows;
}

/* Some registers of lanes, from `at` on, or a part of one. */
INLINE void add_lanes(const format f, const mn_norm_rows *of, const bool residual, const int count,
                      int64_t begin, int64_t at, __mmask16 k, float *first, float *second)
{
    const mn_norm_rows r = *of; /* which stores do not change */
    const int64_t end = begin + rows_at_once(of);
    const __mmask16 pass = passes(of);
    __m512 sum[MOST], product[MOST];
    factors t[MOST];
    EACH(j)
    {
        t[j] = factors_at(&r.tables, at + j * WIDTH, k);
        sum[j] = _mm512_loadu_ps(first + at + j * WIDTH);
        product[j] = _mm512_loadu_ps(second + at + j * WIDTH);
    }
    for (int64_t row = begin; row < end; row++)
        EACH(j)
        {
            const int64_t i = row * r.ld + at + j * WIDTH;
            __m512 g = f.load(r.g, i, k);
            const __m512 centred = _mm512_sub_ps(f.load(r.x, i, k), t[j].mean);
            if (residual) {
                g = above(f.load(r.other, i, k), _mm512_setzero_ps(), 0, g);
                f.store(r.y, i, k, g);
            } else
                g = through_relu(&t[j], r.tables.limit, pass, g, centred);
            sum[j] = _mm512_add_ps(sum[j], g);
            product[j] =
                _mm512_add_ps(product[j], _mm512_mul_ps(g, _mm512_mul_ps(centred, t[j].scale)));
        }
    EACH(j)
    {
        _mm512_storeu_ps(first + at + j * WIDTH, sum[j]);
        _mm512_storeu_ps(second + at + j * WIDTH, product[j]);
    }
}

/* As many lanes as fill registers. */
INLINE void add_most(const format f, const mn_norm_rows *r, const bool residual, float *first,
                     float *second)
{
    for (int64_t row = 0; row < r->rows; row += rows_at_once(r))
        for (int64_t i = 0; i + MOST * WIDTH <= r->n; i += MOST * WIDTH)
            add_lanes(f, r, residual, MOST, row, i, 0xFFFF, first, second);
}

INLINE void apply_lanes(const format f, const mn_norm_rows *of, const bool back,
                        const bool residual, const int count, int64_t begin, int64_t at,
                        __mmask16 k)
{
    const mn_norm_rows r = *of;
    const int64_t end = begin + rows_at_once(of);
    const __mmask16 pass = passes(of);
    factors t[MOST];
    EACH(j)
    t[j] = factors_at(&r.tables, at + j * WIDTH, k);
    for (int64_t row = begin; row < end; row++)
        EACH(j)
        {
            const int64_t i = row * r.ld + at + j * WIDTH;
            const __m512 centred = _mm512_sub_ps(f.load(r.x, i, k), t[j].mean);
            __m512 y;
            if (back) {
                __m512 g = f.load(r.g, i, k);
                g = through_relu(&t[j], r.tables.limit, pass, g, centred);
                g = _mm512_sub_ps(g, t[j].shift);
                g = _mm512_sub_ps(g, _mm512_mul_ps(centred, t[j].gradient));
                y = _mm512_mul_ps(t[j].scale, g);
            } else {
                y = _mm512_add_ps(_mm512_mul_ps(centred, t[j].scale), t[j].shift);
                if (residual)
                    y = _mm512_add_ps(f.round(y), f.load(r.other, i, k));
                y = above(y, _mm512_setzero_ps(), pass, y);
            }
            f.store(r.y, i, k, y);
        }
}

INLINE void apply_most(const format f, const mn_norm_rows *r, const bool back, const bool residual)
{
    for (int64_t row = 0; row < r->rows; row += rows_at_once(r))
        for (int64_t i = 0; i + MOST * WIDTH <= r->n; i += MOST * WIDTH)
            apply_lanes(f, r, back, residual, MOST, row, i, 0xFFFF);
}

INLINE void add(const format f, const mn_norm_rows *r, float *first, float *second)
{
    if (r->other)
        add_most(f, r, true, first, second);
    else
        add_most(f, r, false, first, second);
    for (int64_t i = r->n / (MOST * WIDTH) * (MOST * WIDTH); i < r->n; i += WIDTH)
        for (int64_t row = 0; row < r->rows; row += rows_at_once(r))
            add_lanes(f, r, r->other != NULL, 1, row, i, lanes_at(r->n, i), first, second);
}

INLINE void apply(const format f, const mn_norm_rows *r)
{
    if (r->g)
        apply_most(f, r, true, false);
    else if (r->other)
        apply_most(f, r, false, true);
    else
        apply_most(f, r, false, false);
    for (int64_t i = r->n / (MOST * WIDTH) * (MOST * WIDTH); i < r->n; i += WIDTH)
        for (int64_t row = 0; row < r->rows; row += rows_at_once(r))
            apply_lanes(f, r, r->g != NULL, r->other != NULL, 1, row, i, lanes_at(r->n, i));
}

static void add_f32(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_f32, store_f32, round_f32}, r, first, second);
}

static void apply_f32(const mn_norm_rows *r)
{
    apply((format){load_f32, store_f32, round_f32}, r);
}

static void add_f16(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_f16, store_f16, round_f16}, r, first, second);
}

static void apply_f16(const mn_norm_rows *r)
{
    apply((format){load_f16, store_f16, round_f16}, r);
}

static void add_bf16(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_bf16, store_bf16, round_bf16}, r, first, second);
}

static void apply_bf16(const mn_norm_rows *r)
{
    apply((format){load_bf16, store_bf16, round_bf16}, r);
}

void mn_moments_avx512(int64_t rows, int64_t n, int64_t ld, const float *x, const float *mean,
                       float *sum, float *square)
{
    body_add_moments(rows, n, ld, x, mean, sum, square);
}

const mn_norm_kernels mn_norm_avx512[MN_DTYPE_COUNT] = {
    [MN_F32] = {add_f32, apply_f32},
    [MN_F16] = {add_f16, apply_f16},
    [MN_BF16] = {add_bf16, apply_bf16},
};
