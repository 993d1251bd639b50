/* The parts of a numerics monitor. Private to this folder. */
#ifndef MN_AMP_MONITOR_H
#define MN_AMP_MONITOR_H

#include "amp/internal.h"

#define MN_PLACE_INPUTS 5

/* What tells a place from others. */
typedef struct mn_place_key {
    const mn_op *op, *backward_of;
    mn_direction direction;
    mn_dtype dtype;
    int output;
    bool is_cast;
    int64_t numel; /* of a parameter that is stepped, else 0 */
    const char *layer, *parameter;
} mn_place_key;

typedef struct mn_place mn_place;
struct mn_place {
    mn_place *next;
    int64_t number;
    mn_place_key key;                 /* its texts are the first two below */
    char *texts[2 + MN_PLACE_INPUTS]; /* layer, parameter, names of floating inputs */
    uint64_t gradient; /* serial of the storage that a parameter's gradient was last summed in */
    mn_tensor *counts; /* i64 [MN_INSPECT_SIZE] */
    mn_tensor *copy;   /* of the parameter, for the time of a step */
    int64_t host[MN_INSPECT_SIZE]; /* counts, as collected */
};

struct mn_monitor {
    mn_observer observer; /* first: observers are found as monitors */
    mn_context *context;
    mn_monitor_options options;
    mn_place *first, *last;
    mn_place *found;               /* the last one looked up */
    mn_place *now[MN_MAX_OUTPUTS]; /* of the call that runs */
    int64_t places;
    mn_tensor *ring; /* events */
    int64_t key, step;
    /* As collected. */
    int64_t shown, shown_capacity;
    mn_monitor_row *rows;
    int64_t events;
    int overflow_count;
    mn_overflow overflows[MN_EVENTS];
};

#endif
