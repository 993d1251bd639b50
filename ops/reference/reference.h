/* Helpers of the reference kernels. Those kernels are the library's definition of its ops: the
 * plainest loops in double precision, checked against by everything faster. Their caller widens the
 * inputs, zeroes the outputs, and narrows the results. */
#ifndef MN_OPS_REFERENCE_H
#define MN_OPS_REFERENCE_H

#include "ops/kernels.h"
#include "ops/ops.h"

/* Indices of element `linear` of a row-major tensor. */
void mn_ref_unravel(int64_t linear, int ndim, const int64_t *shape, int64_t *index);
/* Element of `view` that meets index[ndim] of a larger shape it is broadcast to: axes are aligned
 * at the end, axes of size 1 repeat. */
int64_t mn_ref_broadcast(const mn_view *view, int ndim, const int64_t *index);
/* Number of elements before, along and after an axis. */
typedef struct mn_ref_axis {
    int64_t outer, size, inner;
} mn_ref_axis;
mn_ref_axis mn_ref_split(const mn_view *view, int64_t axis);
/* The value as an element of dtype would hold it. */
double mn_ref_round(mn_dtype dtype, double value);
/* Whether the label is one of `classes`; if not, that is recorded as the call's fault. */
bool mn_ref_label(const mn_call *call, double label, int64_t classes);

#endif
