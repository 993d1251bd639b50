/* Winograd's transforms, and convolutions of each channel by itself, with AVX-512; compiled with
 * its instructions. */
#include "ops/cpu/bodies_depthwise.h"

const mn_winograd_bodies mn_winograd_avx512 = WINOGRAD_BODIES;
const mn_depthwise_bodies mn_depthwise_avx512 = DEPTHWISE_BODIES;
