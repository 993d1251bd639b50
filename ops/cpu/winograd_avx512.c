/* Winograd's transforms with AVX-512; compiled with its instructions. */
#include "ops/cpu/bodies_winograd.h"

const mn_winograd_bodies mn_winograd_avx512 = WINOGRAD_BODIES;
