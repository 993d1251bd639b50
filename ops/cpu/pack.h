/* Workspace layout, widening reads of operands, and packing into the panels that the register tile
 * of gemm.h walks along. */
#ifndef MN_OPS_CPU_PACK_H
#define MN_OPS_CPU_PACK_H

#include "ops/cpu/run.h"

typedef struct mn_gemm_kernels mn_gemm_kernels;

/* Sizes of a workspace, added up with overflow checks; ok turns false for good. */
typedef struct mn_arena {
    size_t bytes;
    bool ok;
} mn_arena;
/* Reserves a * b * c elements aligned to 64 bytes; returns their offset. */
size_t mn_arena_take(mn_arena *arena, size_t element, int64_t a, int64_t b, int64_t c);

/* Rows of an operand of f32, f16 or bf16, row r starting at element r * ld. */
typedef struct mn_matrix {
    const mn_call *call;
    const mn_view *view;
    int64_t ld;
} mn_matrix;
/* n elements from (row, column) on as f32: in place for f32, else widened into buffer. */
const float *mn_matrix_read(const mn_matrix *matrix, int64_t row, int64_t column, int64_t n,
                            float *buffer);
/* As mn_matrix_read, always into dst. */
void mn_matrix_copy(const mn_matrix *matrix, int64_t row, int64_t column, int64_t n, float *dst);

/* Part of a matrix: rows x columns from (row, column) on. */
typedef struct mn_region {
    int64_t row, column, rows, columns;
} mn_region;
/* Panel dst[k][j] = matrix[row + j][column + k]: depth runs along the rows. region.rows is at most
 * the panel's width; missing columns of the panel become 0. */
void mn_pack_transposed(const mn_gemm_kernels *kernels, const mn_matrix *matrix,
                        const mn_region *region, float *dst);
/* Panels dst[p * panel_step + k * width + j] = matrix[row + k][column + p * width + j]: depth runs
 * down the columns. Missing columns of the last panel become 0. */
void mn_pack_straight(const mn_gemm_kernels *kernels, const mn_matrix *matrix,
                      const mn_region *region, float *dst, int64_t panel_step);

#endif
