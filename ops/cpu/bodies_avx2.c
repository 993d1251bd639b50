/* Inner loops with AVX2; compiled with its instructions. */
#define MN_BODIES mn_bodies_avx2
#include "ops/cpu/bodies.h"
