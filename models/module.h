/* module: a layer or a tree of layers. What a kind of layer implements, and what all share. */
#ifndef MN_MODELS_MODULE_H
#define MN_MODELS_MODULE_H

#include "models/models.h"

/* A parameter or buffer. With 4 axes it is a convolution's filter, with none a count (i64). */
typedef struct mn_slot_spec {
    const char *name; /* "weight", static */
    bool buffer;      /* state, but not trained */
    int ndim;
    int64_t shape[4];
    double fan_in; /* > 0: starts uniform in +-1/sqrt(fan_in), PyTorch's default, weight and bias
                      alike; else every element starts as `start` */
    double start;
} mn_slot_spec;

#define MN_MODULE_SLOTS 5

typedef struct mn_module_class {
    const char *kind;
    mn_tensor *(*forward)(mn_module *module, mn_tensor *x);
} mn_module_class;

struct mn_module {
    mn_context *context;
    const mn_module_class *class;
    mn_module *parent; /* the chain that owns it; NULL for a root */
    char *name;        /* in that chain */
    mn_module *next;   /* after it there */
    mn_module *children, **children_end;
    mn_module *shortcut; /* of a residual: the child beside its chain, or NULL */
    bool training;
    bool evaluating; /* evaluation mode for now, whatever `training` says */
    int slot_count;
    mn_slot_spec specs[MN_MODULE_SLOTS];
    mn_tensor *slots[MN_MODULE_SLOTS]; /* made by mn_module_init */
    mn_tensor **parameters;            /* of the whole tree, for mn_module_parameters */
    int parameter_count;
    double flops_per_image; /* of this layer alone, as last run */
    /* Options of the layer; each kind uses its own. */
    union {
        mn_conv2d_options conv;
        mn_pool2d_options pool;
        mn_batch_norm_options norm;
        mn_upsample2d_options upsample;
        int groups;    /* 0: a layer norm */
        double number; /* dropout: p; leaky ReLU: slope */
        mn_tensor *(*function)(mn_tensor *x);
    } options;
};

/* MN_OK if the module can run on x. */
mn_status mn_module_check(mn_module *module, mn_tensor *x);
/* How a layer runs with what is around it. */
typedef struct mn_fused {
    bool relu;           /* with a ReLU after it, and before it */
    bool pool;           /* and, after that, a pooling */
    mn_tensor *residual; /* the sum with this one, or NULL */
    mn_tensor **give;    /* a convolution: where its result's moments go, retained, or NULL */
    mn_tensor *moments;  /* a batch norm in training: those of x, or NULL */
} mn_fused;
/* Whether the two layers run as one op: a convolution, linear layer or batch norm, and a ReLU; or,
 * with NULL, a batch norm, an addition and a ReLU. Not where a rule of casts was set for one of the
 * ops alone. */
bool mn_module_fuses(const mn_module *layer, const mn_module *relu);
/* Whether a layer runs with the ReLU after it and then this pooling, of x: a batch norm, and the
 * largest of two by two pixels. */
bool mn_module_fuses_pool(const mn_module *layer, const mn_module *pool, const mn_tensor *x);
/* Whether the two are a convolution and a batch norm in training, which takes its statistics from
 * the convolution's store. */
bool mn_module_gives_moments(const mn_module *conv, const mn_module *norm);
/* A layer of those runs. */
mn_tensor *mn_module_forward_fused(mn_module *layer, mn_tensor *x, const mn_fused *how);

mn_module *mn_module_new(mn_context *context, const mn_module_class *class);
void mn_module_add_slot(mn_module *module, mn_slot_spec spec);
mn_layout mn_slot_layout(const mn_slot_spec *spec);
/* Calls visit for every module of the tree, children in order, with its path ("" for the root);
 * stops at the first status that is not MN_OK. */
typedef mn_status (*mn_module_visit)(mn_module *module, const char *path, void *user);
mn_status mn_module_walk(mn_module *module, mn_module_visit visit, void *user);
/* For walking: MN_ERR_STATE before mn_module_init. */
mn_status mn_check_initialised(mn_module *module, const char *path, void *user);
/* "path.name", or "name" at the root, into buffer. */
#define MN_PATH_MAX 256
mn_status mn_path_join(mn_context *context, const char *path, const char *name,
                       char buffer[MN_PATH_MAX]);

#endif
