/* Workspace layout, widening reads and packing. 16-bit operands become f32 here and nowhere else.
 */
#include "ops/cpu/gemm.h"

/* Elements of a row that are widened at once (panels' widths divide it), and of several rows. */
#define CHUNK 128
#define BLOCK 1024

size_t mn_arena_take(mn_arena *arena, size_t element, int64_t a, int64_t b, int64_t c)
{
    size_t at = arena->bytes, bytes = element;
    bool ok = arena->ok && a >= 0 && b >= 0 && c >= 0;
    ok = ok && mn_size_mul(bytes, (size_t)a, &bytes) && mn_size_mul(bytes, (size_t)b, &bytes) &&
         mn_size_mul(bytes, (size_t)c, &bytes) && bytes <= PTRDIFF_MAX - 64;
    ok = ok && mn_size_add(at, (bytes + 63) / 64 * 64, &arena->bytes);
    arena->ok = ok && arena->bytes <= PTRDIFF_MAX;
    return at;
}

const float *mn_matrix_read(const mn_matrix *matrix, int64_t row, int64_t column, int64_t n,
                            float *buffer)
{
    return mn_row_load(matrix->call, matrix->view, row * matrix->ld + column, n, buffer);
}

void mn_matrix_copy(const mn_matrix *matrix, int64_t row, int64_t column, int64_t n, float *dst)
{
    const void *src = mn_element(matrix->view, row * matrix->ld + column);
    if (n > 0)
        matrix->call->cpu->converters[matrix->view->dtype].to_f32((size_t)n, src, dst);
}

void mn_pack_transposed(const mn_gemm_kernels *kernels, const mn_matrix *matrix,
                        const mn_region *region, float *dst)
{
    static const float zeros[CHUNK];
    float buffer[MN_TILE_MAX_COLUMNS][CHUNK];
    const float *rows[MN_TILE_MAX_COLUMNS];
    for (int64_t k = 0; k < region->columns; k += CHUNK) {
        int64_t n = mn_min(CHUNK, region->columns - k);
        for (int j = 0; j < kernels->columns; j++)
            rows[j] = j < region->rows ? mn_matrix_read(matrix, region->row + j, region->column + k,
                                                        n, buffer[j])
                                       : zeros;
        kernels->transpose(rows, n, dst + k * kernels->columns);
    }
}

/* Widens rows of the matrix into a dense block; one call where they lie side by side. */
static const float *widen(const mn_matrix *matrix, const mn_region *r, float *buffer)
{
    if (r->columns == matrix->ld)
        return mn_matrix_read(matrix, r->row, r->column, r->rows * r->columns, buffer);
    for (int64_t i = 0; i < r->rows; i++)
        mn_matrix_copy(matrix, r->row + i, r->column, r->columns, buffer + i * r->columns);
    return buffer;
}

void mn_pack_straight(const mn_gemm_kernels *kernels, const mn_matrix *matrix,
                      const mn_region *region, float *dst, int64_t panel_step)
{
    float buffer[BLOCK];
    const int64_t width = kernels->columns;
    const bool in_place = matrix->view->dtype == MN_F32;
    for (int64_t column = 0; column < region->columns; column += CHUNK) {
        const int64_t n = mn_min(CHUNK, region->columns - column), together = BLOCK / n;
        for (int64_t k = 0; k < region->rows; k += together) {
            const mn_region part = {region->row + k, region->column + column,
                                    mn_min(together, region->rows - k), n};
            const float *src = in_place ? mn_matrix_read(matrix, part.row, part.column, n, buffer)
                                        : widen(matrix, &part, buffer);
            float *panel = dst + column / width * panel_step + k * width;
            for (int64_t j = 0; j < n; j += width, panel += panel_step)
                kernels->copy(src + j, in_place ? matrix->ld : n, mn_min(width, n - j), part.rows,
                              panel);
        }
    }
}
