/* What batch norm's kernels share: norm.c, and norm_pool.c for those with pooling after them. */
#ifndef MN_OPS_CPU_NORM_H
#define MN_OPS_CPU_NORM_H

#include "ops/cpu/moments.h"

typedef struct mn_norm_run {
    const mn_call *call;
    const mn_bodies *bodies;
    const mn_norm_kernels *kernels; /* for rows as they are, or NULL */
    const mn_view *x, *g, *y;       /* forward without g */
    const mn_view *other;  /* the residual; backward: the result, if there was a residual */
    const mn_view *masked; /* backward: the residual's gradient, g where the result is positive */
    bool relu;
    bool pool;   /* the largest of two by two pixels, to which y (or g) belongs */
    float limit; /* what is not above it is not positive after rounding to x's dtype */
    int64_t rows, channels;
    int64_t width;  /* of a strip: channels taken at once */
    int64_t side;   /* rows side by side in lanes of sums and of kernels */
    int64_t group;  /* rows of a strip in a block, as far as they are contiguous */
    int64_t length; /* of a table: channels, repeated for lanes and blocks; never 0 */
    int64_t tasks, task_rows;
    double eps, momentum;
    mn_moments moments; /* forward: a slot per task */
    double *sum[2];     /* per channel */
    double *partial;    /* backward: [tasks][2][channels] */
    uint16_t *where;    /* pooling: where each window's gradient goes */
    float *mean, *scale, *shift, *gradient, *bias;
} mn_norm_run;

/* The tables from a channel on; those of the mask are for ops that apply it. */
mn_norm_tables mn_norm_tables_at(const mn_norm_run *m, int64_t channel);
/* x in place of its rounding to the call's dtype. */
void mn_norm_round(const mn_norm_run *m, int64_t n, float *x);

/* How many masks of pixels a window has. */
int64_t mn_norm_pool_masks(const mn_norm_run *m);
/* Of ops with pooling: both sums of a task for channels of a strip, and the pass that applies the
 * tables, which are repeated. */
void mn_norm_pool_sums(const mn_norm_run *m, int64_t task, int64_t channel, int64_t width,
                       double *const to[2]);
void mn_norm_pool_sweep(const mn_norm_run *m);

#endif
