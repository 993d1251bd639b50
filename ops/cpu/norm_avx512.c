/* Normalisation of rows of f16 and bf16 with AVX-512: widened, worked on and narrowed in registers,
 * with the bits of bodies_norm.h. */
#include "core/lanes_avx512.h"
#include "ops/cpu/bodies_moments.h"
#include "ops/cpu/body_table.h"

#define WIDTH  16
#define INLINE static inline __attribute__((always_inline))

typedef __m512 (*load_fn)(__m256i half);
typedef __m256i (*store_fn)(__m512 x);

/* Lanes of elements from i on. */
INLINE __mmask16 lanes_at(size_t n, size_t i)
{
    return n - i >= WIDTH ? (__mmask16)0xFFFF : (__mmask16)((1U << (n - i)) - 1);
}

INLINE __m512 take(load_fn load, const uint16_t *x, size_t i, __mmask16 k)
{
    return load(_mm256_maskz_loadu_epi16(k, x + i));
}

INLINE void put(store_fn store, uint16_t *y, size_t i, __mmask16 k, __m512 x)
{
    _mm256_mask_storeu_epi16(y + i, k, store(x));
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

INLINE void add_gradients(load_fn load, store_fn store, const mn_norm_row *r, const bool residual,
                          const bool relu, float *sum, float *product)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 g = take(load, r->g, i, k), x = take(load, r->x, i, k);
        const __m512 centred = _mm512_sub_ps(x, table(t->mean, i, k));
        if (residual) {
            g = above(take(load, r->other, i, k), _mm512_setzero_ps(), g);
            put(store, r->y, i, k, g);
        }
        if (relu)
            g = through_relu(t, i, k, g, centred);
        accumulate(sum, i, g);
        accumulate(product, i, _mm512_mul_ps(g, _mm512_mul_ps(centred, table(t->scale, i, k))));
    }
}

INLINE void forward(load_fn load, store_fn store, const mn_norm_row *r, const bool residual)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 y = _mm512_sub_ps(take(load, r->x, i, k), table(t->mean, i, k));
        y = _mm512_add_ps(_mm512_mul_ps(y, table(t->scale, i, k)), table(t->shift, i, k));
        if (residual)
            y = _mm512_add_ps(load(store(y)), take(load, r->other, i, k));
        if (r->relu)
            y = above(y, _mm512_setzero_ps(), y);
        put(store, r->y, i, k, y);
    }
}

INLINE void backward(load_fn load, store_fn store, const mn_norm_row *r, const bool relu)
{
    const mn_norm_tables *t = &r->tables;
    for (size_t i = 0; i < r->n; i += WIDTH) {
        const __mmask16 k = lanes_at(r->n, i);
        __m512 g = take(load, r->g, i, k), x = take(load, r->x, i, k);
        const __m512 centred = _mm512_sub_ps(x, table(t->mean, i, k));
        if (relu)
            g = through_relu(t, i, k, g, centred);
        g = _mm512_sub_ps(g, table(t->shift, i, k));
        g = _mm512_sub_ps(g, _mm512_mul_ps(centred, table(t->gradient, i, k)));
        put(store, r->y, i, k, _mm512_mul_ps(table(t->scale, i, k), g));
    }
}

INLINE void add(load_fn load, store_fn store, const mn_norm_row *r, float *first, float *second)
{
    if (r->other)
        add_gradients(load, store, r, true, false, first, second);
    else if (r->relu)
        add_gradients(load, store, r, false, true, first, second);
    else
        add_gradients(load, store, r, false, false, first, second);
}

INLINE void apply(load_fn load, store_fn store, const mn_norm_row *r)
{
    if (r->g && r->relu)
        backward(load, store, r, true);
    else if (r->g)
        backward(load, store, r, false);
    else if (r->other)
        forward(load, store, r, true);
    else
        forward(load, store, r, false);
}

static void add_f16(const mn_norm_row *r, float *first, float *second)
{
    add(mn_lanes_load_f16, mn_lanes_store_f16, r, first, second);
}

static void add_bf16(const mn_norm_row *r, float *first, float *second)
{
    add(mn_lanes_load_bf16, mn_lanes_store_bf16, r, first, second);
}

static void apply_f16(const mn_norm_row *r)
{
    apply(mn_lanes_load_f16, mn_lanes_store_f16, r);
}

static void apply_bf16(const mn_norm_row *r)
{
    apply(mn_lanes_load_bf16, mn_lanes_store_bf16, r);
}

void mn_moments_avx512(int64_t rows, int64_t n, int64_t ld, const float *x, const float *mean,
                       float *sum, float *square)
{
    body_add_moments(rows, n, ld, x, mean, sum, square);
}

const mn_norm_kernels mn_norm_avx512[MN_DTYPE_COUNT] = {
    [MN_F16] = {add_f16, apply_f16},
    [MN_BF16] = {add_bf16, apply_bf16},
};
