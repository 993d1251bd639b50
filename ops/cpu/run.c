/* Rows as f32, work in chunks, and walks over broadcast operands. */
#include "ops/cpu/run.h"

#include <string.h>

const mn_bodies *mn_bodies_of(const mn_call *call)
{
#if defined(__x86_64__)
    if (call->cpu->kernels == MN_KERNELS_AVX2)
        return &mn_bodies_avx2;
#else
    (void)call;
#endif
    return &mn_bodies_portable;
}

bool mn_has_input(const mn_call *call, int input)
{
    return input < call->input_count && call->in[input].present;
}

void *mn_element(const mn_view *view, int64_t index)
{
    if (!view->data)
        return NULL; /* an empty tensor */
    return (char *)view->data + (size_t)index * mn_dtype_size(view->dtype);
}

mn_split mn_split_at(const mn_view *view, int64_t axis)
{
    mn_split split = {1, 1, 1};
    for (int i = 0; i < view->ndim; i++) {
        if (i < axis)
            split.outer *= view->shape[i];
        else if (i == axis)
            split.size = view->shape[i];
        else
            split.inner *= view->shape[i];
    }
    return split;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Types without a converter: not what kernels are made for, yet right. */
static void widen_plain(mn_dtype dtype, int64_t n, const void *from, float *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_F64)
            to[i] = (float)((const double *)from)[i];
        else if (dtype == MN_I64)
            to[i] = (float)((const int64_t *)from)[i];
        else if (dtype == MN_I32)
            to[i] = (float)((const int32_t *)from)[i];
        else
            to[i] = (float)((const uint8_t *)from)[i];
    }
}

const float *mn_row_load(const mn_call *call, const mn_view *view, int64_t start, int64_t n,
                         float *scratch)
{
    const void *from = mn_element(view, start);
    if (view->dtype == MN_F32)
        return from;
    const mn_converter *converter = &call->cpu->converters[view->dtype];
    if (converter->to_f32)
        converter->to_f32((size_t)n, from, scratch);
    else
        widen_plain(view->dtype, n, from, scratch);
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
    if (view->dtype == MN_F64) {
        for (int64_t i = 0; i < n; i++)
            ((double *)to)[i] = (double)row[i];
    } else if (to != row && n > 0) {
        call->cpu->converters[view->dtype].from_f32((size_t)n, row, to);
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

typedef struct ranges {
    int64_t n, chunk;
    mn_range_fn run;
    void *arg;
} ranges;

static void run_chunk(void *arg, int64_t index, int slot)
{
    const ranges *r = arg;
    (void)slot;
    int64_t begin = index * r->chunk;
    r->run(r->arg, begin, mn_min64(begin + r->chunk, r->n));
}

void mn_run_ranges(const mn_call *call, int64_t n, int64_t chunk, mn_range_fn run, void *arg)
{
    ranges r = {n, chunk, run, arg};
    if (n > 0)
        mn_call_parallel(call, (n - 1) / chunk + 1, run_chunk, &r);
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Steps of x along the axes of y. */
static void steps_of(const mn_view *y, const mn_view *x, int64_t *step)
{
    int64_t size = 1;
    for (int i = y->ndim - 1, j = x->ndim - 1; i >= 0; i--, j--) {
        bool repeats = j < 0 || x->shape[j] == 1;
        step[i] = repeats ? 0 : size;
        size *= j < 0 ? 1 : x->shape[j];
    }
}

/* Whether both operands go on from the end of axis `outer` of the walk to `size` inner ones. */
static bool merges(const mn_walk *walk, int outer, int64_t size, const int64_t step[2])
{
    for (int k = 0; k < 2; k++)
        if (walk->step[k][outer] != step[k] * size)
            return false;
    return true;
}

mn_walk mn_walk_make(const mn_view *y, const mn_view *a, const mn_view *b)
{
    mn_walk walk = {0};
    int64_t step[2][MN_MAX_DIMS];
    steps_of(y, a, step[0]);
    steps_of(y, b, step[1]);
    for (int i = 0; i < y->ndim; i++) {
        const int64_t here[2] = {step[0][i], step[1][i]};
        if (y->shape[i] == 1)
            continue;
        if (walk.ndim > 0 && merges(&walk, walk.ndim - 1, y->shape[i], here))
            walk.shape[walk.ndim - 1] *= y->shape[i];
        else
            walk.shape[walk.ndim++] = y->shape[i];
        for (int k = 0; k < 2; k++)
            walk.step[k][walk.ndim - 1] = here[k];
    }
    if (walk.ndim == 0) {
        walk.ndim = 1;
        walk.shape[0] = walk.step[0][0] = walk.step[1][0] = 1;
    }
    return walk;
}
