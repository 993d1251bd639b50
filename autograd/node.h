/* Nodes of the recorded graph and the state that autograd keeps in a context. Private to this
 * folder.
 *
 * A node is owned by the tensors that its op made (tensor->node) and by the nodes that consume them
 * (inputs[i].producer). It owns detached headers of the tensors saved for backward, which have no
 * node themselves: there are no cycles. */
#ifndef MN_AUTOGRAD_NODE_H
#define MN_AUTOGRAD_NODE_H

#include "autograd/autograd.h"
#include "autograd/section.h"

typedef struct mn_node mn_node;

typedef struct mn_saved {
    mn_tensor *tensor; /* detached header on the storage, or NULL */
    uint64_t version;  /* of the storage when it was saved */
    bool again;        /* not kept: an input that its producer can make again, or such an output */
} mn_saved;

typedef struct mn_node_input {
    mn_view view; /* dtype and shape; data is NULL */
    mn_saved saved;
    mn_node *producer; /* where the gradient goes to: a node's output, ... */
    int output;
    mn_tensor *leaf; /* ... or a leaf; both NULL: nowhere */
} mn_node_input;

typedef struct mn_node_output {
    mn_saved saved;
    mn_tensor *grad; /* sum so far, only while backward runs */
} mn_node_output;

struct mn_node {
    mn_context *context;
    const mn_op *op;
    char *path; /* layer path, NULL if none */
    size_t bytes;
    int references;
    bool used;         /* backward has been here and dropped what it saved */
    bool scaled;       /* in the pass that runs: what it gives goes into a scaled loss */
    bool needed;       /* by the pass that runs: something that it wants lies behind */
    uint64_t sequence; /* larger than that of all producers */
    uint64_t pass;     /* last backward that found it */
    uint64_t scaling;  /* of the loss that a grad scaler has made here; else 0 */
    int input_count;
    mn_node_input *inputs;   /* the arrays lie behind the node */
    mn_node_output *outputs; /* [op->outputs] */
    void *attributes;
    mn_node *next; /* in the list of nodes to run or to free */
};

typedef struct mn_autograd {
    uint64_t sequence, passes;
    mn_sections no_grad;
} mn_autograd;

/* One backward: into the leaves, or, with targets, into gradients of theirs. */
typedef struct mn_pass {
    uint64_t number;
    mn_node *nodes;
    mn_grad_state state;       /* that it leaves leaves in: PLAIN or SCALED */
    uint64_t scaling;          /* which scaler at which of its scales; 0: not known, or plain */
    mn_tensor *const *targets; /* [target_count], NULL: the leaves */
    mn_tensor **gradients;     /* sums so far, each with a reference; NULL: nothing arrived */
    int target_count;
    bool create_graph; /* record what it does and keep the graph */
} mn_pass;

/* The context's state, made when it is not there; NULL records an error. */
mn_autograd *mn_autograd_state(mn_context *context);
void mn_node_release(mn_context *context, mn_node *node);
/* Marks what the node need not keep because it can be made again. Its inputs' views and producers
 * are known. */
void mn_spare(mn_node *node, mn_tensor *const *inputs);
/* An input that was spared, in the scope; NULL after an error. */
mn_tensor *mn_make_again(const mn_node_input *input);
/* Drops saved tensors and edges. Producers without other owners are freed. */
void mn_node_drop(mn_context *context, mn_node *node);

/* Forgets the gradient, also while an error is pending. */
void mn_leaf_forget(mn_leaf *leaf);
/* MN_OK if a gradient of the pass may be added to the leaf's; else the error. */
mn_status mn_leaf_admits(mn_tensor *leaf, const mn_pass *pass);
/* Adds gradient into the leaf's buffer; the first contribution overwrites it, or, if it is the
 * caller's `sole` use of a gradient of its scope, may become it. */
mn_status mn_leaf_accumulate(mn_tensor *leaf, mn_tensor *gradient, bool sole, const mn_pass *pass);

#endif
