/* Helpers of the monitor's tests. */
#include "tests/support_monitor.h"

#include <check.h>
#include <string.h>

const mn_monitor_row *mn_test_row(mn_monitor *monitor, const char *layer, const char *op,
                                  mn_direction direction, mn_dtype dtype)
{
    int count;
    const mn_monitor_row *rows = mn_monitor_rows(monitor, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].layer, layer) == 0 && strcmp(rows[i].op, op) == 0 &&
            rows[i].direction == direction && rows[i].dtype == dtype)
            return &rows[i];
    ck_abort_msg("no row %s %s %d %s", layer, op, (int)direction, mn_dtype_name(dtype));
    return NULL;
}

mn_tensor *mn_test_full(mn_context *ctx, mn_dtype dtype, double value)
{
    static const int64_t shape[4] = {1, 4, 4, 2};
    return mn_full(ctx, dtype, 4, shape, value);
}
