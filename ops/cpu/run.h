/* What CPU kernels share: rows of elements as f32, work in chunks, walks over broadcast operands,
 * and sums of fixed order. */
#ifndef MN_OPS_CPU_RUN_H
#define MN_OPS_CPU_RUN_H

#include "ops/cpu/body_table.h"
#include "ops/kernels.h"
#include "ops/ops.h"

#define MN_BLOCK 512   /* elements widened at once: 2 KiB, stays in the nearest cache */
#define MN_CHUNK 16384 /* elements per task, about */

static inline int64_t mn_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t mn_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t mn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Inner loops of the call's kernel set. */
const mn_bodies *mn_bodies_of(const mn_call *call);

/* Address `offset` bytes into the workspace. */
static inline void *mn_workspace(const mn_call *call, size_t offset)
{
    return (char *)call->workspace + offset;
}

/* Address of an element. */
void *mn_element(const mn_view *view, int64_t index);

/* n elements, of a floating dtype, from `start` on as f32: where they lie if they are f32, else
 * widened into scratch. */
const float *mn_row_load(const mn_call *call, const mn_view *view, int64_t start, int64_t n,
                         float *scratch);
/* Where to make results for `start` on: their place if they are f32, else scratch. store narrows n
 * of them to their place (f16, bf16, or whole numbers to u8), unless they are there. */
float *mn_row_place(const mn_view *view, int64_t start, float *scratch);
void mn_row_store(const mn_call *call, const mn_view *view, int64_t start, int64_t n,
                  const float *row);
/* ReLU, where the op is a product or convolution that is one with it. */
void mn_row_activate(const mn_call *call, int64_t n, float *row);
/* The same, and stores the n results from element `start` of output 0 on. row changes. */
void mn_row_finish(const mn_call *call, int64_t start, int64_t n, float *row);

/* Calls run(arg, begin, end) for pieces of [0, n), `chunk` long, on the call's threads. */
typedef void (*mn_range_fn)(const void *arg, int64_t begin, int64_t end);
void mn_run_ranges(const mn_call *call, int64_t n, int64_t chunk, mn_range_fn run, const void *arg);

/* Shape of y with the step of two operands along each axis (0: the operand repeats). Axes that walk
 * alike are merged; the last one has steps 0 or 1. ndim >= 1. */
typedef struct mn_walk {
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    int64_t step[2][MN_MAX_DIMS];
} mn_walk;
mn_walk mn_walk_make(const mn_view *y, const mn_view *a, const mn_view *b);
/* y = x in y's dtype. */
void mn_run_convert(const mn_call *call, const mn_view *x, const mn_view *y);

/* ---- sums ------------------------------------------------------------------------------------ */

/* At most so many axes beside the last two groups. */
typedef struct mn_axes {
    int ndim;
    int64_t shape[MN_MAX_DIMS], step[MN_MAX_DIMS];
} mn_axes;

static inline void mn_axes_append(mn_axes *axes, int64_t size, int64_t step)
{
    axes->shape[axes->ndim] = size;
    axes->step[axes->ndim++] = step;
}

/* Sums of x, or of x g if there is a g, over the rows of matrices [rows, channels]: one matrix per
 * index of `kept`, summed also over the indices of `summed`. f32 within at most 1024 terms, f64
 * beyond; the order depends on shapes alone. finish gets the sums of n channels from element
 * `start` of the result on, from any thread. */
typedef struct mn_sums {
    const mn_call *call;
    mn_axes kept, summed;
    int64_t rows, channels;
    const mn_view *x, *g;
    void (*finish)(const void *arg, int64_t start, int64_t n, const double *sum);
    const void *arg;
} mn_sums;
void mn_run_sums(const mn_sums *sums);

#endif
