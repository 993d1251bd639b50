/* Inner loops for every processor. */
#define MN_BODIES mn_bodies_portable
#include "ops/cpu/bodies.h"
