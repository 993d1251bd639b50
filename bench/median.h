/* What the benchmarks share. */
#ifndef MN_BENCH_MEDIAN_H
#define MN_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts them. */
static inline double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare_times);
    return times[count / 2];
}

#endif
