/* The gathering convolution: results of a block of points times all channels, one tile after the
 * other, each a single sum over (row tap, column tap, channel). */
#include "ops/cpu/conv.h"

#include <string.h>

/* Tiles of a block at most and at least, and the floats it should not exceed. */
#define BLOCK_TILES     16
#define BLOCK_TILES_MIN 8
#define BLOCK_FLOATS    16384

static bool nothing_to_do(const mn_conv_gather *g)
{
    const mn_conv_strips *s = &g->strips;
    return s->images == 0 || s->y.points <= 0 || s->x.points <= 0 || g->columns == 0;
}

static int64_t phase_count(const mn_conv_gather *g)
{
    return g->phases[0] * g->phases[1];
}

static int64_t phase_depth(const mn_conv_gather *g, int64_t i)
{
    return g->phase[0][i / g->phases[1]].taps * g->phase[1][i % g->phases[1]].taps *
           g->strips.group_channels;
}

static void choose_block(mn_conv_gather *g)
{
    const int64_t width = g->kernels->columns, results = g->groups * g->columns;
    const int64_t phases = phase_count(g);
    /* One panel, or whole panels only: a row's surplus columns are put right by the next row. */
    g->bulk = g->depthwise ||
              (g->groups == 1 && ((g->panels == 1 && phases == 1) || g->columns % width == 0));
    g->ldc = g->bulk ? results : results - g->columns + g->panels * width;
    int64_t tiles = BLOCK_FLOATS / (g->ldc * g->kernels->rows * phases);
    tiles = mn_min(mn_max(tiles, BLOCK_TILES_MIN), BLOCK_TILES);
    g->block = tiles * g->kernels->rows;
}

/* A slot for each task of the way that has most, beside the workspace of all. */
static mn_status place_moments(mn_conv_gather *g)
{
    mn_arena arena = {g->workspace_bytes, true};
    const int64_t strips = mn_conv_strip_count(&g->strips);
    const int64_t others = mn_max(g->winograd.m > 0 ? g->winograd.blocks : 0,
                                  g->planes.kernels ? g->planes.blocks : 0);
    g->moments.slots = mn_max(strips, others);
    g->moments.at =
        mn_arena_take(&arena, mn_moments_slot_bytes(&g->moments), g->moments.slots, 1, 1);
    g->workspace_bytes = arena.bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

mn_status mn_gather_plan(mn_conv_gather *g)
{
    mn_conv_strips *s = &g->strips;
    g->kernels = mn_gemm_kernels_for(g->call, g->columns);
    g->workspace_bytes = 0;
    if (nothing_to_do(g))
        return MN_OK;
    mn_winograd_choose(g);
    mn_conv_strips_cut(s);
    const int64_t width = g->kernels->columns;
    g->depth = 0;
    for (int64_t i = 0; i < phase_count(g); i++)
        g->depth += phase_depth(g, i);
    g->panels = mn_ceil_div(g->columns, width);
    g->depthwise = mn_is_depthwise(s, g->groups, g->columns);
    choose_block(g);
    mn_arena scratch = {0, true};
    if (!s->direct)
        mn_arena_take(&scratch, sizeof(float) * (size_t)s->channels, s->height, s->width,
                      s->together);
    g->c_at = mn_arena_take(&scratch, sizeof(float), g->block, g->ldc, phase_count(g));
    mn_arena_take(&scratch, sizeof(float), width, 1, 1);
    g->scratch_bytes = scratch.bytes;
    if (g->winograd.m == 0)
        mn_planes_choose(g);
    mn_arena arena = {0, scratch.ok};
    g->offsets_at = mn_arena_take(&arena, sizeof(ptrdiff_t), g->depth, 1, 1);
    g->start_at = mn_arena_take(&arena, sizeof(float), g->groups, g->panels, width);
    g->packed_at =
        mn_arena_take(&arena, sizeof(float) * (size_t)width, g->groups, g->panels, g->depth);
    g->finite_at = mn_arena_take(&arena, 1, g->groups, g->panels, 1);
    g->taps_at =
        mn_arena_take(&arena, sizeof(float), g->depthwise ? g->groups : 0, g->depth + 1, 1);
    g->scratch_at = mn_arena_take(&arena, g->scratch_bytes, mn_call_threads(g->call), 1, 1);
    g->workspace_bytes = arena.bytes;
    MN_TRY(arena.ok ? mn_winograd_plan(g) : MN_ERR_MEMORY);
    return g->moments.call ? place_moments(g) : MN_OK;
}

static float *packed(const mn_conv_gather *g, int64_t index)
{
    return (float *)mn_workspace(g->call, g->packed_at) + index * g->depth * g->kernels->columns;
}

static void pack_task(void *arg, int64_t index, int slot)
{
    (void)slot;
    const mn_conv_gather *g = arg;
    float *dst = packed(g, index);
    g->pack(g, index / g->panels, index % g->panels, dst);
    unsigned char *finite = mn_workspace(g->call, g->finite_at);
    finite[index] = mn_bodies_of(g->call)->finite((size_t)(g->depth * g->kernels->columns), dst);
}

/* Some points of a strip. */
typedef struct block {
    int64_t image, first, count; /* points of the image and those after it, row by row */
    const float *origin;         /* lowest tap of the strip's first point */
    int64_t strip_first;
    const float *pixel[BLOCK_TILES * MN_TILE_MAX_ROWS]; /* lowest tap of each point */
    float *c;
    bool in_place; /* c is where the results belong */
    mn_ahead ahead;
} block;

/* Where points are, rounded up to whole tiles by repeating the last one. */
static void find_pixels(const mn_conv_gather *g, block *b)
{
    const mn_conv_strips *s = &g->strips;
    int64_t row = b->first / s->x.points, column = b->first % s->x.points;
    const float *image = b->origin + row / s->y.points * s->image_step;
    row = row % s->y.points - b->strip_first;
    int64_t i = 0;
    for (; i < b->count; i++) {
        int64_t pixel = row * s->y.step * s->width + column * s->x.step;
        b->pixel[i] = g->depth > 0 ? image + pixel * s->channels : b->origin;
        if (++column == s->x.points) {
            column = 0;
            if (++row == s->y.points) { /* of a strip that begins with an image */
                row = 0;
                image += s->image_step;
            }
        }
    }
    for (; i % g->kernels->rows != 0; i++)
        b->pixel[i] = b->pixel[b->count - 1];
}

/* A tile whose first point is number `first` of the block. */
typedef struct tile_of {
    const mn_conv_gather *g;
    const block *b;
    int64_t first;
    const mn_conv_strips *strips; /* with the phase's taps */
} tile_of;

static bool inside(const void *arg, int64_t i, int64_t k)
{
    const tile_of *t = arg;
    const int64_t point = t->b->first + mn_min(t->first + i, t->b->count - 1);
    return mn_conv_inside(t->strips, point % (t->strips->y.points * t->strips->x.points),
                          k / t->strips->group_channels);
}

static void run_panel(const mn_conv_gather *g, block *b, int64_t group, int64_t panel)
{
    const int64_t rows = g->kernels->rows, width = g->kernels->columns;
    const int64_t shift = group * g->strips.group_channels, index = group * g->panels + panel;
    const int64_t across = g->phases[1];
    mn_conv_strips strips = g->strips;
    mn_tile tile = {.offsets = mn_workspace(g->call, g->offsets_at),
                    .b = packed(g, index),
                    .start = (const float *)mn_workspace(g->call, g->start_at) + index * width,
                    .ldc = across * g->ldc};
    for (int64_t phase = 0; phase < phase_count(g); phase++) {
        float *c = b->c + (phase / across * g->block * across + phase % across) * g->ldc;
        strips.y = g->phase[0][phase / across];
        strips.x = g->phase[1][phase % across];
        tile.depth = phase_depth(g, phase);
        /* Results without terms are zeros from the start. */
        for (int64_t m = 0; m < b->count && (tile.depth > 0 || phase_count(g) == 1); m += rows) {
            /* Nothing may be written beyond results in place: some are made twice. */
            const int64_t first = b->in_place ? mn_min(m, b->count - rows) : m;
            for (int64_t i = 0; i < rows; i++)
                tile.a[i] = b->pixel[first + i] + shift;
            mn_tile_ahead(&tile, 0, &b->ahead);
            tile.c = c + first * tile.ldc + group * g->columns + panel * width;
            if (g->exact)
                mn_conv_tile_exact(g->kernels, &tile, inside, &(tile_of){g, b, first, &strips});
            else
                mn_tile_run(g->kernels, &tile, g->columns - panel * width);
        }
        tile.offsets += tile.depth;
        tile.b += tile.depth * width;
    }
}

/* Without the products of padding, as mn_conv_tile_exact. */
static void depthwise_exact(const mn_conv_gather *g, const block *b, const mn_depthwise *d,
                            const float *w, const mn_conv_strips *strips, float *c, ptrdiff_t ldc)
{
    const tile_of all = {g, b, 0, strips};
    for (int64_t i = 0; i < b->count; i++) {
        float *to = c + i * ldc;
        memcpy(to, mn_workspace(g->call, g->taps_at), (size_t)d->n * sizeof *to);
        for (int64_t t = 0; t < d->taps; t++) {
            const float *x = b->pixel[i] + d->offsets[t], *of_t = w + t * d->n;
            for (int64_t k = 0; k < d->n && inside(&all, i, t); k++)
                to[k] += x[k] * of_t[k];
        }
    }
}

/* All channels of the block, phase by phase. */
static void run_depthwise(const mn_conv_gather *g, const block *b)
{
    const int64_t across = g->phases[1], ldc = across * g->ldc;
    const float *start = mn_workspace(g->call, g->taps_at), *w = start + g->groups;
    mn_depthwise d = {.n = g->groups, .offsets = mn_workspace(g->call, g->offsets_at)};
    mn_conv_strips strips = g->strips;
    for (int64_t phase = 0; phase < phase_count(g); phase++) {
        float *c = b->c + (phase / across * g->block * across + phase % across) * g->ldc;
        strips.y = g->phase[0][phase / across];
        strips.x = g->phase[1][phase % across];
        d.taps = phase_depth(g, phase);
        if (g->exact)
            depthwise_exact(g, b, &d, w, &strips, c, ldc);
        else
            mn_depthwise_bodies_of(g->call)->gather(&d, w, start, b->count, b->pixel, c, ldc);
        d.offsets += d.taps;
        w += d.taps * g->groups;
    }
}

/* Whether results lie side by side as a block has them. */
static bool dense(const mn_conv_gather *g)
{
    return g->bulk && phase_count(g) == 1 && g->strips.y.out_step == 1 && g->strips.x.out_step == 1;
}

/* Narrows results to their places. */
static void store(const mn_conv_gather *g, const block *b)
{
    const mn_conv_axis *v = &g->strips.y, *h = &g->strips.x;
    const mn_view *y = &g->call->out[0];
    const int64_t results = g->groups * g->columns;
    const int64_t across = g->phases[1];
    const bool rows = g->bulk && h->out_step == across;
    if (dense(g)) {
        mn_row_finish(g->call, (b->image * y->shape[1] * y->shape[2] + b->first) * results,
                      b->count * results, b->c);
        return;
    }
    int64_t n; /* points that are stored together */
    for (int64_t i = 0; i < b->count; i += n) {
        const int64_t line = (b->first + i) / h->points, image = b->image + line / v->points;
        const int64_t p = v->out_base + line % v->points * v->out_step;
        const int64_t point = (b->first + i) % h->points, q = h->out_base + point * h->out_step;
        n = rows ? mn_min(h->points - point, b->count - i) : 1;
        const int64_t pixels = mn_min(n * across, y->shape[2] - q), step = rows ? pixels : 1;
        for (int64_t r = 0; r < mn_min(g->phases[0], y->shape[1] - p); r++)
            for (int64_t j = 0; j < pixels; j += step)
                mn_row_finish(g->call,
                              ((image * y->shape[1] + p + r) * y->shape[2] + q + j) * results,
                              step * results, b->c + ((r * g->block + i) * across + j) * g->ldc);
    }
}

static void strip_task(void *arg, int64_t index, int slot)
{
    const mn_conv_gather *g = arg;
    const mn_conv_strips *s = &g->strips;
    char *scratch = mn_workspace(g->call, g->scratch_at + (size_t)slot * g->scratch_bytes);
    block b = {.image = index / s->count * s->together, .strip_first = index % s->count * s->rows};
    const mn_view *y = &g->call->out[0];
    const bool whole = dense(g) && y->dtype == MN_F32 &&
                       (g->depthwise || (g->groups == 1 && g->columns % g->kernels->columns == 0));
    const int64_t rows = mn_min(s->together, s->images - b.image) * s->y.points;
    const int64_t end = mn_min(b.strip_first + s->together * s->rows, rows) * s->x.points;
    b.origin = mn_conv_strip_load(s, b.image, b.strip_first, (float *)(void *)scratch);
    /* Most likely this thread's next one. */
    const int64_t next = index + 1;
    const int64_t tiles = (end - b.strip_first * s->x.points) / g->kernels->rows;
    b.ahead = mn_conv_strip_ahead(s, next / s->count * s->together, next % s->count * s->rows,
                                  mn_max(tiles, 1) * g->groups * g->panels * phase_count(g),
                                  g->depth / phase_count(g));
    for (b.first = b.strip_first * s->x.points; b.first < end; b.first += b.count) {
        b.count = mn_min(g->block, end - b.first);
        b.in_place = whole && (g->depthwise || b.count >= g->kernels->rows);
        b.c = b.in_place
                  ? (float *)y->data + (b.image * s->y.points * s->x.points + b.first) * g->ldc
                  : (float *)(void *)(scratch + g->c_at);
        find_pixels(g, &b);
        if (g->depthwise)
            run_depthwise(g, &b);
        for (int64_t group = 0; group < g->groups && !g->depthwise; group++)
            for (int64_t panel = 0; panel < g->panels; panel++)
                run_panel(g, &b, group, panel);
        store(g, &b);
        mn_gather_stored(g, index, b.image * s->y.points * s->x.points + b.first, b.count, 0,
                         g->groups * g->columns);
    }
}

/* Offsets of the terms from a point's lowest tap, and what sums begin with. */
static void fill_tables(const mn_conv_gather *g)
{
    const mn_conv_strips *s = &g->strips;
    const int64_t width = g->kernels->columns;
    ptrdiff_t *offset = mn_workspace(g->call, g->offsets_at);
    for (int64_t i = 0; i < phase_count(g); i++) {
        const mn_conv_axis *y = &g->phase[0][i / g->phases[1]], *x = &g->phase[1][i % g->phases[1]];
        for (int64_t t = 0; t < y->taps * x->taps; t++) {
            const int64_t row = mn_conv_low(y) - mn_conv_low(&s->y) + mn_conv_tap(y, t / x->taps);
            const int64_t column =
                mn_conv_low(x) - mn_conv_low(&s->x) + mn_conv_tap(x, t % x->taps);
            for (int64_t k = 0; k < s->group_channels; k++)
                *offset++ = (ptrdiff_t)((row * s->width + column) * s->channels + k);
        }
    }
    float *start = mn_workspace(g->call, g->start_at);
    memset(start, 0, (size_t)(g->groups * g->panels * width) * sizeof *start);
    if (!g->bias)
        return;
    const mn_matrix bias = {g->call, g->bias, g->columns};
    for (int64_t group = 0; group < g->groups; group++)
        mn_matrix_copy(&bias, group, 0, g->columns, start + group * g->panels * width);
}

/* Of packed panels the columns that matter. */
static void fill_depthwise(const mn_conv_gather *g)
{
    const int64_t width = g->kernels->columns;
    float *start = mn_workspace(g->call, g->taps_at), *w = start + g->groups;
    for (int64_t c = 0; c < g->groups; c++) {
        start[c] = ((const float *)mn_workspace(g->call, g->start_at))[c * width];
        for (int64_t k = 0; k < g->depth; k++)
            w[k * g->groups + c] = packed(g, c)[k * width];
    }
}

void mn_gather_run(mn_conv_gather *g)
{
    mn_moments_clear(&g->moments);
    if (nothing_to_do(g) || (g->winograd.m > 0 && mn_winograd_run(g)))
        return;
    if (g->winograd.m > 0)
        mn_moments_clear(&g->moments);
    const int64_t panels = g->groups * g->panels;
    fill_tables(g);
    mn_call_parallel(g->call, panels, pack_task, g);
    const unsigned char *finite = mn_workspace(g->call, g->finite_at);
    bool all = true;
    for (int64_t i = 0; i < panels; i++)
        all = all && finite[i];
    g->exact = !all && !g->strips.direct;
    if (g->depthwise)
        fill_depthwise(g);
    if (all && g->planes.kernels)
        mn_planes_run(g);
    else {
        for (int slot = 0; phase_count(g) > 1 && slot < mn_call_threads(g->call); slot++)
            memset((char *)mn_workspace(g->call, g->scratch_at) + (size_t)slot * g->scratch_bytes +
                       g->c_at,
                   0, sizeof(float) * (size_t)(g->block * g->ldc * phase_count(g)));
        mn_call_parallel(g->call, mn_conv_strip_count(&g->strips), strip_task, g);
    }
}
