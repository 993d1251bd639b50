/* Winograd's gradient of the weights, the adjoint of winograd.c: tiles of the image and of the
 * result's gradient are transformed, n x n matrix products sum over the tiles of a leaf, and the
 * sums are transformed back to filters. */
#include "ops/cpu/conv.h"

#include <string.h>

/* Tasks that a call should have, and leaves at least, by the size of tiles. Leaves cost passes over
 * all sums, but short sums keep errors small: with these, and F(4x4) only for so many tiles, the
 * rms error stays below 3.6 times that of the direct kernel. */
#define TASKS     8
#define LEAVES(m) ((m) == 2 ? 2 : 4)
#define F4_TILES  256
/* A task with more floats of sums, which no cache would keep from block to block, is cut into parts
 * of about so many. */
#define SUM_FLOATS      (INT64_C(5) << 17)
#define SUM_PART_FLOATS (INT64_C(5) << 16)

/* Rows of the products' sums, rounded up to whole tiles. */
static int64_t sum_rows(const mn_conv_weight *w)
{
    return mn_ceil_div(w->channel_block, w->kernels->rows) * w->kernels->rows;
}

/* Cuts channels, of which there are a multiple of CHANNELS, into parts of a task. */
static void cut_channels(mn_conv_weight *w)
{
    enum { CHANNELS = 16 };
    const int64_t n2 = w->winograd.n * w->winograd.n, channels = w->strips.channels;
    const int64_t columns = w->task_panels * w->kernels->columns;
    const int64_t floats = n2 * channels * columns;
    const int64_t parts = floats > SUM_FLOATS ? mn_ceil_div(floats, SUM_PART_FLOATS) : 1;
    w->channel_block = mn_ceil_div(channels, parts * CHANNELS) * CHANNELS;
    w->channel_blocks = mn_ceil_div(channels, w->channel_block);
}

void mn_winograd_weight_choose(mn_conv_weight *w)
{
    w->winograd = mn_winograd_cut(w->call, &w->strips, w->columns, F4_TILES, &w->kernels);
}

mn_status mn_winograd_weight_plan(mn_conv_weight *w)
{
    mn_winograd *v = &w->winograd;
    if (v->m == 0)
        return MN_OK;
    const int64_t width = w->kernels->columns, panels = w->task_panels, n2 = v->n * v->n;
    cut_channels(w);
    const int64_t channels = w->channel_block;
    w->point_step = v->tiles * channels + 16;
    w->gradient_step = v->tiles * panels * width + 16;
    mn_arena scratch = {0, true};
    mn_arena_take(&scratch, sizeof(float), v->n, v->strips.width, channels);
    w->line_at =
        mn_arena_take(&scratch, sizeof(float) * (size_t)width, panels, v->m, v->strips.x.points);
    w->points_at = mn_arena_take(&scratch, sizeof(float), n2, w->point_step, 1);
    w->gradients_at = mn_arena_take(&scratch, sizeof(float), n2, w->gradient_step, 1);
    w->sums_at = mn_arena_take(&scratch, sizeof(float) * (size_t)width, n2, panels, sum_rows(w));
    w->offsets_at = mn_arena_take(&scratch, sizeof(ptrdiff_t), v->tiles, 1, 1);
    w->private_bytes = scratch.bytes;
    mn_arena arena = {w->scratch_at, scratch.ok};
    w->flags_at = mn_arena_take(&arena, 1, w->leaves, w->panel_blocks, w->channel_blocks);
    w->privates_at = mn_arena_take(&arena, scratch.bytes, mn_call_threads(w->call), 1, 1);
    w->workspace_bytes = arena.bytes > w->workspace_bytes ? arena.bytes : w->workspace_bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

/* Some lines of tiles, times some panels of output channels. */
typedef struct block {
    int64_t line, lines, tiles;
    int64_t panel, panels;
    mn_winograd winograd; /* of the task's channels */
    bool first;           /* of its leaf */
    ptrdiff_t *offsets;   /* of tiles' points */
    float *image, *line_of_g, *points, *gradients, *sums;
} block;

/* Panels of a line of g, [panel][m][pixel][column]. */
static void load_gradients(const mn_conv_weight *w, const block *b, int64_t line)
{
    const mn_winograd *v = &w->winograd;
    const int64_t width = w->kernels->columns, row = v->strips.x.points * width;
    const int64_t image = line / v->strips.count, p = line % v->strips.count * v->m;
    const int64_t pixels = w->strips.x.points, column = b->panel * width;
    mn_region region = {(image * w->strips.y.points + p) * pixels, column, pixels,
                        b->panels * width};
    const int64_t rows = mn_min(v->m, w->strips.y.points - p);
    if (rows < v->m || pixels < v->strips.x.points)
        memset(b->line_of_g, 0, (size_t)(b->panels * v->m * row) * sizeof(float));
    for (int64_t i = 0; i < rows; i++, region.row += pixels)
        mn_pack_straight(w->kernels, &w->gradient, &region, b->line_of_g + i * row, v->m * row);
}

/* The line, tile numbers from `tile` on, into gradients[xi][panel][tile][column]. */
static void transform_gradients(const mn_conv_weight *w, const block *b, int64_t tile)
{
    const mn_winograd *v = &w->winograd;
    const int64_t width = w->kernels->columns, row = v->strips.x.points * width;
    const mn_winograd_tiles tiles = {.n = width,
                                     .count = v->across,
                                     .in_row = row,
                                     .in_step = width,
                                     .in_next = v->m * width,
                                     .out_row = v->n * w->gradient_step,
                                     .out_step = w->gradient_step,
                                     .out_next = width};
    for (int64_t panel = 0; panel < b->panels; panel++)
        mn_winograd_bodies_of(w->call)->gradient[v->m == 4](
            &tiles, b->line_of_g + panel * v->m * row,
            b->gradients + (panel * v->tiles + tile) * width);
}

static void multiply(const mn_conv_weight *w, const block *b)
{
    static const float zeros[MN_TILE_MAX_COLUMNS];
    const mn_winograd *v = &w->winograd;
    const int64_t rows = w->kernels->rows, width = w->kernels->columns;
    const int64_t channels = b->winograd.strips.channels;
    mn_tile tile = {.depth = b->tiles,
                    .offsets = b->offsets,
                    .start = zeros,
                    .ldc = width,
                    .accumulate = !b->first};
    const int64_t panel_floats = sum_rows(w) * width;
    for (int64_t xi = 0; xi < v->n * v->n; xi++) {
        const float *points = b->points + xi * w->point_step;
        for (int64_t panel = 0; panel < b->panels; panel++) {
            tile.b = b->gradients + xi * w->gradient_step + panel * v->tiles * width;
            tile.c = b->sums + (xi * b->panels + panel) * panel_floats;
            for (int64_t c = 0; c < channels; c += rows, tile.c += rows * width) {
                for (int64_t i = 0; i < rows; i++)
                    tile.a[i] = points + mn_min(c + i, channels - 1);
                w->kernels->wide(&tile);
            }
        }
    }
}

/* Sums [xi][panel][channel][column] become filters in the leaf's sums; false: not finite. */
static bool finish(const mn_conv_weight *w, const block *b, int64_t leaf)
{
    const mn_conv_strips *s = &b->winograd.strips;
    const int64_t n = w->winograd.n, width = w->kernels->columns,
                  panel_floats = sum_rows(w) * width;
    const int64_t step = b->panels * panel_floats, tap = w->strips.channels * width;
    const mn_winograd_tiles tiles = {.n = s->channels * width,
                                     .count = 1,
                                     .in_row = n * step,
                                     .in_step = step,
                                     .out_row = 3 * tap,
                                     .out_step = tap};
    bool finite = true;
    for (int64_t panel = 0; panel < b->panels; panel++) {
        float *partial = mn_conv_partial(w, leaf, 0, b->panel + panel) + s->channel * width;
        mn_winograd_bodies_of(w->call)->filter_gradient[w->winograd.m == 4](
            &tiles, b->sums + panel * panel_floats, partial);
        for (int64_t t = 0; t < 9; t++)
            finite = mn_bodies_of(w->call)->finite((size_t)tiles.n, partial + t * tap) && finite;
    }
    return finite;
}

static block block_of(const mn_conv_weight *w, int64_t index, int slot)
{
    char *private = mn_workspace(w->call, w->privates_at + (size_t)slot * w->private_bytes);
    block b = {.panel = index / w->channel_blocks % w->panel_blocks * w->task_panels,
               .winograd = w->winograd,
               .offsets = (ptrdiff_t *)(void *)(private + w->offsets_at),
               .image = (float *)(void *)private,
               .line_of_g = (float *)(void *)(private + w->line_at),
               .points = (float *)(void *)(private + w->points_at),
               .gradients = (float *)(void *)(private + w->gradients_at),
               .sums = (float *)(void *)(private + w->sums_at)};
    mn_conv_strips *s = &b.winograd.strips;
    b.panels = mn_min(w->task_panels, w->panels - b.panel);
    if (w->channel_blocks > 1) {
        s->pixel = s->channels;
        s->channel = index % w->channel_blocks * w->channel_block;
        s->channels = mn_min(w->channel_block, s->pixel - s->channel);
    }
    for (int64_t t = 0; t < w->winograd.tiles; t++)
        b.offsets[t] = (ptrdiff_t)(t * s->channels);
    return b;
}

static void leaf_task(void *arg, int64_t index, int slot)
{
    const mn_conv_weight *w = arg;
    const mn_winograd *v = &w->winograd;
    const int64_t leaf = index / (w->panel_blocks * w->channel_blocks), across = v->across;
    const int64_t end = v->lines * (leaf + 1) / w->leaves, begin = v->lines * leaf / w->leaves;
    block b = block_of(w, index, slot);
    const int64_t channels = b.winograd.strips.channels;
    for (b.line = begin; b.line < end; b.line += b.lines) {
        b.lines = mn_min(v->block, end - b.line);
        b.tiles = b.lines * across;
        b.first = b.line == begin;
        for (int64_t i = 0; i < b.lines; i++) {
            mn_winograd_image(w->call, &b.winograd, b.line + i, b.image,
                              b.points + i * across * channels, w->point_step);
            load_gradients(w, &b, b.line + i);
            transform_gradients(w, &b, i * across);
        }
        multiply(w, &b);
    }
    ((unsigned char *)mn_workspace(w->call, w->flags_at))[index] = finish(w, &b, leaf);
}

bool mn_winograd_weight_run(mn_conv_weight *w)
{
    const int64_t leaves = w->leaves;
    w->leaves =
        mn_min(mn_min(leaves, mn_max(mn_ceil_div(TASKS, w->panel_blocks), LEAVES(w->winograd.m))),
               w->winograd.lines);
    const int64_t tasks = w->leaves * w->panel_blocks * w->channel_blocks;
    mn_call_parallel(w->call, tasks, leaf_task, w);
    if (!memchr(mn_workspace(w->call, w->flags_at), 0, (size_t)tasks))
        return true;
    w->leaves = leaves;
    return false;
}
