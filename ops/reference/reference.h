/* Helpers of the reference kernels. Those kernels are the library's definition of its ops: the
 * plainest loops in double precision, checked against by everything faster. Their caller widens the
 * inputs, zeroes the outputs, and narrows the results. */
#ifndef MN_OPS_REFERENCE_H
#define MN_OPS_REFERENCE_H

#include "ops/kernels.h"
#include "ops/ops.h"

#include <math.h>

/* First NaN, else first largest of n elements, `step` apart. */
static inline int64_t mn_ref_line_argmax(const double *x, int64_t n, int64_t step)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (!mn_isnan_f64(x[best * step]) &&
            (mn_isnan_f64(x[i * step]) || x[i * step] > x[best * step]))
            best = i;
    return best;
}

/* y = max(y + residual, 0), residual 0 if there is none; NaN stays. */
void mn_ref_finish_relu(const mn_call *call, const double *residual, double *y);

/* log(sum_i exp(x_i)) over n elements, `step` apart. Subtracting the largest element first keeps
 * exp from overflowing and changes nothing else. */
static inline double mn_ref_log_sum_exp(const double *x, int64_t n, int64_t step)
{
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = x[i * step] > largest ? x[i * step] : largest;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i * step] - largest);
    return largest + log(sum);
}

#endif
