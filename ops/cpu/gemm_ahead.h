/* Fetches what a tile is to fetch ahead, for the kernel sets. */
#ifndef MN_OPS_CPU_GEMM_AHEAD_H
#define MN_OPS_CPU_GEMM_AHEAD_H

#include "ops/cpu/gemm.h"

#define MN_AHEAD static inline __attribute__((always_inline))

typedef struct mn_fetch {
    const char *at[2];
    ptrdiff_t step[2];
    uintptr_t mask[2];
} mn_fetch;

/* Depths are counted by the address of b, whose rows are 2^row_shift bytes. */
MN_AHEAD mn_fetch mn_fetch_of(const mn_tile *tile, int row_shift)
{
    mn_fetch f;
    for (int i = 0; i < 2; i++) {
        const uintptr_t mask = (((uintptr_t)1 << tile->ahead_shift[i]) - 1) << row_shift;
        f.at[i] = tile->ahead[i];
        f.step[i] = tile->ahead_step[i];
        f.mask[i] = tile->ahead[i] ? mask : UINTPTR_MAX;
    }
    return f;
}

MN_AHEAD void mn_fetch_next(mn_fetch *f, const float *b)
{
    for (int i = 0; i < 2; i++)
        if (((uintptr_t)b & f->mask[i]) == 0) {
            __builtin_prefetch(f->at[i], 0, 2);
            f->at[i] += f->step[i];
        }
}

#endif
