/* ops: the table of built-in ops, their attributes, and dispatch. Internal interface. */
#ifndef MN_OPS_OPS_H
#define MN_OPS_OPS_H

#include "core/core.h"

#define MN_OP(name, ...) MN_OP_##name,
typedef enum mn_op_id {
#include "ops/ops.def"
    MN_OP_COUNT
} mn_op_id;
#undef MN_OP

extern const mn_op mn_ops[MN_OP_COUNT];
/* Which built-in op this is. */
static inline mn_op_id mn_op_id_of(const mn_op *op)
{
    return (mn_op_id)(op - mn_ops);
}

/* MN_OK if nothing is pending and the descriptor, which may come from outside, is sound. */
mn_status mn_op_validate(mn_context *context, const mn_op *op);
/* Checks and runs an op without recording it: shape rule, output tensors (of the scope), kernel.
 * mn_apply is this plus autocast and autograd. */
mn_status mn_dispatch(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                      int input_count, const void *attributes, bool f32_output,
                      mn_tensor **outputs);
/* mn_dispatch of a built-in op with one or no output; NULL on failure (or no output). */
mn_tensor *mn_dispatch1(mn_context *context, mn_op_id id, mn_tensor *const *inputs, int input_count,
                        const void *attributes);
/* mn_apply of a built-in op; returns output 0. Takes the context from the first tensor given. */
mn_tensor *mn_apply1(mn_op_id id, mn_tensor *const *inputs, int input_count,
                     const void *attributes);
/* mn_conv2d that also gives the moments of its result's channels, which the batch norm of it then
 * need not find: f64 [2,K], no gradient flows through them. */
mn_tensor *mn_conv2d_moments(mn_tensor *x, mn_tensor *w, mn_tensor *b,
                             const mn_conv2d_options *options, mn_tensor **moments);
/* mn_batch_norm with what comes after it, in training of an x with these moments, or NULL. The
 * pooling is mn_max_pool2d's default, of images alone, and not of a sum with a residual. */
typedef enum mn_norm_then { MN_NORM_ALONE, MN_NORM_RELU, MN_NORM_RELU_POOL } mn_norm_then;
mn_tensor *mn_batch_norm_of(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                            mn_tensor *const running[3], mn_tensor *residual, mn_tensor *moments,
                            mn_norm_then then, const mn_batch_norm_options *options);
/* Whether some kernel (or widening to f32) serves the op for this dtype, and how. */
mn_served_by mn_op_served_by(const mn_context *context, const mn_op *op, mn_dtype dtype);
/* What 16-bit stores lost. Added to from several threads at once. */
typedef struct mn_store_counts {
    _Atomic uint64_t stored; /* values that were not zero */
    _Atomic uint64_t lost;   /* those of them that became zero */
} mn_store_counts;
/* Counts n values and what they were stored as, f16 or bf16; the second takes NULL counts and other
 * dtypes, which it ignores. */
void mn_count_stores(mn_store_counts *counts, int64_t n, const float *from, const void *to);
void mn_count_stores_f64(mn_store_counts *counts, mn_dtype dtype, int64_t n, const double *from,
                         const void *to);

/* One call of an op, for those that look on; valid during the call. */
typedef struct mn_observed {
    const mn_op *op;
    const void *attributes;
    mn_tensor *const
        *inputs; /* as the kernel gets them, after autocast; optional ones may be NULL */
    int input_count;
    mn_tensor *const *outputs; /* [op->outputs]; NULL before the call */
    const mn_view *results;    /* dtypes and shapes of the outputs, also before the call */
    mn_direction direction;
    const char *layer; /* path; backward: of the op whose gradient it is; "" outside of any */
    const mn_op *backward_of;     /* op whose backward applies this one; NULL for none */
    const mn_tensor *gradient_of; /* leaf to whose gradient this adds; NULL for none */
    mn_cast_choice cast;
    mn_served_by served;
    mn_store_counts *stores; /* before the call an observer may say where its stores are counted */
    bool rehearsing;         /* a call that is to come is rehearsed: it does not run */
} mn_observed;
/* Told of every call that dispatch serves and of every cast that a parameter's shadow serves, those
 * that observers make themselves and the parts of a widened one left out; either function may be
 * NULL. before may fail (a call is then refused), after may not: what it needs it gets in before,
 * which a rehearsed call meets as well. Not owned: it stays where it is until removed, which it may
 * be at any time; removing twice is harmless. One that is added while a call is told of may be told
 * of what comes after it alone. */
typedef struct mn_observer mn_observer;
struct mn_observer {
    mn_observer *next;
    mn_status (*before)(mn_observer *observer, mn_context *context, mn_observed *call);
    void (*after)(mn_observer *observer, mn_context *context, const mn_observed *call);
    bool blind; /* reads no elements: a result may take an input's memory */
};
void mn_observer_add(mn_context *context, mn_observer *observer);
void mn_observer_remove(mn_context *context, mn_observer *observer);
/* Tells them of a cast that a parameter's shadow serves. */
mn_status mn_observe_shadow(mn_tensor *parameter, mn_tensor *shadow);

/* What has to be the same for a check of the op to count: parts with "; " between them. */
void mn_op_record(const mn_context *context, const mn_op *op, char *text, size_t size);
/* What a monitor knows of the values that come from one place: i64 [MN_INSPECT_SIZE] on the device,
 * starting at 0. Whole numbers, so that neither order nor threads matter. Magnitudes are the bits
 * of |x| as f64, which sort as the numbers do. */
typedef enum mn_inspect_slot {
    MN_INSPECT_CALLS,
    MN_INSPECT_COUNT, /* elements */
    MN_INSPECT_ZEROS,
    MN_INSPECT_INFINITIES, /* next to NANS */
    MN_INSPECT_NANS,
    MN_INSPECT_LARGEST,  /* finite magnitude */
    MN_INSPECT_SMALLEST, /* bits of infinity minus those of the smallest that is not 0 */
    MN_INSPECT_STORES,   /* an mn_store_counts */
    MN_INSPECT_UPDATES = MN_INSPECT_STORES + 2, /* elements of a parameter due to change, and */
    MN_INSPECT_UNCHANGED,                       /* those of them that did not */
    MN_INSPECT_HISTOGRAM, /* of floor(log2 |x|), x finite and not 0; the ends take what is beyond */
    MN_INSPECT_SIZE = MN_INSPECT_HISTOGRAM + MN_MONITOR_BINS
} mn_inspect_slot;
/* First values of each step that are not finite: i64 [1 + MN_EVENTS][MN_EVENT_SIZE], a ring. Row 0
 * holds how many there were (entry 0) and the key of the last one's step (entry 1). */
enum { MN_EVENTS = 64 };
typedef enum mn_event_slot {
    MN_EVENT_STEP,
    MN_EVENT_PLACE,
    MN_EVENT_LARGEST,
    MN_EVENT_INFINITIES,
    MN_EVENT_NANS,
    MN_EVENT_INPUT, /* 1 + the first input that was not finite either; 0: all were */
    MN_EVENT_SIZE
} mn_event_slot;
typedef struct mn_inspect_attributes {
    int64_t key;  /* of the step: it has an event if the ring's last key is this one */
    int64_t step; /* as users count */
    int64_t place;
} mn_inspect_attributes;
typedef struct mn_watch_attributes {
    int64_t after; /* 0: copies p, before a step; 1: compares */
} mn_watch_attributes;
/* Not in the table of ops: nobody but a monitor runs them. They never need memory.
 *   inspect  adds x to a place and to the ring    (place, ring, x, up to 5 inputs x was made of)
 *   watch    what a step did not change of p      (place, copy of p, p, g, record, momentum or
 * none)
 */
extern const mn_op mn_inspect_op, mn_watch_op;

/* How many calls were served by widening since the context was made. */
uint64_t mn_widened_calls(const mn_context *context);
/* How many calls of a built-in op there were. */
uint64_t mn_op_calls(const mn_context *context, mn_op_id id);

/* dtype that a and b meet in, as PyTorch's promotion: f16 with bf16 gives f32; between kinds the
 * floating one; scalars (ndim 0) yield to tensors of the same kind. */
mn_dtype mn_promote(const mn_view *a, const mn_view *b);
bool mn_is_16_bit(mn_dtype dtype); /* f16 or bf16 */
/* NumPy's broadcasting of two shapes; false if they do not fit. */
bool mn_broadcast(const mn_view *a, const mn_view *b, int *ndim, int64_t *shape);

/* Steps of x, in elements, along the ndim axes of a shape that it broadcasts to; 0 where it
 * repeats.
 */
void mn_steps(const mn_view *x, int ndim, int64_t *step);
/* Where the element that comes `index`-th in a shape, row by row, is for an operand of these steps.
 */
int64_t mn_offset(int64_t index, int ndim, const int64_t *shape, const int64_t *step);
/* Elements before, along and after an axis. */
typedef struct mn_split {
    int64_t outer, size, inner;
} mn_split;
mn_split mn_split_at(const mn_view *view, int64_t axis);
/* Product of the extents of the axes whose bits are set. */
double mn_extent_of(const mn_view *view, int64_t axes);
/* Whether the index is in [0, bound); if not, that is the call's fault. */
bool mn_index_check(const mn_call *call, int64_t index, int64_t bound);
/* Steps of x for a walk over the index, the axis standing still. */
void mn_gather_steps(const mn_view *x, const mn_view *index, int64_t axis, int64_t *step);
/* Whether an optional input was given. */
bool mn_has_input(const mn_call *call, int input);

/* Elements of any dtype as f64, and back: rounded to nearest even; to integers toward zero, with
 * what does not fit saturated (or, if it came from integers, wrapped around) and 0 for NaN. */
void mn_to_f64(mn_dtype dtype, int64_t n, const void *from, double *to);
void mn_from_f64(mn_dtype dtype, bool wrap, int64_t n, const double *from, void *to);

/* Attributes of the ops that have some. Zero the struct before filling it in: it is a cache key. */
typedef struct mn_shape_attributes { /* reshape, expand, reduce_to */
    int64_t ndim;
    int64_t shape[MN_MAX_DIMS];
    double scale; /* expand only */
} mn_shape_attributes;
typedef struct mn_cast_attributes { /* cast */
    int64_t dtype;
} mn_cast_attributes;
typedef struct mn_value_attributes { /* fill */
    double value;
} mn_value_attributes;
typedef struct mn_function_attributes { /* unary functions, unary_backward */
    int64_t function;                   /* the mn_op_id of the function */
    int64_t order;                      /* 0: its value; else that derivative, times g */
    double a, b; /* affine: scale, shift; leaky_relu: slope; clamp: bounds; pow_scalar: exponent */
} mn_function_attributes;
typedef enum mn_comparison { MN_EQ, MN_NE, MN_LT, MN_LE, MN_GT, MN_GE } mn_comparison;
typedef struct mn_compare_attributes {
    int64_t comparison; /* mn_comparison */
} mn_compare_attributes;
typedef struct mn_permute_attributes {
    int64_t axes[MN_MAX_DIMS];
} mn_permute_attributes;
typedef struct mn_pad_attributes {
    int64_t before[MN_MAX_DIMS], after[MN_MAX_DIMS];
    double value;
} mn_pad_attributes;
typedef struct mn_dropout_attributes { /* block b: counter words b, call, low, high position */
    double p;
    int64_t key[2], position, call;
} mn_dropout_attributes;
/* The words that decide about elements 4 block to 4 block + 3, and the least one that keeps. */
void mn_dropout_words(const mn_dropout_attributes *attributes, int64_t block, uint32_t words[4]);
uint32_t mn_dropout_threshold(double p);
typedef struct mn_matmul_attributes {
    int64_t transpose_a, transpose_b;
} mn_matmul_attributes;
typedef struct mn_conv2d_attributes { /* conv2d and its two gradients */
    int64_t stride[2], padding[2], dilation[2], groups;
    int64_t extent[2]; /* backward_input: H, W of x; backward_weight: R, S of w; else 0 */
} mn_conv2d_attributes;
typedef struct mn_pool2d_attributes { /* max_pool2d, avg_pool2d and their gradients */
    int64_t kernel[2], stride[2], padding[2];
    int64_t exclude_padding; /* avg_pool2d and its gradient only, as all below */
    int64_t extent[2];       /* avg_pool2d_backward: H, W of x */
} mn_pool2d_attributes;
typedef struct mn_resize_attributes { /* upsample2d and its gradient */
    int64_t size[2];                  /* height and width of the result */
    int64_t mode, align_corners;
    int64_t extent[2]; /* upsample2d_backward: H, W of x */
} mn_resize_attributes;
typedef struct mn_batch_norm_attributes { /* the four batch-norm ops */
    double eps, momentum;
} mn_batch_norm_attributes;
typedef struct mn_group_norm_attributes { /* layer_norm, group_norm and their gradient */
    double eps;
    int64_t groups;
    int64_t axes; /* > 0: layer_norm over so many last axes */
} mn_group_norm_attributes;
typedef struct mn_axis_attributes { /* softmax family, argmax, concat, gather; axis >= 0 */
    int64_t axis;
} mn_axis_attributes;
typedef struct mn_reduce_attributes { /* reductions: bit i of axes: axis i is reduced */
    int64_t axes, keep;
    double p; /* norm: 1, 2 or infinity; var: the correction; else 0 */
} mn_reduce_attributes;
typedef struct mn_class_loss_attributes { /* cross_entropy, nll_loss and their gradient */
    int64_t reduction, ignore_index;
    int64_t is_log; /* nll_loss: x holds log-probabilities */
    double smoothing;
} mn_class_loss_attributes;
typedef struct mn_pointwise_loss_attributes { /* mse_loss to binary_cross_entropy, their gradient */
    int64_t kind, reduction;                  /* mn_loss_kind, mn_reduction */
    double delta;                             /* huber_loss */
} mn_pointwise_loss_attributes;
typedef struct mn_norm_attributes { /* grad_norm */
    int64_t first, last;            /* of the parameters in this norm */
    double max_norm;
} mn_norm_attributes;
typedef struct mn_blend_attributes { /* dst = a dst + b src */
    double a, b;
} mn_blend_attributes;
typedef struct mn_adjust_attributes { /* x = min(max(scale x + shift, low), high) */
    double scale, shift, low, high;
} mn_adjust_attributes;
typedef struct mn_step_attributes { /* sgd_step, adam_step, rmsprop_step */
    double lr;                      /* times the record's factor */
    double weight_decay;
    double rate[2]; /* how much of state 0 and state 1 lasts: momentum, betas, alpha */
    double eps;
    int64_t variant; /* sgd: Nesterov; adam: decoupled weight decay */
    /* A bf16 parameter is rounded at random: element i draws from block i / 8 of the Philox stream
     * of this key and the applied steps so far, from the low half of word i % 8, or for i % 8 >= 4
     * the high half of the word four before. */
    int64_t stochastic;
    uint32_t key[2];
} mn_step_attributes;
typedef struct mn_schedule_attributes { /* optimizer_finish */
    int64_t kind, total_steps, step_size, warmup_steps;
    double gamma;
    double base_lr; /* for the report */
} mn_schedule_attributes;
typedef struct mn_weight_attributes { /* scaler_scale */
    double weight;
} mn_weight_attributes;
typedef struct mn_scaler_attributes { /* scaler_update */
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
} mn_scaler_attributes;
typedef struct mn_report_attributes { /* report_loss, report_step */
    int64_t entry;                    /* row of the ring */
    int64_t first; /* report_loss: first micro-batch of the window, clears the row */
    double weight; /* report_loss: share of this micro-batch in the window's mean */
} mn_report_attributes;

/* What group_norm makes of x: [outer, positions, groups, size], statistics over positions and size;
 * layer_norm has one position and one group. */
typedef struct mn_grouping {
    int64_t outer, positions, groups, size;
} mn_grouping;
mn_grouping mn_grouping_of(const mn_view *x, const mn_group_norm_attributes *attributes);
/* The two pixels along an axis (0: height) that pixel `at` of a resized image is a mean of, those
 * of weight 0 left out: nearest has only the first. As PyTorch's, index of nearest in f32, weights
 * of bilinear in f64. */
typedef struct mn_taps {
    int count;
    int64_t index[2];
    double weight[2];
} mn_taps;
mn_taps mn_resize_taps(const mn_resize_attributes *attributes, int axis, int64_t extent,
                       int64_t at);
/* The losses element by element, in the order of the tables of kernels. */
typedef enum mn_loss_kind {
    MN_LOSS_MSE,
    MN_LOSS_L1,
    MN_LOSS_HUBER,
    MN_LOSS_BCE_WITH_LOGITS,
    MN_LOSS_BCE,
    MN_LOSS_COUNT
} mn_loss_kind;

/* Records: f64 [MN_RECORD_SIZE] tensors on the device, so that no step needs the host to read one.
 * Counters are exact up to 2^53. */
#define MN_RECORD_SIZE 16
typedef enum mn_optimizer_slot {
    MN_OPT_APPLIED,       /* applied steps */
    MN_OPT_SKIPPED,       /* skipped steps */
    MN_OPT_NONFINITE,     /* steps with a non-finite gradient, as far as it was measured */
    MN_OPT_FOUND_INF,     /* 1: unscaling met a non-finite gradient in this step */
    MN_OPT_BAD_NORM,      /* 1: this step's norm was not finite */
    MN_OPT_FACTOR,        /* of all learning rates in the step to come, by the schedule */
    MN_OPT_LR_USED,       /* the first group's in the last step */
    MN_OPT_NORM_SQ,       /* sum in progress */
    MN_OPT_NORM,          /* last norm measured */
    MN_OPT_CLIP,          /* factor of grad_clip */
    MN_OPT_OUTCOME,       /* mn_step_outcome of the last step */
    MN_OPT_STEP_NONFINITE /* 1: the last step's gradient was not finite */
} mn_optimizer_slot;
typedef enum mn_scaler_slot {
    MN_SCALER_SCALE,     /* an f32 value */
    MN_SCALER_TRACKER,   /* clean updates since the last change */
    MN_SCALER_FOUND_INF, /* 1: some optimizer met a non-finite gradient since the last update */
    MN_SCALER_UPDATES,
    MN_SCALER_BACKOFFS,
    MN_SCALER_COLLAPSED, /* 1: at the floor (or 1/scale not finite) and still overflowing */
    MN_SCALER_SCALE_USED /* by the last scaler_scale; 1 if disabled */
} mn_scaler_slot;
/* Adds squares to the norm in the optimizer's record. After the last gradient: norm =
 * sqrt(norm^2), clip = min(1, max_norm / (norm + 1e-6)) (Pascanu et al. 2013, arXiv 1211.5063). */
void mn_norm_add(const mn_norm_attributes *attributes, double squares, double *record);
/* Row of the report ring, f64 [rows, MN_RECORD_SIZE]. */
typedef enum mn_report_slot {
    MN_REPORT_LOSS,
    MN_REPORT_CORRECT,
    MN_REPORT_SAMPLES,
    MN_REPORT_LR,
    MN_REPORT_SCALE,
    MN_REPORT_NORM,
    MN_REPORT_OUTCOME,
    MN_REPORT_NONFINITE
} mn_report_slot;

#endif
