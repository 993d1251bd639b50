/* Normalisation of rows with AVX-512, one loop for what bodies_norm.h does in several: 16 bit is
 * widened, worked on and narrowed in registers. The same bits. */
#include "core/lanes_avx512.h"
#include "ops/cpu/bodies_moments.h"
#include "ops/cpu/body_table.h"

#define WIDTH  16
#define INLINE static inline __attribute__((always_inline))

typedef __m512 (*load_fn)(const void *x, size_t i, __mmask16 k);
typedef void (*store_fn)(void *y, size_t i, __mmask16 k, __m512 x);
typedef __m512 (*round_fn)(__m512 x);

/* How elements of a dtype are read and written. */
typedef struct format {
    load_fn load;
    store_fn store;
    round_fn round;
} format;

/* Lanes of elements from i on. */
INLINE __mmask16 lanes_at(size_t n, size_t i)
{
    return n - i >= WIDTH ? (__mmask16)0xFFFF : (__mmask16)((1U << (n - i)) - 1);
}

INLINE __m512 load_f32(const void *x, size_t i, __mmask16 k)
{
    return _mm512_maskz_loadu_ps(k, (const float *)x + i);
}

INLINE __m512 load_f16(const void *x, size_t i, __mmask16 k)
{
    return mn_lanes_load_f16(_mm256_maskz_loadu_epi16(k, (const uint16_t *)x + i));
}

INLINE __m512 load_bf16(const void *x, size_t i, __mmask16 k)
{
    return mn_lanes_load_bf16(_mm256_maskz_loadu_epi16(k, (const uint16_t *)x + i));
}

INLINE void store_f32(void *y, size_t i, __mmask16 k, __m512 x)
{
    _mm512_mask_storeu_ps((float *)y + i, k, x);
}

INLINE void store_f16(void *y, size_t i, __mmask16 k, __m512 x)
{
    _mm256_mask_storeu_epi16((uint16_t *)y + i, k, mn_lanes_store_f16(x));
}

INLINE void store_bf16(void *y, size_t i, __mmask16 k, __m512 x)
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

INLINE __m512 table(const float *values, size_t i, __mmask16 k)
{
    return _mm512_maskz_loadu_ps(k, values + i);
}

/* sum += x. Whole vectors, as the next row's load would have to wait for a masked store: lanes
 * beyond the row get zeros. */
INLINE void accumulate(float *sum, size_t i, __m512 x)
{
    _mm512_storeu_ps(sum + i, _mm512_add_ps(_mm512_loadu_ps(sum + i), x));
}

/* x where it is above the limit or NaN, else 0. */
INLINE __m512 above(__m512 y, __m512 limit, __m512 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, limit, _CMP_NLE_UQ), x);
}

/* g through ReLU after the normalisation. */
INLINE __m512 through_relu(const mn_norm_tables *t, size_t i, __mmask16 k, __m512 g, __m512 centred)
{
    const __m512 scaled = _mm512_mul_ps(centred, table(t->slope, i, k));
    return above(_mm512_add_ps(scaled, table(t->bias, i, k)), _mm512_set1_ps(t->limit), g);
}

INLINE void add_gradients(const format f, const mn_norm_row *r, const bool residual,
                          const bool relu, float *sum, float *product)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 g = f.load(r->g, i, k), x = f.load(r->x, i, k);
        const __m512 centred = _mm512_sub_ps(x, table(t->mean, i, k));
        if (residual) {
            g = above(f.load(r->other, i, k), _mm512_setzero_ps(), g);
            f.store(r->y, i, k, g);
        }
        if (relu)
            g = through_relu(t, i, k, g, centred);
        accumulate(sum, i, g);
        accumulate(product, i, _mm512_mul_ps(g, _mm512_mul_ps(centred, table(t->scale, i, k))));
    }
}

INLINE void forward(const format f, const mn_norm_row *r, const bool residual)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 y = _mm512_sub_ps(f.load(r->x, i, k), table(t->mean, i, k));
        y = _mm512_add_ps(_mm512_mul_ps(y, table(t->scale, i, k)), table(t->shift, i, k));
        if (residual)
            y = _mm512_add_ps(f.round(y), f.load(r->other, i, k));
        if (r->relu)
            y = above(y, _mm512_setzero_ps(), y);
        f.store(r->y, i, k, y);
    }
}

INLINE void backward(const format f, const mn_norm_row *r, const bool relu)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 g = f.load(r->g, i, k), x = f.load(r->x, i, k);
        const __m512 centred = _mm512_sub_ps(x, table(t->mean, i, k));
        if (relu)
            g = through_relu(t, i, k, g, centred);
        g = _mm512_sub_ps(g, table(t->shift, i, k));
        g = _mm512_sub_ps(g, _mm512_mul_ps(centred, table(t->gradient, i, k)));
        f.store(r->y, i, k, _mm512_mul_ps(table(t->scale, i, k), g));
    }
}

INLINE void add(const format f, const mn_norm_row *r, float *first, float *second)
{
    if (r->other)
        add_gradients(f, r, true, false, first, second);
    else if (r->relu)
        add_gradients(f, r, false, true, first, second);
    else
        add_gradients(f, r, false, false, first, second);
}

INLINE void apply(const format f, const mn_norm_row *r)
{
    if (r->g && r->relu)
        backward(f, r, true);
    else if (r->g)
        backward(f, r, false);
    else if (r->other)
        forward(f, r, true);
    else
        forward(f, r, false);
}

static void add_f32(const mn_norm_row *r, float *first, float *second)
{
    add((format){load_f32, store_f32, round_f32}, r, first, second);
}

static void apply_f32(const mn_norm_row *r)
{
    apply((format){load_f32, store_f32, round_f32}, r);
}

static void add_f16(const mn_norm_row *r, float *first, float *second)
{
    add((format){load_f16, store_f16, round_f16}, r, first, second);
}

static void apply_f16(const mn_norm_row *r)
{
    apply((format){load_f16, store_f16, round_f16}, r);
}

static void add_bf16(const mn_norm_row *r, float *first, float *second)
{
    add((format){load_bf16, store_bf16, round_bf16}, r, first, second);
}

static void apply_bf16(const mn_norm_row *r)
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
