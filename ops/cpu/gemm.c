/* Driver of (batched) matrix products: b is packed into panels once, then tasks of a block of rows
 * times a block of panels run over k in blocks. Each element of y is one sum in the order of k,
 * whatever the tasks and threads. */
#include "ops/cpu/gemm.h"

/* k per block: a panel of it stays in the first-level cache. */
#define DEPTH 384
/* Tiles and panels of a task at most, and the number of tasks aimed at. */
#define BLOCK_TILES  16
#define BLOCK_PANELS 8
#define TASKS        32
/* Panels that are packed by one task at most, and floats at least: a start of threads costs more.
 */
#define PACK_PANELS 8
#define PACK_FLOATS 8192
/* Rows of a transposed a that are used where they are: a longer stride has few cache lines. */
#define STRIDE 256

mn_ahead mn_ahead_rows(const char *at, ptrdiff_t step, int64_t rows, int64_t bytes, int64_t tiles,
                       int64_t depth)
{
    if (rows <= 0 || bytes <= 0)
        return (mn_ahead){0};
    if (step == bytes) {
        rows = mn_ceil_div(rows * bytes, MN_LINE_BYTES);
        step = bytes = MN_LINE_BYTES;
    }
    mn_ahead ahead = {.at = at, .step = step, .rows = rows};
    ahead.parts = mn_ceil_div(bytes, MN_LINE_BYTES);
    while ((depth >> ahead.shift) > 1 &&
           ((tiles * depth) >> (ahead.shift + 1)) >= ahead.parts * rows)
        ahead.shift++;
    return ahead;
}

static void choose_blocks(mn_gemm *g)
{
    const int64_t rows = g->kernels->rows, tiles = mn_ceil_div(g->m, rows);
    int64_t t = mn_min(tiles, BLOCK_TILES), p = mn_min(g->panels, BLOCK_PANELS);
    while (g->batches * mn_ceil_div(tiles, t) * mn_ceil_div(g->panels, p) < TASKS && t * p > 1) {
        if (t >= p)
            t = mn_ceil_div(t, 2);
        else
            p = mn_ceil_div(p, 2);
    }
    g->row_blocks = mn_ceil_div(tiles, t);
    g->panel_blocks = mn_ceil_div(g->panels, p);
    g->block_rows = mn_ceil_div(tiles, g->row_blocks) * rows;
    g->block_panels = mn_ceil_div(g->panels, g->panel_blocks);
}

mn_status mn_gemm_plan(mn_gemm *g)
{
    g->kernels = mn_gemm_kernels_for(g->call, g->n);
    g->workspace_bytes = 0;
    g->empty = g->m == 0 || g->n == 0 || g->batches == 0;
    if (g->empty)
        return MN_OK;
    const int64_t width = g->kernels->columns;
    g->panels = mn_ceil_div(g->n, width);
    /* Equal blocks; some tiles are faster with multiples of four. */
    const int64_t cuts = mn_max(mn_ceil_div(g->k, DEPTH), 1);
    g->depth = mn_min(g->k, (mn_ceil_div(g->k, cuts) + 3) / 4 * 4);
    const int64_t fill = mn_ceil_div(PACK_FLOATS, mn_max(g->depth * width, 1));
    g->pack_panels = mn_max(mn_ceil_div(g->b_items * g->panels * cuts, TASKS), fill);
    g->pack_panels = mn_min(g->pack_panels, PACK_PANELS);
    g->a_copied = g->k == 0 || g->call->in[0].dtype != MN_F32 || (g->a_transposed && g->m > STRIDE);
    choose_blocks(g);
    mn_arena scratch = {0, true};
    mn_arena_take(&scratch, sizeof(float), g->a_copied ? g->block_rows : 0, g->depth, 1);
    g->c_at = mn_arena_take(&scratch, sizeof(float), g->block_rows, g->block_panels, width);
    g->scratch_bytes = scratch.bytes;
    mn_arena arena = {0, scratch.ok};
    g->offsets_at = mn_arena_take(&arena, sizeof(ptrdiff_t), g->depth, 1, 1);
    g->start_at = mn_arena_take(&arena, sizeof(float), g->panels, width, 1);
    g->packed_at =
        mn_arena_take(&arena, sizeof(float) * (size_t)width, g->b_items, g->panels, g->k);
    g->scratch_at = mn_arena_take(&arena, scratch.bytes, mn_call_threads(g->call), 1, 1);
    g->workspace_bytes = arena.bytes;
    return arena.ok ? MN_OK : MN_ERR_MEMORY;
}

/* First panel p of product `item` of b; panels follow each other by k * columns. */
static float *packed(const mn_gemm *g, int64_t item, int64_t p)
{
    return (float *)mn_workspace(g->call, g->packed_at) +
           (item * g->panels + p) * g->k * g->kernels->columns;
}

static void pack_task(void *arg, int64_t index, int slot)
{
    (void)slot;
    const mn_gemm *g = arg;
    const int64_t width = g->kernels->columns;
    const int64_t blocks = mn_ceil_div(g->panels, g->pack_panels);
    const int64_t cuts = mn_ceil_div(g->k, g->depth);
    const int64_t item = index / (blocks * cuts), first = index % blocks * g->pack_panels;
    const int64_t k = index / blocks % cuts * g->depth, depth = mn_min(g->depth, g->k - k);
    const int64_t last = mn_min(first + g->pack_panels, g->panels);
    const mn_matrix b = {g->call, &g->call->in[1], g->b_transposed ? g->k : g->n};
    float *dst = packed(g, item, first) + k * width;
    if (!g->b_transposed) {
        mn_region region = {item * g->k + k, first * width, depth,
                            mn_min(last * width, g->n) - first * width};
        mn_pack_straight(g->kernels, &b, &region, dst, g->k * width);
        return;
    }
    for (int64_t p = first; p < last; p++, dst += g->k * width) {
        mn_region region = {item * g->n + p * width, k, mn_min(width, g->n - p * width), depth};
        mn_pack_transposed(g->kernels, &b, &region, dst);
    }
}

/* What one task computes: matrices a_item and b_item, rows from `row` on, panels from `panel` on.
 */
typedef struct block {
    int64_t batch, a_item, b_item, row, rows, panel, panels;
    float *a_copy, *c;
} block;

static block block_of(const mn_gemm *g, int64_t index, int slot)
{
    const int64_t tasks = g->row_blocks * g->panel_blocks;
    block b = {.batch = index / tasks};
    b.a_item = mn_offset(b.batch, g->batch_ndim, g->batch_shape, g->a_step);
    b.b_item = mn_offset(b.batch, g->batch_ndim, g->batch_shape, g->b_step);
    b.row = index % tasks / g->panel_blocks * g->block_rows;
    b.rows = mn_min(g->block_rows, g->m - b.row);
    b.panel = index % g->panel_blocks * g->block_panels;
    b.panels = mn_min(g->block_panels, g->panels - b.panel);
    char *scratch = mn_workspace(g->call, g->scratch_at + (size_t)slot * g->scratch_bytes);
    b.a_copy = (float *)(void *)scratch;
    b.c = (float *)(void *)(scratch + g->c_at);
    return b;
}

/* Widens (and for a transposed a, gathers) the block's part of a. */
static void copy_a(const mn_gemm *g, const block *b, int64_t k, int64_t depth)
{
    const mn_matrix a = {g->call, &g->call->in[0], g->a_transposed ? g->m : g->k};
    if (g->a_transposed)
        for (int64_t i = 0; i < depth; i++)
            mn_matrix_copy(&a, b->a_item * g->k + k + i, b->row, b->rows,
                           b->a_copy + i * g->block_rows);
    else
        for (int64_t i = 0; i < b->rows; i++)
            mn_matrix_copy(&a, b->a_item * g->m + b->row + i, k, depth, b->a_copy + i * g->depth);
}

static const float *row_of_a(const mn_gemm *g, const block *b, int64_t row, int64_t k)
{
    row = mn_min(row, b->rows - 1);
    if (g->a_copied)
        return b->a_copy + (g->a_transposed ? row : row * g->depth);
    const float *a = (const float *)g->call->in[0].data + b->a_item * g->m * g->k;
    return a + (g->a_transposed ? k * g->m + b->row + row : (b->row + row) * g->k + k);
}

static void multiply(const mn_gemm *g, const block *b, int64_t k, int64_t depth)
{
    const int64_t rows = g->kernels->rows, width = g->kernels->columns;
    mn_tile tile = {.depth = depth,
                    .offsets = mn_workspace(g->call, g->offsets_at),
                    .ldc = g->block_panels * width,
                    .accumulate = k > 0,
                    .contiguous = !g->a_transposed};
    for (int64_t p = 0; p < b->panels; p++) {
        const int64_t panel = b->panel + p;
        tile.b = packed(g, b->b_item, panel) + k * width;
        tile.start = (const float *)mn_workspace(g->call, g->start_at) + panel * width;
        for (int64_t row = 0; row < b->rows; row += rows) {
            for (int64_t i = 0; i < rows; i++)
                tile.a[i] = row_of_a(g, b, row + i, k);
            tile.c = b->c + row * tile.ldc + p * width;
            mn_tile_run(g->kernels, &tile, g->n - panel * width);
        }
    }
}

static void multiply_task(void *arg, int64_t index, int slot)
{
    const mn_gemm *g = arg;
    const int64_t width = g->kernels->columns;
    const block b = block_of(g, index, slot);
    int64_t k = 0;
    do { /* also for k = 0: the sum is the bias */
        int64_t depth = mn_min(g->depth, g->k - k);
        if (g->a_copied)
            copy_a(g, &b, k, depth);
        multiply(g, &b, k, depth);
        k += depth;
    } while (k < g->k);
    const int64_t column = b.panel * width, n = mn_min(b.panels * width, g->n - column);
    for (int64_t i = 0; i < b.rows; i++) {
        const int64_t to = (b.batch * g->m + b.row + i) * g->n + column;
        mn_row_finish(g->call, to, n, b.c + i * g->block_panels * width);
    }
}

void mn_gemm_run(const mn_gemm *g)
{
    if (g->empty)
        return;
    ptrdiff_t *offsets = mn_workspace(g->call, g->offsets_at);
    for (int64_t k = 0; k < g->depth; k++)
        offsets[k] = (ptrdiff_t)(!g->a_transposed ? k : k * (g->a_copied ? g->block_rows : g->m));
    float *start = mn_workspace(g->call, g->start_at);
    for (int64_t j = 0; j < g->panels * g->kernels->columns; j++)
        start[j] = 0;
    if (g->bias) {
        const mn_matrix bias = {g->call, g->bias, g->n};
        mn_matrix_copy(&bias, 0, 0, g->n, start);
    }
    const int64_t packs =
        g->k > 0 ? mn_ceil_div(g->panels, g->pack_panels) * mn_ceil_div(g->k, g->depth) : 0;
    mn_call_parallel(g->call, g->b_items * packs, pack_task, (void *)g);
    mn_call_parallel(g->call, g->batches * g->row_blocks * g->panel_blocks, multiply_task,
                     (void *)g);
}
