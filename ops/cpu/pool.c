/* Pooling over images [N,H,W,C]. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

#define STRIP MN_POOL_LIMIT /* channels at once */

/* Images x, windows y (or their gradients g), and dx; x is dx where only its shape matters. */
typedef struct pool {
    const mn_call *call;
    bool average;
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

/* Part of window [image, p, q] that lies inside of the image. */
typedef struct window {
    int64_t image, top, bottom, left, right;
} window;

static window window_of(const pool *l, int64_t image, int64_t p, int64_t q)
{
    const int64_t *size = l->a->kernel, *stride = l->a->stride, *padding = l->a->padding;
    const int64_t top = p * stride[0] - padding[0], left = q * stride[1] - padding[1];
    return (window){image, mn_max(top, 0), mn_min(top + size[0], l->H), mn_max(left, 0),
                    mn_min(left + size[1], l->W)};
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Rows p of all images, numbered n P + p. */
static void run_2x2(const void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const int64_t windows = STRIP / l->C;
    float row[2][2 * STRIP], result[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const int64_t top = (i / l->P * l->H + i % l->P * 2) * l->W * l->C;
        for (int64_t q = 0; q < l->Q; q += windows) {
            const int64_t n = mn_min(windows, l->Q - q), count = 2 * n * l->C;
            const int64_t at = top + 2 * q * l->C, to = (i * l->Q + q) * l->C;
            const float *upper = mn_row_load(l->call, l->x, at, count, row[0]);
            const float *lower = mn_row_load(l->call, l->x, at + l->W * l->C, count, row[1]);
            float *y = mn_row_place(l->y, to, result);
            (l->average ? bodies->average2x2 : bodies->pool2x2)((size_t)n, (size_t)l->C, upper,
                                                                lower, y);
            mn_row_store(l->call, l->y, to, n * l->C, y);
        }
    }
}

/* 1 / pixels of the window that its average counts. */
static float share_of(const pool *l, const window *w)
{
    const int64_t inside = (w->bottom - w->top) * (w->right - w->left);
    return (float)(1 /
                   (double)(l->a->exclude_padding ? inside : l->a->kernel[0] * l->a->kernel[1]));
}

/* Average or largest elements of the window for `n` channels from c on, and, if `index` is given,
 * the numbers of their pixels in the window. */
static void reduce_window(const pool *l, const window *w, int64_t c, int64_t n, float *result,
                          float *index)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float scratch[STRIP], number = 0;
    for (int64_t i = 0; i < n; i++)
        result[i] = l->average ? 0 : -INFINITY;
    if (index)
        memset(index, 0, (size_t)n * sizeof *index);
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++, number++) {
            const int64_t at = ((w->image * l->H + y) * l->W + x) * l->C + c;
            const float *pixel = mn_row_load(l->call, l->x, at, n, scratch);
            if (l->average)
                bodies->accumulate((size_t)n, result, pixel);
            else if (index)
                bodies->max_index((size_t)n, pixel, number, result, index);
            else
                bodies->max((size_t)n, pixel, result);
        }
    if (l->average)
        bodies->scale((size_t)n, share_of(l, w), result);
}

static void run_windows(const void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    float result[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const window w = window_of(l, i / (l->P * l->Q), i / l->Q % l->P, i % l->Q);
        for (int64_t c = 0; c < l->C; c += STRIP) {
            const int64_t n = mn_min(STRIP, l->C - c);
            float *y = mn_row_place(l->y, i * l->C + c, result);
            reduce_window(l, &w, c, n, y, NULL);
            mn_row_store(l->call, l->y, i * l->C + c, n, y);
        }
    }
}

/* Of max_pool2d and avg_pool2d. */
void mn_cpu_pool2d(const mn_call *call)
{
    pool l = pool_of(call, &call->in[0], &call->out[0], NULL);
    l.average = call->op == &mn_ops[MN_OP_avg_pool2d];
    if (call->out[0].numel == 0)
        return;
    const int64_t rows = call->out[0].shape[0] * l.P;
    const int64_t chunk = mn_max(1, MN_CHUNK / mn_max(1, l.Q * l.C));
    if (is_2x2(&l))
        mn_run_ranges(call, rows, chunk, run_2x2, &l);
    else
        mn_run_ranges(call, rows * l.Q, chunk * l.Q, run_windows, &l);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* All bits 0 is 0 in every floating type. */
static void clear(const mn_view *dx, int64_t start, int64_t n)
{
    if (n > 0)
        memset(mn_element(dx, start), 0, (size_t)n * mn_dtype_size(dx->dtype));
}

/* Rows of windows [image, p] of two by two. */
static void scatter_2x2(const pool *l, int64_t image, int64_t p)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const int64_t windows = STRIP / l->C, width = l->W * l->C;
    float row[2][2 * STRIP], result[2][2 * STRIP], gradient[STRIP];
    for (int64_t q = 0; q < l->Q; q += windows) {
        const int64_t n = mn_min(windows, l->Q - q), count = 2 * n * l->C;
        const int64_t at = (image * l->H + 2 * p) * width + 2 * q * l->C;
        const int64_t from = ((image * l->P + p) * l->Q + q) * l->C;
        const float *g = mn_row_load(l->call, l->y, from, n * l->C, gradient);
        const float *rows[2];
        float *dx[2];
        for (int r = 0; r < 2; r++) {
            dx[r] = mn_row_place(l->dx, at + r * width, result[r]);
            if (!l->average)
                rows[r] = mn_row_load(l->call, l->x, at + r * width, count, row[r]);
        }
        if (l->average)
            bodies->average2x2_backward((size_t)n, (size_t)l->C, g, dx);
        else
            bodies->pool2x2_backward((size_t)n, (size_t)l->C, g, rows, dx);
        for (int r = 0; r < 2; r++)
            mn_row_store(l->call, l->dx, at + r * width, count, dx[r]);
    }
    for (int64_t r = 0; r < 2; r++) /* what the windows leave out */
        clear(l->dx, (image * l->H + 2 * p + r) * width + 2 * l->Q * l->C, width - 2 * l->Q * l->C);
}

static void run_scatter_2x2(const void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    const int64_t width = l->W * l->C;
    for (int64_t image = begin; image < end; image++) {
        for (int64_t p = 0; p < l->P; p++)
            scatter_2x2(l, image, p);
        clear(l->dx, (image * l->H + 2 * l->P) * width, (l->H - 2 * l->P) * width);
    }
}

/* Adds the window's gradient g to its pixels in `sum`, [H, W, n]. */
static void scatter_window(const pool *l, const window *w, int64_t c, int64_t n, const float *g,
                           float *sum)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float largest[STRIP], index[STRIP], share[STRIP], number = 0;
    reduce_window(l, w, c, n, largest, index);
    for (int64_t y = w->top; y < w->bottom; y++)
        for (int64_t x = w->left; x < w->right; x++) {
            bodies->pick_index((size_t)n, g, index, number++, share);
            bodies->accumulate((size_t)n, sum + (y * l->W + x) * n, share);
        }
}

/* A strip of an image's channels: the gradient is summed in f32, window by window. */
static void scatter_strip(void *arg, int64_t task, int slot)
{
    const pool *l = arg;
    const int64_t strips = mn_ceil_div(l->C, STRIP), pixels = l->H * l->W;
    const int64_t image = task / strips, c = task % strips * STRIP, n = mn_min(STRIP, l->C - c);
    float *sum = (float *)l->call->workspace + slot * pixels * mn_min(STRIP, l->C);
    float gradient[STRIP];
    memset(sum, 0, (size_t)(pixels * n) * sizeof *sum);
    for (int64_t i = 0; i < l->P * l->Q; i++) {
        const window w = window_of(l, image, i / l->Q, i % l->Q);
        const int64_t from = (image * l->P * l->Q + i) * l->C + c;
        scatter_window(l, &w, c, n, mn_row_load(l->call, l->y, from, n, gradient), sum);
    }
    for (int64_t i = 0; i < pixels; i++)
        mn_row_store(l->call, l->dx, (image * pixels + i) * l->C + c, n, sum + i * n);
}

mn_status mn_cpu_max_pool2d_backward_prepare(const mn_call *call, mn_plan *plan,
                                             size_t *workspace_bytes)
{
    const pool l = pool_of(call, &call->in[1], &call->in[0], &call->out[0]);
    size_t bytes = sizeof(float) * (size_t)mn_min(STRIP, l.C);
    (void)plan;
    bool fits = is_2x2(&l) || (mn_size_mul(bytes, (size_t)l.H, &bytes) &&
                               mn_size_mul(bytes, (size_t)l.W, &bytes) &&
                               mn_size_mul(bytes, (size_t)mn_call_threads(call), &bytes));
    *workspace_bytes = is_2x2(&l) ? 0 : bytes;
    return fits ? MN_OK : MN_ERR_MEMORY;
}

void mn_cpu_max_pool2d_backward(const mn_call *call)
{
    pool l = pool_of(call, &call->in[1], &call->in[0], &call->out[0]);
    const int64_t images = l.x->shape[0];
    if (l.dx->numel == 0)
        return;
    if (is_2x2(&l))
        mn_run_ranges(call, images, mn_max(1, MN_CHUNK / (l.H * l.W * l.C)), run_scatter_2x2, &l);
    else
        mn_call_parallel(call, images * mn_ceil_div(l.C, STRIP), scatter_strip, &l);
}

/* ---- gradient of the average ----------------------------------------------------------------- */

/* Windows [first, end) along an axis that contain pixel `at`. */
static void windows_at(const pool *l, int axis, int64_t at, int64_t *first, int64_t *end)
{
    const int64_t size = l->a->kernel[axis], stride = l->a->stride[axis];
    const int64_t padded = at + l->a->padding[axis];
    *first = padded < size ? 0 : (padded - size) / stride + 1;
    *end = mn_min(padded / stride + 1, axis == 0 ? l->P : l->Q);
}

/* Sum of what the windows give to pixel [image, y, x], for n channels from c on. */
static void gather_windows(const pool *l, int64_t image, const int64_t pixel[2], int64_t c,
                           int64_t n, float *sum)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float scratch[STRIP];
    int64_t first[2], end[2];
    for (int i = 0; i < 2; i++)
        windows_at(l, i, pixel[i], &first[i], &end[i]);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t p = first[0]; p < end[0]; p++)
        for (int64_t q = first[1]; q < end[1]; q++) {
            const window w = window_of(l, image, p, q);
            const int64_t from = ((image * l->P + p) * l->Q + q) * l->C + c;
            const float *g = mn_row_load(l->call, l->y, from, n, scratch);
            bodies->add_scaled((size_t)n, g, share_of(l, &w), sum);
        }
}

/* Pixels of all images, numbered. */
static void run_pixels(const void *arg, int64_t begin, int64_t end)
{
    const pool *l = arg;
    float result[STRIP];
    for (int64_t i = begin; i < end; i++) {
        const int64_t pixel[2] = {i / l->W % l->H, i % l->W};
        for (int64_t c = 0; c < l->C; c += STRIP) {
            const int64_t n = mn_min(STRIP, l->C - c);
            float *dx = mn_row_place(l->dx, i * l->C + c, result);
            gather_windows(l, i / l->W / l->H, pixel, c, n, dx);
            mn_row_store(l->call, l->dx, i * l->C + c, n, dx);
        }
    }
}

void mn_cpu_avg_pool2d_backward(const mn_call *call)
{
    pool l = pool_of(call, &call->out[0], &call->in[0], &call->out[0]);
    const int64_t images = l.dx->shape[0];
    l.average = true;
    if (l.dx->numel == 0)
        return;
    if (is_2x2(&l))
        mn_run_ranges(call, images, mn_max(1, MN_CHUNK / (l.H * l.W * l.C)), run_scatter_2x2, &l);
    else
        mn_run_ranges(call, images * l.H * l.W, mn_max(1, MN_CHUNK / l.C), run_pixels, &l);
}
