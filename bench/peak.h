/* What the machine can do at most, measured beside what is to be compared with it. */
#ifndef MN_BENCH_PEAK_H
#define MN_BENCH_PEAK_H

#include "core/core.h"

/* GFLOP/s of multiply-adds in registers alone, of the widest vectors, in so many threads. */
double mn_peak_gflops(mn_workers *workers, int threads);
/* GB/s of c = a + s b over arrays larger than the caches: bytes read and bytes written. */
double mn_peak_gbytes(mn_workers *workers);

#endif
