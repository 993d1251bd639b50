/* Resizing of images [N,H,W,C]: each pixel of the result y is a weighted mean of up to four of x.
 */
#include "ops/cpu/run.h"

#include <string.h>

#define STRIP   256 /* channels at once */
#define COLUMNS 64  /* of y at once */

typedef struct resize {
    const mn_call *call;
    const mn_resize_attributes *a;
    const mn_view *x, *y;
    int64_t H, W, C, P, Q;
} resize;

static resize resize_of(const mn_call *call, const mn_view *x, const mn_view *y)
{
    return (resize){.call = call,
                    .a = (const void *)call->attributes.bytes,
                    .x = x,
                    .y = y,
                    .H = x->shape[1],
                    .W = x->shape[2],
                    .C = x->shape[3],
                    .P = y->shape[1],
                    .Q = y->shape[2]};
}

/* ---- forward --------------------------------------------------------------------------------- */

/* n channels of y from c on; row is the first of the image in x. */
static void mix_pixel(const resize *l, int64_t row, const mn_taps *rows, const mn_taps *columns,
                      int64_t c, int64_t n, float *y)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float scratch[STRIP];
    for (int r = 0; r < rows->count; r++)
        for (int s = 0; s < columns->count; s++) {
            const int64_t from = ((row + rows->index[r]) * l->W + columns->index[s]) * l->C + c;
            const float *x = mn_row_load(l->call, l->x, from, n, scratch);
            const float weight = (float)(rows->weight[r] * columns->weight[s]);
            (r + s == 0 ? bodies->mul_scalar : bodies->add_scaled)((size_t)n, x, weight, y);
        }
}

/* n pixels of a row from column q on. */
static void mix_row(const resize *l, int64_t row, const mn_taps *columns, int64_t q, int64_t n)
{
    const mn_taps rows = mn_resize_taps(l->a, 0, l->H, row % l->P);
    float result[STRIP];
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < l->C; c += STRIP) {
            const int64_t at = (row * l->Q + q + i) * l->C + c, width = mn_min(STRIP, l->C - c);
            float *y = mn_row_place(l->y, at, result);
            mix_pixel(l, row / l->P * l->H, &rows, &columns[i], c, width, y);
            mn_row_store(l->call, l->y, at, width, y);
        }
}

/* Rows of all images of y, numbered. */
static void run_rows(const void *arg, int64_t begin, int64_t end)
{
    const resize *l = arg;
    mn_taps columns[COLUMNS];
    for (int64_t q = 0; q < l->Q; q += COLUMNS) {
        const int64_t n = mn_min(COLUMNS, l->Q - q);
        for (int64_t i = 0; i < n; i++)
            columns[i] = mn_resize_taps(l->a, 1, l->W, q + i);
        for (int64_t row = begin; row < end; row++)
            mix_row(l, row, columns, q, n);
    }
}

void mn_cpu_upsample2d(const mn_call *call)
{
    const resize l = resize_of(call, &call->in[0], &call->out[0]);
    if (l.y->numel > 0)
        mn_run_ranges(call, l.y->shape[0] * l.P, mn_max(1, MN_CHUNK / (l.Q * l.C)), run_rows, &l);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Adds row p of an image's gradient, for n channels from c on, to its rows in x, [H, W, n]: first
 * along the row, so that few terms meet in one sum. */
static void scatter_row(const resize *l, int64_t row, int64_t c, int64_t n, float *line, float *sum)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const mn_taps rows = mn_resize_taps(l->a, 0, l->H, row % l->P);
    const int64_t width = l->W * n;
    float scratch[STRIP];
    memset(line, 0, (size_t)width * sizeof *line);
    for (int64_t q = 0; q < l->Q; q++) {
        const mn_taps columns = mn_resize_taps(l->a, 1, l->W, q);
        const float *g = mn_row_load(l->call, l->y, (row * l->Q + q) * l->C + c, n, scratch);
        for (int s = 0; s < columns.count; s++)
            bodies->add_scaled((size_t)n, g, (float)columns.weight[s], line + columns.index[s] * n);
    }
    for (int r = 0; r < rows.count; r++)
        bodies->add_scaled((size_t)width, line, (float)rows.weight[r], sum + rows.index[r] * width);
}

/* A strip of an image's channels. */
static void scatter_strip(void *arg, int64_t task, int slot)
{
    const resize *l = arg;
    const int64_t strips = mn_ceil_div(l->C, STRIP), pixels = l->H * l->W;
    const int64_t image = task / strips, c = task % strips * STRIP, n = mn_min(STRIP, l->C - c);
    float *sum = (float *)l->call->workspace + slot * (pixels + l->W) * mn_min(STRIP, l->C);
    memset(sum, 0, (size_t)(pixels * n) * sizeof *sum);
    for (int64_t p = 0; p < l->P; p++)
        scatter_row(l, image * l->P + p, c, n, sum + pixels * n, sum);
    for (int64_t i = 0; i < pixels; i++)
        mn_row_store(l->call, l->x, (image * pixels + i) * l->C + c, n, sum + i * n);
}

mn_status mn_cpu_upsample2d_backward_prepare(const mn_call *call, mn_plan *plan,
                                             size_t *workspace_bytes)
{
    const resize l = resize_of(call, &call->out[0], &call->in[0]);
    size_t bytes = sizeof(float) * (size_t)mn_min(STRIP, l.C);
    (void)plan;
    const bool fits = mn_size_mul(bytes, (size_t)l.H + 1, &bytes) &&
                      mn_size_mul(bytes, (size_t)l.W, &bytes) &&
                      mn_size_mul(bytes, (size_t)mn_call_threads(call), workspace_bytes);
    return fits ? MN_OK : MN_ERR_MEMORY;
}

void mn_cpu_upsample2d_backward(const mn_call *call)
{
    resize l = resize_of(call, &call->out[0], &call->in[0]);
    if (l.x->numel > 0)
        mn_call_parallel(call, l.x->shape[0] * mn_ceil_div(l.C, STRIP), scatter_strip, &l);
}
