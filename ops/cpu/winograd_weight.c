/* Winograd's gradient of the weights, the adjoint of winograd.c: tiles of the image and of the
 * result's gradient are transformed, n x n matrix products sum over the tiles of a leaf, and the
 * sums are transformed back to filters. */
#include "ops/cpu/conv.h"

#include <string.h>

/* Tasks that a call should have, and tiles that a leaf should. */
#define TASKS      8
#define LEAF_TILES 16
/* Tiles of a block, whose points are made together. */
#define TILES 48
/* So many tiles are summed apart, fewer where the direct kernel's sums are short, too: with these,
 * and F(4x4) only for so many tiles, the rms error stays below 3.6 times that of the direct kernel.
 */
#define DEPTH_MIN 8
#define DEPTH_MAX 48
#define F4_TILES  64
/* Channels whose sums with a panel are made together: with F(4x4) they, their points and the
 * panel's fit the second-level cache, and 48 is whole tiles with all kernels. More channels are cut
 * into units of so many, of which a task has two or three: two take less room, but are better only
 * where no unit is left over. */
#define WHOLE_CHANNELS 64
#define UNIT_CHANNELS  48

/* ---- plan ------------------------------------------------------------------------------------ */

void mn_winograd_weight_choose(mn_conv_weight *w)
{
    w->winograd = mn_winograd_cut(w->call, &w->strips, w->columns, F4_TILES, &w->kernels);
}

static int64_t units_of(const mn_conv_weight *w)
{
    return mn_ceil_div(w->strips.channels, w->unit);
}

static void cut(mn_conv_weight *w)
{
    mn_winograd *v = &w->winograd;
    const int64_t tiles = v->lines * v->across;
    w->unit = w->strips.channels <= WHOLE_CHANNELS ? w->strips.channels : UNIT_CHANNELS;
    w->channel_blocks = mn_ceil_div(units_of(w), units_of(w) % 2 == 0 ? 2 : 3);
    w->task_units = mn_ceil_div(units_of(w), w->channel_blocks);
    w->channel_blocks = mn_ceil_div(units_of(w), w->task_units);
    w->tile_leaves = mn_ceil_div(TASKS, w->panel_blocks * w->channel_blocks);
    w->tile_leaves = mn_min(w->tile_leaves, mn_min(v->lines, mn_max(tiles / LEAF_TILES, 1)));
    const int64_t lines = mn_ceil_div(v->lines, w->tile_leaves);
    v->block = mn_ceil_div(lines, mn_ceil_div(lines, mn_max(TILES / v->across, 1)));
    v->tiles = v->block * v->across;
    w->kept_sums = lines > v->block ? w->task_units * w->task_panels : 1;
    w->sum_depth = v->m == 2 ? DEPTH_MAX : mn_max(mn_min(tiles / w->leaves, DEPTH_MAX), DEPTH_MIN);
    w->point_step = v->tiles * w->unit + 16;
    w->gradient_step = v->tiles * w->kernels->columns + 16;
    /* None is a multiple of a page: those meet in the same place of the cache. */
    w->sum_step = mn_ceil_div(w->unit, w->kernels->rows) * w->kernels->rows * w->kernels->columns;
    w->sum_step += 16;
}

mn_status mn_winograd_weight_plan(mn_conv_weight *w)
{
    mn_winograd *v = &w->winograd;
    if (v->m == 0)
        return MN_OK;
    cut(w);
    const int64_t panels = w->task_panels, n2 = v->n * v->n;
    const size_t width = sizeof(float) * (size_t)w->kernels->columns;
    mn_arena scratch = {0, true};
    mn_arena_take(&scratch, sizeof(float), v->n, v->strips.width, w->unit);
    w->line_at = mn_arena_take(&scratch, width, v->m, v->strips.x.points, panels);
    w->points_at = mn_arena_take(&scratch, sizeof(float), n2, w->point_step, w->task_units);
    w->gradients_at = mn_arena_take(&scratch, sizeof(float), n2, w->gradient_step, panels);
    w->sums_at = mn_arena_take(&scratch, sizeof(float), n2, w->sum_step, w->kept_sums);
    w->offsets_at = mn_arena_take(&scratch, sizeof(ptrdiff_t), v->tiles, 1, 1);
    w->filters_at = mn_arena_take(&scratch, width, 9, w->unit, 1);
    w->private_bytes = scratch.bytes;
    mn_arena arena = {w->partial_at, scratch.ok};
    w->flags_at = mn_arena_take(&arena, 9, w->panels, units_of(w), 1);
    w->leaves_at = mn_arena_take(&arena, width, w->tile_leaves > 1 ? w->tile_leaves : 0, w->panels,
                                 w->strips.channels * 9);
    w->privates_at = mn_arena_take(&arena, scratch.bytes, mn_call_threads(w->call), 1, 1);
    w->workspace_bytes = arena.bytes > w->workspace_bytes ? arena.bytes : w->workspace_bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

static float *private(const mn_conv_weight *w, int slot, size_t at)
{
    return mn_workspace(w->call, w->privates_at + (size_t)slot * w->private_bytes + at);
}

/* ---- points ---------------------------------------------------------------------------------- */

/* Some lines of tiles, times some units of channels, times some panels of output channels. */
typedef struct block {
    int64_t leaf, line, lines, tiles;
    int64_t unit, units, panel, panels;
    bool first, last; /* of its leaf */
    int slot;
    mn_ahead next[2]; /* the image and g of the next block */
} block;

/* What lines from lines[0] to lines[1] read first, of so many channels; a line reaches `more` rows
 * beyond its own. */
static mn_ahead look(const mn_conv_weight *w, const mn_view *view, const int64_t lines[2],
                     int64_t more, const int64_t channels[2], int64_t tiles)
{
    const int64_t count = w->winograd.strips.count, height = view->shape[1], width = view->shape[2];
    const int64_t size = (int64_t)mn_dtype_size(view->dtype);
    int64_t rows[2];
    for (int i = 0; i < 2; i++) {
        const int64_t row = lines[i] % count * w->winograd.m;
        rows[i] = lines[i] / count * height;
        rows[i] += row > 0 ? mn_max(mn_min(row + more, height), 0) : 0; /* padding may be large */
    }
    return mn_ahead_rows(mn_element(view, rows[0] * width * view->shape[3] + channels[0]),
                         view->shape[3] * size, (rows[1] - rows[0]) * width, channels[1] * size,
                         tiles, w->winograd.tiles);
}

/* What the task reads of the image and of g for the next block. */
static void look_ahead(const mn_conv_weight *w, block *b, int64_t end)
{
    const mn_winograd *v = &w->winograd;
    const int64_t width = w->kernels->columns, channel = b->unit * w->unit;
    const int64_t next = b->line + b->lines, lines[2] = {next, mn_min(next + v->block, end)};
    const int64_t of_x[2] = {channel, mn_min(b->units * w->unit, w->strips.channels - channel)};
    const int64_t of_g[2] = {b->panel * width, b->panels * width};
    const int64_t tiles =
        v->n * v->n * b->units * b->panels * mn_ceil_div(w->unit, w->kernels->rows);
    b->next[0] = look(w, w->strips.image.view, lines, mn_conv_low(&w->strips.y) + 2, of_x, tiles);
    b->next[1] = look(w, w->gradient.view, lines, 0, of_g, tiles);
}

/* The image's line, tile numbers from `tile` on, into points[unit][xi][tile][channel]. */
static void transform_image(const mn_conv_weight *w, const block *b, int64_t line, int64_t tile)
{
    mn_winograd v = w->winograd;
    mn_conv_strips *s = &v.strips;
    const int64_t channels = s->channels;
    s->pixel = channels > w->unit ? channels : 0;
    for (int64_t u = 0; u < b->units; u++) {
        s->channel = (b->unit + u) * w->unit;
        s->channels = mn_min(w->unit, channels - s->channel);
        float *points = private(w, b->slot, w->points_at) + u * v.n * v.n * w->point_step;
        mn_winograd_image(w->call, &v, line, private(w, b->slot, 0), points + tile * s->channels,
                          w->point_step);
    }
}

/* Where a line of g's panel lies, and in *step how far from pixel to pixel: f32 in whole tiles is
 * taken where it is, else it is widened and filled up with zeros, [panel][m][pixel][column]. */
static const float *load_gradients(const mn_conv_weight *w, const block *b, int64_t line,
                                   int64_t *step, int64_t *panel_step)
{
    const mn_winograd *v = &w->winograd;
    const int64_t width = w->kernels->columns, row = v->strips.x.points * width;
    const int64_t image = line / v->strips.count, p = line % v->strips.count * v->m;
    const int64_t pixels = w->strips.x.points, column = b->panel * width;
    const int64_t rows = mn_min(v->m, w->strips.y.points - p);
    mn_region region = {(image * w->strips.y.points + p) * pixels, column, pixels,
                        b->panels * width};
    const bool whole = rows == v->m && pixels == v->strips.x.points;
    if (whole && w->gradient.view->dtype == MN_F32) {
        *step = w->gradient.ld;
        *panel_step = width;
        return (const float *)w->gradient.view->data + region.row * *step + column;
    }
    float *to = private(w, b->slot, w->line_at);
    *step = width;
    *panel_step = v->m * row;
    if (!whole)
        memset(to, 0, (size_t)(b->panels * v->m * row) * sizeof(float));
    for (int64_t i = 0; i < rows; i++, region.row += pixels)
        mn_pack_straight(w->kernels, &w->gradient, &region, to + i * row, v->m * row);
    return to;
}

/* The line of g, tile numbers from `tile` on, into gradients[panel][xi][tile][column]. */
static void transform_gradients(const mn_conv_weight *w, const block *b, int64_t line, int64_t tile)
{
    const mn_winograd *v = &w->winograd;
    const int64_t width = w->kernels->columns;
    int64_t step, panel_step;
    const float *g = load_gradients(w, b, line, &step, &panel_step);
    float *gradients = private(w, b->slot, w->gradients_at) + tile * width;
    const mn_winograd_tiles tiles = {.n = width,
                                     .count = v->across,
                                     .in_row = v->strips.x.points * step,
                                     .in_step = step,
                                     .in_next = v->m * step,
                                     .out_row = v->n * w->gradient_step,
                                     .out_step = w->gradient_step,
                                     .out_next = width};
    for (int64_t panel = 0; panel < b->panels; panel++)
        mn_winograd_bodies_of(w->call)->gradient[v->m == 4](
            &tiles, g + panel * panel_step, gradients + panel * v->n * v->n * w->gradient_step);
}

/* ---- products and filters -------------------------------------------------------------------- */

/* A unit of channels times a panel. */
typedef struct part {
    int64_t channel, channels, panel;
    const float *points, *gradients;
    float *sums;
} part;

static part part_of(const mn_conv_weight *w, const block *b, int64_t index)
{
    const int64_t unit = index / b->panels, panel = index % b->panels;
    const int64_t n2 = w->winograd.n * w->winograd.n, channel = (b->unit + unit) * w->unit;
    const int64_t kept = w->kept_sums > 1 ? index : 0;
    return (part){
        .channel = channel,
        .channels = mn_min(w->unit, w->strips.channels - channel),
        .panel = b->panel + panel,
        .points = private(w, b->slot, w->points_at) + unit * n2 * w->point_step,
        .gradients = private(w, b->slot, w->gradients_at) + panel * n2 * w->gradient_step,
        .sums = private(w, b->slot, w->sums_at) + kept * n2 * w->sum_step,
    };
}

static void multiply(const mn_conv_weight *w, block *b, const part *p)
{
    static const float zeros[MN_TILE_MAX_COLUMNS];
    const int64_t rows = w->kernels->rows, width = w->kernels->columns, n = w->winograd.n;
    const int64_t depth = mn_ceil_div(b->tiles, mn_ceil_div(b->tiles, w->sum_depth));
    ptrdiff_t *offsets = (ptrdiff_t *)(void *)private(w, b->slot, w->offsets_at);
    for (int64_t t = 0; t < b->tiles; t++)
        offsets[t] = (ptrdiff_t)(t * p->channels);
    mn_tile tile = {.start = zeros, .ldc = width};
    for (int64_t xi = 0; xi < n * n; xi++) {
        const float *points = p->points + xi * w->point_step;
        const float *gradients = p->gradients + xi * w->gradient_step;
        tile.c = p->sums + xi * w->sum_step;
        for (int64_t c = 0; c < p->channels; c += rows, tile.c += rows * width) {
            mn_tile_rows(&tile, points + c, 1, mn_min(rows, p->channels - c), rows);
            for (int64_t t = 0; t < b->tiles; t += depth) {
                tile.depth = mn_min(depth, b->tiles - t);
                tile.offsets = offsets + t;
                tile.b = gradients + t * width;
                tile.accumulate = tile.apart = !b->first || t > 0;
                mn_tile_ahead(&tile, 0, &b->next[0]);
                mn_tile_ahead(&tile, 1, &b->next[1]);
                w->kernels->wide(&tile);
            }
        }
    }
}

/* One tap's filters, [channel][column], to their places. */
static void store(const mn_conv_weight *w, const part *p, int64_t tap, const float *filters)
{
    const int64_t width = w->kernels->columns, channels = w->strips.channels;
    const float *rows[MN_TILE_MAX_COLUMNS];
    float out[MN_TILE_MAX_COLUMNS * MN_TILE_MAX_COLUMNS];
    unsigned char *flags = mn_workspace(w->call, w->flags_at);
    flags[(p->panel * units_of(w) + p->channel / w->unit) * 9 + tap] =
        mn_bodies_of(w->call)->finite((size_t)(p->channels * width), filters);
    for (int64_t c = 0; c < p->channels; c += width) {
        const int64_t n = mn_min(width, p->channels - c);
        for (int64_t i = 0; i < width; i++)
            rows[i] = filters + (c + mn_min(i, n - 1)) * width;
        w->kernels->transpose(rows, width, out);
        for (int64_t j = 0; j < width; j++)
            mn_row_store(w->call, &w->call->out[0],
                         ((p->panel * width + j) * 9 + tap) * channels + p->channel + c, n,
                         out + j * width);
    }
}

/* [row tap][column tap][channel][column] of a part. */
static float *leaf_filters(const mn_conv_weight *w, const part *p, int64_t leaf)
{
    const int64_t channels = w->strips.channels;
    return (float *)mn_workspace(w->call, w->leaves_at) +
           ((leaf * w->panels + p->panel) * channels + p->channel) * 9 * w->kernels->columns;
}

/* Sums [xi][channel][column] become filters: the leaf's, or the result if there is one leaf. */
static void finish(const mn_conv_weight *w, const block *b, const part *p)
{
    const int64_t n = w->winograd.n, floats = p->channels * w->kernels->columns;
    const mn_winograd_tiles tiles = {.n = floats,
                                     .count = 1,
                                     .in_row = n * w->sum_step,
                                     .in_step = w->sum_step,
                                     .out_row = 3 * floats,
                                     .out_step = floats};
    float *filters =
        w->tile_leaves > 1 ? leaf_filters(w, p, b->leaf) : private(w, b->slot, w->filters_at);
    mn_winograd_bodies_of(w->call)->filter_gradient[w->winograd.m == 4](&tiles, p->sums, filters);
    for (int64_t tap = 0; tap < 9 && w->tile_leaves == 1; tap++)
        store(w, p, tap, filters + tap * floats);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void transform(const mn_conv_weight *w, const block *b)
{
    for (int64_t i = 0; i < b->lines; i++) {
        transform_image(w, b, b->line + i, i * w->winograd.across);
        transform_gradients(w, b, b->line + i, i * w->winograd.across);
    }
}

static void leaf_task(void *arg, int64_t index, int slot)
{
    const mn_conv_weight *w = arg;
    const mn_winograd *v = &w->winograd;
    block b = {.leaf = index / (w->panel_blocks * w->channel_blocks),
               .unit = index % w->channel_blocks * w->task_units,
               .panel = index / w->channel_blocks % w->panel_blocks * w->task_panels,
               .slot = slot};
    b.units = mn_min(w->task_units, units_of(w) - b.unit);
    b.panels = mn_min(w->task_panels, w->panels - b.panel);
    const int64_t begin = v->lines * b.leaf / w->tile_leaves;
    const int64_t end = v->lines * (b.leaf + 1) / w->tile_leaves;
    for (b.line = begin; b.line < end; b.line += b.lines) {
        b.lines = mn_min(v->block, end - b.line);
        b.tiles = b.lines * v->across;
        b.first = b.line == begin;
        b.last = b.line + b.lines == end;
        if (!b.last)
            look_ahead(w, &b, end);
        transform(w, &b);
        for (int64_t i = 0; i < b.units * b.panels; i++) {
            const part p = part_of(w, &b, i);
            multiply(w, &b, &p);
            if (b.last)
                finish(w, &b, &p);
        }
    }
}

/* Adds the leaves of one part's tap. */
static void reduce_task(void *arg, int64_t index, int slot)
{
    const mn_conv_weight *w = arg;
    const int64_t units = units_of(w), tap = index % 9;
    const block b = {
        .unit = index / 9 % units, .panel = index / 9 / units, .panels = 1, .slot = slot};
    const part p = part_of(w, &b, 0);
    const int64_t floats = p.channels * w->kernels->columns;
    float *sum = private(w, slot, w->filters_at);
    memcpy(sum, leaf_filters(w, &p, 0) + tap * floats, (size_t)floats * sizeof *sum);
    for (int64_t leaf = 1; leaf < w->tile_leaves; leaf++)
        mn_bodies_of(w->call)->accumulate((size_t)floats, sum,
                                          leaf_filters(w, &p, leaf) + tap * floats);
    store(w, &p, tap, sum);
}

bool mn_winograd_weight_run(mn_conv_weight *w)
{
    mn_store_counts *counts = w->call->stores;
    const uint64_t stored = counts ? counts->stored : 0, lost = counts ? counts->lost : 0;
    const int64_t filters = w->panels * units_of(w) * 9;
    mn_call_parallel(w->call, w->tile_leaves * w->panel_blocks * w->channel_blocks, leaf_task, w);
    if (w->tile_leaves > 1)
        mn_call_parallel(w->call, filters, reduce_task, w);
    if (!memchr(mn_workspace(w->call, w->flags_at), 0, (size_t)filters))
        return true;
    if (counts) { /* the stores will be made again */
        counts->stored = stored;
        counts->lost = lost;
    }
    return false;
}
