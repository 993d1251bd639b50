/* Inner loops with AVX2; compiled with its instructions. */
#define MN_BODIES mn_bodies_avx2
#define MN_ORDERS 1 /* the second ones, seldom wanted, are left to the portable bodies */
#include "ops/cpu/bodies.h"
