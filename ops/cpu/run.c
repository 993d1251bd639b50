/* Rows as f32, work in chunks, and walks over broadcast operands. */
#include "ops/cpu/run.h"

#include <math.h>

const mn_bodies *mn_bodies_of(const mn_call *call)
{
#if defined(MINIM_AVX2)
    /* Wider ones would gain nothing: memory is what they wait for. */
    if (call->cpu->kernels >= MN_KERNELS_AVX2)
        return &mn_bodies_avx2;
#else
    (void)call; /* with NEON as well: it is what portable code is compiled for there */
#endif
    return &mn_bodies_portable;
}

void *mn_element(const mn_view *view, int64_t index)
{
    if (!view->data)
        return NULL; /* an empty tensor */
    return (char *)view->data + (size_t)index * mn_dtype_size(view->dtype);
}

/* ---- rows ------------------------------------------------------------------------------------ */

const float *mn_row_load(const mn_call *call, const mn_view *view, int64_t start, int64_t n,
                         float *scratch)
{
    const void *from = mn_element(view, start);
    if (view->dtype == MN_F32)
        return from;
    if (view->dtype != MN_F64) {
        call->cpu->converters[view->dtype].to_f32((size_t)n, from, scratch);
        return scratch;
    }
    for (int64_t i = 0; i < n; i++)
        scratch[i] = (float)((const double *)from)[i];
    return scratch;
}

float *mn_row_place(const mn_view *view, int64_t start, float *scratch)
{
    return view->dtype == MN_F32 ? mn_element(view, start) : scratch;
}

void mn_row_store(const mn_call *call, const mn_view *view, int64_t start, int64_t n,
                  const float *row)
{
    void *to = mn_element(view, start);
    if (view->dtype == MN_U8) {
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)to)[i] = (uint8_t)row[i];
    } else if (to != row) {
        call->cpu->converters[view->dtype].from_f32((size_t)n, row, to);
        if (call->stores && mn_is_16_bit(view->dtype))
            mn_count_stores(call->stores, n, row, to);
    }
}

void mn_row_activate(const mn_call *call, int64_t n, float *row)
{
    static const float limits[2] = {0, INFINITY};
    /* The shift makes 0 of -0, as ReLU does. */
    if (call->op == &mn_ops[MN_OP_conv2d_relu] || call->op == &mn_ops[MN_OP_linear_relu])
        mn_bodies_of(call)->adjust((size_t)n, limits, 1, 0, row);
}

void mn_row_finish(const mn_call *call, int64_t start, int64_t n, float *row)
{
    mn_row_activate(call, n, row);
    mn_row_store(call, &call->out[0], start, n, row);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

typedef struct ranges {
    int64_t n, chunk;
    mn_range_fn run;
    const void *arg;
} ranges;

static void run_chunk(void *arg, int64_t index, int slot)
{
    const ranges *r = arg;
    (void)slot;
    int64_t begin = index * r->chunk;
    r->run(r->arg, begin, mn_min(begin + r->chunk, r->n));
}

void mn_run_ranges(const mn_call *call, int64_t n, int64_t chunk, mn_range_fn run, const void *arg)
{
    ranges r = {n, chunk, run, arg};
    mn_call_parallel(call, mn_ceil_div(n, chunk), run_chunk, &r);
}

/* ---- walks ----------------------------------------------------------------------------------- */

mn_walk mn_walk_make(const mn_view *y, const mn_view *a, const mn_view *b)
{
    mn_walk walk = {0};
    int64_t step[2][MN_MAX_DIMS];
    mn_steps(a, y->ndim, step[0]);
    mn_steps(b, y->ndim, step[1]);
    for (int i = 0; i < y->ndim; i++) {
        const int64_t size = y->shape[i], last = walk.ndim - 1;
        if (size == 1)
            continue;
        if (walk.ndim > 0 && walk.step[0][last] == step[0][i] * size &&
            walk.step[1][last] == step[1][i] * size)
            walk.shape[last] *= size;
        else
            walk.shape[walk.ndim++] = size;
        for (int k = 0; k < 2; k++)
            walk.step[k][walk.ndim - 1] = step[k][i];
    }
    if (walk.ndim == 0)
        walk = (mn_walk){.ndim = 1, .shape = {1}, .step = {{1}, {1}}};
    return walk;
}
