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
    uint32_t dtypes; /* bit 1 << dtype of input 0 (of output 0 for ops without inputs) */
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

#ifdef __cplusplus
}
#endif
#endif
