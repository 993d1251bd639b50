/* datasets/split.c: which images are held out. By the seed alone, so the same in every epoch. */
#include "datasets/internal.h"
#include "core/philox.h"

int64_t mn_data_held_count(int64_t count, double fraction)
{
    if (!(fraction > 0.0))
        return 0;
    int64_t held = (int64_t)((double)count * fraction + 0.5);
    if (held < 1)
        held = 1;
    return held < count ? held : count - 1;
}

void mn_data_split(uint64_t seed, int64_t count, int64_t held, bool want_held, int64_t *scratch,
                   int64_t *part)
{
    mn_stream stream = mn_stream_open(seed, MN_STREAM_SPLIT, NULL, 0);
    mn_stream_permutation(&stream, count, scratch);
    /* The first `held` images of the permutation are chosen. Their marks are the signs of the same
     * table, so that no second one is needed. */
    for (int64_t i = 0; i < held; i++) {
        int64_t image = scratch[i] < 0 ? -scratch[i] - 1 : scratch[i];
        if (scratch[image] >= 0)
            scratch[image] = -scratch[image] - 1;
    }
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if ((scratch[i] < 0) == want_held)
            part[used++] = i;
    }
}
