/* ops/internal.h: what the files of this folder share: the rules that ops.def names, helpers to
 * write them with, and the parts of dispatch. */
#ifndef MN_OPS_INTERNAL_H
#define MN_OPS_INTERNAL_H

#include "ops/kernels.h"
#include "ops/ops.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Whether x broadcasts to y's shape, and whether a and b have the same one. */
bool mn_broadcasts_to(const mn_view *x, const mn_view *y);
bool mn_same_shape(const mn_view *a, const mn_view *b);
/* Product of a shape; false for a negative extent, too many axes or overflow. */
bool mn_shape_numel(int64_t ndim, const int64_t *shape, int64_t *numel);
/* How many windows fit: (extent + 2 padding - dilation (kernel - 1) - 1) / stride + 1; false if not
 * even one does or an argument makes no sense. */
bool mn_window_count(int64_t extent, int64_t kernel, int64_t stride, int64_t padding,
                     int64_t dilation, int64_t *count);
/* "[2,3]" into text, which any shape fits; returns text. */
typedef char mn_shape_buffer[160];
const char *mn_shape_text(int64_t ndim, const int64_t *shape, mn_shape_buffer text);

/* ---- helpers of shape rules: each records the error and returns its status ------------------- */

mn_status mn_need_float(mn_infer *infer, int input, const char *name);
mn_status mn_need_dtype(mn_infer *infer, int input, const char *name, mn_dtype dtype);
mn_status mn_need_ndim(mn_infer *infer, int input, const char *name, int ndim);
mn_status mn_need_shape(mn_infer *infer, int input, const char *name, int ndim,
                        const int64_t *shape);
/* Both. */
mn_status mn_need_like(mn_infer *infer, int input, const char *name, mn_dtype dtype, int ndim,
                       const int64_t *shape);
/* Input has the shape, or the dtype, of an earlier one. */
mn_status mn_need_same_shape(mn_infer *infer, int input, const char *name, int other,
                             const char *other_name);
mn_status mn_need_same_dtype(mn_infer *infer, int input, int other);
/* Input 2, if there, has the dtype of input 0 and one element per row of input 1. */
mn_status mn_need_bias(mn_infer *infer);
mn_status mn_need_record(mn_infer *infer, int input, const char *name);
mn_status mn_need_axis(mn_infer *infer, int64_t axis);
/* Sets output i. */
void mn_output(mn_infer *infer, int output, mn_dtype dtype, int ndim, const int64_t *shape);
void mn_output_like(mn_infer *infer, int output, int input);
/* dtype of sums and statistics over x: f64 for f64, else f32. */
mn_dtype mn_wide_dtype(mn_dtype dtype);
/* x's dtype, or f32 where the cast rule asked for a 16-bit op's result in f32. */
mn_dtype mn_result_dtype(const mn_infer *infer, mn_dtype dtype);

/* ---- helpers of backward rules --------------------------------------------------------------- */

/* Puts a gradient in place, summed to the input's shape and cast to its dtype; NULL is the pending
 * error. */
mn_status mn_give_gradient(mn_backward_call *call, int input, mn_tensor *gradient);
/* The same with output 0 of a built-in op. */
mn_status mn_give_result(mn_backward_call *call, int input, mn_op_id id, mn_tensor *const *inputs,
                         int count, const void *attributes);
/* Says that output 0's gradient is read by one op more, if nobody else has it: that op's result may
 * take its memory. */
void mn_spend_gradient(mn_backward_call *call);
/* Passes output 0's gradient through the ReLU that gave it. */
mn_status mn_mask_gradient(mn_backward_call *call);
/* x in its dtype, or in f32 for a 16-bit one. */
mn_tensor *mn_widen(mn_tensor *x);
/* x with the shape (reshape) and, times scale, broadcast to the view's shape (expand). */
mn_tensor *mn_reshape_to(mn_tensor *x, int ndim, const int64_t *shape);
mn_tensor *mn_expand_to(mn_tensor *x, const mn_view *like, double scale);

/* ---- parts of dispatch ----------------------------------------------------------------------- */

/* What ops keep in a context; NULL records an error. */
typedef struct mn_plan_entry mn_plan_entry;
enum { MN_PLAN_LIMIT = 2048 };
typedef struct mn_ops_state {
    mn_plan_entry *plans[MN_PLAN_LIMIT];
    uint64_t hits;
    uint64_t widened;
    uint64_t calls[MN_OP_COUNT];
} mn_ops_state;
mn_ops_state *mn_ops_state_get(mn_context *context);

/* Fills the call's plan and workspace_bytes with what the kernel's prepare chose, asked once for
 * each op, dtypes, shapes and attributes. */
mn_status mn_plan_find(mn_context *context, const mn_kernel *kernel, mn_call *call);

/* By which a kernel is chosen. */
mn_dtype mn_kernel_dtype(const mn_call *call);

/* Serves a call with observers told of it. */
typedef mn_status (*mn_serve_fn)(mn_context *context, mn_call *call, mn_tensor *const *inputs,
                                 mn_tensor **outputs);
mn_status mn_observe(mn_context *context, mn_call *call, mn_tensor *const *inputs,
                     mn_tensor **outputs, mn_serve_fn serve);

/* The reference kernel as device work: its workspace holds all operands in f64. */
mn_status mn_reference_prepare(const mn_call *call, size_t *workspace_bytes);
void mn_reference_run(const void *record);

/* ---- helpers of the public functions --------------------------------------------------------- */

/* axis in [-ndim, ndim) as one in [0, ndim). */
mn_status mn_normalize_axis(mn_context *context, const char *op, int axis, int ndim,
                            int64_t *result);
/* Casts the inputs to the dtype that they all promote to. */
mn_status mn_promote_inputs(mn_tensor **inputs, int count);

/* The context that an op called with these tensors runs in; NULL if the call cannot go on: an error
 * is pending, no tensor was given, or one of the first `required` is missing. */
mn_context *mn_enter(mn_op_id id, mn_tensor *const *inputs, int count, int required);

#endif
