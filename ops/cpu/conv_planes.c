/* Convolutions with few channels, whose lanes are pixels: registers would stay mostly empty with
 * channels in them. */
#include "ops/cpu/conv_planes.h"

#include <string.h>

/* Floats of a block's planes and results that are aimed at, and blocks of a call. */
#define BLOCK_FLOATS  32768
#define GATHER_BLOCKS 16
#define LEAVES        8
/* Largest filter, in pixels and in terms. */
#define EXTENT_LIMIT 64
#define DEPTH_LIMIT  1024
#define REDUCE_CHUNK 64

/* ---- cutting --------------------------------------------------------------------------------- */

/* Pixels of a phase in a row: `left` zeros, then `count` pixels from number `first` on. */
typedef struct span {
    int64_t left, count, first;
} span;

static span span_of(const mn_conv_axis *x, int64_t phase)
{
    const int64_t low = mn_conv_low(x), end = mn_conv_extent(x, x->points) + low;
    span s = {.left = mn_ceil_div(mn_max(-low - phase, 0), x->step)};
    s.first = low + phase + s.left * x->step;
    s.count = mn_ceil_div(mn_max(mn_min(end, x->size) - s.first, 0), x->step);
    return s;
}

/* Zeros on the right of a row are those on the left of the next one. */
static int64_t pitch_of(const mn_conv_axis *x, int64_t phases)
{
    int64_t pitch = x->points;
    for (int64_t phase = 0; phase < phases; phase++) {
        const span s = span_of(x, phase);
        const int64_t all = mn_ceil_div(mn_conv_extent(x, x->points) - phase, x->step);
        pitch = s.count > 0 ? mn_max(pitch, mn_max(s.left + s.count, all - s.left)) : pitch;
    }
    return pitch;
}

/* Sizes for that many rows of points; returns the floats of an image. */
static int64_t set_rows(mn_conv_planes *p, const mn_conv_strips *s, int64_t columns, int64_t rows)
{
    const int64_t lanes = p->kernels->lanes;
    p->rows = rows;
    p->vectors = mn_ceil_div(rows * p->pitch, lanes);
    /* The last vector's points are none from some lane on, and have taps, too. */
    const int64_t beyond = lanes + mn_ceil_div(mn_conv_extent(&s->x, 1), s->x.step);
    p->plane = mn_ceil_div(mn_conv_extent(&s->y, rows), s->y.step) * p->pitch + beyond;
    p->image = s->channels * p->phases[0] * p->phases[1] * p->plane;
    return p->image + columns * p->vectors * lanes;
}

static const mn_planes_kernels *kernels_of(const mn_call *call)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512)
        return &mn_planes_avx512;
    if (call->cpu->kernels == MN_KERNELS_AVX2)
        return &mn_planes_avx2;
#else
    (void)call;
#endif
    return &mn_planes_portable;
}

static int64_t tile_rows(const mn_conv_planes *p)
{
    return p->kernels->tiles[p->tile].rows;
}

/* Cuts into about that many blocks, with room per thread for the planes, a row of an operand, and
 * results or another operand; leaves planes.kernels NULL if filters or images are too large. */
static void cut(const mn_call *call, const mn_conv_strips *s, int64_t columns, int64_t blocks,
                int tile, mn_conv_planes *planes)
{
    mn_conv_planes p = {.kernels = kernels_of(call)};
    const int64_t high = mn_conv_extent(&s->y, 1), wide = mn_conv_extent(&s->x, 1);
    if (high > EXTENT_LIMIT || wide > EXTENT_LIMIT || s->x.points > BLOCK_FLOATS ||
        s->x.size > BLOCK_FLOATS || s->channels > DEPTH_LIMIT)
        return;
    p.phases[0] = mn_min(s->y.step, high);
    p.phases[1] = mn_min(s->x.step, wide);
    p.pitch = pitch_of(&s->x, p.phases[1]);
    p.tile = tile;
    columns = mn_ceil_div(columns, tile_rows(&p)) * tile_rows(&p);
    int64_t rows = s->y.points;
    while (rows > 1 && (set_rows(&p, s, columns, rows) > BLOCK_FLOATS ||
                        s->images * (s->y.points / rows) < blocks))
        rows = mn_ceil_div(rows, 2);
    p.count = mn_ceil_div(s->y.points, rows);
    const int64_t floats = set_rows(&p, s, columns, mn_ceil_div(s->y.points, p.count));
    if (floats > 4 * BLOCK_FLOATS)
        return;
    p.images = 1;
    const int64_t vectors = p.kernels->tiles[p.tile].vectors;
    if (p.count == 1)
        p.images = mn_max(mn_min(BLOCK_FLOATS / floats, s->images / blocks), 1);
    if (p.images > vectors) /* whole tiles, see multiply */
        p.images -= p.images % vectors;
    p.blocks = mn_ceil_div(s->images, p.images) * p.count;
    /* Up to a whole tile for the last image, and for zeros behind a gradient's last row. */
    p.ld = (p.images * p.vectors + vectors) * p.kernels->lanes;
    mn_arena arena = {0, true};
    mn_arena_take(&arena, sizeof(float), p.images, p.image, 1);
    p.row_at = mn_arena_take(&arena, sizeof(float), mn_max(s->channels, columns),
                             mn_max(s->x.size, s->x.points), 1);
    p.c_at = mn_arena_take(&arena, sizeof(float), columns, p.ld, 1);
    p.bytes = arena.bytes;
    *planes = p;
}

/* ---- planes ---------------------------------------------------------------------------------- */

/* A block in work. */
typedef struct block {
    int64_t image, images, first, rows; /* rows of points from `first` on */
    float *planes, *row, *c;
} block;

static block block_of(const mn_conv_planes *p, const mn_conv_strips *s, int64_t index,
                      char *scratch)
{
    block b = {.image = index / p->count * p->images,
               .first = index % p->count * p->rows,
               .planes = (float *)(void *)scratch,
               .row = (float *)(void *)(scratch + p->row_at),
               .c = (float *)(void *)(scratch + p->c_at)};
    b.images = mn_min(p->images, s->images - b.image);
    b.rows = mn_min(p->rows, s->y.points - b.first);
    return b;
}

static void transpose(const mn_conv_planes *p, int64_t rows, int64_t columns, const float *src,
                      int64_t src_ld, float *dst, int64_t dst_ld)
{
    if (columns == 1 && src_ld == 1)
        memcpy(dst, src, (size_t)rows * sizeof *dst);
    else if (rows == 1 && dst_ld == 1)
        memcpy(dst, src, (size_t)columns * sizeof *dst);
    else
        p->kernels->transpose(rows, columns, src, src_ld, dst, dst_ld);
}

static void load_image(const mn_conv_planes *p, const mn_conv_strips *s, const block *b,
                       int64_t image)
{
    const int64_t ld = p->phases[0] * p->phases[1] * p->plane;
    const int64_t top = b->first * s->y.step + mn_conv_low(&s->y);
    const int64_t height = mn_conv_extent(&s->y, b->rows);
    float *planes = b->planes + image * p->image;
    memset(planes, 0, (size_t)p->image * sizeof *planes);
    for (int64_t h = 0; h < height; h++) {
        const int64_t phase = h % s->y.step, y = top + h;
        if (phase >= p->phases[0] || y < 0 || y >= s->y.size)
            continue;
        const float *row = mn_matrix_read(&s->image, (b->image + image) * s->y.size + y, 0,
                                          s->x.size * s->channels, b->row);
        float *dst = planes + phase * p->phases[1] * p->plane + h / s->y.step * p->pitch;
        for (int64_t i = 0; i < p->phases[1]; i++, dst += p->plane) {
            const span part = span_of(&s->x, i);
            if (part.count > 0)
                transpose(p, part.count, s->channels, row + part.first * s->channels,
                          s->x.step * s->channels, dst + part.left, ld);
        }
    }
}

/* Distance of each term (row tap, column tap, channel) from its point; the last one is repeated. */
static void fill_offsets(const mn_conv_planes *p, const mn_conv_strips *s, int64_t depth,
                         int64_t count, ptrdiff_t *offsets)
{
    for (int64_t k = 0; k < count; k++) {
        const int64_t term = mn_min(k, depth - 1), tap = term / s->channels;
        const int64_t h = mn_conv_tap(&s->y, tap / s->x.taps);
        const int64_t w = mn_conv_tap(&s->x, tap % s->x.taps);
        const int64_t plane = (term % s->channels * p->phases[0] + h % s->y.step) * p->phases[1];
        offsets[k] = (ptrdiff_t)((plane + w % s->x.step) * p->plane + h / s->y.step * p->pitch +
                                 w / s->x.step);
    }
}

/* ---- forward, and gradient of the input ------------------------------------------------------ */

void mn_planes_choose(mn_conv_gather *g)
{
    if (g->groups == 1 && g->columns <= MN_PLANES_COLUMNS && g->depth >= 8 &&
        g->depth <= DEPTH_LIMIT)
        cut(g->call, &g->strips, g->columns, GATHER_BLOCKS, g->columns > 6, &g->planes);
    if (g->planes.bytes > g->scratch_bytes)
        g->scratch_bytes = g->planes.bytes;
}

/* Leaves out the row taps that see nothing but padding from some rows of points. */
static void trim(const mn_conv_gather *g, const block *b, int64_t first, int64_t last,
                 mn_planes_tile *tile)
{
    const mn_conv_axis *y = &g->strips.y;
    const int64_t low = (b->first + first) * y->step + y->base;
    const int64_t high = (b->first + last) * y->step + y->base;
    const int64_t terms = g->strips.x.taps * g->strips.channels;
    int64_t begin = 0, end = y->taps;
    while (begin < end && (high + begin * y->delta < 0 || low + begin * y->delta >= y->size))
        begin++;
    while (begin < end &&
           (high + (end - 1) * y->delta < 0 || low + (end - 1) * y->delta >= y->size))
        end--;
    tile->depth = (end - begin) * terms;
    tile->offsets = (const ptrdiff_t *)mn_workspace(g->call, g->offsets_at) + begin * terms;
    tile->weights += begin * terms * tile->ldw;
}

/* The vectors of a tile lie side by side or, where there are enough images, at the same place of
 * several images: they have fewer rows, and near the edge fewer taps. */
static void multiply(const mn_conv_gather *g, const block *b)
{
    const mn_conv_planes *p = &g->planes;
    const int64_t lanes = p->kernels->lanes, vectors = p->kernels->tiles[p->tile].vectors;
    const int64_t together = b->images % vectors == 0 ? vectors : 1, side = vectors / together;
    mn_planes_tile tile = {.ldw = g->kernels->columns,
                           .ldc = p->ld,
                           .c_step = together > 1 ? p->vectors * lanes : lanes};
    for (int64_t image = 0; image < b->images; image += together)
        for (int64_t v = 0; v < p->vectors; v += side) {
            for (int64_t j = 0; j < vectors; j++) {
                const int64_t place = mn_min(v + j % side, p->vectors - 1);
                tile.b[j] = b->planes + (image + j / side) * p->image + place * lanes;
            }
            for (int64_t i = 0; i < g->columns; i += tile_rows(p)) {
                tile.weights = (const float *)mn_workspace(g->call, g->packed_at) + i;
                tile.start = (const float *)mn_workspace(g->call, g->start_at) + i;
                tile.c = b->c + i * p->ld + (image * p->vectors + v) * lanes;
                trim(g, b, v * lanes / p->pitch,
                     mn_min(((v + side) * lanes - 1) / p->pitch, b->rows - 1), &tile);
                p->kernels->tiles[p->tile].gather(&tile);
            }
        }
}

static void store(const mn_conv_gather *g, const block *b, int64_t index)
{
    const mn_conv_planes *p = &g->planes;
    const mn_conv_axis *v = &g->strips.y, *h = &g->strips.x;
    const mn_view *y = &g->call->out[0];
    /* Not in y's rows: reading what was just written in pieces of another size waits for it. */
    mn_row_activate(g->call, g->columns * p->ld, b->c);
    for (int64_t i = 0; i < b->images * b->rows; i++) {
        const int64_t image = i / b->rows, row = i % b->rows;
        const float *c = b->c + image * p->vectors * p->kernels->lanes + row * p->pitch;
        const int64_t line = v->out_base + (b->first + row) * v->out_step;
        const int64_t at =
            (((b->image + image) * y->shape[1] + line) * y->shape[2] + h->out_base) * g->columns;
        float *dst = h->out_step == 1 ? mn_row_place(y, at, b->row) : b->row;
        transpose(p, g->columns, h->points, c, p->ld, dst, g->columns);
        if (h->out_step == 1)
            mn_row_store(g->call, y, at, h->points * g->columns, dst);
        else
            for (int64_t q = 0; q < h->points; q++)
                mn_row_store(g->call, y, at + q * h->out_step * g->columns, g->columns,
                             dst + q * g->columns);
        mn_gather_stored(g, index, at / g->columns, h->points, 0, g->columns);
    }
}

static void gather_task(void *arg, int64_t index, int slot)
{
    const mn_conv_gather *g = arg;
    char *scratch = mn_workspace(g->call, g->scratch_at + (size_t)slot * g->scratch_bytes);
    const block b = block_of(&g->planes, &g->strips, index, scratch);
    for (int64_t i = 0; i < b.images; i++)
        load_image(&g->planes, &g->strips, &b, i);
    multiply(g, &b);
    store(g, &b, index);
}

void mn_planes_run(mn_conv_gather *g)
{
    fill_offsets(&g->planes, &g->strips, g->depth, g->depth, mn_workspace(g->call, g->offsets_at));
    mn_call_parallel(g->call, g->planes.blocks, gather_task, g);
}

/* ---- gradient of the weights ----------------------------------------------------------------- */

/* Tiles: rows are output channels, columns filter elements. */
static int64_t tiles(const mn_conv_weight *w)
{
    const mn_conv_planes *p = &w->planes;
    return mn_ceil_div(w->columns, tile_rows(p)) *
           mn_ceil_div(w->depth, p->kernels->tiles[p->tile].vectors);
}

static int64_t tile_floats(const mn_conv_planes *p)
{
    return tile_rows(p) * p->kernels->tiles[p->tile].vectors * p->kernels->lanes;
}

void mn_planes_weight_choose(mn_conv_weight *w, mn_arena *arena)
{
    mn_conv_planes *p = &w->planes;
    if (w->groups == 1 && w->winograd.m == 0 && w->depth <= DEPTH_LIMIT && w->columns <= 6)
        cut(w->call, &w->strips, w->columns, LEAVES, 0, p);
    if (!p->kernels)
        return;
    p->leaves = mn_min(LEAVES, p->blocks);
    p->partial_at = mn_arena_take(arena, sizeof(float), p->leaves, tiles(w), tile_floats(p));
}

/* Channels of the gradient, with zeros where points are none. */
static void load_gradient(const mn_conv_weight *w, const block *b)
{
    const mn_conv_planes *p = &w->planes;
    const mn_conv_axis *y = &w->strips.y, *x = &w->strips.x;
    const int64_t rows = mn_ceil_div(w->columns, tile_rows(p)) * tile_rows(p);
    memset(b->c, 0, (size_t)(rows * p->ld) * sizeof *b->c);
    for (int64_t i = 0; i < b->images * b->rows; i++) {
        const int64_t image = i / b->rows, row = i % b->rows;
        const int64_t at = ((b->image + image) * y->points + b->first + row) * x->points;
        const float *src = mn_matrix_read(&w->gradient, at, 0, x->points * w->columns, b->row);
        transpose(p, x->points, w->columns, src, w->columns,
                  b->c + image * p->vectors * p->kernels->lanes + row * p->pitch, p->ld);
    }
}

/* Sums of one row of a tile without the products with padding, which would be NaN. */
static void add_exactly(const mn_conv_weight *w, const block *b, int64_t k, int64_t first,
                        float *sums)
{
    const mn_conv_planes *p = &w->planes;
    const mn_conv_strips *s = &w->strips;
    const ptrdiff_t *offsets = mn_workspace(w->call, w->taps_at);
    for (int64_t e = first; e < mn_min(first + p->kernels->tiles[p->tile].vectors, w->depth); e++)
        for (int64_t i = 0; i < b->images * b->rows * s->x.points; i++) {
            const int64_t row = i / s->x.points % b->rows, column = i % s->x.points;
            const int64_t image = i / s->x.points / b->rows, at = row * p->pitch + column;
            if (mn_conv_inside(s, (b->first + row) * s->x.points + column, e / s->channels))
                sums[(e - first) * p->kernels->lanes] +=
                    b->c[k * p->ld + image * p->vectors * p->kernels->lanes + at] *
                    b->planes[image * p->image + offsets[e] + at];
        }
}

static void add_block(const mn_conv_weight *w, const block *b, bool accumulate, float *sums)
{
    const mn_conv_planes *p = &w->planes;
    const int64_t rows = tile_rows(p), lanes = p->kernels->lanes;
    const int vectors = p->kernels->tiles[p->tile].vectors;
    const ptrdiff_t *offsets = mn_workspace(w->call, w->taps_at);
    const bool finite = mn_bodies_of(w->call)->finite((size_t)(b->images * p->image), b->planes) &&
                        mn_bodies_of(w->call)->finite((size_t)(w->columns * p->ld), b->c);
    mn_planes_tile tile = {.depth = p->vectors * lanes,
                           .images = b->images,
                           .b_step = p->image,
                           .ldw = p->ld,
                           .c = sums,
                           .accumulate = accumulate};
    if (!finite && !accumulate)
        memset(sums, 0, (size_t)(tiles(w) * tile_floats(p)) * sizeof *sums);
    for (int64_t k = 0; k < w->columns; k += rows)
        for (int64_t e = 0; e < w->depth; e += vectors, tile.c += rows * vectors * lanes) {
            tile.weights = b->c + k * p->ld;
            for (int j = 0; j < vectors; j++)
                tile.b[j] = b->planes + offsets[e + j];
            if (finite)
                p->kernels->products(&tile);
            else
                for (int64_t i = 0; i < mn_min(rows, w->columns - k); i++)
                    add_exactly(w, b, k + i, e, tile.c + i * vectors * lanes);
        }
}

static float *leaf_sums(const mn_conv_weight *w, int64_t leaf)
{
    return (float *)mn_workspace(w->call, w->planes.partial_at) +
           leaf * tiles(w) * tile_floats(&w->planes);
}

static void leaf_task(void *arg, int64_t leaf, int slot)
{
    const mn_conv_weight *w = arg;
    const mn_conv_planes *p = &w->planes;
    char *scratch = mn_workspace(w->call, w->scratch_at + (size_t)slot * w->scratch_bytes);
    const int64_t begin = p->blocks * leaf / p->leaves, end = p->blocks * (leaf + 1) / p->leaves;
    for (int64_t i = begin; i < end; i++) {
        const block b = block_of(p, &w->strips, i, scratch);
        for (int64_t image = 0; image < b.images; image++)
            load_image(p, &w->strips, &b, image);
        load_gradient(w, &b);
        add_block(w, &b, i > begin, leaf_sums(w, leaf));
    }
}

/* An element: sum over the leaves, then over lanes. */
static float reduce(const mn_conv_weight *w, int64_t at)
{
    const int lanes = w->planes.kernels->lanes;
    float sum[16] = {0};
    for (int64_t leaf = 0; leaf < w->planes.leaves; leaf++) {
        const float *from = leaf_sums(w, leaf) + at;
        for (int i = 0; i < lanes; i++)
            sum[i] += from[i];
    }
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

static void reduce_task(void *arg, int64_t k, int slot)
{
    (void)slot;
    const mn_conv_weight *w = arg;
    const mn_conv_planes *p = &w->planes;
    const int64_t rows = tile_rows(p), vectors = p->kernels->tiles[p->tile].vectors;
    const int64_t across = mn_ceil_div(w->depth, vectors);
    float row[REDUCE_CHUNK];
    for (int64_t first = 0; first < w->depth; first += REDUCE_CHUNK) {
        const int64_t n = mn_min(REDUCE_CHUNK, w->depth - first);
        for (int64_t i = 0; i < n; i++) {
            const int64_t e = first + i, tile = k / rows * across + e / vectors;
            row[i] = reduce(w, tile * tile_floats(p) +
                                   (k % rows * vectors + e % vectors) * p->kernels->lanes);
        }
        mn_row_store(w->call, &w->call->out[0], k * w->depth + first, n, row);
    }
}

void mn_planes_weight_run(mn_conv_weight *w)
{
    fill_offsets(&w->planes, &w->strips, w->depth, w->depth + 4, mn_workspace(w->call, w->taps_at));
    mn_call_parallel(w->call, w->planes.leaves, leaf_task, w);
    mn_call_parallel(w->call, w->columns, reduce_task, w);
}
