/* Winograd's convolution of 3x3 filters with stride 1, F(2x2, 3x3) and F(4x4, 3x3): the forward
 * pass and the gradient of the input. Tiles of the image are transformed, multiplied by transformed
 * filters (n x n matrix products over the channels) and transformed back. A sum over channels is
 * one register's, in order; no sum depends on how tasks are cut.
 *
 * What is not finite spreads over a tile. Every result that sees such an element is itself not
 * finite, and so is one whose transforms overflow (beyond 1e36 or so), so that results tell: if any
 * is not finite the call is made again, directly. */
#include "ops/cpu/conv.h"

#include <string.h>

/* Floats of a block's points: with the products of some panels they fit the second-level cache. */
#define POINT_FLOATS  (INT64_C(384) << 10)
#define TILES_MIN     24
#define TILES_MAX     48
#define GROUP_COLUMNS 64
/* Blocks that a call should have. */
#define BLOCKS 8
/* Tiles, and tiles times channels, from which on F(4x4) pays for its filters. */
#define F4_TILES 8
#define F4_RATE  1024
/* Share of the taps that see the image, below which F(4x4) is not used: where most of them see
 * padding, direct sums are so short that its error would be more than 4 times theirs. */
#define F4_SEEN 0.4
/* Transformed filters larger than this, or than half of it with fewer points, would come from
 * memory for each block. All points are made first then, if they are not too many, and a task is a
 * panel, whose filters it makes itself. */
#define FILTER_FLOATS (INT64_C(4) << 20)
#define SHARED_FLOATS (INT64_C(16) << 20)
/* Wide panels of more channels would not fit the first-level cache: narrow ones are 1.15 to
 * 1.3 times as fast with 256 and 512, but not where each reads all points. */
#define WIDE_CHANNELS 128

/* Elements of image and result from which on they are fetched ahead, and floats of a block with
 * which they fit the second-level cache. */
#define AHEAD_LEAST (INT64_C(1) << 20)
#define AHEAD_MOST  (INT64_C(512) << 10)
/* Floats of filters from which on the next panel's are fetched ahead. */
#define AHEAD_FILTERS (INT64_C(96) << 10)

/* ---- cutting --------------------------------------------------------------------------------- */

/* How many products fewer tiles of m x m results need, the part beyond the edge counted. */
static double gain(const mn_conv_strips *s, int64_t m)
{
    const int64_t tiles = mn_ceil_div(s->y.points, m) * mn_ceil_div(s->x.points, m);
    return 9.0 * (double)(s->y.points * s->x.points) / (double)((m + 2) * (m + 2) * tiles);
}

static double seen(const mn_conv_axis *axis)
{
    int64_t taps = 0;
    for (int64_t t = 0; t < 3; t++) {
        const int64_t first = axis->base + t * axis->delta;
        taps += mn_max(mn_min(first + axis->points, axis->size) - mn_max(first, 0), 0);
    }
    return (double)taps / (3.0 * (double)axis->points);
}

/* Results of a tile per axis, 0: the direct way is better. F(4x4) wants at least4 tiles. Measured
 * with bench_gemm_conv, batches of 1 to 128 and 16 to 512 channels: what is chosen is 1.1 to 3.4
 * times as fast. */
static int64_t choose(const mn_conv_strips *s, int64_t columns, int64_t least4)
{
    const int64_t least = mn_min(s->channels, columns);
    const int64_t tiles2 = s->images * mn_ceil_div(s->y.points, 2) * mn_ceil_div(s->x.points, 2);
    const int64_t tiles4 = s->images * mn_ceil_div(s->y.points, 4) * mn_ceil_div(s->x.points, 4);
    const double gain2 = gain(s, 2), gain4 = gain(s, 4);
    const bool use2 = least >= 32 && tiles2 >= 128 && gain2 >= 1.5;
    if (least >= 16 && tiles4 >= least4 && (double)tiles4 * (double)least >= F4_RATE &&
        gain4 >= 1.5 && (use2 ? gain4 > gain2 : gain4 >= gain2) &&
        seen(&s->y) * seen(&s->x) >= F4_SEEN)
        return 4;
    return use2 ? 2 : 0;
}

static bool suits(const mn_conv_axis *axis)
{
    return axis->taps == 3 && axis->step == 1 && axis->delta * axis->delta == 1 &&
           axis->out_step == 1 && axis->points > 0;
}

/* Cuts lines into at least `least` blocks, if there are as many, of about so many tiles. */
static void cut_blocks(mn_winograd *w, int64_t tiles, int64_t least)
{
    tiles = mn_min(mn_max(tiles, TILES_MIN), TILES_MAX);
    w->block = mn_max(mn_min(tiles / w->across, w->lines / least), 1);
    w->blocks = mn_ceil_div(w->lines, w->block);
    w->tiles = w->block * w->across;
}

mn_winograd mn_winograd_cut(const mn_call *call, const mn_conv_strips *strips, int64_t columns,
                            int64_t least4, const mn_gemm_kernels **kernels)
{
    mn_winograd w = {.m = 0};
    if (!call->cpu->winograd || !suits(&strips->y) || !suits(&strips->x) ||
        strips->channels != strips->group_channels || strips->channels % 16 != 0 ||
        columns % 16 != 0 || strips->images > INT64_MAX / strips->y.points / strips->x.points)
        return w;
    w.m = choose(strips, columns, least4);
    if (w.m == 0)
        return w;
    *kernels = mn_gemm_kernels_filled(call, columns);
    w.n = w.m + 2;
    w.strips = *strips;
    mn_conv_strips *s = &w.strips;
    s->direct = false;
    s->rows = w.m;
    s->count = mn_ceil_div(s->y.points, w.m);
    w.across = mn_ceil_div(s->x.points, w.m);
    w.lines = s->images * s->count;
    s->y.points = s->count * w.m;
    s->x.points = w.across * w.m;
    s->height = w.n;
    s->width = s->x.points + 2;
    cut_blocks(&w, POINT_FLOATS / (w.n * w.n * s->channels), BLOCKS);
    return w;
}

const mn_winograd_bodies *mn_winograd_bodies_of(const mn_call *call)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512)
        return &mn_winograd_avx512;
#endif
    return &mn_bodies_of(call)->winograd;
}

const mn_depthwise_bodies *mn_depthwise_bodies_of(const mn_call *call)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512)
        return &mn_depthwise_avx512;
#endif
    return &mn_bodies_of(call)->depthwise;
}

void mn_winograd_image(const mn_call *call, const mn_winograd *w, int64_t line, float *buffer,
                       float *points, int64_t step)
{
    const mn_conv_strips *s = &w->strips;
    const mn_winograd_tiles tiles = {.n = s->channels,
                                     .count = w->across,
                                     .in_row = s->width * s->channels,
                                     .in_step = s->channels,
                                     .in_next = w->m * s->channels,
                                     .out_row = w->n * step,
                                     .out_step = step,
                                     .out_next = s->channels};
    mn_conv_strip_load(s, line / s->count, line % s->count * w->m, buffer);
    mn_winograd_bodies_of(call)->image[w->m == 4](&tiles, buffer, points);
}

/* ---- plan ------------------------------------------------------------------------------------ */

static int64_t product_step(const mn_conv_gather *g)
{
    const int64_t rows = g->kernels->rows;
    /* Not a multiple of a page: those meet in the same place of the cache. */
    return mn_ceil_div(g->winograd.tiles, rows) * rows * g->group_panels * g->kernels->columns + 16;
}

static int64_t groups(const mn_conv_gather *g)
{
    return mn_ceil_div(g->panels, g->group_panels);
}

static double filter_floats(int64_t n2, int64_t channels, int64_t columns)
{
    return (double)n2 * (double)channels * (double)columns;
}

void mn_winograd_choose(mn_conv_gather *g)
{
    g->winograd = mn_winograd_cut(g->call, &g->strips, g->columns, F4_TILES, &g->kernels);
    const int64_t n2 = g->winograd.n * g->winograd.n, channels = g->strips.channels;
    if (n2 > 0 && channels > WIDE_CHANNELS &&
        filter_floats(n2, channels, g->columns) <= (double)FILTER_FLOATS)
        g->kernels = mn_gemm_kernels_for(g->call, 16);
}

mn_status mn_winograd_plan(mn_conv_gather *g)
{
    mn_winograd *w = &g->winograd;
    if (w->m == 0)
        return MN_OK;
    const int64_t width = g->kernels->columns, n2 = w->n * w->n, channels = w->strips.channels;
    const int64_t filter = channels * width;
    const double points = (double)n2 * (double)channels * (double)(w->lines * w->across);
    const double filters = filter_floats(n2, channels, g->columns);
    g->shared = points <= (double)SHARED_FLOATS &&
                filters > (double)(points < filters ? FILTER_FLOATS / 2 : FILTER_FLOATS);
    if (g->shared)
        cut_blocks(w, TILES_MAX, 1);
    g->point_step = w->tiles * channels + 16;
    g->group_panels = g->shared ? 1 : mn_min(GROUP_COLUMNS / width, g->panels);
    /* Per thread: filters being transformed, or a line of the image, products and results. */
    mn_arena packing = {0, true}, scratch = {0, true};
    mn_arena_take(&packing, sizeof(float) * (size_t)width, channels, 9, 1);
    mn_arena_take(&scratch, sizeof(float), w->n, w->strips.width, channels);
    g->private_at = mn_arena_take(&scratch, sizeof(float), g->shared ? 0 : n2, g->point_step, 1);
    g->products_at = mn_arena_take(&scratch, sizeof(float), n2, product_step(g), 1);
    g->rows_at = mn_arena_take(&scratch, sizeof(float) * (size_t)(w->m * width), g->group_panels,
                               w->m, w->across);
    scratch.bytes = packing.bytes > scratch.bytes ? packing.bytes : scratch.bytes;
    g->filter_at =
        mn_arena_take(&scratch, sizeof(float) * (size_t)n2, g->shared ? 1 : 0, filter, 1);
    g->private_bytes = scratch.bytes;
    mn_arena arena = {0, packing.ok && scratch.ok};
    mn_arena_take(&arena, sizeof(ptrdiff_t), channels, 1, 1);
    g->bias_at = mn_arena_take(&arena, sizeof(float), g->columns, 1, 1);
    g->filters_at =
        mn_arena_take(&arena, sizeof(float) * (size_t)n2, g->shared ? 0 : g->panels, filter, 1);
    g->flags_at = mn_arena_take(&arena, 1, w->blocks, groups(g), 1);
    g->points_at = mn_arena_take(&arena, sizeof(float) * (size_t)n2, g->shared ? w->blocks : 0,
                                 g->point_step, 1);
    g->privates_at = mn_arena_take(&arena, g->private_bytes, mn_call_threads(g->call), 1, 1);
    g->workspace_bytes = arena.bytes > g->workspace_bytes ? arena.bytes : g->workspace_bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

/* ---- filters --------------------------------------------------------------------------------- */

static float *private(const mn_conv_gather *g, int slot, size_t at)
{
    return mn_workspace(g->call, g->privates_at + (size_t)slot * g->private_bytes + at);
}

static float *filter_of(const mn_conv_gather *g, int64_t panel, int slot)
{
    const int64_t n2 = g->winograd.n * g->winograd.n;
    if (g->shared)
        return private(g, slot, g->filter_at);
    return (float *)mn_workspace(g->call, g->filters_at) +
           panel * n2 * g->winograd.strips.channels * g->kernels->columns;
}

/* A panel [row tap][column tap][channel][column], which the gradient of the input walks through
 * backwards, becomes [xi][channel][column]. */
static void filter_task(void *arg, int64_t panel, int slot)
{
    const mn_conv_gather *g = arg;
    const int64_t n = g->winograd.n, floats = g->winograd.strips.channels * g->kernels->columns;
    const int64_t y = g->strips.y.delta, x = g->strips.x.delta;
    const mn_winograd_tiles tiles = {.n = floats,
                                     .count = 1,
                                     .in_row = 3 * y * floats,
                                     .in_step = x * floats,
                                     .out_row = n * floats,
                                     .out_step = floats};
    float *taps = private(g, slot, 0);
    g->pack(g, 0, panel, taps);
    mn_winograd_bodies_of(g->call)->filter[n == 6](
        &tiles, taps + ((y < 0 ? 6 : 0) + (x < 0 ? 2 : 0)) * floats, filter_of(g, panel, slot));
}

/* ---- products and results -------------------------------------------------------------------- */

/* Some lines of tiles, times some panels of filters. */
typedef struct block {
    int64_t index, line, lines, tiles;
    int64_t panel, columns;
    int slot;
    float *points, *products, *rows;
    mn_ahead image, result; /* of the next block, of this one */
} block;

/* Panel `panel` of the block's group, at point xi. */
static const float *panel_of(const mn_conv_gather *g, const block *b, int64_t xi, int64_t panel)
{
    const int64_t n2 = g->winograd.n * g->winograd.n;
    return filter_of(g, b->panel, b->slot) +
           (panel * n2 + xi) * g->winograd.strips.channels * g->kernels->columns;
}

/* What is multiplied after it. */
static mn_ahead next_panel(const mn_conv_gather *g, const block *b, int64_t xi, int64_t panel)
{
    const int64_t channels = g->winograd.strips.channels, width = g->kernels->columns;
    const bool last = (panel + 1) * width == b->columns;
    const int64_t bytes = width * (int64_t)sizeof(float);
    if (g->winograd.n * g->winograd.n * channels * g->columns < AHEAD_FILTERS)
        return (mn_ahead){0};
    return mn_ahead_rows((const char *)panel_of(g, b, xi + last, last ? 0 : panel + 1), bytes,
                         channels, bytes, mn_ceil_div(b->tiles, g->kernels->rows), channels);
}

static void multiply(const mn_conv_gather *g, block *b)
{
    static const float zeros[MN_TILE_MAX_COLUMNS];
    const int64_t rows = g->kernels->rows, width = g->kernels->columns;
    const int64_t n2 = g->winograd.n * g->winograd.n, channels = g->winograd.strips.channels;
    const int64_t step = product_step(g);
    mn_tile tile = {.depth = channels,
                    .offsets = mn_workspace(g->call, 0),
                    .start = zeros,
                    .ldc = b->columns,
                    .contiguous = true};
    for (int64_t xi = 0; xi < n2; xi++) {
        const float *points = b->points + xi * g->point_step;
        for (int64_t column = 0; column < b->columns; column += width) {
            mn_ahead filters = next_panel(g, b, xi, column / width);
            tile.b = panel_of(g, b, xi, column / width);
            for (int64_t t = 0; t < b->tiles; t += rows) {
                mn_tile_rows(&tile, points + t * channels, channels, mn_min(rows, b->tiles - t),
                             rows);
                tile.c = b->products + xi * step + t * b->columns + column;
                mn_tile_ahead(&tile, 0, &filters);
                mn_tile_ahead(&tile, 1, b->result.parts > 0 ? &b->result : &b->image);
                g->kernels->wide(&tile);
            }
        }
    }
}

/* Narrows a row of pixels to its place. */
static void store_row(const mn_conv_gather *g, const block *b, int64_t at, float *row)
{
    const int64_t pixels = g->strips.x.points, n = b->columns;
    const int64_t first = b->panel * g->kernels->columns;
    if (n == g->columns)
        mn_row_finish(g->call, at * n, pixels * n, row);
    else
        for (int64_t q = 0; q < pixels; q++)
            mn_row_finish(g->call, (at + q) * g->columns + first, n, row + q * n);
}

/* Results of the block's products, line by line, in place where they are whole tiles of f32; false:
 * one is not finite. */
static bool finish(const mn_conv_gather *g, const block *b)
{
    const mn_winograd *w = &g->winograd;
    mn_winograd_result *body = mn_winograd_bodies_of(g->call)->result[w->m == 4];
    const int64_t step = product_step(g), row = w->across * w->m * b->columns;
    const float *bias = (float *)mn_workspace(g->call, g->bias_at) + b->panel * g->kernels->columns;
    const bool whole = b->columns == g->columns && w->strips.x.points == g->strips.x.points;
    const mn_winograd_tiles tiles = {.n = b->columns,
                                     .count = w->across,
                                     .in_row = w->n * step,
                                     .in_step = step,
                                     .in_next = b->columns,
                                     .out_row = row,
                                     .out_step = b->columns,
                                     .out_next = w->m * b->columns};
    bool finite = true;
    for (int64_t line = 0; line < b->lines; line++) {
        const int64_t image = (b->line + line) / w->strips.count;
        const int64_t p = (b->line + line) % w->strips.count * w->m;
        const int64_t at = (image * g->strips.y.points + p) * g->strips.x.points;
        const int64_t count = mn_min(w->m, g->strips.y.points - p);
        float *rows = whole && count == w->m
                          ? mn_row_place(&g->call->out[0], at * b->columns, b->rows)
                          : b->rows;
        finite = body(&tiles, b->products + line * w->across * b->columns, rows, bias) && finite;
        for (int64_t i = 0; i < count; i++)
            store_row(g, b, at + i * g->strips.x.points, rows + i * row);
        mn_gather_stored(g, b->index, at, count * g->strips.x.points,
                         b->panel * g->kernels->columns, b->columns);
    }
    return finite;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static block block_of(const mn_conv_gather *g, int64_t index, int slot)
{
    const mn_winograd *w = &g->winograd;
    block b = {.index = index,
               .line = index * w->block,
               .slot = slot,
               .products = private(g, slot, g->products_at),
               .rows = private(g, slot, g->rows_at)};
    b.lines = mn_min(w->block, w->lines - b.line);
    b.tiles = b.lines * w->across;
    b.points = g->shared ? (float *)mn_workspace(g->call, g->points_at) +
                               index * w->n * w->n * g->point_step
                         : private(g, slot, g->private_at);
    return b;
}

static void transform(const mn_conv_gather *g, const block *b)
{
    const mn_winograd *w = &g->winograd;
    for (int64_t line = 0; line < b->lines; line++)
        mn_winograd_image(g->call, w, b->line + line, private(g, b->slot, 0),
                          b->points + line * w->across * w->strips.channels, g->point_step);
}

static void transform_task(void *arg, int64_t index, int slot)
{
    const block b = block_of(arg, index, slot);
    transform(arg, &b);
}

static void multiply_group(const mn_conv_gather *g, block *b, int64_t group, int64_t index)
{
    unsigned char *flags = mn_workspace(g->call, g->flags_at);
    b->panel = group * g->group_panels;
    b->columns = mn_min(g->group_panels, g->panels - b->panel) * g->kernels->columns;
    multiply(g, b);
    flags[index * groups(g) + group] = finish(g, b);
}

static void panel_task(void *arg, int64_t panel, int slot)
{
    const mn_conv_gather *g = arg;
    filter_task(arg, panel, slot);
    for (int64_t index = 0; index < g->winograd.blocks; index++) {
        block b = block_of(g, index, slot);
        multiply_group(g, &b, panel, index);
    }
}

/* Rows of images of so many rows, from `from` below the first result of one line on to `to` below
 * that of another. */
static mn_ahead rows_ahead(const mn_winograd *w, const mn_matrix *rows, int64_t size,
                           const int64_t lines[2], int64_t from, int64_t to, int64_t tiles)
{
    const int64_t below[2] = {from, to};
    int64_t at[2];
    for (int i = 0; i < 2; i++) {
        const int64_t row = lines[i] % w->strips.count * w->m + below[i];
        at[i] = lines[i] / w->strips.count * size + mn_min(mn_max(row, 0), size);
    }
    return mn_matrix_ahead(rows, at[0], at[1] - at[0], tiles, w->strips.channels);
}

/* A thread's next block is most likely the one after it. */
static void look_ahead(const mn_conv_gather *g, block *b)
{
    const mn_winograd *w = &g->winograd;
    const mn_matrix *x = &g->strips.image;
    const mn_matrix y = {g->call, &g->call->out[0], g->strips.x.points * g->columns};
    const int64_t next = b->line + w->block;
    const int64_t own[2] = {b->line, b->line + b->lines - 1};
    const int64_t others[2] = {next, mn_min(next + w->block, w->lines) - 1};
    /* half of the products' */
    const int64_t tiles = w->n * w->n * g->panels * mn_ceil_div(b->tiles, g->kernels->rows) / 2;
    const int64_t low = mn_conv_low(&g->strips.y);
    if (x->view->numel + y.view->numel < AHEAD_LEAST ||
        w->n * w->n * (g->point_step + product_step(g)) > AHEAD_MOST)
        return;
    b->result = rows_ahead(w, &y, g->strips.y.points, own, 0, w->m, tiles);
    if (others[0] <= others[1])
        b->image = rows_ahead(w, x, g->strips.y.size, others, low, low + w->n, tiles);
}

static void block_task(void *arg, int64_t index, int slot)
{
    const mn_conv_gather *g = arg;
    block b = block_of(g, index, slot);
    transform(g, &b);
    look_ahead(g, &b);
    for (int64_t group = 0; group < groups(g); group++)
        multiply_group(g, &b, group, index);
}

bool mn_winograd_run(mn_conv_gather *g)
{
    const mn_winograd *w = &g->winograd;
    mn_store_counts *counts = g->call->stores;
    const uint64_t stored = counts ? counts->stored : 0, lost = counts ? counts->lost : 0;
    ptrdiff_t *offsets = mn_workspace(g->call, 0);
    for (int64_t c = 0; c < w->strips.channels; c++)
        offsets[c] = (ptrdiff_t)c;
    float *bias = mn_workspace(g->call, g->bias_at);
    memset(bias, 0, (size_t)g->columns * sizeof *bias);
    if (g->bias)
        mn_matrix_copy(&(mn_matrix){g->call, g->bias, g->columns}, 0, 0, g->columns, bias);
    if (g->shared) {
        mn_call_parallel(g->call, w->blocks, transform_task, g);
        mn_call_parallel(g->call, g->panels, panel_task, g);
    } else {
        mn_call_parallel(g->call, g->panels, filter_task, g);
        mn_call_parallel(g->call, w->blocks, block_task, g);
    }
    if (!memchr(mn_workspace(g->call, g->flags_at), 0, (size_t)(w->blocks * groups(g))))
        return true;
    if (counts) { /* the stores will be made again */
        counts->stored = stored;
        counts->lost = lost;
    }
    return false;
}
