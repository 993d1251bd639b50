/* Gradient of convolution's weights: products over pixels. Rows of the tile are filter elements
 * (r, s, c), columns are output channels. Strips of images are dealt to at most LEAVES partial
 * sums, cut by shapes alone and added in order at the end. */
#include "ops/cpu/conv.h"

#include <string.h>

#define LEAVES 8
/* Floats of all partial sums together; fewer leaves if they would be more, but so many that there
 * are LEAVES tasks. */
#define LEAVES_FLOATS (INT64_C(5) << 19)
/* Pixels that are summed at once. */
#define BLOCK_PIXELS 160

static const float zeros[MN_TILE_MAX_COLUMNS];

typedef mn_conv_weight weight_grad;

/* Floats of one leaf's partial sum: [group][panel][rows][columns of a panel]. */
static int64_t partial_floats(const weight_grad *w, int64_t panels)
{
    return w->groups * panels * w->rows * w->kernels->columns;
}

/* Panels of a pass. */
static int64_t pass_panels(const weight_grad *w)
{
    const int64_t first = w->first_block * w->task_panels;
    return mn_min(w->pass_blocks * w->task_panels, w->panels - first);
}

static mn_status lay_out(weight_grad *w)
{
    const mn_conv_strips *s = &w->strips;
    const int64_t width = w->kernels->columns, pixels = s->together * s->rows * s->x.points;
    mn_arena scratch = {0, true};
    if (!s->direct)
        mn_arena_take(&scratch, sizeof(float) * (size_t)s->channels, s->height, s->width,
                      s->together);
    w->packed_at =
        w->depthwise
            ? mn_arena_take(&scratch, sizeof(float), w->groups, BLOCK_PIXELS + w->depth, 1)
            : mn_arena_take(&scratch, sizeof(float) * (size_t)width, w->task_panels, pixels, 1);
    mn_arena arena = {0, scratch.ok};
    mn_planes_weight_choose(w, &arena);
    w->scratch_bytes = scratch.bytes > w->planes.bytes ? scratch.bytes : w->planes.bytes;
    w->taps_at = mn_arena_take(&arena, sizeof(ptrdiff_t), w->rows + 4, 1, 1);
    w->pixels_at = mn_arena_take(&arena, sizeof(ptrdiff_t), pixels, 1, 1);
    w->partial_at =
        mn_arena_take(&arena, sizeof(float), w->leaves, partial_floats(w, pass_panels(w)), 1);
    w->scratch_at = mn_arena_take(&arena, w->scratch_bytes, mn_call_threads(w->call), 1, 1);
    w->workspace_bytes = arena.bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

static mn_status plan(const mn_call *call, weight_grad *w)
{
    const mn_conv2d_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *g = &call->in[0], *x = &call->in[1], *dw = &call->out[0];
    *w = (weight_grad){
        .call = call,
        .kernels = mn_gemm_kernels_for(call, dw->shape[0] / a->groups),
        .strips = {.image = {call, x, x->shape[2] * x->shape[3]},
                   .images = x->shape[0],
                   .channels = x->shape[3],
                   .group_channels = x->shape[3] / a->groups,
                   .y = mn_conv_axis_forward(a, 0, x->shape[1], g->shape[1], a->extent[0]),
                   .x = mn_conv_axis_forward(a, 1, x->shape[2], g->shape[2], a->extent[1])},
        .gradient = {call, g, g->shape[3]},
        .groups = a->groups,
        .depth = dw->shape[1] * dw->shape[2] * dw->shape[3],
        .columns = dw->shape[0] / a->groups};
    w->depthwise = mn_is_depthwise(&w->strips, w->groups, w->columns);
    if (g->numel > 0)
        mn_winograd_weight_choose(w);
    w->rows = mn_ceil_div(w->depth, w->kernels->rows) * w->kernels->rows;
    w->panels = mn_ceil_div(w->columns, w->kernels->columns);
    w->task_panels = mn_min(MN_WEIGHT_COLUMNS / w->kernels->columns, w->panels);
    w->panel_blocks = w->panels > 0 ? mn_ceil_div(w->panels, w->task_panels) : 0;
    /* Where Winograd serves the call, the direct way is seldom gone: passes save room. */
    w->pass_blocks = w->winograd.m > 0 ? 1 : w->panel_blocks;
    size_t floats = sizeof(float);
    mn_arena check = {0, true};
    mn_arena_take(&check, floats * (size_t)w->kernels->columns, w->groups, w->panels, w->rows);
    if (!check.ok)
        return MN_ERR_MEMORY;
    if (g->numel == 0 || partial_floats(w, w->panels) == 0)
        return MN_OK;
    mn_conv_strips_cut(&w->strips);
    w->units = mn_conv_strip_count(&w->strips);
    w->leaves =
        mn_max(LEAVES_FLOATS / partial_floats(w, w->panels), mn_ceil_div(LEAVES, w->panel_blocks));
    w->leaves = mn_min(LEAVES, w->leaves);
    w->leaves = mn_min(w->leaves, w->units);
    MN_TRY(lay_out(w));
    return mn_winograd_weight_plan(w);
}

float *mn_conv_partial(const mn_conv_weight *w, int64_t leaf, int64_t group, int64_t panel)
{
    int64_t index = (leaf * w->groups + group) * pass_panels(w) + panel;
    index -= w->first_block * w->task_panels;
    return (float *)mn_workspace(w->call, w->partial_at) + index * w->rows * w->kernels->columns;
}

/* ---- sums over pixels ------------------------------------------------------------------------ */

/* A strip in work: where its image is, and which points it has. */
typedef struct strip {
    int64_t image, first_row, pixels;
    const float *origin;
    float *packed;
    bool first; /* of its leaf: partial sums begin */
    mn_ahead ahead[2];
} strip;

/* A tile whose first row is filter element `row`, and whose depth begins at a pixel of the strip.
 */
typedef struct tile_of {
    const weight_grad *w;
    const strip *s;
    int64_t row, pixel;
} tile_of;

static bool inside(const void *arg, int64_t i, int64_t k)
{
    const tile_of *t = arg;
    const int64_t point = t->s->first_row * t->w->strips.x.points + t->pixel + k;
    return mn_conv_inside(&t->w->strips, point % (t->w->strips.y.points * t->w->strips.x.points),
                          mn_min(t->row + i, t->w->depth - 1) / t->w->strips.group_channels);
}

/* Adds a strip's products with one panel of g to the partial sum c. */
static void add_panel(const weight_grad *w, strip *s, const float *origin, const float *panel,
                      int64_t columns, float *c)
{
    const int64_t rows = w->kernels->rows, width = w->kernels->columns;
    const int64_t step = mn_ceil_div(s->pixels, mn_ceil_div(s->pixels, BLOCK_PIXELS));
    const ptrdiff_t *taps = mn_workspace(w->call, w->taps_at),
                    *pixels = mn_workspace(w->call, w->pixels_at);
    const bool exact =
        !w->strips.direct && !mn_bodies_of(w->call)->finite((size_t)(s->pixels * width), panel);
    mn_tile tile = {.start = zeros, .ldc = width};
    for (int64_t pixel = 0; pixel < s->pixels; pixel += step) {
        tile.depth = mn_min(step, s->pixels - pixel);
        tile.offsets = pixels + pixel;
        tile.b = panel + pixel * width;
        tile.accumulate = !s->first || pixel > 0;
        for (int64_t row = 0; row < w->rows; row += rows) {
            for (int64_t i = 0; i < rows; i++)
                tile.a[i] = origin + taps[row + i];
            mn_tile_ahead(&tile, 0, &s->ahead[0]);
            mn_tile_ahead(&tile, 1, &s->ahead[1]);
            tile.c = c + row * width;
            if (exact)
                mn_conv_tile_exact(w->kernels, &tile, inside, &(tile_of){w, s, row, pixel});
            else
                mn_tile_run(w->kernels, &tile, columns);
        }
    }
}

static void add_strip(const weight_grad *w, strip *s, int64_t leaf, int64_t panel)
{
    const mn_conv_strips *strips = &w->strips;
    const int64_t width = w->kernels->columns, panel_floats = s->pixels * width;
    const int64_t panels = mn_min(w->task_panels, w->panels - panel), column = panel * width;
    const int64_t row = (s->image * strips->y.points + s->first_row) * strips->x.points;
    /* Its rows are those of the only panel. */
    const bool in_place =
        w->groups == 1 && w->gradient.view->dtype == MN_F32 && w->gradient.ld == width;
    for (int64_t group = 0; group < w->groups; group++) {
        mn_region region = {row, group * w->columns + column, s->pixels,
                            mn_min(panels * width, w->columns - column)};
        const float *packed = s->packed;
        if (in_place)
            packed = mn_matrix_read(&w->gradient, row, 0, s->pixels * width, NULL);
        else
            mn_pack_straight(w->kernels, &w->gradient, &region, s->packed, panel_floats);
        for (int64_t p = 0; p < panels; p++)
            add_panel(w, s, s->origin + group * w->strips.group_channels, packed + p * panel_floats,
                      w->columns - column - p * width, mn_conv_partial(w, leaf, group, panel + p));
    }
}

/* The sums of some pixels' products with g, [tap][channel]; what is not finite does not meet
 * padding, as zero times infinity is NaN. */
static void sum_depthwise(const weight_grad *w, strip *s, int64_t pixel, int64_t pixels,
                          const float *g, float *sums)
{
    const mn_depthwise d = {w->groups, w->depth, mn_workspace(w->call, w->taps_at)};
    const ptrdiff_t *places = (const ptrdiff_t *)mn_workspace(w->call, w->pixels_at) + pixel;
    if (w->strips.direct || mn_bodies_of(w->call)->finite((size_t)(pixels * d.n), g)) {
        mn_depthwise_bodies_of(w->call)->weight(&d, s->origin, places, pixels, g, d.n, sums);
        return;
    }
    memset(sums, 0, (size_t)(d.taps * d.n) * sizeof *sums);
    for (int64_t t = 0; t < d.taps; t++)
        for (int64_t p = 0; p < pixels; p++)
            if (inside(&(tile_of){w, s, t, pixel}, 0, p))
                for (int64_t c = 0; c < d.n; c++)
                    sums[t * d.n + c] += s->origin[places[p] + d.offsets[t] + c] * g[p * d.n + c];
}

/* Each channel by itself: adds a strip's products to the partial sums. */
static void add_depthwise(const weight_grad *w, strip *s, int64_t leaf)
{
    const int64_t width = w->kernels->columns, channels = w->groups;
    const int64_t step = mn_ceil_div(s->pixels, mn_ceil_div(s->pixels, BLOCK_PIXELS));
    const int64_t row = (s->image * w->strips.y.points + s->first_row) * w->strips.x.points;
    float *sums = s->packed + BLOCK_PIXELS * channels;
    for (int64_t pixel = 0, n; pixel < s->pixels; pixel += n) {
        n = mn_min(step, s->pixels - pixel);
        sum_depthwise(w, s, pixel, n,
                      mn_matrix_read(&w->gradient, row + pixel, 0, n * channels, s->packed), sums);
        for (int64_t c = 0; c < channels; c++) {
            float *to = mn_conv_partial(w, leaf, c, 0);
            for (int64_t t = 0; t < w->depth; t++)
                to[t * width] =
                    sums[t * channels + c] + (s->first && pixel == 0 ? 0 : to[t * width]);
        }
    }
}

/* Points of the strip of a unit. */
static strip strip_of(const weight_grad *w, int64_t unit)
{
    const mn_conv_strips *s = &w->strips;
    strip at = {.image = unit / s->count * s->together, .first_row = unit % s->count * s->rows};
    at.pixels = mn_min(s->rows, s->y.points - at.first_row) * s->x.points *
                mn_min(s->together, s->images - at.image);
    return at;
}

static void look_ahead(const weight_grad *w, strip *s, int64_t unit)
{
    const strip next = strip_of(w, unit);
    const int64_t tiles = mn_ceil_div(s->pixels, BLOCK_PIXELS) * (w->rows / w->kernels->rows) *
                          w->task_panels * w->groups;
    const int64_t row = (next.image * w->strips.y.points + next.first_row) * w->strips.x.points;
    s->ahead[0] = mn_conv_strip_ahead(&w->strips, next.image, next.first_row, tiles, BLOCK_PIXELS);
    s->ahead[1] = mn_matrix_ahead(&w->gradient, row, next.pixels, tiles, BLOCK_PIXELS);
}

static void leaf_task(void *arg, int64_t index, int slot)
{
    const weight_grad *w = arg;
    const mn_conv_strips *strips = &w->strips;
    const int64_t leaf = index / w->pass_blocks;
    const int64_t panel = (w->first_block + index % w->pass_blocks) * w->task_panels;
    const int64_t begin = w->units * leaf / w->leaves, end = w->units * (leaf + 1) / w->leaves;
    char *scratch = mn_workspace(w->call, w->scratch_at + (size_t)slot * w->scratch_bytes);
    for (int64_t unit = begin; unit < end; unit++) {
        strip s = strip_of(w, unit);
        s.packed = (float *)(void *)(scratch + w->packed_at);
        s.first = unit == begin;
        if (unit + 1 < end)
            look_ahead(w, &s, unit + 1);
        s.origin = mn_conv_strip_load(strips, s.image, s.first_row, (float *)(void *)scratch);
        if (w->depthwise)
            add_depthwise(w, &s, leaf);
        else
            add_strip(w, &s, leaf, panel);
    }
}

/* ---- sum of the leaves ----------------------------------------------------------------------- */

/* Adds a panel's `width` rows from `row` on, those that there are, over the leaves and turns them:
 * out[column * width + row]. */
static void add_leaves(const weight_grad *w, int64_t group, int64_t panel, int64_t row, float *out)
{
    const int64_t width = w->kernels->columns, n = mn_min(width, w->rows - row);
    const mn_bodies *bodies = mn_bodies_of(w->call);
    float sum[MN_TILE_MAX_COLUMNS * MN_TILE_MAX_COLUMNS];
    const float *rows[MN_TILE_MAX_COLUMNS];
    const float *src = mn_conv_partial(w, 0, group, panel) + row * width;
    if (w->leaves > 1) {
        memcpy(sum, src, (size_t)(n * width) * sizeof *sum);
        for (int64_t leaf = 1; leaf < w->leaves; leaf++)
            bodies->accumulate((size_t)(n * width), sum,
                               mn_conv_partial(w, leaf, group, panel) + row * width);
        src = sum;
    }
    for (int64_t i = 0; i < width; i++)
        rows[i] = src + mn_min(i, n - 1) * width;
    w->kernels->transpose(rows, width, out);
}

static void reduce_task(void *arg, int64_t index, int slot)
{
    (void)slot;
    const weight_grad *w = arg;
    const mn_view *dw = &w->call->out[0];
    const int64_t width = w->kernels->columns, panels = pass_panels(w), group = index / panels;
    const int64_t panel = w->first_block * w->task_panels + index % panels;
    const int64_t columns = mn_min(width, w->columns - panel * width);
    const int64_t first = group * w->columns + panel * width;
    float out[MN_TILE_MAX_COLUMNS * MN_TILE_MAX_COLUMNS];
    if (w->leaves == 0)
        memset(out, 0, sizeof out);
    for (int64_t row = 0; row < w->depth; row += width) {
        if (w->leaves > 0)
            add_leaves(w, group, panel, row, out);
        for (int64_t j = 0; j < columns; j++)
            mn_row_store(w->call, dw, (first + j) * w->depth + row, mn_min(width, w->depth - row),
                         out + j * width);
    }
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* Where filter elements lie from a point's lowest tap (surplus rows repeat the last one), and where
 * a strip's points lie from its first. */
static void fill_tables(const weight_grad *w)
{
    const mn_conv_strips *s = &w->strips;
    const int64_t channels = w->strips.group_channels;
    ptrdiff_t *taps = mn_workspace(w->call, w->taps_at),
              *pixels = mn_workspace(w->call, w->pixels_at);
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t element = mn_min(i, w->depth - 1), tap = element / channels;
        int64_t pixel =
            mn_conv_tap(&s->y, tap / s->x.taps) * s->width + mn_conv_tap(&s->x, tap % s->x.taps);
        taps[i] = (ptrdiff_t)(pixel * s->channels + element % channels);
    }
    for (int64_t p = 0; p < s->together * s->rows; p++)
        for (int64_t q = 0; q < s->x.points; q++)
            *pixels++ =
                (ptrdiff_t)(p / s->rows * s->image_step +
                            (p % s->rows * s->y.step * s->width + q * s->x.step) * s->channels);
}

mn_status mn_cpu_conv2d_backward_weight_prepare(const mn_call *call, mn_plan *unused,
                                                size_t *workspace_bytes)
{
    (void)unused;
    weight_grad w;
    mn_status status = plan(call, &w);
    *workspace_bytes = w.workspace_bytes;
    return status;
}

void mn_cpu_conv2d_backward_weight(const mn_call *call)
{
    weight_grad w;
    if (plan(call, &w) != MN_OK)
        return;
    if (w.leaves > 0 && w.planes.kernels) {
        mn_planes_weight_run(&w);
        return;
    }
    if (call->out[0].numel == 0 || (w.leaves > 0 && w.winograd.m > 0 && mn_winograd_weight_run(&w)))
        return;
    if (w.leaves > 0)
        fill_tables(&w);
    for (; w.first_block < w.panel_blocks; w.first_block += w.pass_blocks) {
        mn_call_parallel(call, w.leaves * w.pass_blocks, leaf_task, &w);
        mn_call_parallel(call, w.groups * pass_panels(&w), reduce_task, &w);
    }
}
