/* Lanes of pixels for every processor. */
#include "ops/cpu/conv_planes.h"

static void transpose(int64_t rows, int64_t columns, const float *src, int64_t src_ld, float *dst,
                      int64_t dst_ld)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            dst[j * dst_ld + i] = src[i * src_ld + j];
}

#define MN_PLANES mn_planes_portable
#define TRANSPOSE transpose
#include "ops/cpu/conv_planes_tile.h"
