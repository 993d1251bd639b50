/* Pooling over images [N,H,W,C]. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

#define STRIP MN_POOL_LIMIT /* channels at once */

/* Images x, windows y (or their gradients g), and dx. */
typedef struct pool {
    const mn_call *call;
    const mn_pool2d_attributes *a;
    const mn_view *x, *y, *dx;
    int64_t H, W, C, P, Q;
} pool;

static pool pool_of(const mn_call *call, const mn_view *x, const mn_view *y, const mn_view *dx)
{
    return (pool){.call = call,
                  .a = (const void *)call->attributes.bytes,
                  .x = x,
                  .y = y,
                  .dx = dx,
                  .H = x->shape[1],
                  .W = x->shape[2],
                  .C = x->shape[3],
                  .P = y->shape[1],
                  .Q = y->shape[2]};
}

/* Windows of two by two side by side: rows are contiguous, and several windows fit into a block. */
static bool is_2x2(const pool *l)
{
    const mn_pool2d_attributes *a = l->a;
    return a->kernel[0] == 2 && a->kernel[1] == 2 && a->stride[0] == 2 && a->stride[1] == 2 &&
           a->padding[0] == 0 && a->padding[1] == 0 && l->C > 0 && l->C <= STRIP;
}

/* Part of a window, on one axis, that lies inside of the image. */
typedef struct span {
    int64_t begin, end;
} span;

static span span_of(int64_t index, int64_t kernel, int64_t stride, int64_t padding, int64_t extent)
{
    const int64_t start = index * stride - padding;
    return (span){mn_max64(start, 0), mn_min64(start + kernel, extent)};
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Rows p of all images, numbered n P + p. */
static void run_2x2(void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const int64_t windows = STRIP / l->C;
    float row[2][2 * STRIP], result[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const int64_t top = (i / l->P * l->H + i % l->P * 2) * l->W * l->C;
        for (int64_t q = 0; q < l->Q; q += windows) {
            const int64_t n = mn_min64(windows, l->Q - q), count = 2 * n * l->C;
            const int64_t at = top + 2 * q * l->C, to = (i * l->Q + q) * l->C;
            const float *upper = mn_row_load(l->call, l->x, at, count, row[0]);
            const float *lower = mn_row_load(l->call, l->x, at + l->W * l->C, count, row[1]);
            float *y = mn_row_place(l->y, to, result);
            bodies->pool2x2((size_t)n, (size_t)l->C, upper, lower, y);
            mn_row_store(l->call, l->y, to, n * l->C, y);
        }
    }
}

/* Largest elements of window [image, p, q] for `n` channels from c on, and, if `index` is given,
 * the numbers of their pixels in the window. */
static void window_max(const pool *l, const int64_t at[3], int64_t c, int64_t n, float *largest,
                       float *index)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const mn_pool2d_attributes *a = l->a;
    const span h = span_of(at[1], a->kernel[0], a->stride[0], a->padding[0], l->H);
    const span w = span_of(at[2], a->kernel[1], a->stride[1], a->padding[1], l->W);
    bool first = true;
    float scratch[STRIP];
    for (int64_t i = 0; i < n; i++)
        largest[i] = -INFINITY;
    for (int64_t y = h.begin; y < h.end; y++)
        for (int64_t x = w.begin; x < w.end; x++) {
            const float *pixel =
                mn_row_load(l->call, l->x, ((at[0] * l->H + y) * l->W + x) * l->C + c, n, scratch);
            const float number = (float)((y - h.begin) * (w.end - w.begin) + x - w.begin);
            if (!index) {
                bodies->max((size_t)n, pixel, largest);
            } else if (first) {
                memcpy(largest, pixel, (size_t)n * sizeof *largest);
                memset(index, 0, (size_t)n * sizeof *index);
            } else {
                bodies->max_index((size_t)n, pixel, number, largest, index);
            }
            first = false;
        }
}

static void run_windows(void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    float result[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const int64_t at[3] = {i / (l->P * l->Q), i / l->Q % l->P, i % l->Q};
        for (int64_t c = 0; c < l->C; c += STRIP) {
            const int64_t n = mn_min64(STRIP, l->C - c);
            float *y = mn_row_place(l->y, i * l->C + c, result);
            window_max(l, at, c, n, y, NULL);
            mn_row_store(l->call, l->y, i * l->C + c, n, y);
        }
    }
}

void mn_cpu_max_pool2d(const mn_call *call)
{
    pool l = pool_of(call, &call->in[0], &call->out[0], NULL);
    if (call->out[0].numel == 0)
        return;
    const int64_t rows = call->out[0].shape[0] * l.P;
    const int64_t chunk = mn_max64(1, MN_CHUNK / mn_max64(1, l.Q * l.C));
    if (is_2x2(&l))
        mn_run_ranges(call, rows, chunk, run_2x2, &l);
    else
        mn_run_ranges(call, rows * l.Q, chunk * l.Q, run_windows, &l);
}

/* ---- backward -------------------------------------------------------------------------------- */

static void clear(const mn_view *dx, int64_t start, int64_t n)
{
    if (n > 0) /* all bits 0 is 0 in every floating type */
        memset(mn_element(dx, start), 0, (size_t)n * mn_dtype_size(dx->dtype));
}

/* Rows of windows [image, p] of two by two; the caller has cleared what they leave out. */
static void scatter_2x2(const pool *l, int64_t image, int64_t p)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const int64_t windows = STRIP / l->C, width = l->W * l->C;
    float row[2][2 * STRIP], result[2][2 * STRIP], gradient[STRIP];
    for (int64_t q = 0; q < l->Q; q += windows) {
        const int64_t n = mn_min64(windows, l->Q - q), count = 2 * n * l->C;
        const int64_t at = (image * l->H + 2 * p) * width + 2 * q * l->C;
        const int64_t from = ((image * l->P + p) * l->Q + q) * l->C;
        const float *g = mn_row_load(l->call, l->y, from, n * l->C, gradient);
        const float *rows[2];
        float *dx[2];
        for (int r = 0; r < 2; r++) {
            rows[r] = mn_row_load(l->call, l->x, at + r * width, count, row[r]);
            dx[r] = mn_row_place(l->dx, at + r * width, result[r]);
        }
        bodies->pool2x2_backward((size_t)n, (size_t)l->C, g, rows, dx);
        for (int r = 0; r < 2; r++)
            mn_row_store(l->call, l->dx, at + r * width, count, dx[r]);
    }
}

/* Writes the gradient of window [image, p, q] to its pixels, which belong to no other window. */
static void scatter_window(const pool *l, const int64_t at[3], int64_t c, int64_t n)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const mn_pool2d_attributes *a = l->a;
    const span h = span_of(at[1], a->kernel[0], a->stride[0], a->padding[0], l->H);
    const span w = span_of(at[2], a->kernel[1], a->stride[1], a->padding[1], l->W);
    float largest[STRIP], index[STRIP], gradient[STRIP], result[STRIP];
    const int64_t from = ((at[0] * l->P + at[1]) * l->Q + at[2]) * l->C + c;
    const float *g = mn_row_load(l->call, l->y, from, n, gradient);
    window_max(l, at, c, n, largest, index);
    for (int64_t y = h.begin; y < h.end; y++)
        for (int64_t x = w.begin; x < w.end; x++) {
            const int64_t to = ((at[0] * l->H + y) * l->W + x) * l->C + c;
            const float number = (float)((y - h.begin) * (w.end - w.begin) + x - w.begin);
            float *dx = mn_row_place(l->dx, to, result);
            bodies->pick_index((size_t)n, g, index, number, dx);
            mn_row_store(l->call, l->dx, to, n, dx);
        }
}

static void run_scatter(void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    const int64_t pixels = l->H * l->W * l->C;
    for (int64_t image = begin; image < end; image++) {
        clear(l->dx, image * pixels, pixels);
        for (int64_t p = 0; p < l->P; p++) {
            if (is_2x2(l)) {
                scatter_2x2(l, image, p);
                continue;
            }
            for (int64_t q = 0; q < l->Q; q++)
                for (int64_t c = 0; c < l->C; c += STRIP) {
                    const int64_t at[3] = {image, p, q};
                    scatter_window(l, at, c, mn_min64(STRIP, l->C - c));
                }
        }
    }
}

/* Windows that hold a pixel, on one axis. */
static span windows_of(int64_t index, int64_t kernel, int64_t stride, int64_t padding,
                       int64_t windows)
{
    const int64_t last = (index + padding) / stride, before = index + padding - kernel;
    return (span){before < 0 ? 0 : before / stride + 1, mn_min64(last + 1, windows)};
}

/* Adds to sum the gradient of window `at` where pixel [y, x] is its first largest. */
static void gather_window(const pool *l, const int64_t at[3], const int64_t pixel[2], int64_t c,
                          int64_t n, float *sum)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const mn_pool2d_attributes *a = l->a;
    const span h = span_of(at[1], a->kernel[0], a->stride[0], a->padding[0], l->H);
    const span w = span_of(at[2], a->kernel[1], a->stride[1], a->padding[1], l->W);
    const int64_t from = ((at[0] * l->P + at[1]) * l->Q + at[2]) * l->C + c;
    float largest[STRIP], index[STRIP], gradient[STRIP], share[STRIP];
    const float *g = mn_row_load(l->call, l->y, from, n, gradient);
    window_max(l, at, c, n, largest, index);
    bodies->pick_index((size_t)n, g, index,
                       (float)((pixel[0] - h.begin) * (w.end - w.begin) + pixel[1] - w.begin),
                       share);
    bodies->accumulate((size_t)n, sum, share);
}

/* Overlapping windows: every pixel collects from the windows it lies in, so that sums are in f32
 * and in one order. Pixels are numbered (n H + y) W + x. */
static void run_gather(void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    const mn_pool2d_attributes *a = l->a;
    float sum[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const int64_t pixel[2] = {i / l->W % l->H, i % l->W}, image = i / (l->W * l->H);
        const span p = windows_of(pixel[0], a->kernel[0], a->stride[0], a->padding[0], l->P);
        const span q = windows_of(pixel[1], a->kernel[1], a->stride[1], a->padding[1], l->Q);
        for (int64_t c = 0; c < l->C; c += STRIP) {
            const int64_t n = mn_min64(STRIP, l->C - c);
            memset(sum, 0, sizeof sum);
            for (int64_t r = p.begin; r < p.end; r++)
                for (int64_t s = q.begin; s < q.end; s++)
                    gather_window(l, (const int64_t[3]){image, r, s}, pixel, c, n, sum);
            float *dx = mn_row_place(l->dx, i * l->C + c, sum);
            if (dx != sum)
                memcpy(dx, sum, (size_t)n * sizeof *dx);
            mn_row_store(l->call, l->dx, i * l->C + c, n, dx);
        }
    }
}

void mn_cpu_max_pool2d_backward(const mn_call *call)
{
    pool l = pool_of(call, &call->in[1], &call->in[0], &call->out[0]);
    const mn_pool2d_attributes *a = l.a;
    const int64_t images = l.x->shape[0];
    if (l.dx->numel == 0)
        return;
    const int64_t image_size = l.H * l.W * l.C;
    if (a->stride[0] >= a->kernel[0] && a->stride[1] >= a->kernel[1])
        mn_run_ranges(call, images, mn_max64(1, MN_CHUNK / image_size), run_scatter, &l);
    else
        mn_run_ranges(call, images * l.H * l.W, mn_max64(1, MN_CHUNK / 16 / l.C), run_gather, &l);
}

/* ---- global average -------------------------------------------------------------------------- */

void mn_cpu_global_avg_pool2d(const mn_call *call)
{
    const mn_view *x = &call->in[0];
    const double pixels = (double)(x->shape[1] * x->shape[2]);
    mn_run_reduce(call, x, 6, &call->out[0], pixels > 0 ? 1 / pixels : (double)NAN);
}

void mn_cpu_global_avg_pool2d_backward(const mn_call *call)
{
    const mn_view *dx = &call->out[0];
    mn_view g = call->in[0];
    g.ndim = 4;
    g.shape[3] = g.shape[1];
    g.shape[1] = g.shape[2] = 1;
    mn_run_expand(call, &g, dx, 1 / (double)(dx->shape[1] * dx->shape[2]));
}
