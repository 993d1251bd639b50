/* Inputs and comparison of the tests against golden files. */
#include "tests/support_golden.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

double mn_golden_value(int64_t index, int64_t salt)
{
    return (double)((index * index * 39 + index * 7919 + salt * 4099) % 2003) / 1001 - 1;
}

static bool is_close(double value, double expected, double bound)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(value) : value == expected;
    return fabs(value - expected) <= bound;
}

void mn_golden_compare(const mn_tensor *x, const float *expected, double bound, int64_t skip,
                       const char *text)
{
    ck_assert_msg(x != NULL, "%s: there is nothing", text);
    const int64_t count = mn_tensor_numel(x);
    double *values = malloc((size_t)count * sizeof *values), largest = 0;
    ck_assert_int_eq(mn_tensor_read_f64(x, values, count), MN_OK);
    for (int64_t i = 0; i < count; i++)
        if (isfinite(expected[i]))
            largest = fmax(largest, fabs((double)expected[i]));
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(i == skip || is_close(values[i], (double)expected[i], bound * largest),
                      "%s: element %d is %.9g, expected %.9g", text, (int)i, values[i],
                      (double)expected[i]);
    free(values);
}
