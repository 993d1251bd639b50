/* Mean of each channel and sum of squares about it, over all pixels of a tensor, whose rows come
 * piece by piece while they are near: as a convolution stores them, or from a pass over x. */
#ifndef MN_OPS_CPU_MOMENTS_H
#define MN_OPS_CPU_MOMENTS_H

#include "ops/cpu/run.h"

/* Each task adds to a slot of its own. Which rows it adds, and in which pieces, may depend on
 * shapes alone, as does then every bit of the result. */
typedef struct mn_moments {
    const mn_call *call;
    const mn_view *view; /* the rows: pixels, of channels */
    int64_t channels;
    int64_t side;  /* pixels side by side in lanes, where channels are few */
    int64_t lanes; /* of a slot */
    int64_t slots;
    size_t at; /* the slots' place in the workspace */
} mn_moments;

/* view's dtype and shape are known; `slots` and `at` are left to the caller. */
mn_moments mn_moments_of(const mn_call *call, const mn_view *view);
/* Bytes of a slot, a multiple of 64. */
size_t mn_moments_slot_bytes(const mn_moments *moments);
void mn_moments_clear(const mn_moments *moments);
/* Adds `width` channels of some pixels, which may be in several parts of channels as long as each
 * part comes with the same pixels. */
void mn_moments_add(const mn_moments *moments, int64_t slot, int64_t pixel, int64_t pixels,
                    int64_t channel, int64_t width);
/* Of all slots, in their order: what is merged is free of cancellation. */
void mn_moments_merge(const mn_moments *moments, double *mean, double *squares);

#endif
