/* Permutation of axes. Axes that stay neighbours are merged; what is left is a copy of rows, or
 * transposes of matrices, done in square tiles so that both sides stay in the cache. */
#include "ops/cpu/run.h"

#include <string.h>

#define TILE 32

/* Shape of y with the steps through x and y along each axis, in elements. The last axis of y has
 * step 1 there; `fast` is the axis that has step 1 in x. */
typedef struct layout {
    const mn_call *call;
    size_t size; /* bytes of an element */
    int ndim, fast;
    int64_t shape[MN_MAX_DIMS], from[MN_MAX_DIMS], to[MN_MAX_DIMS];
} layout;

static void append(layout *l, int64_t size, int64_t step)
{
    const int last = l->ndim - 1;
    if (size == 1)
        return;
    if (last >= 0 && l->from[last] == step * size) {
        l->shape[last] *= size;
        l->from[last] = step;
    } else {
        l->shape[l->ndim] = size;
        l->from[l->ndim++] = step;
    }
}

static layout layout_of(const mn_call *call)
{
    const mn_permute_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0];
    layout l = {.call = call, .size = mn_dtype_size(x->dtype)};
    int64_t step_of[MN_MAX_DIMS], step = 1;
    mn_steps(x, x->ndim, step_of);
    for (int i = 0; i < x->ndim; i++)
        append(&l, x->shape[a->axes[i]], step_of[a->axes[i]]);
    if (l.ndim == 0) {
        l.ndim = 1;
        l.shape[0] = l.from[0] = 1;
    }
    for (int i = l.ndim - 1; i >= 0; i--) {
        l.to[i] = step;
        step *= l.shape[i];
        if (l.from[i] == 1)
            l.fast = i;
    }
    return l;
}

/* Where slice `index` of the axes other than `fast` and the last one starts in x and y. */
static void slice_start(const layout *l, int64_t index, int64_t *from, int64_t *to)
{
    *from = *to = 0;
    for (int i = l->ndim - 2; i >= 0; i--) {
        if (i == l->fast)
            continue;
        *from += index % l->shape[i] * l->from[i];
        *to += index % l->shape[i] * l->to[i];
        index /= l->shape[i];
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void run_rows(const void *arg, int64_t begin, int64_t end)
{
    const layout *l = arg;
    const int64_t row = l->shape[l->ndim - 1];
    for (int64_t i = begin; i < end; i++) {
        int64_t from, to;
        slice_start(l, i, &from, &to);
        memcpy(mn_element(&l->call->out[0], to), mn_element(&l->call->in[0], from),
               (size_t)row * l->size);
    }
}

/* ---- transposes ------------------------------------------------------------------------------ */

/* y[i * to + j] = x[i + j * from] for a tile; inlined once per element size. */
static inline void copy_tile(size_t size, int64_t rows, int64_t columns, const char *x,
                             int64_t from, char *y, int64_t to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            memcpy(y + (size_t)(i * to + j) * size, x + (size_t)(i + j * from) * size, size);
}

static void transpose_tile(size_t size, int64_t rows, int64_t columns, const char *x, int64_t from,
                           char *y, int64_t to)
{
    if (size == 8)
        copy_tile(8, rows, columns, x, from, y, to);
    else if (size == 4)
        copy_tile(4, rows, columns, x, from, y, to);
    else if (size == 2)
        copy_tile(2, rows, columns, x, from, y, to);
    else
        copy_tile(1, rows, columns, x, from, y, to);
}

/* Bands of TILE rows of the slices' matrices. */
static void run_bands(const void *arg, int64_t begin, int64_t end)
{
    const layout *l = arg;
    const int last = l->ndim - 1;
    const int64_t rows = l->shape[l->fast], columns = l->shape[last];
    const int64_t bands = mn_ceil_div(rows, TILE);
    for (int64_t b = begin; b < end; b++) {
        const int64_t i = b % bands * TILE;
        int64_t from, to;
        slice_start(l, b / bands, &from, &to);
        for (int64_t j = 0; j < columns; j += TILE)
            transpose_tile(l->size, mn_min(TILE, rows - i), mn_min(TILE, columns - j),
                           mn_element(&l->call->in[0], from + i + j * l->from[last]), l->from[last],
                           mn_element(&l->call->out[0], to + i * l->to[l->fast] + j),
                           l->to[l->fast]);
    }
}

void mn_cpu_permute(const mn_call *call)
{
    const int64_t numel = call->out[0].numel;
    if (numel == 0)
        return;
    layout l = layout_of(call);
    const int last = l.ndim - 1;
    const int64_t columns = l.shape[last];
    if (l.fast == last) {
        mn_run_ranges(call, numel / columns, mn_max(1, MN_CHUNK / columns), run_rows, &l);
        return;
    }
    const int64_t rows = l.shape[l.fast], bands = mn_ceil_div(rows, TILE);
    const int64_t work = mn_min(rows, TILE) * columns;
    mn_run_ranges(call, numel / (rows * columns) * bands, mn_max(1, MN_CHUNK / work), run_bands,
                  &l);
}
