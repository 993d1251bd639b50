/* Inner loops for every processor. */
#define MN_BODIES mn_bodies_portable
#define MN_ORDERS 2 /* of derivatives made here */
#include "ops/cpu/bodies.h"
