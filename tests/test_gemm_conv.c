/* Matrix products and convolutions of ops/cpu against plain loops in double precision: odd shapes,
 * all dtypes and kernel sets, values that are not finite, any number of threads. */
#include "core/core.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANARY       64
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};
static const mn_kernel_set sets[] = {MN_KERNELS_PORTABLE, MN_KERNELS_AVX2, MN_KERNELS_AVX512,
                                     MN_KERNELS_NEON};
static const int thread_counts[] = {1, 2, 3, 5};

/* What is not finite in the operands. */
typedef enum poison { CLEAN, NAN_LAST, INF_FIRST, INF_SECOND, POISON_COUNT } poison;

typedef mn_status (*prepare_fn)(const mn_call *call, mn_plan *plan, size_t *bytes);
typedef void (*run_fn)(const mn_call *call);

static mn_workers *workers[COUNT(thread_counts)];
static uint32_t random_state;

static void setup(void)
{
    mn_error error = {0};
    for (size_t i = 0; i < COUNT(thread_counts); i++) {
        workers[i] = mn_workers_create(NULL, thread_counts[i], NULL, NULL, &error);
        ck_assert_msg(workers[i] != NULL, "%s", error.message);
    }
    random_state = 1;
}

static void teardown(void)
{
    for (size_t i = 0; i < COUNT(thread_counts); i++)
        mn_workers_free(workers[i]);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* An operand: its elements in a block of just their size (so that a sanitizer sees each read too
 * far), and their values. */
typedef struct operand {
    mn_view view;
    double *values;
} operand;

static double next_value(void)
{
    random_state = random_state * 1664525U + 1013904223U;
    return (double)(random_state >> 8) / (1 << 23) - 1.0;
}

static double element(const mn_view *view, int64_t i)
{
    switch (view->dtype) {
    case MN_F16:
        return (double)mn_f16_to_f32(((const mn_f16 *)view->data)[i]);
    case MN_BF16:
        return (double)mn_bf16_to_f32(((const mn_bf16 *)view->data)[i]);
    default:
        return (double)((const float *)view->data)[i];
    }
}

static void set_element(mn_view *view, int64_t i, double value)
{
    switch (view->dtype) {
    case MN_F16:
        ((mn_f16 *)view->data)[i] = mn_f16_from_f64(value);
        break;
    case MN_BF16:
        ((mn_bf16 *)view->data)[i] = mn_bf16_from_f64(value);
        break;
    default:
        ((float *)view->data)[i] = (float)value;
    }
}

static mn_view view_of(mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view view = {.present = true, .dtype = dtype, .ndim = ndim, .numel = 1};
    for (int d = 0; d < ndim; d++) {
        view.shape[d] = shape[d];
        view.numel *= shape[d];
    }
    return view;
}

static operand make(mn_dtype dtype, int ndim, const int64_t *shape)
{
    operand o = {.view = view_of(dtype, ndim, shape)};
    if (o.view.numel == 0)
        return o;
    o.view.data = malloc((size_t)o.view.numel * mn_dtype_size(dtype));
    for (int64_t i = 0; i < o.view.numel; i++)
        set_element(&o.view, i, next_value());
    return o;
}

static void put(operand *o, bool last, double value)
{
    if (o->view.numel > 0)
        set_element(&o->view, last ? o->view.numel - 1 : 0, value);
}

static void poison_operands(poison kind, operand *first, operand *second)
{
    if (kind == NAN_LAST)
        put(first, true, (double)NAN);
    if (kind == INF_FIRST)
        put(first, false, (double)INFINITY);
    if (kind == INF_SECOND)
        put(second, true, -(double)INFINITY);
}

static void read_values(operand *o)
{
    o->values = malloc((size_t)o->view.numel * sizeof *o->values + 1);
    for (int64_t i = 0; i < o->view.numel; i++)
        o->values[i] = element(&o->view, i);
}

static void drop(operand *o)
{
    free(o->view.data);
    free(o->values);
}

/* ---- running and comparing ------------------------------------------------------------------- */

/* What is expected of each element: the sum, the sum of magnitudes and the number of products. */
typedef struct expected {
    int64_t n;
    double *sum, *magnitude, *terms;
} expected;

static expected expect(int64_t n)
{
    size_t count = n > 0 ? (size_t)n : 1;
    return (expected){n, calloc(count, sizeof(double)), calloc(count, sizeof(double)),
                      calloc(count, sizeof(double))};
}

static void expect_product(expected *e, int64_t i, double a, double b)
{
    e->sum[i] += a * b;
    e->magnitude[i] += fabs(a * b);
    e->terms[i] += 1;
}

static void forget(expected *e)
{
    free(e->sum);
    free(e->magnitude);
    free(e->terms);
}

static void compare(const mn_view *got, const expected *e, const char *what)
{
    for (int64_t i = 0; i < e->n; i++) {
        double value = element(got, i), want = e->sum[i];
        if (!isfinite(want)) {
            ck_assert_msg(isnan(want) ? isnan(value) : value == want, "%s, element %lld: %g not %g",
                          what, (long long)i, value, want);
            continue;
        }
        double bound = (e->terms[i] + 2) * 0x1p-24 * e->magnitude[i];
        double unit = got->dtype == MN_F16 ? 0x1p-11 : got->dtype == MN_BF16 ? 0x1p-8 : 0;
        double allowed = bound + (fabs(want) + bound) * unit + (got->dtype == MN_F16 ? 0x1p-25 : 0);
        ck_assert_msg(fabs(value - want) <= allowed, "%s, element %lld: %.9g not %.9g +- %.3g",
                      what, (long long)i, value, want, allowed);
    }
}

/* Runs the call once with a workspace of the size asked for, filled with NaN. */
static void run_once(mn_call *call, prepare_fn prepare, run_fn run)
{
    mn_fault fault = {0};
    size_t bytes = 1;
    call->fault = &fault;
    ck_assert_int_eq(prepare(call, &call->plan, &bytes), MN_OK);
    call->workspace = NULL;
    if (bytes > 0) {
        ck_assert_int_eq(posix_memalign(&call->workspace, 64, bytes), 0);
        memset(call->workspace, 0xFF, bytes);
    }
    call->workspace_bytes = bytes;
    run(call);
    free(call->workspace);
    ck_assert_int_eq(fault.status, MN_OK);
}

/* Runs the call with all kernel sets and all numbers of threads. */
static void run_all(mn_call *call, prepare_fn prepare, run_fn run, const expected *e,
                    const char *what)
{
    size_t bytes = (size_t)call->out[0].numel * mn_dtype_size(call->out[0].dtype);
    unsigned char *result = malloc(bytes + CANARY), *first = malloc(bytes + CANARY);
    call->out[0].data = result;
    for (size_t s = 0; s < COUNT(sets); s++) {
        if (!mn_cpu_has_kernels(sets[s]))
            continue;
        for (size_t t = 0; t < COUNT(thread_counts); t++) {
            mn_cpu cpu = {sets[s], mn_converters(sets[s]), workers[t], thread_counts[t], false};
            call->cpu = &cpu;
            memset(result, 0xA5, bytes + CANARY);
            run_once(call, prepare, run);
            for (size_t i = 0; i < CANARY; i++)
                ck_assert_msg(result[bytes + i] == 0xA5, "%s: written too far", what);
            if (t == 0) {
                memcpy(first, result, bytes);
                compare(&call->out[0], e, what);
            }
            ck_assert_msg(memcmp(first, result, bytes) == 0, "%s: bits depend on threads", what);
        }
    }
    free(result);
    free(first);
}

/* ---- products -------------------------------------------------------------------------------- */

static const int64_t product_sizes[][3] = {
    {1, 1, 1},    {6, 16, 8},    {7, 17, 13},  {5, 15, 9},     {12, 32, 64}, {13, 10, 400},
    {1, 33, 31},  {97, 6, 25},   {3, 129, 11}, {128, 10, 769}, {19, 1, 385}, {101, 150, 40},
    {0, 4, 3},    {4, 0, 3},     {4, 3, 0},    {37, 12, 64},   {50, 16, 7},  {10, 260, 64},
    {2, 2, 1000}, {11, 24, 128}, {8, 9, 12},   {9, 25, 7},
};

static void linear_case(const int64_t size[3], mn_dtype dtype, bool bias, poison kind)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    char what[160];
    snprintf(what, sizeof what, "linear m %d n %d k %d %s bias %d poison %d", (int)m, (int)n,
             (int)k, mn_dtype_name(dtype), bias, kind);
    operand x = make(dtype, 3, (int64_t[]){1, m, k}), w = make(dtype, 2, (int64_t[]){n, k});
    operand b = make(dtype, 1, (int64_t[]){n});
    poison_operands(kind, &x, &w);
    read_values(&x);
    read_values(&w);
    read_values(&b);
    expected e = expect(m * n);
    for (int64_t i = 0; i < m * n; i++) {
        if (bias)
            expect_product(&e, i, b.values[i % n], 1);
        for (int64_t t = 0; t < k; t++)
            expect_product(&e, i, x.values[i / n * k + t], w.values[i % n * k + t]);
    }
    mn_call call = {.input_count = 3, .output_count = 1, .in = {x.view, w.view, b.view}};
    call.in[2].present = bias;
    call.out[0] = view_of(dtype, 3, (int64_t[]){1, m, n});
    run_all(&call, mn_cpu_linear_prepare, mn_cpu_linear, &e, what);
    forget(&e);
    drop(&x);
    drop(&w);
    drop(&b);
}

START_TEST(test_linear)
{
    for (size_t i = 0; i < COUNT(product_sizes); i++)
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            linear_case(product_sizes[i], dtypes[d], i % 2 == 0, CLEAN);
            linear_case(product_sizes[i], dtypes[d], i % 2 == 1, (poison)(1 + i % 3));
        }
}
END_TEST

typedef struct matmul_shape {
    int a_batch_ndim, b_batch_ndim, y_batch_ndim;
    int64_t a[2], b[2], y[2]; /* leading axes */
} matmul_shape;

static const matmul_shape batches[] = {
    {0, 0, 0, {0}, {0}, {0}},          {1, 1, 1, {3}, {3}, {3}},
    {1, 0, 1, {4}, {0}, {4}},          {0, 1, 1, {0}, {3}, {3}},
    {2, 2, 2, {2, 3}, {2, 1}, {2, 3}}, {2, 1, 2, {2, 1}, {3}, {2, 3}},
    {2, 2, 2, {1, 2}, {3, 1}, {3, 2}}, {1, 1, 1, {0}, {1}, {0}},
};

static operand make_stack(mn_dtype dtype, int ndim, const int64_t *batch, int64_t rows,
                          int64_t columns, bool transposed)
{
    int64_t shape[4] = {0};
    memcpy(shape, batch, (size_t)ndim * sizeof *shape);
    shape[ndim] = transposed ? columns : rows;
    shape[ndim + 1] = transposed ? rows : columns;
    return make(dtype, ndim + 2, shape);
}

/* Number of the operand's matrix that y's matrix `index` uses. */
static int64_t matrix_of(const matmul_shape *s, int ndim, const int64_t *batch, int64_t index)
{
    int64_t at[2] = {0}, result = 0;
    for (int d = s->y_batch_ndim - 1; d >= 0; d--) {
        at[d] = index % s->y[d];
        index /= s->y[d];
    }
    for (int d = 0; d < ndim; d++) {
        int64_t i = at[d + s->y_batch_ndim - ndim];
        result = result * batch[d] + (batch[d] == 1 ? 0 : i);
    }
    return result;
}

static void expect_matmul(expected *e, const matmul_shape *s, const int64_t size[3],
                          const operand *a, const operand *b, const mn_matmul_attributes *t)
{
    const int64_t m = size[0], n = size[1], k = size[2];
    for (int64_t i = 0; i < e->n; i++) {
        int64_t batch = i / (m * n), row = i / n % m, column = i % n;
        int64_t a_at = matrix_of(s, s->a_batch_ndim, s->a, batch) * m * k;
        int64_t b_at = matrix_of(s, s->b_batch_ndim, s->b, batch) * k * n;
        for (int64_t j = 0; j < k; j++)
            expect_product(e, i, a->values[a_at + (t->transpose_a ? j * m + row : row * k + j)],
                           b->values[b_at + (t->transpose_b ? column * k + j : j * n + column)]);
    }
}

static void matmul_case(const matmul_shape *s, const int64_t size[3], mn_dtype dtype, int flags,
                        poison kind)
{
    const mn_matmul_attributes attributes = {flags & 1, flags >> 1};
    const int64_t m = size[0], n = size[1], k = size[2];
    char what[160];
    snprintf(what, sizeof what, "matmul case %d m %d n %d k %d %s flags %d poison %d",
             (int)(s - batches), (int)m, (int)n, (int)k, mn_dtype_name(dtype), flags, kind);
    operand a = make_stack(dtype, s->a_batch_ndim, s->a, m, k, attributes.transpose_a);
    operand b = make_stack(dtype, s->b_batch_ndim, s->b, k, n, attributes.transpose_b);
    poison_operands(kind, &a, &b);
    read_values(&a);
    read_values(&b);
    mn_call call = {.input_count = 2, .output_count = 1, .in = {a.view, b.view}};
    int64_t shape[4] = {0};
    memcpy(shape, s->y, sizeof s->y);
    shape[s->y_batch_ndim] = m;
    shape[s->y_batch_ndim + 1] = n;
    call.out[0] = view_of(dtype, s->y_batch_ndim + 2, shape);
    memcpy(call.attributes.bytes, &attributes, sizeof attributes);
    expected e = expect(call.out[0].numel);
    expect_matmul(&e, s, size, &a, &b, &attributes);
    run_all(&call, mn_cpu_matmul_prepare, mn_cpu_matmul, &e, what);
    forget(&e);
    drop(&a);
    drop(&b);
}

START_TEST(test_matmul)
{
    for (size_t i = 0; i < COUNT(product_sizes); i++)
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (int flags = 0; flags < 4; flags++)
                matmul_case(&batches[0], product_sizes[i], dtypes[d], flags,
                            (poison)((i + d) % POISON_COUNT));
}
END_TEST

START_TEST(test_matmul_batched)
{
    static const int64_t sizes[][3] = {{7, 17, 13}, {1, 5, 20}, {6, 16, 0}, {20, 6, 390}};
    for (size_t i = 0; i < COUNT(batches); i++)
        for (size_t j = 0; j < COUNT(sizes); j++)
            for (int flags = 0; flags < 4; flags++)
                matmul_case(&batches[i], sizes[j], dtypes[(i + j) % 3], flags,
                            flags == 1 ? NAN_LAST : CLEAN);
}
END_TEST

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef struct conv_shape {
    int64_t N, H, W, C, K, R, S, stride[2], padding[2], dilation[2], groups;
} conv_shape;

static const conv_shape convolutions[] = {
    {1, 1, 1, 1, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 9, 7, 1, 6, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},
    {3, 14, 14, 6, 16, 5, 5, {1, 1}, {0, 0}, {1, 1}, 1},
    {9, 8, 8, 3, 17, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {50, 5, 6, 8, 10, 2, 3, {1, 1}, {1, 0}, {1, 1}, 1},
    {1, 13, 11, 13, 70, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 11, 13, 8, 24, 3, 1, {2, 1}, {1, 0}, {1, 1}, 1},
    {2, 10, 7, 5, 6, 1, 3, {1, 2}, {0, 1}, {1, 1}, 1},
    {2, 9, 12, 6, 9, 3, 3, {2, 3}, {1, 2}, {1, 1}, 3},
    {1, 12, 12, 4, 8, 3, 3, {1, 1}, {2, 3}, {2, 3}, 2},
    {2, 15, 11, 3, 5, 3, 2, {4, 6}, {3, 2}, {6, 4}, 1},
    {2, 7, 8, 7, 7, 3, 3, {1, 1}, {1, 1}, {1, 1}, 7},
    {2, 7, 8, 5, 10, 3, 3, {2, 2}, {1, 1}, {1, 1}, 5},
    {3, 8, 8, 16, 32, 1, 1, {2, 2}, {0, 0}, {1, 1}, 1},
    {1, 7, 6, 4, 3, 2, 2, {3, 3}, {0, 0}, {1, 1}, 1},
    {2, 3, 3, 2, 3, 3, 3, {1, 1}, {5, 4}, {1, 1}, 1},
    {2, 6, 6, 2, 3, 1, 1, {1, 1}, {2, 1}, {1, 1}, 1},
    {1, 1, 9, 4, 6, 1, 5, {1, 1}, {0, 2}, {1, 1}, 2},
    {1, 3, 70, 64, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 40, 41, 2, 20, 3, 3, {1, 1}, {1, 1}, {1, 1}, 2},
    {0, 8, 8, 3, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 5, 5, 40, 36, 3, 3, {2, 2}, {1, 1}, {1, 1}, 2},
    {2, 5, 4, 9, 25, 3, 2, {1, 1}, {1, 1}, {1, 1}, 1},
    {70, 7, 6, 3, 6, 3, 5, {1, 1}, {1, 2}, {1, 1}, 1},
    {33, 6, 7, 8, 7, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {1, 60, 37, 2, 5, 5, 4, {1, 2}, {2, 1}, {1, 2}, 1},
    {2, 1, 200, 1, 1, 1, 9, {1, 3}, {0, 4}, {1, 1}, 1},
    {2, 9, 8, 16, 12, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {2, 8, 9, 9, 10, 4, 3, {2, 1}, {1, 2}, {1, 1}, 1},
    {1, 6, 11, 32, 8, 2, 5, {1, 2}, {0, 1}, {1, 2}, 1},
    {1, 5, 1, 70, 3, 5, 1, {2, 2}, {2, 0}, {1, 1}, 1},
    {50, 4, 3, 10, 18, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {67, 5, 4, 16, 32, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {35, 2, 2, 9, 12, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {3, 6, 5, 12, 16, 3, 3, {2, 1}, {1, 1}, {1, 1}, 4},
    {2, 9, 11, 37, 37, 3, 3, {2, 2}, {1, 1}, {1, 1}, 37},
    {20, 5, 4, 33, 33, 3, 3, {1, 1}, {0, 0}, {1, 1}, 33},
    {1, 4, 5, 70, 70, 4, 3, {3, 2}, {3, 4}, {1, 2}, 70},
};

static mn_conv2d_attributes attributes_of(const conv_shape *s)
{
    return (mn_conv2d_attributes){{s->stride[0], s->stride[1]},
                                  {s->padding[0], s->padding[1]},
                                  {s->dilation[0], s->dilation[1]},
                                  s->groups,
                                  {0, 0}};
}

static int64_t points(const conv_shape *s, int axis)
{
    const int64_t size = axis ? s->W : s->H, taps = axis ? s->S : s->R;
    return (size + 2 * s->padding[axis] - s->dilation[axis] * (taps - 1) - 1) / s->stride[axis] + 1;
}

/* One product of the convolution: elements of x, w and y. */
typedef struct triple {
    int64_t x, w, y;
} triple;
/* i counts (n, p, q, k, r, s, c); false: outside of the image. */
static bool triple_of(const conv_shape *s, int64_t i, triple *t)
{
    const int64_t cg = s->C / s->groups, kg = s->K / s->groups, P = points(s, 0), Q = points(s, 1);
    const int64_t c = i % cg, col = i / cg % s->S, row = i / (cg * s->S) % s->R;
    t->w = i % (s->K * s->R * s->S * cg);
    t->y = i / (s->R * s->S * cg);
    const int64_t k = t->y % s->K, q = t->y / s->K % Q, p = t->y / (s->K * Q) % P;
    const int64_t n = t->y / (s->K * Q * P);
    const int64_t h = p * s->stride[0] - s->padding[0] + row * s->dilation[0];
    const int64_t w = q * s->stride[1] - s->padding[1] + col * s->dilation[1];
    t->x = ((n * s->H + h) * s->W + w) * s->C + k / kg * cg + c;
    return h >= 0 && h < s->H && w >= 0 && w < s->W;
}

typedef enum pass { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, PASS_COUNT } pass;
static const prepare_fn conv_prepare[] = {mn_cpu_conv2d_prepare,
                                          mn_cpu_conv2d_backward_input_prepare,
                                          mn_cpu_conv2d_backward_weight_prepare};
static const run_fn conv_run[] = {mn_cpu_conv2d, mn_cpu_conv2d_backward_input,
                                  mn_cpu_conv2d_backward_weight};

static void expect_conv(expected *e, const conv_shape *s, pass which, const operand *first,
                        const operand *second)
{
    const int64_t y = s->N * points(s, 0) * points(s, 1) * s->K;
    triple t;
    for (int64_t i = 0; i < y * (s->R * s->S * s->C / s->groups); i++) {
        if (!triple_of(s, i, &t))
            continue;
        if (which == FORWARD)
            expect_product(e, t.y, first->values[t.x], second->values[t.w]);
        else if (which == BACKWARD_INPUT)
            expect_product(e, t.x, first->values[t.y], second->values[t.w]);
        else
            expect_product(e, t.w, first->values[t.y], second->values[t.x]);
    }
}

static void conv_case(const conv_shape *s, mn_dtype dtype, pass which, bool bias, poison kind)
{
    const int64_t x_shape[] = {s->N, s->H, s->W, s->C};
    const int64_t w_shape[] = {s->K, s->R, s->S, s->C / s->groups};
    const int64_t y_shape[] = {s->N, points(s, 0), points(s, 1), s->K};
    const int64_t *const shapes[][3] = {
        {x_shape, w_shape, y_shape}, {y_shape, w_shape, x_shape}, {y_shape, x_shape, w_shape}};
    char what[160];
    snprintf(what, sizeof what, "convolution %d pass %d %s bias %d poison %d",
             (int)(s - convolutions), which, mn_dtype_name(dtype), bias, kind);
    operand first = make(dtype, 4, shapes[which][0]), second = make(dtype, 4, shapes[which][1]);
    operand b = make(dtype, 1, &s->K);
    poison_operands(kind, &first, &second);
    read_values(&first);
    read_values(&second);
    read_values(&b);
    mn_call call = {
        .input_count = bias ? 3 : 2, .output_count = 1, .in = {first.view, second.view, b.view}};
    call.out[0] = view_of(dtype, 4, shapes[which][2]);
    mn_conv2d_attributes attributes = attributes_of(s);
    memcpy(attributes.extent,
           which == FORWARD          ? (int64_t[]){0, 0}
           : which == BACKWARD_INPUT ? (int64_t[]){s->H, s->W}
                                     : (int64_t[]){s->R, s->S},
           sizeof attributes.extent);
    memcpy(call.attributes.bytes, &attributes, sizeof attributes);
    expected e = expect(call.out[0].numel);
    for (int64_t i = 0; bias && i < e.n; i++)
        expect_product(&e, i, b.values[i % s->K], 1);
    expect_conv(&e, s, which, &first, &second);
    run_all(&call, conv_prepare[which], conv_run[which], &e, what);
    forget(&e);
    drop(&first);
    drop(&second);
    drop(&b);
}

static void conv_pass(pass which)
{
    for (size_t i = 0; i < COUNT(convolutions); i++) {
        for (size_t d = 0; d < COUNT(dtypes); d++)
            conv_case(&convolutions[i], dtypes[d], which, which == FORWARD && (i + d) % 2, CLEAN);
        for (int kind = NAN_LAST; kind < POISON_COUNT; kind++)
            conv_case(&convolutions[i], dtypes[(i + (size_t)kind) % COUNT(dtypes)], which, false,
                      (poison)kind);
    }
}

START_TEST(test_conv2d)
{
    conv_pass(FORWARD);
}
END_TEST

START_TEST(test_conv2d_backward_input)
{
    conv_pass(BACKWARD_INPUT);
}
END_TEST

START_TEST(test_conv2d_backward_weight)
{
    conv_pass(BACKWARD_WEIGHT);
}
END_TEST

/* Shapes whose workspace cannot be counted are refused, not wrapped around. */
START_TEST(test_overflow)
{
    mn_cpu cpu = {MN_KERNELS_PORTABLE, mn_converters(MN_KERNELS_PORTABLE), workers[0], 1, false};
    const int64_t big = INT64_C(1) << 60;
    mn_call call = {.input_count = 2, .output_count = 1, .cpu = &cpu};
    size_t bytes = 0;
    call.in[0] = view_of(MN_F16, 2, (int64_t[]){1, big});
    call.in[1] = view_of(MN_F16, 2, (int64_t[]){1, big});
    call.out[0] = view_of(MN_F16, 2, (int64_t[]){1, 1});
    ck_assert_int_eq(mn_cpu_linear_prepare(&call, &call.plan, &bytes), MN_ERR_MEMORY);
    mn_matmul_attributes matmul = {0, 1};
    memcpy(call.attributes.bytes, &matmul, sizeof matmul);
    ck_assert_int_eq(mn_cpu_matmul_prepare(&call, &call.plan, &bytes), MN_ERR_MEMORY);
    mn_conv2d_attributes conv = {{1, 1}, {0, 0}, {1, 1}, 1, {1, 1}};
    memcpy(call.attributes.bytes, &conv, sizeof conv);
    call.in[0] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, big});
    call.in[1] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, big});
    call.out[0] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, 1});
    ck_assert_int_eq(mn_cpu_conv2d_prepare(&call, &call.plan, &bytes), MN_ERR_MEMORY);
    call.in[1] = view_of(MN_F16, 4, (int64_t[]){big, 1, 1, 1});
    ck_assert_int_eq(mn_cpu_conv2d_backward_input_prepare(&call, &call.plan, &bytes),
                     MN_ERR_MEMORY);
    call.in[0] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, 1});
    call.in[1] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, big});
    call.out[0] = view_of(MN_F16, 4, (int64_t[]){1, 1, 1, big});
    ck_assert_int_eq(mn_cpu_conv2d_backward_weight_prepare(&call, &call.plan, &bytes),
                     MN_ERR_MEMORY);
}
END_TEST

static Suite *gemm_conv_suite(void)
{
    Suite *suite = suite_create("gemm_conv");
    TCase *tests = tcase_create("gemm_conv");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_linear);
    tcase_add_test(tests, test_matmul);
    tcase_add_test(tests, test_matmul_batched);
    tcase_add_test(tests, test_conv2d);
    tcase_add_test(tests, test_conv2d_backward_input);
    tcase_add_test(tests, test_conv2d_backward_weight);
    tcase_add_test(tests, test_overflow);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return mn_test_run(gemm_conv_suite(), CK_FORK_GETENV);
}
