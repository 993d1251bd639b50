/* tests/support_monitor.h: what the tests of the numerics monitor share. */
#ifndef MINIM_TESTS_SUPPORT_MONITOR_H
#define MINIM_TESTS_SUPPORT_MONITOR_H

#include "minim.h"

/* The row of that op, layer, direction and dtype; it must be there. */
const mn_monitor_row *mn_test_row(mn_monitor *monitor, const char *layer, const char *op,
                                  mn_direction direction, mn_dtype dtype);
/* [1,4,4,2], all the value. */
mn_tensor *mn_test_full(mn_context *ctx, mn_dtype dtype, double value);

#endif
