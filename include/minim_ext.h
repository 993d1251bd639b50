/* minim_ext.h: for authors of custom ops. An op, built in or custom, is one descriptor:
 * shape rule, cast rule, backward, and kernels. Kernels see raw views only and may run later than
 * the call that asked for them, so everything that can fail, choose or allocate happens in infer
 * and prepare. */
#ifndef MINIM_EXT_H
#define MINIM_EXT_H

#include "minim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MN_MAX_INPUTS     8
#define MN_MAX_OUTPUTS    4
#define MN_MAX_ATTRIBUTES 128

typedef enum mn_device_type { MN_DEVICE_CPU = 0, MN_DEVICE_CUDA = 1 } mn_device_type;
#define MN_DEVICE_TYPE_COUNT 2

/* What a kernel sees of a tensor: contiguous, row-major elements in device memory. */
typedef struct mn_view {
    bool present; /* false: an optional input that was not given */
    mn_dtype dtype;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    int64_t numel;
    void *data; /* NULL in infer */
} mn_view;

/* First fault that device work met, such as a label out of range. The host sees it at the next
 * synchronisation (at once on the CPU). */
typedef struct mn_fault {
    mn_status status;
    const char *op;     /* static storage */
    const char *format; /* static storage, with up to two %lld */
    long long values[2];
} mn_fault;

/* What prepare chose; plain data, cached by op, dtypes, shapes and attributes. */
typedef struct mn_plan {
    uint64_t words[8];
} mn_plan;

struct mn_cpu; /* worker threads, kernel set, conversions; opaque here */
struct mn_op;
struct mn_store_counts; /* of a monitor; opaque here */

/* One execution of an op: self-contained, so that a device may copy and queue it. */
typedef struct mn_call {
    const struct mn_op *op;
    int input_count, output_count;
    mn_view in[MN_MAX_INPUTS];
    mn_view out[MN_MAX_OUTPUTS];
    union {
        unsigned char bytes[MN_MAX_ATTRIBUTES];
        double align;
    } attributes;
    mn_plan plan;
    void *workspace; /* aligned to 64; at least as large as prepare asked for */
    size_t workspace_bytes;
    const struct mn_cpu *cpu;
    mn_fault *fault;
    struct mn_store_counts *stores; /* NULL: 16-bit stores are not counted */
} mn_call;

/* Shape and dtype rule: reads in and attributes, fills out[i].dtype, ndim, shape (numel is computed
 * by the caller). On failure returns mn_infer_error(...). */
typedef struct mn_infer {
    mn_context *context;
    const struct mn_op *op;
    int input_count;
    mn_view in[MN_MAX_INPUTS];
    const void *attributes;
    bool f32_output; /* rule FP32_OUT fired: a 16-bit result becomes f32 */
    int output_count;
    mn_view out[MN_MAX_OUTPUTS];
} mn_infer;
/* Records "layer path: op: your text (a [2,3] f32, b [4] f32)" as the pending error; returns its
 * status. Format as printf's. */
MN_API mn_status mn_infer_error(mn_infer *infer, mn_status status, const char *format, ...);

/* What backward works on. Saved tensors are NULL unless the descriptor's masks name them. Under
 * mn_gradients with create_graph what backward applies is recorded, and saved tensors are part of
 * the graph: a backward that is to be differentiated is made of differentiable ops only. One that
 * leaves grad_in[i] NULL says that the gradient of input i is zero. */
typedef struct mn_backward_call {
    mn_context *context;
    const struct mn_op *op;
    const void *attributes;
    mn_view in_view[MN_MAX_INPUTS]; /* dtypes and shapes of all inputs (data NULL) */
    mn_tensor *in[MN_MAX_INPUTS];
    mn_tensor *out[MN_MAX_OUTPUTS];
    mn_tensor *grad_out[MN_MAX_OUTPUTS]; /* NULL: no gradient arrived there (zero) */
    bool needs[MN_MAX_INPUTS];           /* which input gradients are wanted */
    mn_tensor *grad_in[MN_MAX_INPUTS];   /* to be filled; shape and dtype of the input */
} mn_backward_call;

/* The plain kernel in double precision: the caller widens all inputs to f64, runs it, and narrows
 * outputs and mutated inputs. `in` and `out` in call give shapes. */
typedef void (*mn_reference_fn)(const mn_call *call, double *const in[], double *const out[]);

typedef struct mn_kernel {
    uint32_t dtypes; /* bit 1 << dtype of the first input given (of output 0 if there is none) */
    /* May be NULL: no plan, no workspace. call->in[].data may be unset. */
    mn_status (*prepare)(const mn_call *call, mn_plan *plan, size_t *workspace_bytes);
    void (*run)(const mn_call *call);
} mn_kernel;

typedef enum mn_op_flag {
    MN_OP_VIEW = 1 /* output 0 shares input 0's storage; no kernel */
} mn_op_flag;

typedef struct mn_op {
    size_t size;         /* sizeof(mn_op) */
    const char *name;    /* static storage */
    const char *summary; /* one line: the formula */
    int min_inputs, max_inputs, outputs;
    uint32_t optional;      /* bit i: input i may be NULL; those past min_inputs always may */
    size_t attribute_bytes; /* size of the attribute struct, at most MN_MAX_ATTRIBUTES */
    uint32_t flags;
    uint32_t mutates;        /* bit i: input i is written in place (its version is bumped) */
    uint32_t differentiable; /* bit i: a gradient flows to input i */
    uint32_t saves_inputs, saves_outputs;
    mn_cast_rule rule[MN_DEVICE_TYPE_COUNT];
    const char *refuse_hint; /* the alternative named by MN_CAST_REFUSE */
    mn_status (*infer)(mn_infer *infer);
    mn_status (*backward)(mn_backward_call *call); /* NULL if differentiable is 0 */
    mn_reference_fn reference;                     /* NULL: none */
    mn_kernel kernels[MN_DEVICE_TYPE_COUNT];
} mn_op;

/* Applies an op: cast hook, shape rule, dispatch, record. attributes: op->attribute_bytes bytes
 * (NULL: all zero), copied, compared byte by byte for plan caching: zero the padding. Fills
 * outputs[0 .. op->outputs-1] with tensors of the scope; on failure with NULL. Inputs are borrowed;
 * optional ones may be NULL. MN_ERR_ARGUMENT for a bad descriptor or count, and what infer reports.
 */
MN_API mn_status mn_apply(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                          int input_count, const void *attributes, mn_tensor **outputs);

/* In a kernel: records a fault (the first one stays). Both strings are static; up to two %lld. */
MN_API void mn_call_fault(const mn_call *call, mn_status status, const char *format,
                          long long first, long long second);
/* In a CPU kernel: runs task(arg, i, slot) for i in [0, count) on the context's threads. slot is
 * the thread's number in [0, mn_call_threads), for scratch space. How work is cut into tasks must
 * depend on shapes alone, never on the number of threads. */
MN_API void mn_call_parallel(const mn_call *call, int64_t count,
                             void (*task)(void *arg, int64_t index, int slot), void *arg);
/* How many threads that are at most. */
MN_API int mn_call_threads(const mn_call *call);

/* ---- checking an op -------------------------------------------------------------------------- */

typedef struct mn_op_check_options {
    size_t size;
    const void *attributes; /* op->attribute_bytes bytes; NULL (default): all zero */
    uint32_t keeps_f32;     /* bit i: input i stays f32 where the others have 16 bit, as the weight
                               of a norm does; default 0 */
    uint32_t constants;     /* bit i: backward takes output i for a constant; default 0 */
    double tolerance[4];    /* by mn_dtype, relative to the largest magnitude of the output or
                               gradient; defaults 1e-12, 1e-5, 2^-9, 2^-6: a few roundings */
    mn_gradcheck_options gradcheck;
} mn_op_check_options;
MN_API mn_op_check_options mn_op_check_options_default(void);

/* Of one floating dtype. */
typedef struct mn_op_check_dtype {
    mn_served_by served;
    double forward, backward; /* worst errors, relative as the tolerance; NaN: not measured */
    uint32_t nan_lost; /* bit i: a NaN as last element of input i reaches no floating output. No
                          failure, since ops that select do so */
} mn_op_check_dtype;

/* What a check has found, up to the first failure. Plain value. */
typedef struct mn_op_check_report {
    mn_op_check_dtype dtypes[4]; /* by mn_dtype */
    double gradient;  /* worst error against central differences, relative to max(1, |gradient|);
                         NaN: not measured, since there is no gradient, f64 is not served, or
                         results are not f64 then */
    bool same_bits;   /* in each dtype, for two runs, 1 and 3 threads, and "cpu-deferred" */
    bool autocast;    /* regions do what the rule says, and nothing to backward */
    mn_error failure; /* status MN_OK: none */
    char record[512]; /* one line that tells what the check holds for; "": it failed */
} mn_op_check_report;

/* Tries the op on example inputs (f64 or f32 where they are floating; small, since every element of
 * a differentiable one takes two runs): descriptor and shape rule; gradients in f64 against central
 * differences; outputs and gradients of each dtype against those in f64 of the same rounded inputs;
 * the same bits on every device and number of threads; and, in regions of f16 and of bf16, with
 * inputs in f32, the region's dtype, f16 and bf16 mixed (these against f64 too), and f64, the
 * outputs and gradients that the casts of the rule give outside of any, wherever backward runs.
 * LOWER has to lower output 0; with FP32 and FP32_OUT no output has 16 bit. Where f64 is not served
 * f32 takes its part. All is run in contexts of its own, with context's device, kernel set, seed,
 * allocator and memory limit, which infer, backward and kernels must not mind. Context and inputs
 * stay as they are. MN_ERR_MISMATCH, or the status of the call that failed, becomes the pending
 * error as well as report->failure. Refuses to start with an error pending. */
MN_API mn_status mn_op_check(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                             int input_count, const mn_op_check_options *options,
                             mn_op_check_report *report);
/* MN_OK if the record, which may come from anywhere, is that of a check of this descriptor by this
 * version of minim, made by this compiler, on this device, kernel set and processor's features.
 * Else the check counts as not made: MN_ERR_MISMATCH, and *error names the first part that differs;
 * error may be NULL, and nothing becomes pending. Code behind the descriptor leaves no mark: a
 * version number in the summary, which does, tells one version of a kernel from the next. */
MN_API mn_status mn_op_check_current(const mn_context *context, const mn_op *op, const char *record,
                                     mn_error *error);

#ifdef __cplusplus
}
#endif
#endif
