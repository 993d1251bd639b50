/* Packed matrix products: the register tile that every product and convolution runs on, and the
 * driver of plain (batched) products. */
#ifndef MN_OPS_CPU_GEMM_H
#define MN_OPS_CPU_GEMM_H

#include "ops/cpu/pack.h"

/* Largest register tile of any kernel set. */
#define MN_TILE_MAX_ROWS    16
#define MN_TILE_MAX_COLUMNS 64
#define MN_LINE_BYTES       64

/* c[i ldc + j] = start[j] + sum_k a[i][offsets[k]] b[k columns + j], or with accumulate
 * c[i ldc + j] += the sum. All rows and columns of the tile are computed and stored, rows in
 * ascending order: what a store writes beyond the columns that matter, a later one may put right.
 */
typedef struct mn_tile {
    int64_t depth;
    const float *a[MN_TILE_MAX_ROWS]; /* all valid; the caller ignores the surplus rows */
    ptrdiff_t row_step;               /* floats from each to the next; 0: not told */
    const ptrdiff_t *offsets;         /* [depth] */
    const float *b;                   /* a panel: [depth][columns] */
    const float *start;               /* [columns] */
    float *c;
    ptrdiff_t ldc;
    bool accumulate, contiguous; /* offsets are 0, 1, 2 and so on: for speed only */
    bool apart; /* for `wide`, with accumulate: the sum begins at start and c is added last */
    /* For speed only: at every 2^ahead_shift[i]-th depth the next ahead_step[i] bytes from ahead[i]
     * on are fetched into the second-level cache; NULL: nothing. */
    const char *ahead[2];
    ptrdiff_t ahead_step[2];
    int ahead_shift[2];
} mn_tile;

/* The tile's rows, of which `valid` lie `step` floats apart; the surplus ones repeat the last. */
static inline void mn_tile_rows(mn_tile *tile, const float *a, ptrdiff_t step, int64_t valid,
                                int64_t rows)
{
    for (int64_t i = 0; i < valid; i++)
        tile->a[i] = a + i * step;
    for (int64_t i = valid; i < rows; i++)
        tile->a[i] = tile->a[valid - 1];
    tile->row_step = valid == rows ? step : 0;
}

/* Memory that will be read soon: `parts` times `rows` cache lines, rows being `step` bytes apart
 * and parts side by side. Tiles fetch it evenly while they run: at once, loads would wait for it.
 */
typedef struct mn_ahead {
    const char *at;
    ptrdiff_t step;
    int64_t rows, parts, row; /* row: the next one */
    int shift;
} mn_ahead;
/* `rows` rows of so many bytes, which so many tiles of about this depth shall fetch. */
mn_ahead mn_ahead_rows(const char *at, ptrdiff_t step, int64_t rows, int64_t bytes, int64_t tiles,
                       int64_t depth);
/* Has the tile fetch the next of them, as number i. */
static inline void mn_tile_ahead(mn_tile *tile, int i, mn_ahead *ahead)
{
    tile->ahead[i] = NULL;
    if (ahead->parts == 0)
        return;
    tile->ahead[i] = ahead->at + ahead->row * ahead->step;
    tile->ahead_step[i] = ahead->step;
    tile->ahead_shift[i] = ahead->shift;
    ahead->row += tile->depth >> ahead->shift;
    if (ahead->row >= ahead->rows) {
        ahead->row = 0;
        ahead->at += MN_LINE_BYTES;
        ahead->parts--;
    }
}

/* One kernel set's tile. */
struct mn_gemm_kernels {
    int rows, columns;
    void (*wide)(const mn_tile *tile);
    /* At least the first columns / 2 columns (of panels as wide as ever). */
    void (*narrow)(const mn_tile *tile);
    /* dst[k columns + j] = rows[j][k] for k in [0, n), j in [0, columns). */
    void (*transpose)(const float *const *rows, int64_t n, float *dst);
    /* dst[k columns + j] = src[k ld + j] for j < n, 0 for n <= j < columns, k in [0, rows). */
    void (*copy)(const float *src, int64_t ld, int64_t n, int64_t rows, float *dst);
};

extern const mn_gemm_kernels mn_gemm_portable;
extern const mn_gemm_kernels mn_gemm_avx2;
extern const mn_gemm_kernels mn_gemm_avx512[3]; /* 16, 32 and 64 columns */
extern const mn_gemm_kernels mn_gemm_neon;
/* mn_gemm_kernels.transpose with AVX2, for any multiple of eight columns. */
void mn_transpose_avx2(const float *const *rows, int columns, int64_t n, float *dst);
/* The table for products that many columns wide: narrow ones have no use for wide registers. */
const mn_gemm_kernels *mn_gemm_kernels_for(const mn_call *call, int64_t columns);
/* The widest table whose panels that many columns, a multiple of 16, fill. */
const mn_gemm_kernels *mn_gemm_kernels_filled(const mn_call *call, int64_t columns);
/* Runs the kernel that suits a panel with this many columns that matter. */
void mn_tile_run(const mn_gemm_kernels *kernels, const mn_tile *tile, int64_t columns);

/* y[.., m, n] = a[.., m, k] b[.., k, n] + bias[n] over batches of matrices. a and b are inputs 0
 * and 1 of the call, y its output 0. The caller fills in the first part, mn_gemm_plan the rest. */
typedef struct mn_gemm {
    const mn_call *call;
    const mn_view *bias; /* NULL: none */
    int64_t m, n, k;
    bool a_transposed, b_transposed; /* stored as [k, m], as [n, k] */
    int batch_ndim;
    int64_t batch_shape[MN_MAX_DIMS];
    int64_t a_step[MN_MAX_DIMS], b_step[MN_MAX_DIMS]; /* in matrices; 0: broadcast */
    int64_t batches, b_items;                         /* matrices in y, in b */

    const mn_gemm_kernels *kernels;
    bool empty, a_copied;
    int64_t panels, depth, pack_panels;     /* panels of b; k per block; panels per task */
    int64_t block_rows, block_panels;       /* per task */
    int64_t row_blocks, panel_blocks;       /* tasks of one product */
    size_t offsets_at, start_at, packed_at; /* workspace: [depth], [panels * columns], b */
    size_t scratch_at, c_at, scratch_bytes; /* per thread: copy of a, then c */
    size_t workspace_bytes;
} mn_gemm;

/* MN_ERR_MEMORY if the workspace's size overflows. */
mn_status mn_gemm_plan(mn_gemm *gemm);
void mn_gemm_run(const mn_gemm *gemm);

#endif
