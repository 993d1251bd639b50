/* core: contexts, storage, tensors, scopes, names, pool. Internal interface for the rooms above. */
#ifndef MN_CORE_CORE_H
#define MN_CORE_CORE_H

#include "include/minim_ext.h"
#include "core/base.h"
#include "core/cpu.h"
#include "core/device.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Host memory of a context; NULL records MN_ERR_MEMORY. Blocks up to 2 KiB are kept in free lists,
 * so that steps do not ask the allocator. free takes the size asked for and accepts NULL. */
void *mn_host_alloc(mn_context *context, size_t bytes);
void *mn_host_calloc(mn_context *context, size_t count, size_t bytes);
void mn_host_free(mn_context *context, void *memory, size_t bytes);
char *mn_host_strdup(mn_context *context, const char *text);
void mn_host_strfree(mn_context *context, char *text);

/* Device memory through the caching pool (live and peak counters, limit). NULL records
 * MN_ERR_MEMORY after the pool was flushed and the request retried. bytes 0 gives NULL without an
 * error. Freed memory may be handed out again at once: the device's queue keeps the order. */
void *mn_pool_alloc(mn_context *context, size_t bytes);
void mn_pool_free(mn_context *context, void *memory, size_t bytes);

/* ---- errors ---------------------------------------------------------------------------------- */

/* Records the first error; later ones are dropped. Returns the pending status. The layer path is
 * put in front ("conv1: ..."). */
mn_status mn_fail(mn_context *context, mn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* True if nothing is pending. */
bool mn_ok(const mn_context *context);
/* Turns a fault of finished device work into the pending error. */
mn_status mn_check_fault(mn_context *context);

/* ---- storage and tensors --------------------------------------------------------------------- */

typedef struct mn_storage {
    mn_context *context;
    void *data;
    size_t bytes;
    int references;
    uint64_t version;
    uint64_t serial; /* its number among all storages of the context */
} mn_storage;

mn_storage *mn_storage_create(mn_context *context, size_t bytes); /* one reference */
void mn_storage_release(mn_storage *storage);

/* 16-bit copy of a parameter, valid while version equals the storage's version. */
typedef struct mn_shadow {
    mn_storage *storage; /* NULL: none */
    uint64_t version;
} mn_shadow;

/* What only leaves have. Gradient and flags belong to autograd, shadows to amp and optim. */
typedef struct mn_leaf {
    char *name;      /* "" if none */
    mn_tensor *grad; /* meaningless while state is NONE */
    mn_grad_state state;
    bool consumed;       /* a finished step has used the gradient */
    int averaged;        /* so many averages have swapped themselves in */
    uint64_t scaling;    /* SCALED: the context's scaling when it was */
    mn_shadow shadow[2]; /* f16, bf16 */
} mn_leaf;

struct mn_scope_frame;
struct mn_node;

struct mn_tensor {
    mn_context *context;
    mn_storage *storage;
    size_t offset; /* bytes into storage */
    mn_dtype dtype;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    int64_t numel;
    int references;
    mn_layout layout;
    bool requires_grad;
    bool spent;           /* nobody reads it after the next op, whose result may take its memory */
    struct mn_node *node; /* what made it; NULL for leaves. One reference (see release_node) */
    int node_output;      /* which output of node */
    mn_leaf *leaf;        /* NULL until needed */
    /* Scope that owns one reference, and its intrusive list. */
    struct mn_scope_frame *scope;
    mn_tensor *scope_next, *scope_previous;
};

/* Checked product of a shape; records MN_ERR_SHAPE or MN_ERR_MEMORY. Both results may be NULL. */
mn_status mn_shape_check(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                         int64_t *numel, size_t *bytes);
/* New tensor that owns new storage; in the innermost scope, or with one reference for the caller
 * (unscoped). */
mn_tensor *mn_tensor_new(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape);
mn_tensor *mn_tensor_new_unscoped(mn_context *context, mn_dtype dtype, int ndim,
                                  const int64_t *shape);
/* New scoped tensor on storage (which gains a reference), starting at offset. */
mn_tensor *mn_tensor_view(mn_storage *storage, size_t offset, mn_dtype dtype, int ndim,
                          const int64_t *shape);
/* As mn_tensor_view with one reference for the caller. */
mn_tensor *mn_tensor_view_unscoped(mn_storage *storage, size_t offset, mn_dtype dtype, int ndim,
                                   const int64_t *shape);
/* Address of the first element. */
void *mn_tensor_address(const mn_tensor *tensor);
mn_view mn_tensor_as_view(const mn_tensor *tensor); /* NULL gives an absent view */
/* Makes the leaf part if it is not there; NULL records an error. */
mn_leaf *mn_tensor_leaf(mn_tensor *tensor);
/* Gives the tensor, which becomes a leaf, a copy of the name. */
mn_status mn_parameter_rename(mn_tensor *tensor, const char *name);
/* "[2,3] f32" into buffer; returns buffer. */
const char *mn_tensor_describe(const mn_view *view, char *buffer, size_t size);
/* MN_OK if the value fits the dtype: finite ones stay finite, integers are whole and in range. The
 * error names the function. */
mn_status mn_value_check(mn_context *context, const char *function, mn_dtype dtype, double value);
/* dst[i] = src[i], rounded to nearest even, for floating dtypes; no overlap. */
void mn_convert_elements(mn_dtype from, mn_dtype to, size_t count, const void *src, void *dst);
/* MN_OK if the tensor is there and belongs to context; else the error. `what` names the argument.
 */
mn_status mn_tensor_check(mn_context *context, const mn_tensor *tensor, const char *what);

/* ---- context --------------------------------------------------------------------------------- */

/* State that higher rooms keep in the context. destroy frees it; scope_end (may be NULL) is called
 * when a scope ends, with the depth that remains, to end what was begun deeper. */
typedef enum mn_slot_id { MN_SLOT_OPS, MN_SLOT_AUTOGRAD, MN_SLOT_AMP, MN_SLOT_COUNT } mn_slot_id;
typedef struct mn_slot {
    void *state;
    void (*destroy)(mn_context *context, void *state);
    void (*scope_end)(mn_context *context, void *state, int depth);
} mn_slot;

/* What autocast decided about a call of an op. */
typedef struct mn_cast_choice {
    bool active;       /* in an enabled region, ... */
    mn_dtype region;   /* ... of this dtype, in which ... */
    mn_cast_rule rule; /* ... this rule fired */
    bool overridden;   /* the rule is this context's, not the table's */
    bool f32_output;   /* FP32_OUT fired on a 16-bit input */
    bool is_cast;      /* the op is a cast that autocast makes for another one */
} mn_cast_choice;

/* Called by mn_apply before the shape rule, unless inside backward: may replace entries of inputs
 * by casts of them, and fills in *choice, which starts as none. */
typedef mn_status (*mn_cast_hook)(mn_context *context, const mn_op *op, mn_tensor **inputs,
                                  int count, mn_cast_choice *choice);

#define MN_HOST_CLASSES 32
#define MN_POOL_BINS    64

/* Device memory may be out of the host's reach, so free blocks are listed beside it. The list has
 * room for all blocks of the bin: freeing never allocates. */
typedef struct mn_pool_bin {
    void **free;
    size_t count, list_bytes;
    size_t blocks; /* of this class, handed out or free */
} mn_pool_bin;

/* A piece of a slab; neighbours that are free are joined. */
typedef struct mn_pool_span {
    char *memory;
    size_t bytes;
    size_t used; /* so many bytes from memory on were in use before: the system has given them */
    bool free;
    bool first; /* of its slab */
} mn_pool_span;

typedef struct mn_pool {
    mn_pool_bin bins[MN_POOL_BINS];
    mn_pool_span *spans; /* by address */
    size_t span_count, list_bytes;
    size_t slab_bytes; /* of all slabs */
    bool lasting;      /* what is asked for now outlives a step */
    mn_memory_stats stats;
    uint64_t limit;
} mn_pool;

struct mn_free_block;
struct mn_name;
struct mn_observer;

/* mn_context_free with objects left (tensors that were retained, parameters, modules, ...) only
 * closes the context: slots and threads are gone and a pending error stays for good, so that every
 * op and verb refuses. Releasing the last object (mn_host_free of the last block) frees the rest.
 */
struct mn_context {
    mn_allocator allocator;
    mn_error error;
    mn_device *device;
    mn_cpu cpu;
    mn_pool pool;
    struct mn_free_block *host_free[MN_HOST_CLASSES]; /* entry i: blocks of (i + 1) * 64 bytes */
    size_t host_live;     /* blocks that mn_host_alloc has given out and that have not come back */
    struct mn_name *name; /* the newest of the path */
    size_t names, names_lost;     /* pushed; and those of them that an error kept out of the path */
    struct mn_scope_frame *scope; /* innermost; the root scope always exists */
    int scope_depth;              /* 0: only the root scope */
    uint64_t next_scope_id;
    uint64_t seed;
    uint64_t random_position; /* of mn_random_position */
    uint32_t dropout_calls;   /* since it was set */
    mn_slot slots[MN_SLOT_COUNT];
    mn_cast_hook cast_hook;
    void (*warn)(void *user, const char *message); /* NULL once it has been told, or never */
    void *warn_user;
    bool closed;
    bool fusion;                    /* as in mn_context_options */
    mn_cast_choice cast;            /* about the op that is being applied */
    struct mn_observer *observers;  /* NULL: nobody looks on */
    struct mn_observer *observer;   /* that is told next, while they are told of a call */
    bool observing;                 /* a call is told of: what it makes is not */
    struct mn_store_counts *stores; /* where calls count their 16-bit stores; NULL: they do not */
    uint64_t storages;              /* made so far */
    bool in_backward;
    const mn_op *backward_of; /* op whose backward runs, and its layer path; else NULL */
    const char *backward_layer;
    const mn_tensor *gradient_of; /* leaf that a gradient is being added to; else NULL */
    bool create_graph;            /* backward is itself recorded */
    bool rehearsing; /* dispatch does all but the work: what can run out of memory does so now */
    bool no_grad;    /* inside a no-grad section */
    bool keeps_gradients; /* backward gives the leaves nothing */
    uint64_t errors_cleared;
    /* Counts scales of all scalers, so that each has a number of its own. */
    uint64_t last_scaling;
    /* Set by autograd. Must not need the slot's state, which may be gone by then. */
    void (*release_node)(mn_context *context, struct mn_node *node);
    char cpu_name[64];
    char cpu_features[160];
};

/* "conv1" or "layer1.0.conv2"; "" outside of any layer. */
const char *mn_name_path(const mn_context *context);

/* Device transfers with errors recorded in the context. */
mn_status mn_upload(mn_context *context, void *dst, const void *host, size_t bytes);
mn_status mn_download(mn_context *context, void *host, const void *src, size_t bytes);

#endif
