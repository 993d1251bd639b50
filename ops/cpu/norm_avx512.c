/* Normalisation of rows with AVX-512, one loop for what bodies_norm.h does in several: 16 bit is
 * widened, worked on and narrowed in registers. The same bits. */
#include "core/lanes_avx512.h"
#include "ops/cpu/bodies_moments.h"
#include "ops/cpu/body_table.h"

#define WIDTH 16
#define MOST  4 /* registers of lanes at once: their factors and sums fill 24 */
/* The bound is constant once all is inlined; unrolled, sums and factors stay in registers. */
#define EACH(j)       _Pragma("GCC unroll 4") for (int j = 0; j < count; j++)
#define EACH_PIXEL(j) _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
#define INLINE        static inline __attribute__((always_inline))

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
    return (__mmask16)(n - i >= WIDTH ? 0xFFFFU : (1U << (n - i)) - 1);
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
    return mn_lanes_round_bf16(x);
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

/* ---- windows of two by two pixels ------------------------------------------------------------ */

/* Sixteen channels: pixels 0 and 1 above, 2 and 3 below. */
typedef struct window {
    __m512 centred[4], y[4];
} window;

/* Where b, later in the window, takes the maximum over from a: NaN wins, and stays. */
INLINE __mmask16 overtakes(__m512 a, __m512 b)
{
    return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), b, a, _CMP_NLE_UQ);
}

INLINE __m512 later_if(__mmask16 taken, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(taken, a, b);
}

INLINE window window_at(const format f, const mn_norm_windows *w, const factors *t, int64_t i,
                        __mmask16 k)
{
    window v;
    EACH_PIXEL(j)
    {
        v.centred[j] = _mm512_sub_ps(f.load(w->x[j / 2], i + j % 2 * w->ld, k), t->mean);
        v.y[j] = _mm512_add_ps(_mm512_mul_ps(v.centred[j], t->slope), t->bias);
    }
    return v;
}

/* Rounding keeps the order: what is stored is rounded once. */
INLINE void store_largest(const format f, const mn_norm_windows *w, const window *v, int64_t at,
                          __mmask16 k)
{
    const __m512 over = later_if(overtakes(v->y[0], v->y[1]), v->y[0], v->y[1]);
    const __m512 under = later_if(overtakes(v->y[2], v->y[3]), v->y[2], v->y[3]);
    const __m512 largest = later_if(overtakes(over, under), over, under);
    f.store(w->y, at, k, above(largest, _mm512_setzero_ps(), 0, largest));
}

INLINE void add_where(__mmask16 k, __m512 x, float *sum)
{
    _mm512_storeu_ps(sum, _mm512_mask_add_ps(_mm512_loadu_ps(sum), k, _mm512_loadu_ps(sum), x));
}

/* Of what rounding makes equal the first is the largest. */
INLINE void add_window(const format f, const mn_norm_windows *w, const factors *t, window *v,
                       __m512 g, int64_t c, uint16_t *where)
{
    EACH_PIXEL(j)
    v->y[j] = f.round(v->y[j]);
    const __mmask16 right = overtakes(v->y[0], v->y[1]), right_below = overtakes(v->y[2], v->y[3]);
    const __m512 over = later_if(right, v->y[0], v->y[1]);
    const __m512 under = later_if(right_below, v->y[2], v->y[3]);
    const __mmask16 below = overtakes(over, under);
    const __m512 largest = later_if(below, over, under);
    const __m512 centred = later_if(below, later_if(right, v->centred[0], v->centred[1]),
                                    later_if(right_below, v->centred[2], v->centred[3]));
    const __m512 product = _mm512_mul_ps(g, _mm512_mul_ps(centred, t->scale));
    const __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_NLE_UQ);
    const __mmask16 upper = some & (__mmask16)~below, lower = some & below;
    add_where(upper, g, w->sum[0] + c);
    add_where(lower, g, w->sum[1] + c);
    add_where(upper, product, w->product[0] + c);
    add_where(lower, product, w->product[1] + c);
    where[0] = upper & (__mmask16)~right;
    where[1] = upper & right;
    where[2] = lower & (__mmask16)~right_below;
    where[3] = lower & right_below;
}

INLINE void apply_window(const format f, const mn_norm_windows *w, const factors *t,
                         const window *v, __m512 g, int64_t i, __mmask16 k, const uint16_t *where)
{
    EACH_PIXEL(j)
    {
        __m512 given = _mm512_sub_ps(_mm512_maskz_mov_ps(where[j], g), t->shift);
        given = _mm512_sub_ps(given, _mm512_mul_ps(v->centred[j], t->gradient));
        f.store(w->dx[j / 2], i + j % 2 * w->ld, k, _mm512_mul_ps(t->scale, given));
    }
}

typedef enum pool_pass { LARGEST, SUMS, GRADIENT } pool_pass;

/* Factors are read anew for each window: arithmetic is what this waits for. */
INLINE void pool_windows(const format f, const mn_norm_windows *of, const pool_pass pass)
{
    const mn_norm_windows w = *of;
    for (int64_t q = 0; q < w.n; q++)
        for (int64_t c = 0; c < w.width; c += WIDTH) {
            const __mmask16 k = lanes_at(w.width, c);
            const factors t = factors_at(&w.tables, c, k);
            const int64_t at = q * w.ld + c, i = at + q * w.ld;
            window v = window_at(f, &w, &t, i, k);
            if (pass == LARGEST) {
                store_largest(f, &w, &v, at, k);
                continue;
            }
            uint16_t *where = w.where + q * w.where_ld + c / WIDTH * 4;
            const __m512 g = f.load(w.g, at, k);
            if (pass == SUMS)
                add_window(f, &w, &t, &v, g, c, where);
            else
                apply_window(f, &w, &t, &v, g, i, k, where);
        }
}

INLINE void pool(const format f, const mn_norm_windows *w)
{
    if (w->y)
        pool_windows(f, w, LARGEST);
    else if (w->sum[0])
        pool_windows(f, w, SUMS);
    else
        pool_windows(f, w, GRADIENT);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void add_f32(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_f32, store_f32, round_f32}, r, first, second);
}

static void apply_f32(const mn_norm_rows *r)
{
    apply((format){load_f32, store_f32, round_f32}, r);
}

static void pool_f32(const mn_norm_windows *w)
{
    pool((format){load_f32, store_f32, round_f32}, w);
}

static void add_f16(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_f16, store_f16, round_f16}, r, first, second);
}

static void apply_f16(const mn_norm_rows *r)
{
    apply((format){load_f16, store_f16, round_f16}, r);
}

static void pool_f16(const mn_norm_windows *w)
{
    pool((format){load_f16, store_f16, round_f16}, w);
}

static void add_bf16(const mn_norm_rows *r, float *first, float *second)
{
    add((format){load_bf16, store_bf16, round_bf16}, r, first, second);
}

static void apply_bf16(const mn_norm_rows *r)
{
    apply((format){load_bf16, store_bf16, round_bf16}, r);
}

static void pool_bf16(const mn_norm_windows *w)
{
    pool((format){load_bf16, store_bf16, round_bf16}, w);
}

void mn_moments_avx512(int64_t rows, int64_t n, int64_t ld, const float *x, const float *mean,
                       float *sum, float *square)
{
    body_add_moments(rows, n, ld, x, mean, sum, square);
}

const mn_norm_kernels mn_norm_avx512[MN_DTYPE_COUNT] = {
    [MN_F32] = {add_f32, apply_f32, pool_f32},
    [MN_F16] = {add_f16, apply_f16, pool_f16},
    [MN_BF16] = {add_bf16, apply_bf16, pool_bf16},
};
