/* Lanes of pixels with AVX-512. */
#define MN_PLANES mn_planes_avx512
#define TRANSPOSE mn_planes_transpose_avx2
#include "ops/cpu/conv_planes_tile.h"
