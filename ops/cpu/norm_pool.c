/* Batch norm, ReLU and the largest of two by two pixels as one op: its result is all that is
 * written, and backward finds out again from x where each largest element was. */
#include "ops/cpu/norm.h"

#include <string.h>

#define TERMS 256            /* most f32 terms in a lane */
#define ROOM  (2 * MN_BLOCK) /* elements of a row of a strip, if kernels do not take it as it is */

/* Windows side by side, for channels of a strip. */
typedef struct strip {
    const mn_norm_run *m;
    int64_t n, channel, width;
    int64_t window, pixel; /* the first window, and its upper left pixel */
    int64_t below;         /* pixels from a row to the next */
    mn_norm_tables tables; /* slope and bias make y */
} strip;

/* Sums of gradients of upper and of lower pixels. */
typedef struct pool_lanes {
    float sum[2][MN_BLOCK], product[2][MN_BLOCK];
} pool_lanes;

/* ---- by the bodies of all kernel sets -------------------------------------------------------- */

/* Pixels next to each other as f32. */
static const float *load(const strip *s, const mn_view *view, int64_t pixel, int64_t pixels,
                         float *scratch)
{
    const int64_t C = s->m->channels, at = pixel * C + s->channel;
    if (s->width == C)
        return mn_row_load(s->m->call, view, at, pixels * C, scratch);
    for (int64_t i = 0; i < pixels; i++) {
        float *to = scratch + i * s->width;
        const float *from = mn_row_load(s->m->call, view, at + i * C, s->width, to);
        if (from != to)
            memcpy(to, from, (size_t)s->width * sizeof *to);
    }
    return scratch;
}

static void store(const strip *s, const mn_view *view, int64_t pixel, int64_t pixels,
                  const float *row)
{
    const int64_t C = s->m->channels, at = pixel * C + s->channel;
    const int64_t parts = s->width == C ? 1 : pixels, n = pixels / parts * s->width;
    for (int64_t i = 0; i < parts; i++)
        mn_row_store(s->m->call, view, at + i * C, n, row + i * n);
}

/* Tables are repeated for the pixels of several windows, but not for the two of one. */
static int64_t part_of(const strip *s)
{
    return s->n > 1 ? 2 * s->n * s->width : s->width;
}

/* Rows of x as f32, and what ReLU is given, but for its rounding. */
static void normalize(const strip *s, const float *x[2], float row[2][ROOM], float y[2][ROOM])
{
    const int64_t count = 2 * s->n * s->width, part = part_of(s);
    mn_norm_tables tables = s->tables;
    tables.scale = tables.slope;
    tables.shift = tables.bias;
    for (int r = 0; r < 2; r++) {
        x[r] = load(s, s->m->x, s->pixel + r * s->below, 2 * s->n, row[r]);
        for (int64_t i = 0; i < count; i += part)
            s->m->bodies->normalize((size_t)part, x[r] + i, &tables, y[r] + i);
    }
}

/* Rounding keeps the order: what is stored is rounded once. */
static void pool_bodies(const strip *s)
{
    const mn_bodies *bodies = s->m->bodies;
    const size_t count = (size_t)(s->n * s->width);
    float row[2][ROOM], y[2][ROOM];
    const float *x[2];
    normalize(s, x, row, y);
    bodies->pool2x2((size_t)s->n, (size_t)s->width, y[0], y[1], row[0]);
    bodies->binary[MN_OP_relu](count, row[0], row[0], row[1]);
    store(s, s->m->y, s->window, s->n, row[1]);
}

/* What of g arrives at which pixel, before ReLU has had its say. Of what rounding makes equal the
 * first is the largest. */
static void route(const strip *s, const float *x[2], float row[2][ROOM], float given[2][ROOM])
{
    float y[2][ROOM], result[ROOM];
    normalize(s, x, row, y);
    for (int r = 0; r < 2; r++)
        mn_norm_round(s->m, 2 * s->n * s->width, y[r]);
    s->m->bodies->pool2x2_backward(
        (size_t)s->n, (size_t)s->width, load(s, s->m->g, s->window, s->n, result),
        (const float *[2]){y[0], y[1]}, (float *[2]){given[0], given[1]});
}

static void add_bodies(const strip *s, pool_lanes *to)
{
    float row[2][ROOM], given[2][ROOM];
    const float *x[2];
    mn_norm_tables tables = s->tables;
    tables.scale = tables.gradient;
    route(s, x, row, given);
    for (int r = 0; r < 2; r++)
        s->m->bodies->add_masked_gradients(2 * s->n, s->width, given[r], x[r], &tables, to->sum[r],
                                           to->product[r]);
}

static void apply_bodies(const strip *s)
{
    const int64_t count = 2 * s->n * s->width, part = part_of(s);
    float row[2][ROOM], given[2][ROOM], dx[ROOM];
    const float *x[2];
    route(s, x, row, given);
    for (int r = 0; r < 2; r++) {
        for (int64_t i = 0; i < count; i += part)
            s->m->bodies->masked_backward((size_t)part, given[r] + i, x[r] + i, &s->tables, dx + i);
        store(s, s->m->y, s->pixel + r * s->below, 2 * s->n, dx);
    }
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Four for each sixteen channels of a strip. */
static int64_t masks_of_strip(const mn_norm_run *m)
{
    return 4 * mn_ceil_div(m->width, 16);
}

int64_t mn_norm_pool_masks(const mn_norm_run *m)
{
    return mn_ceil_div(m->channels, mn_max(1, m->width)) * masks_of_strip(m);
}

/* By the kernel set's own loop, which takes them as they are. */
static void run_kernel(const strip *s, pool_lanes *to)
{
    const mn_norm_run *m = s->m;
    const int64_t C = m->channels, at = s->pixel * C + s->channel, below = s->below * C;
    const int64_t window = s->window * C + s->channel;
    mn_norm_windows w = {.n = s->n,
                         .width = s->width,
                         .ld = C,
                         .x = {mn_element(m->x, at), mn_element(m->x, at + below)},
                         .tables = s->tables};
    if (m->g) {
        w.g = mn_element(m->g, window);
        w.where_ld = mn_norm_pool_masks(m);
        w.where = m->where + s->window * w.where_ld + s->channel / m->width * masks_of_strip(m);
    }
    for (int r = 0; r < 2 && m->g; r++) {
        if (to) {
            w.sum[r] = to->sum[r];
            w.product[r] = to->product[r];
        } else
            w.dx[r] = mn_element(m->y, at + r * below);
    }
    if (to)
        w.tables.scale = w.tables.gradient;
    if (!m->g)
        w.y = mn_element(m->y, window);
    m->kernels->pool(&w);
}

static void run_strip(strip s, pool_lanes *to)
{
    const int64_t windows = s.n, most = mn_max(1, s.m->group / 2);
    if (s.m->kernels) {
        run_kernel(&s, to);
        return;
    }
    for (int64_t q = 0; q < windows; q += s.n, s.window += s.n, s.pixel += 2 * s.n) {
        s.n = mn_min(most, windows - q);
        if (to)
            add_bodies(&s, to);
        else if (s.m->g)
            apply_bodies(&s);
        else
            pool_bodies(&s);
    }
}

/* ---- rows of windows, numbered through all images -------------------------------------------- */

static int64_t rows_of(const mn_norm_run *m)
{
    return m->x->shape[0] * (m->x->shape[1] / 2);
}

/* Some windows of a row, from q on. */
static strip strip_of(const mn_norm_run *m, int64_t row, int64_t q, int64_t n, int64_t channel,
                      int64_t width)
{
    const int64_t H = m->x->shape[1], W = m->x->shape[2],
                  top = row / (H / 2) * H + row % (H / 2) * 2;
    strip s = {.m = m,
               .n = n,
               .channel = channel,
               .width = width,
               .window = row * (W / 2) + q,
               .pixel = top * W + 2 * q,
               .below = W,
               .tables = mn_norm_tables_at(m, channel)};
    if (!m->g)
        s.tables.bias = s.tables.shift;
    return s;
}

static void flush(const mn_norm_run *m, int64_t width, pool_lanes *l, double *sum, double *product)
{
    for (int r = 0; r < 2; r++) {
        m->bodies->flush((size_t)width, l->sum[r], sum);
        m->bodies->flush((size_t)width, l->product[r], product);
    }
}

void mn_norm_pool_sums(const mn_norm_run *m, int64_t task, int64_t channel, int64_t width,
                       double *const to[2])
{
    const int64_t Q = m->x->shape[2] / 2, rows = rows_of(m), share = mn_ceil_div(rows, m->tasks);
    const int64_t last = mn_min(rows, (task + 1) * share);
    pool_lanes l;
    int64_t terms = 0;
    memset(&l, 0, sizeof l);
    for (int64_t c = 0; c < width; c++)
        to[0][c] = to[1][c] = 0;
    for (int64_t row = task * share; row < last; row++)
        for (int64_t q = 0, n; q < Q; q += n, terms += n) {
            n = mn_min(TERMS, Q - q);
            if (terms + n > TERMS) {
                flush(m, width, &l, to[0], to[1]);
                terms = 0;
            }
            run_strip(strip_of(m, row, q, n, channel, width), &l);
        }
    flush(m, width, &l, to[0], to[1]);
}

/* dx of pixels in no window, at which no gradient arrives. */
static void clear(const mn_norm_run *m, int64_t pixel, int64_t pixels)
{
    float nothing[MN_BLOCK] = {0}, row[MN_BLOCK], dx[MN_BLOCK];
    for (; pixels > 0; pixel++, pixels--)
        for (int64_t c = 0, n; c < m->channels; c += n) {
            const int64_t at = pixel * m->channels + c;
            const mn_norm_tables tables = mn_norm_tables_at(m, c);
            n = mn_min(MN_BLOCK, m->channels - c);
            float *to = mn_row_place(m->y, at, dx);
            m->bodies->normalize_backward((size_t)n, nothing,
                                          mn_row_load(m->call, m->x, at, n, row), &tables, to);
            mn_row_store(m->call, m->y, at, n, to);
        }
}

static void run_rows(const void *arg, int64_t begin, int64_t end)
{
    const mn_norm_run *m = arg;
    const int64_t H = m->x->shape[1], W = m->x->shape[2], Q = W / 2;
    for (int64_t row = begin; row < end; row++) {
        const int64_t top = strip_of(m, row, 0, Q, 0, 0).pixel;
        for (int64_t c = 0; c < m->channels; c += m->width)
            run_strip(strip_of(m, row, 0, Q, c, mn_min(m->width, m->channels - c)), NULL);
        for (int64_t r = 0; r < 2 && m->g; r++)
            clear(m, top + r * W + 2 * Q, W - 2 * Q);
        if (m->g && H % 2 == 1 && (row + 1) % (H / 2) == 0)
            clear(m, top + 2 * W, W);
    }
}

void mn_norm_pool_sweep(const mn_norm_run *m)
{
    const int64_t elements = 2 * m->x->shape[2] * m->channels;
    mn_run_ranges(m->call, rows_of(m), mn_max(1, MN_CHUNK / elements), run_rows, m);
}
