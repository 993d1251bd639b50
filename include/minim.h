/* minim.h: the public contract of minim, a small deep-learning library for mixed-precision
 * training. What is not in this header (or in minim_ext.h, for authors of custom ops) is not API.
 *
 * How to read it: sections stand in this order: errors, memory and data types, context, tensors,
 * ops, autograd, optimizers, AMP, state and checkpoint files, modules, data sets, training.
 *
 * Rules that hold everywhere
 *   Threads    A context and everything made from it is used by one thread at a time. Several
 *              contexts are independent. Parallelism is inside the ops.
 *   Errors     Ops and constructors return a pointer, NULL on failure; verbs return mn_status. The
 *              FIRST failure becomes the context's pending error. While it is pending every op
 *              returns NULL and every verb does nothing and returns it; only end, free, release and
 *              getters still work, and mn_error_clear clears it. One check at the end of a step is
 *              therefore enough, and nothing is half-applied.
 *   Ownership  Arguments are borrowed. Tensors that ops and constructors return belong to the
 *              innermost scope (mn_scope_begin / mn_scope_end) and die with it, outside all scopes
 *              with the context; mn_retain keeps one longer. Objects made by ..._create are freed
 *              by ..._free, which accepts NULL.
 *   Options    Structs passed by const pointer, NULL for the defaults, made by
 *              mn_..._options_default(). Their first member, size, is the ABI version.
 *   Layout     Tensors are contiguous and row-major. Images are channels-last [N,H,W,C],
 *              convolution filters [K,R,S,C/groups]. Files hold PyTorch's order.
 *   Never      The library never exits, aborts, prints or installs a signal handler. */
#ifndef MINIM_H
#define MINIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MN_API __attribute__((visibility("default")))
#else
#define MN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MN_VERSION_MAJOR 0
#define MN_VERSION_MINOR 1
#define MN_VERSION_PATCH 0

/* 10000 major + 100 minor + patch: of this header, to be compared with mn_version_number(). */
#define MN_VERSION_NUMBER (10000 * MN_VERSION_MAJOR + 100 * MN_VERSION_MINOR + MN_VERSION_PATCH)

/* The version of the library that runs: "major.minor.patch" (static storage), and as a number. */
MN_API const char *mn_version(void);
MN_API int mn_version_number(void);

/* ---------------------------------------------------------------------------------------------
 * Errors
 * ------------------------------------------------------------------------------------------ */

/* What a verb reports. Values are stable. */
typedef enum mn_status {
    MN_OK = 0,
    MN_ERR_ARGUMENT = 1,     /* an argument's value is wrong or a required one is NULL */
    MN_ERR_SHAPE = 2,        /* shapes do not fit each other or the op */
    MN_ERR_DTYPE = 3,        /* the op or verb does not take this data type */
    MN_ERR_DEVICE = 4,       /* the device failed, or memory is not visible to the host */
    MN_ERR_STATE = 5,        /* wrong order of calls; the message says what to do */
    MN_ERR_MEMORY = 6,       /* no memory, or the context's limit is reached */
    MN_ERR_IO = 7,           /* the operating system refused to read or write */
    MN_ERR_FORMAT = 8,       /* a file's content is not what it should be */
    MN_ERR_VERSION = 9,      /* a tensor saved for backward was changed in place since */
    MN_ERR_MISMATCH = 10,    /* a checkpoint of another model, run or data set; a failed check */
    MN_ERR_NO_GRADIENT = 11, /* no parameter has a gradient, or backward from a constant */
    MN_ERR_COLLAPSED = 12,   /* the loss scale reached its floor and gradients still overflow */
    MN_ERR_UNSUPPORTED = 13, /* legal, but not available in this build or for these arguments */
    MN_ERR_CANCELLED = 14,   /* a callback asked to stop */
    MN_ERR_INTERNAL = 15     /* a fault of minim itself; please report */
} mn_status;

/* The status's name without prefix, such as "shape". Static storage; "unknown" for other values. */
MN_API const char *mn_status_name(mn_status status);

/* A status and one line of text that says what is wrong and where. Plain value. */
typedef struct mn_error {
    mn_status status;
    char message[1024];
} mn_error;

/* ---------------------------------------------------------------------------------------------
 * Memory and data types
 * ------------------------------------------------------------------------------------------ */

/* Memory hooks. alloc returns memory aligned to `alignment` (a power of two) or NULL; free gets the
 * size that was asked for. Both may be called from the library's worker threads. */
typedef struct mn_allocator {
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*free)(void *user, void *memory, size_t size);
    void *user;
} mn_allocator;

/* Element types. Booleans are U8. */
typedef enum mn_dtype {
    MN_F64 = 0,
    MN_F32 = 1,
    MN_F16 = 2,
    MN_BF16 = 3,
    MN_I64 = 4,
    MN_I32 = 5,
    MN_U8 = 6
} mn_dtype;
#define MN_DTYPE_COUNT 7
#define MN_MAX_DIMS    6

/* 16-bit floats are structs, so that arithmetic on raw halves does not compile. */
typedef struct mn_f16 {
    uint16_t bits;
} mn_f16;
typedef struct mn_bf16 {
    uint16_t bits;
} mn_bf16;

/* "f32", "bf16", ...; "?" for other values. Static storage. */
MN_API const char *mn_dtype_name(mn_dtype dtype);
/* Bytes of one element; 0 for other values. */
MN_API size_t mn_dtype_size(mn_dtype dtype);
/* True for f64, f32, f16 and bf16. */
MN_API bool mn_dtype_is_float(mn_dtype dtype);

/* Conversions of one value. Round to nearest even; NaN stays NaN, infinities stay, subnormals are
 * kept; f64 to 16 bit does not go through f32. */
MN_API float mn_f16_to_f32(mn_f16 value);
MN_API mn_f16 mn_f16_from_f32(float value);
MN_API mn_f16 mn_f16_from_f64(double value);
MN_API float mn_bf16_to_f32(mn_bf16 value);
MN_API mn_bf16 mn_bf16_from_f32(float value);
MN_API mn_bf16 mn_bf16_from_f64(double value);

/* ---------------------------------------------------------------------------------------------
 * Context
 * ------------------------------------------------------------------------------------------ */

/* Holds everything mutable: memory pool, worker threads, pending error, scopes, autocast regions,
 * random seed. One device per context; tensors of different contexts do not mix. */
typedef struct mn_context mn_context;
typedef struct mn_tensor mn_tensor;

/* Which CPU kernels a context uses. All give the results of their own build and set, with any
 * number of threads. */
typedef enum mn_kernel_set {
    MN_KERNELS_AUTO = 0,      /* the best this processor has */
    MN_KERNELS_REFERENCE = 1, /* plain loops, the oracle of the tests; slow */
    MN_KERNELS_PORTABLE = 2,  /* blocked and packed, portable C */
    MN_KERNELS_AVX2 = 3,      /* AVX2 + FMA + F16C */
    MN_KERNELS_AVX512 = 4,    /* these and AVX-512 F, BW, DQ, VL */
    MN_KERNELS_NEON = 5       /* AArch64's vectors, which every such processor has */
} mn_kernel_set;
#define MN_KERNELS_COUNT 6

/* Runs task(arg, i) for every i in [0, count), in any order and on any threads, and returns when
 * all are done. */
typedef void (*mn_parallel_for)(void *user, int64_t count, void (*task)(void *arg, int64_t index),
                                void *arg);

typedef struct mn_context_options {
    size_t size;              /* sizeof(mn_context_options) */
    const char *device;       /* "cpu" (default), or "cpu-deferred": for tests, runs work at sync */
    int threads;              /* 0: as many as this process may run on */
    mn_kernel_set kernels;    /* default MN_KERNELS_AUTO */
    mn_allocator allocator;   /* all NULL: the C library's */
    uint64_t memory_limit;    /* bytes of tensors and workspaces at once; 0: no limit */
    uint64_t seed;            /* of all random streams; default 1 */
    mn_parallel_for parallel; /* NULL: own worker threads */
    void *parallel_user;
    /* Told, once for each, of what is legal and hardly meant: backward through f16 values from a
     * loss that no grad scaler has scaled, in which small gradients become 0. NULL (default): not.
     */
    void (*warn)(void *user, const char *message);
    void *warn_user;
    /* 3x3 convolutions by Winograd's algorithm where a rule of their shapes says that it pays
     * (default true): as right as the direct way within a small factor, but with other bits. */
    bool winograd;
    /* Chains of layers run a convolution, linear layer or batch norm (at the end of mn_residual's
     * also the addition) and a ReLU after it as one op, mn_conv2d_relu, mn_linear_relu or
     * mn_batch_norm_relu, of the same bits, under the first one's name (default true). In training
     * a convolution also makes the statistics of a batch norm after it, sums of another order; and
     * a max pooling of 2x2 joins batch norm and ReLU, whose gradients are sums of another order. */
    bool fusion;
} mn_context_options;

MN_API mn_context_options mn_context_options_default(void);

/* Makes a context. On failure returns NULL and fills *error (which may be NULL). */
MN_API mn_context *mn_context_create(const mn_context_options *options, mn_error *error);
/* Waits for the device, ends all scopes and frees the context. Free what was made from it before
 * (modules, optimizers, scalers, state dictionaries): afterwards nothing but freeing works on it.
 * NULL is ignored. */
MN_API void mn_context_free(mn_context *context);

/* Status of the pending error (MN_OK if none), its text ("" if none; valid until the next clear),
 * and clearing it. */
MN_API mn_status mn_error_status(const mn_context *context);
MN_API const char *mn_error_message(const mn_context *context);
MN_API void mn_error_clear(mn_context *context);

/* Waits until all enqueued work has run; reports device errors. */
MN_API mn_status mn_synchronize(mn_context *context);
/* Sets the seed of the context's random streams: those of parameter initialisation and of dropout.
 * Loaders have a seed of their own. */
MN_API mn_status mn_seed(mn_context *context, uint64_t seed);
/* Where training is: step in [0, 2^40), micro-step within it in [0, 2^24). Calls of mn_dropout are
 * counted from 0 again, and their masks depend on seed, layer path, position and that count alone:
 * a step that is retried, or run after a resume, draws the same masks. The training loop sets it
 * before every micro-step. Without it calls are counted from the context's creation. */
MN_API mn_status mn_random_position(mn_context *context, int64_t step, int64_t micro_step);
/* Returns the pool's cached memory to the allocator. */
MN_API mn_status mn_memory_trim(mn_context *context);

typedef struct mn_memory_stats {
    uint64_t live_bytes;      /* in tensors and workspaces now */
    uint64_t peak_bytes;      /* most live at once since creation or mn_memory_reset_peak */
    uint64_t pool_bytes;      /* held by the pool, live or cached */
    uint64_t system_requests; /* how often the pool asked the allocator for memory */
} mn_memory_stats;
/* Getter; works while an error is pending. */
MN_API mn_memory_stats mn_memory_stats_get(const mn_context *context);
MN_API void mn_memory_reset_peak(mn_context *context);

/* What a context runs on. Plain value; strings live as long as the context. */
typedef struct mn_context_info {
    const char *device;   /* "cpu" or "cpu-deferred" */
    const char *cpu;      /* processor's name */
    const char *features; /* such as "avx2 fma f16c avx512f" */
    const char *kernels;  /* kernel set chosen: "reference", "portable", "avx2", "avx512", "neon" */
    int threads;
    const char *compiler; /* that built the library */
} mn_context_info;
MN_API mn_context_info mn_context_info_get(const mn_context *context);

/* Opens and closes a scope. Ending a scope releases the tensors that belong to it and ends scopes,
 * no-grad sections and autocast regions begun inside it, so that an early return leaks nothing. */
typedef struct mn_scope {
    uint64_t id;
} mn_scope;
MN_API mn_scope mn_scope_begin(mn_context *context);
MN_API void mn_scope_end(mn_context *context, mn_scope scope);
/* Keeps a tensor beyond its scope; each retain needs one release. Both accept NULL; retain returns
 * its argument. mn_scope_keep moves a tensor of the innermost scope into the scope around it. */
MN_API mn_tensor *mn_retain(mn_tensor *tensor);
MN_API void mn_release(mn_tensor *tensor);
MN_API mn_tensor *mn_scope_keep(mn_tensor *tensor);

/* Layer path used in messages and traces: push "conv1" before a layer's work, pop after. */
MN_API void mn_name_push(mn_context *context, const char *name);
MN_API void mn_name_pop(mn_context *context);

/* What an op ran for. */
typedef enum mn_direction {
    MN_FORWARD = 0,  /* called by a model or by a program */
    MN_BACKWARD = 1, /* applied by backward */
    MN_UPDATE = 2    /* of an optimizer, a scaler or a report */
} mn_direction;
/* "forward", "backward" or "update"; static storage. */
MN_API const char *mn_direction_name(mn_direction direction);

/* ---------------------------------------------------------------------------------------------
 * Tensors
 * ------------------------------------------------------------------------------------------ */

/* How memory order and file order of a tensor differ. */
typedef enum mn_layout {
    MN_LAYOUT_PLAIN = 0, /* the same */
    MN_LAYOUT_FILTER = 1 /* memory [K,R,S,C], file [K,C,R,S] */
} mn_layout;

/* New tensor of the scope, elements unspecified. shape has ndim entries >= 0 (NULL for ndim 0). */
MN_API mn_tensor *mn_tensor_create(mn_context *context, mn_dtype dtype, int ndim,
                                   const int64_t *shape);
/* New tensor of the scope with the elements at data (host memory, of that dtype, copied). */
MN_API mn_tensor *mn_tensor_from(mn_context *context, mn_dtype dtype, int ndim,
                                 const int64_t *shape, const void *data);
/* New tensor of the scope, every element = value. A finite value that is not finite in a floating
 * dtype, or does not fit an integer dtype, is an error. */
MN_API mn_tensor *mn_full(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                          double value);
/* New parameter: a named leaf that requires a gradient, owned by the caller (release it with
 * mn_release). Starts at zero. `name` is copied. */
MN_API mn_tensor *mn_parameter_create(mn_context *context, const char *name, mn_dtype dtype,
                                      int ndim, const int64_t *shape, mn_layout layout);

/* Getters; NULL gives 0 or NULL. */
MN_API mn_context *mn_tensor_context(const mn_tensor *tensor);
MN_API mn_dtype mn_tensor_dtype(const mn_tensor *tensor);
MN_API int mn_tensor_ndim(const mn_tensor *tensor);
MN_API const int64_t *mn_tensor_shape(const mn_tensor *tensor);
MN_API int64_t mn_tensor_numel(const mn_tensor *tensor);
MN_API size_t mn_tensor_bytes(const mn_tensor *tensor);
MN_API const char *mn_tensor_name(const mn_tensor *tensor); /* a parameter's name, else "" */
/* Version of the tensor's storage, shared by its views; every in-place write adds one. */
MN_API uint64_t mn_tensor_version(const mn_tensor *tensor);

/* Copies all elements to or from host memory; waits for the device. `bytes` must be
 * mn_tensor_bytes. Write bumps the version. */
MN_API mn_status mn_tensor_read(const mn_tensor *tensor, void *data, size_t bytes);
MN_API mn_status mn_tensor_write(mn_tensor *tensor, const void *data, size_t bytes);
/* As read and write, converting to and from doubles; count must be the number of elements. Writing
 * rounds to nearest even; what an integer dtype cannot hold is MN_ERR_DTYPE. */
MN_API mn_status mn_tensor_read_f64(const mn_tensor *tensor, double *data, int64_t count);
MN_API mn_status mn_tensor_write_f64(mn_tensor *tensor, const double *data, int64_t count);
/* The value of a one-element tensor; waits for the device. */
MN_API mn_status mn_tensor_item(const mn_tensor *tensor, double *value);
/* Waits and gives a pointer to the elements where the device's memory is host-visible, else
 * MN_ERR_DEVICE and NULL. data_mut bumps the version; mark_dirty does so for later writes. */
MN_API const void *mn_tensor_data(const mn_tensor *tensor);
MN_API void *mn_tensor_data_mut(mn_tensor *tensor);
MN_API mn_status mn_tensor_mark_dirty(mn_tensor *tensor);
/* dst = src, element by element, converted to dst's dtype (round to nearest even). Same shape. Not
 * recorded; a dst that is part of a graph being recorded is an error. */
MN_API mn_status mn_tensor_copy(mn_tensor *dst, const mn_tensor *src);
/* Every element = value, checked as in mn_full. */
MN_API mn_status mn_tensor_fill(mn_tensor *tensor, double value);
/* Arithmetic in place, on floating tensors; refuses what mn_tensor_copy refuses and bumps the
 * version. Computed in f32 (f64 for f64), rounded once to the tensor's dtype.
 *   add    dst += alpha src; same shape, dtypes may differ
 *   scale  x = factor x + shift
 *   clamp  x = min(max(x, low), high), NaN staying; either limit may be infinite, none NaN */
MN_API mn_status mn_tensor_add(mn_tensor *dst, const mn_tensor *src, double alpha);
MN_API mn_status mn_tensor_scale(mn_tensor *tensor, double factor, double shift);
MN_API mn_status mn_tensor_clamp(mn_tensor *tensor, double low, double high);

/* ---------------------------------------------------------------------------------------------
 * Ops. Each returns a new tensor of the scope, recorded for backward if an input requires a
 * gradient. Inputs of 16 bit are computed with in f32 and the result, which has their dtype where
 * nothing else is said, is rounded once. NaN goes through. Inside an autocast region inputs are
 * first cast by the op's rule.
 *
 * Of a + b and its like the shapes broadcast as NumPy's and mixed dtypes promote as PyTorch's (f16
 * with bf16 gives f32); where that is not said, dtypes must be equal. NULL is returned, and the
 * error names op, layer path, shapes and dtypes, for MN_ERR_SHAPE (shapes do not fit), MN_ERR_DTYPE
 * (other dtypes), MN_ERR_ARGUMENT (an axis or option out of range, NULL where a tensor is needed).
 * Integers are added, multiplied, compared and reduced as f64, which is exact up to 2^53.
 * ------------------------------------------------------------------------------------------ */

/* -- moving and converting elements -- */

/* y = x in another dtype, rounded to nearest even. To an integer dtype, without a gradient:
 * floating values are truncated toward zero and saturate (NaN gives 0), integers wrap. */
MN_API mn_tensor *mn_cast(mn_tensor *x, mn_dtype dtype);
/* y = x, own storage. */
MN_API mn_tensor *mn_clone(mn_tensor *x);
/* A view of x's storage with another shape of as many elements; one entry may be -1 (inferred). */
MN_API mn_tensor *mn_reshape(mn_tensor *x, int ndim, const int64_t *shape);
/* y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...], copied into row-major order; axes is a
 * permutation of 0..ndim-1 and output axis j is input axis axes[j]. */
MN_API mn_tensor *mn_permute(mn_tensor *x, int ndim, const int *axes);
/* y = elements start to end - 1 along axis, copied. Negative positions count from the end; what is
 * out of range is cut off, as in Python's slices, so that INT64_MAX stands for the end. A negative
 * axis counts from the end, here and below. */
MN_API mn_tensor *mn_slice(mn_tensor *x, int axis, int64_t start, int64_t end);
/* x with before[i] elements of the value put in front of axis i and after[i] behind it; negative
 * amounts take elements away, as torch.nn.functional.pad does. Both arrays have an entry per axis;
 * NULL: all 0. The value is checked as in mn_full. */
MN_API mn_tensor *mn_pad(mn_tensor *x, const int64_t *before, const int64_t *after, double value);
/* The tensors, 1 to 8 of them, one after the other along axis; elsewhere their extents are equal.
 * Mixed dtypes promote. As torch.cat. */
MN_API mn_tensor *mn_concat(mn_tensor *const *tensors, int count, int axis);
/* y[i][j][k] = x[i][index[i][j][k]][k] for axis 1 of 3, as torch.gather. index: i64, with x's
 * number of axes and, but along axis, extents no larger than x's; y has its shape. An index outside
 * of [0, extent) is MN_ERR_ARGUMENT, reported when the work has run: on "cpu" at once. */
MN_API mn_tensor *mn_gather(mn_tensor *x, int axis, mn_tensor *index);
/* y = x, then y[i][index[i][j][k]][k] += src[i][j][k] for axis 1 of 3, in order of j; sums of 16
 * bit in f32, rounded once. index as in mn_gather; src has its shape (torch.scatter_add also takes
 * a larger one, of which it then uses a part). x and src promote. */
MN_API mn_tensor *mn_scatter_add(mn_tensor *x, int axis, mn_tensor *index, mn_tensor *src);
/* y[..., c] = 1 where c = labels[...], else 0, for labels i64 of at most 5 axes and `classes` >= 1
 * values of c, in the given dtype. Labels out of range as in mn_gather. No gradient. */
MN_API mn_tensor *mn_one_hot(mn_tensor *labels, int64_t classes, mn_dtype dtype);
/* Training: y = x keep / (1 - p) for floating x, where each element is kept with probability 1 - p
 * (Srivastava et al. 2014), p in [0, 1]; p = 1 gives x 0. Else, and for p = 0, a view of x. keep
 * depends on what mn_random_position tells and on the element's index, not on dtype or threads; it
 * is drawn again in backward, not stored (Philox4x32-10: kept if word i of the stream is at least
 * floor(p 2^32)).
 */
MN_API mn_tensor *mn_dropout(mn_tensor *x, double p, bool training);

/* -- element by element -- */

/* What stands before mn_leaky_relu takes every dtype, division and powers apart. */

/* y = a + b, a - b, a * b, a / b and a^b, element by element with broadcasting. Division and powers
 * take floating operands only: cast integers first. Gradients of a^b at the borders as PyTorch's: 0
 * in a where b = 0, and in b where a = 0 and b >= 0. */
MN_API mn_tensor *mn_add(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_sub(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_mul(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_div(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_pow(mn_tensor *a, mn_tensor *b);
/* The smaller and the larger of a and b, with broadcasting; NaN if one of them is. Where they are
 * equal each gets half of the gradient. */
MN_API mn_tensor *mn_minimum(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_maximum(mn_tensor *a, mn_tensor *b);
/* y = 1 where a = b (or !=, <, <=, >, >=), else 0, as u8, with broadcasting; operands are promoted
 * first. With NaN only != holds. No gradient. */
MN_API mn_tensor *mn_eq(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_ne(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_lt(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_le(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_gt(mn_tensor *a, mn_tensor *b);
MN_API mn_tensor *mn_ge(mn_tensor *a, mn_tensor *b);
/* y = a where condition (u8) is not 0, else b; all three broadcast. What is not chosen, NaN as
 * well, has no effect and gets gradient 0. */
MN_API mn_tensor *mn_where(mn_tensor *condition, mn_tensor *a, mn_tensor *b);
/* y = max(x, 0); NaN stays NaN; the gradient at 0 is 0. */
MN_API mn_tensor *mn_relu(mn_tensor *x);
/* From here to the reductions inputs are floating, where nothing else is said. */

/* y = x <= 0 ? slope x : x, and y = min(max(x, low), high), where infinite bounds bind nothing;
 * NaN stays NaN. Clamping passes the gradient where low <= x <= high. Where x is NaN, the
 * gradient passes these and |x| unchanged (0 in PyTorch's clamp and abs). */
MN_API mn_tensor *mn_leaky_relu(mn_tensor *x, double slope);
MN_API mn_tensor *mn_clamp(mn_tensor *x, double low, double high);
/* y = -x, |x| (gradient 0 at 0), x + s, x s, and x^exponent, as C's pow at the borders (without a
 * gradient for exponent 0). */
MN_API mn_tensor *mn_neg(mn_tensor *x);
MN_API mn_tensor *mn_abs(mn_tensor *x);
MN_API mn_tensor *mn_add_scalar(mn_tensor *x, double s);
MN_API mn_tensor *mn_mul_scalar(mn_tensor *x, double s);
MN_API mn_tensor *mn_pow_scalar(mn_tensor *x, double exponent);
/* y = e^x, log x (natural), sqrt(x), 1 / sqrt(x). */
MN_API mn_tensor *mn_exp(mn_tensor *x);
MN_API mn_tensor *mn_log(mn_tensor *x);
MN_API mn_tensor *mn_sqrt(mn_tensor *x);
MN_API mn_tensor *mn_rsqrt(mn_tensor *x);
/* y = tanh x, sigmoid(x) = 1 / (1 + e^-x), x sigmoid(x), and x Phi(x), Phi(x) =
 * (1 + erf(x / sqrt(2))) / 2: GELU, exact (Hendrycks and Gimpel, arXiv 1606.08415). The last two
 * are NaN at minus infinity, as PyTorch's. */
MN_API mn_tensor *mn_tanh(mn_tensor *x);
MN_API mn_tensor *mn_sigmoid(mn_tensor *x);
MN_API mn_tensor *mn_silu(mn_tensor *x);
MN_API mn_tensor *mn_gelu(mn_tensor *x);

/* -- products and convolution -- */

/* y = a b for a [..., M, K] and b [..., K, N], both of at least 2 axes; leading axes broadcast;
 * y [..., M, N]. 16-bit products accumulate in f32. */
MN_API mn_tensor *mn_matmul(mn_tensor *a, mn_tensor *b);
/* y = x w^T + b for x [..., I], w [O, I], b [O] or NULL; y [..., O]. */
MN_API mn_tensor *mn_linear(mn_tensor *x, mn_tensor *w, mn_tensor *b);
/* y = mn_relu(mn_linear(x, w, b)), the same bits. */
MN_API mn_tensor *mn_linear_relu(mn_tensor *x, mn_tensor *w, mn_tensor *b);

typedef struct mn_conv2d_options {
    size_t size;
    int stride[2], padding[2], dilation[2]; /* height, width; defaults 1, 0, 1 */
    int groups;                             /* default 1 */
} mn_conv2d_options;
MN_API mn_conv2d_options mn_conv2d_options_default(void);
/* Cross-correlation: y[n,p,q,k] = b[k] + sum_{r,s,c} x[n, p*stride - padding + r*dilation, ..., c]
 * w[k,r,s,c], zero outside the image. x [N,H,W,C], w [K,R,S,C/groups], b [K] or NULL,
 * y [N,P,Q,K] with P = floor((H + 2*padding - dilation*(R-1) - 1) / stride) + 1, Q likewise. C and
 * K are multiples of groups. As torch.nn.functional.conv2d. */
MN_API mn_tensor *mn_conv2d(mn_tensor *x, mn_tensor *w, mn_tensor *b,
                            const mn_conv2d_options *options);
/* y = mn_relu(mn_conv2d(x, w, b, options)), the same bits. */
MN_API mn_tensor *mn_conv2d_relu(mn_tensor *x, mn_tensor *w, mn_tensor *b,
                                 const mn_conv2d_options *options);

/* -- pooling and resizing -- */

typedef struct mn_pool2d_options {
    size_t size;
    int kernel[2];        /* height, width; default 2 */
    int stride[2];        /* 0 (default): the kernel's size */
    int padding[2];       /* default 0; at most half the kernel */
    bool exclude_padding; /* average: over the pixels inside of the image only; default false */
} mn_pool2d_options;
MN_API mn_pool2d_options mn_pool2d_options_default(void);
/* y[n,p,q,c] = largest element of the window, NaN if it holds one; the gradient goes to the first
 * largest (or first NaN). x [N,H,W,C]; y [N,P,Q,C], P = floor((H + 2 padding - kernel) / stride) +
 * 1; padding never wins. */
MN_API mn_tensor *mn_max_pool2d(mn_tensor *x, const mn_pool2d_options *options);
/* y[n,p,q,c] = sum over the window / elements of the kernel, padding being zeros; with
 * exclude_padding / pixels of the window inside of the image. Shapes as of mn_max_pool2d; sums in
 * f32. */
MN_API mn_tensor *mn_avg_pool2d(mn_tensor *x, const mn_pool2d_options *options);
/* y[n,c] = mean over h, w of x[n,h,w,c], x [N,H,W,C] and y [N,C]; sums in f32. Runs the op mean,
 * whose autocast rule is thus its own. */
MN_API mn_tensor *mn_global_avg_pool2d(mn_tensor *x);

typedef enum mn_upsample_mode {
    MN_UPSAMPLE_NEAREST = 0, /* pixel floor(i * in / out), in f32 as PyTorch's */
    MN_UPSAMPLE_BILINEAR = 1 /* mean of the four pixels around, weighted by closeness */
} mn_upsample_mode;
typedef struct mn_upsample2d_options {
    size_t size;
    int height, width;     /* of the result, at least 1; no default */
    mn_upsample_mode mode; /* default MN_UPSAMPLE_NEAREST */
    bool align_corners;    /* bilinear: pixel i lies at i (in - 1) / (out - 1) instead of at
                              max(0, (i + 1/2) in / out - 1/2); default false, as nearest wants */
} mn_upsample2d_options;
MN_API mn_upsample2d_options mn_upsample2d_options_default(void);
/* Images [N,H,W,C] in another size, larger or smaller, without smoothing: as PyTorch's interpolate
 * with a size. y [N,height,width,C]. Inside an autocast region in f32. */
MN_API mn_tensor *mn_upsample2d(mn_tensor *x, const mn_upsample2d_options *options);

/* -- normalization -- */

typedef struct mn_batch_norm_options {
    size_t size;
    double eps;      /* default 1e-5 */
    double momentum; /* default 0.1; weight of the new batch in the running statistics */
    bool training;   /* true: batch statistics, and running statistics are updated */
} mn_batch_norm_options;
MN_API mn_batch_norm_options mn_batch_norm_options_default(void);
/* y = (x - mean) / sqrt(var + eps) * weight + bias per channel of x [N, ..., C]; Ioffe and Szegedy
 * 2015, arXiv 1502.03167. Training: biased batch variance, of more than one value; running[1] takes
 * the unbiased one. running: mean and variance, needed in both modes, and their count (i64 scalar,
 * may be NULL); a batch whose statistics are not finite is never taken into them. Weight, bias and
 * both are [C], f32 also for 16-bit x (f64 for f64); y has x's dtype. */
MN_API mn_tensor *mn_batch_norm(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                                mn_tensor *const running[3], const mn_batch_norm_options *options);
/* y = mn_relu(mn_add(mn_batch_norm(x, ...), residual)), or without a residual (NULL) of the batch
 * norm alone: the same bits in fewer passes over memory. residual has x's dtype and shape. */
MN_API mn_tensor *mn_batch_norm_relu(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                                     mn_tensor *const running[3], mn_tensor *residual,
                                     const mn_batch_norm_options *options);
/* y = (x - mean) / sqrt(var + eps) * weight + bias with mean and biased variance over the last
 * `axes` axes, whose shape weight and bias have; Ba et al. 2016, arXiv 1607.06450. Either may be
 * NULL: 1 and 0. They are f32 also for 16-bit x (f64 for f64); y has x's dtype; inside an autocast
 * region in f32. eps >= 0, PyTorch's default is 1e-5. Nothing to normalize over is MN_ERR_SHAPE. */
MN_API mn_tensor *mn_layer_norm(mn_tensor *x, int axes, mn_tensor *weight, mn_tensor *bias,
                                double eps);
/* The same for x [N, ..., C] over all positions of an image and a group of C / groups channels, C a
 * multiple of groups; weight and bias [C]; Wu and He 2018, arXiv 1803.08494. */
MN_API mn_tensor *mn_group_norm(mn_tensor *x, int groups, mn_tensor *weight, mn_tensor *bias,
                                double eps);

/* -- softmax and losses -- */

/* Along `axis` (negative counts from the end): y = x - max - log(sum(exp(x - max))), and exp of
 * that. Inside an autocast region 16-bit input gives f32. */
MN_API mn_tensor *mn_log_softmax(mn_tensor *x, int axis);
MN_API mn_tensor *mn_softmax(mn_tensor *x, int axis);

/* What becomes of the losses of the rows or elements: their mean, their sum, or all of them. All
 * losses are f32 (f64 for f64), also those of 16-bit inputs, and all sums are made in f32 or wider.
 * The mean of nothing is NaN. */
typedef enum mn_reduction {
    MN_REDUCTION_MEAN = 0,
    MN_REDUCTION_SUM = 1,
    MN_REDUCTION_NONE = 2
} mn_reduction;

typedef struct mn_cross_entropy_options {
    size_t size;
    mn_tensor *weight;      /* of the classes, f32 [classes] (f64 for f64 logits); NULL: all 1 */
    int64_t ignore_index;   /* rows with this label count for nothing; default -100; not above -1
                               where the target is probabilities */
    double label_smoothing; /* in [0, 1], default 0: the share spread evenly over all classes */
    mn_reduction reduction; /* default mean */
} mn_cross_entropy_options;
MN_API mn_cross_entropy_options mn_cross_entropy_options_default(void);
/* Loss of row n: -sum_c w[c] (t[n,c] (1 - s) + s / classes) log_softmax(logits)[n,c], w the weight,
 * s the smoothing. logits [N, classes]; target: labels i64 [N], where t is 1 for the label's class
 * and else 0, or t itself, floating [N, classes]. The mean divides by the sum of w[label] over the
 * rows that count, for probabilities by N; NONE gives [N]. As PyTorch's, but no gradient flows to
 * the target. A label out of range is MN_ERR_ARGUMENT, reported when the work has run: on "cpu" at
 * once. options NULL: the defaults. */
MN_API mn_tensor *mn_cross_entropy(mn_tensor *logits, mn_tensor *target,
                                   const mn_cross_entropy_options *options);
/* The same for logarithms of probabilities, as mn_log_softmax gives them, and labels: loss of row n
 * = -w[label] x[n, label]. label_smoothing must be 0. */
MN_API mn_tensor *mn_nll_loss(mn_tensor *log_probabilities, mn_tensor *labels,
                              const mn_cross_entropy_options *options);

/* Losses of each element of x and target, which have the same shape (nothing broadcasts) and, after
 * the autocast rule, the same dtype: (x - t)^2, |x - t| (its gradient at 0 is 0), and Huber's
 * (1964) d^2 / 2 for d = |x - t| up to delta > 0 and delta (d - delta / 2) beyond. Both may take a
 * gradient. As PyTorch's. */
MN_API mn_tensor *mn_mse_loss(mn_tensor *x, mn_tensor *target, mn_reduction reduction);
MN_API mn_tensor *mn_l1_loss(mn_tensor *x, mn_tensor *target, mn_reduction reduction);
MN_API mn_tensor *mn_huber_loss(mn_tensor *x, mn_tensor *target, double delta,
                                mn_reduction reduction);
/* -t log p - (1 - t) log(1 - p) with p = sigmoid(x), worked out without overflow or cancellation,
 * and with p given. An infinite x costs 0 where it is right, with t 1 or 0 (NaN in PyTorch). No
 * gradient flows to the target. As PyTorch's: the logarithms of a given p are at least -100, and a
 * p outside of [0, 1] is MN_ERR_ARGUMENT when the work has run. Gradients in p exceed what 16 bit
 * holds, so mn_binary_cross_entropy refuses to run in an autocast region. */
MN_API mn_tensor *mn_binary_cross_entropy_with_logits(mn_tensor *x, mn_tensor *target,
                                                      mn_reduction reduction);
MN_API mn_tensor *mn_binary_cross_entropy(mn_tensor *p, mn_tensor *target, mn_reduction reduction);

/* -- reductions -- */

/* Sum or mean over the given axes (naxes 0: all; none twice), which disappear unless keep.
 * Accumulates in f32 (f64 for f64). Integers: sum gives i64, mean is an error, as are mn_norm and
 * mn_var. Inside an autocast region the sum of 16-bit input is f32. */
MN_API mn_tensor *mn_sum(mn_tensor *x, int naxes, const int *axes, bool keep);
MN_API mn_tensor *mn_mean(mn_tensor *x, int naxes, const int *axes, bool keep);
/* Largest or smallest element over the axes, as torch.amax and torch.amin; NaN wins. The gradient
 * is shared evenly among equal ones. Every dtype. An empty axis is MN_ERR_SHAPE. */
MN_API mn_tensor *mn_amax(mn_tensor *x, int naxes, const int *axes, bool keep);
MN_API mn_tensor *mn_amin(mn_tensor *x, int naxes, const int *axes, bool keep);
/* (sum |x|^p)^(1/p) over the axes for p = 1 or 2, the largest |x| for p = INFINITY, as
 * torch.linalg.vector_norm. Accumulates in f64; inside an autocast region 16-bit input gives f32.
 * The gradient at 0 is 0; for INFINITY it is shared as in mn_amax. */
MN_API mn_tensor *mn_norm(mn_tensor *x, double p, int naxes, const int *axes, bool keep);
/* Variance over the axes, sum (x - mean)^2 / max(0, n - correction), as torch.var: correction 1 is
 * the unbiased one; it is finite. Two passes, accumulates in f64. */
MN_API mn_tensor *mn_var(mn_tensor *x, double correction, int naxes, const int *axes, bool keep);
/* Scalar sum of a[i] * b[i] over floating vectors of equal length. */
MN_API mn_tensor *mn_dot(mn_tensor *a, mn_tensor *b);
/* Index (i64) of the first largest element along axis, which disappears; the first NaN wins. Every
 * dtype; an empty axis is MN_ERR_SHAPE. No gradient. */
MN_API mn_tensor *mn_argmax(mn_tensor *x, int axis);

/* -- the table of ops -- */

/* When an op's inputs are cast inside an autocast region. */
typedef enum mn_cast_rule {
    MN_CAST_KEEP = 0,     /* runs in the dtype of its inputs */
    MN_CAST_LOWER = 1,    /* eligible inputs to the region's 16-bit dtype */
    MN_CAST_FP32 = 2,     /* eligible inputs to f32 */
    MN_CAST_FP32_OUT = 3, /* 16-bit input read directly, f32 result */
    MN_CAST_PROMOTE = 4,  /* eligible inputs to the widest of them */
    MN_CAST_REFUSE = 5    /* an error in any enabled region; the message names the alternative */
} mn_cast_rule;
MN_API const char *mn_cast_rule_name(mn_cast_rule rule);

/* How a call of an op was served. */
typedef enum mn_served_by {
    MN_SERVED_NONE = 0,      /* not at all */
    MN_SERVED_KERNEL = 1,    /* by an own fast kernel */
    MN_SERVED_REFERENCE = 2, /* by the plain kernel */
    MN_SERVED_WIDENED = 3,   /* by the f32 kernel, with casts around it */
    MN_SERVED_VIEW = 4,      /* nothing had to run */
    MN_SERVED_SHADOW = 5     /* a cast, by a parameter's 16-bit copy that was there already */
} mn_served_by;
/* "kernel", "reference", ...; static storage. */
MN_API const char *mn_served_by_name(mn_served_by served);

/* One row of the op table. Strings are static. */
typedef struct mn_op_info {
    const char *name;
    mn_cast_rule rule_cpu, rule_cuda;
    bool differentiable;
    uint32_t reference_dtypes; /* bit 1 << dtype: the plain kernel takes it */
    uint32_t cpu_dtypes;       /* bit 1 << dtype: an own fast kernel takes it */
    const char *summary;       /* one line: the formula */
    const char *functions;     /* of this header that run it, such as "mn_pad mn_slice"; "": it is
                                  run by backward only */
} mn_op_info;
/* Number of built-in ops, and row i of the table; false for i out of range. */
MN_API int mn_op_count(void);
MN_API bool mn_op_info_get(int index, mn_op_info *info);

/* ---------------------------------------------------------------------------------------------
 * Autograd
 * ------------------------------------------------------------------------------------------ */

/* Whether gradients of leaves are wanted. Only floating tensors (else MN_ERR_DTYPE) that are not
 * the result of a recorded op (else MN_ERR_STATE: detach it) may ask. True for such results, too,
 * where they depend on a leaf that asks. */
MN_API bool mn_requires_grad(const mn_tensor *tensor);
MN_API mn_status mn_set_requires_grad(mn_tensor *tensor, bool value);
/* A leaf's gradient (borrowed, f32; f64 for f64 leaves), NULL if it has none. */
MN_API mn_tensor *mn_grad(const mn_tensor *tensor);
/* What a leaf's gradient holds. */
typedef enum mn_grad_state {
    MN_GRAD_NONE = 0,
    MN_GRAD_PLAIN = 1,   /* from mn_backward */
    MN_GRAD_SCALED = 2,  /* times the loss scale */
    MN_GRAD_UNSCALED = 3 /* was scaled, the scale has been divided out */
} mn_grad_state;
MN_API mn_grad_state mn_grad_state_get(const mn_tensor *tensor);
/* Forgets the gradient (state NONE): what mn_grad gave is valid no more, unless retained. */
MN_API mn_status mn_zero_grad(mn_tensor *tensor);
/* A view that is not part of the graph. */
MN_API mn_tensor *mn_detach(mn_tensor *x);

/* Between begin and end nothing is recorded. Sections nest. */
MN_API void mn_no_grad_begin(mn_context *context);
MN_API void mn_no_grad_end(mn_context *context);

/* Adds d(weight * root)/d(leaf) into the gradient of every leaf that root depends on. root: one
 * element (else MN_ERR_SHAPE); one that depends on no such leaf is MN_ERR_NO_GRADIENT. The graph is
 * freed as it is used: a second backward through it is MN_ERR_STATE; a saved tensor that was
 * written to since is MN_ERR_VERSION. After a failure gradients are invalid until mn_zero_grad. */
MN_API mn_status mn_backward(mn_tensor *root, double weight);
/* d(root)/d(inputs[i]) as gradients[i], tensors of the scope in the inputs' dtypes and shapes (uses
 * of one input are summed in its dtype); as torch.autograd.grad. root: one element. Inputs: leaves
 * or results that require a gradient; the gradient of no leaf is touched. create_graph: the
 * gradients are recorded, so that a penalty on them or gradients of them can be taken, and the
 * graph of root is kept; else what of it was used is freed. Only ops whose backward is made of
 * differentiable ops can be differentiated twice; others (max pooling, batch, layer and group norm,
 * the losses) are MN_ERR_UNSUPPORTED, naming the op, where create_graph meets them. An input that
 * root does not depend on is MN_ERR_NO_GRADIENT; zeros are given where the derivative is zero.
 * create_graph inside of a no-grad section is MN_ERR_STATE. On failure all gradients are NULL. */
MN_API mn_status mn_gradients(mn_tensor *root, mn_tensor *const *inputs, int count,
                              bool create_graph, mn_tensor **gradients);

typedef struct mn_gradcheck_options {
    size_t size;
    double step;      /* of the central differences, default 1e-6 */
    double tolerance; /* relative to max(1, |gradient|), default 1e-5 */
    double *worst;    /* receives the largest error met, relative as above; default NULL */
} mn_gradcheck_options;
MN_API mn_gradcheck_options mn_gradcheck_options_default(void);
/* Builds a function's result from inputs; returns NULL on failure. Called many times; where it
 * takes gradients itself (mn_gradients), derivatives of higher order are checked. */
typedef mn_tensor *(*mn_function)(mn_context *context, mn_tensor **inputs, int count, void *user);
/* Compares the gradient of sum(c * function(inputs)), c fixed pseudo-random, with central
 * differences for every element of every input that requires a gradient. Inputs must be f64.
 * MN_ERR_MISMATCH names input, element and both values. Refuses to start with an error pending. */
MN_API mn_status mn_gradcheck(mn_context *context, mn_function function, void *user,
                              mn_tensor **inputs, int count, const mn_gradcheck_options *options);

/* ---------------------------------------------------------------------------------------------
 * Optimizers and schedules
 * ------------------------------------------------------------------------------------------ */

typedef struct mn_optimizer mn_optimizer;

/* Learning rate as a function of the number of APPLIED steps t. ONE_CYCLE (arXiv 1708.07120) is
 * torch's OneCycleLR with lr as the maximum, its default numbers and no cycle of the momentum: by
 * cosine from lr / 25 up to lr at 0.3 T - 1, then down to lr / 250000 at T - 1. */
typedef enum mn_schedule_kind {
    MN_SCHEDULE_CONSTANT = 0, /* lr */
    MN_SCHEDULE_COSINE = 1,   /* lr * (1 + cos(pi * min(t, T) / T)) / 2; arXiv 1608.03983 */
    MN_SCHEDULE_STEP = 2,     /* lr * gamma^floor(t / step_size) */
    MN_SCHEDULE_ONE_CYCLE = 3
} mn_schedule_kind;
typedef struct mn_schedule {
    mn_schedule_kind kind;
    int64_t total_steps; /* T, the planned number of steps; COSINE and ONE_CYCLE need it */
    int64_t step_size;   /* STEP needs it, above 0 */
    double gamma;        /* STEP; 0: 0.1 */
    /* W first steps of lr (t + 1) / (W + 1), then the schedule with t - W and T - W; 0: none, as
     * ONE_CYCLE wants it, which warms up itself. */
    int64_t warmup_steps;
} mn_schedule;

/* How the f32 result of an update gets into a 16-bit parameter; f32 and f64 ones are not rounded.
 * Nearest loses updates below half of the distance to the next number. Master keeps an f32 copy of
 * each 16-bit parameter (state "master"), which is stepped and rounded to nearest; an element that
 * something else has set to another number than its copy rounds to is copied anew by the next
 * applied step. Stochastic, for bf16 alone, takes one of the two numbers around the result, with
 * probabilities that make it the mean (beyond the largest finite number: that or infinity), drawn
 * from the context's seed, the parameter's name (or place, if it has none) and the count of applied
 * steps. */
typedef enum mn_rounding {
    MN_ROUNDING_NEAREST,
    MN_ROUNDING_MASTER,
    MN_ROUNDING_STOCHASTIC
} mn_rounding;

typedef struct mn_sgd_options {
    size_t size;
    double lr;            /* default 0.01 */
    double momentum;      /* default 0 */
    double weight_decay;  /* default 0; added to the gradient: g += weight_decay * p */
    bool nesterov;        /* default false; needs momentum > 0 */
    mn_schedule schedule; /* default constant */
    mn_rounding rounding; /* default nearest */
} mn_sgd_options;
MN_API mn_sgd_options mn_sgd_options_default(void);

/* Stochastic gradient descent as PyTorch's: g += weight_decay p; v = momentum v + g; step along v
 * (Nesterov: g + momentum v); p -= lr * step. Keeps the parameters alive. Free with
 * mn_optimizer_free. */
MN_API mn_optimizer *mn_sgd_create(mn_context *context, mn_tensor *const *parameters, int count,
                                   const mn_sgd_options *options);

typedef struct mn_adam_options {
    size_t size;
    double lr;            /* default 1e-3 */
    double beta1, beta2;  /* default 0.9, 0.999; in [0, 1) */
    double eps;           /* default 1e-8 */
    double weight_decay;  /* default 0; AdamW 1e-2 */
    bool decoupled;       /* AdamW: p -= lr weight_decay p, instead of g += weight_decay p */
    mn_schedule schedule; /* default constant */
    mn_rounding rounding; /* default nearest */
} mn_adam_options;
MN_API mn_adam_options mn_adam_options_default(void);
MN_API mn_adam_options mn_adamw_options_default(void);

/* Adam (Kingma and Ba, arXiv 1412.6980) and AdamW (Loshchilov and Hutter, arXiv 1711.05101) as
 * PyTorch's: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr (m / (1 -
 * beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps). t is the number of the optimizer's applied steps,
 * this one included; skipped ones do not count. Ownership as mn_sgd_create. */
MN_API mn_optimizer *mn_adam_create(mn_context *context, mn_tensor *const *parameters, int count,
                                    const mn_adam_options *options);

typedef struct mn_rmsprop_options {
    size_t size;
    double lr;            /* default 0.01 */
    double alpha;         /* default 0.99; in [0, 1) */
    double eps;           /* default 1e-8 */
    double momentum;      /* default 0; in [0, 1) */
    double weight_decay;  /* default 0; added to the gradient: g += weight_decay * p */
    mn_schedule schedule; /* default constant */
    mn_rounding rounding; /* default nearest */
} mn_rmsprop_options;
MN_API mn_rmsprop_options mn_rmsprop_options_default(void);

/* RMSprop as PyTorch's: s = alpha s + (1 - alpha) g^2; step = g / (sqrt(s) + eps), or with momentum
 * b = momentum b + that, step = b; p -= lr step. Ownership as mn_sgd_create. */
MN_API mn_optimizer *mn_rmsprop_create(mn_context *context, mn_tensor *const *parameters, int count,
                                       const mn_rmsprop_options *options);
MN_API void mn_optimizer_free(mn_optimizer *optimizer);

typedef struct mn_param_group_options {
    size_t size;
    double lr, weight_decay; /* default NAN: those that the optimizer was made with */
} mn_param_group_options;
MN_API mn_param_group_options mn_param_group_options_default(void);
/* More parameters, with a learning rate and weight decay of their own; the schedule multiplies all
 * learning rates. Group 0 is what the optimizer was made with, each call makes the next. Until the
 * first step or load; no parameter may come twice. On an error nothing is added. */
MN_API mn_status mn_optimizer_add_group(mn_optimizer *optimizer, mn_tensor *const *parameters,
                                        int count, const mn_param_group_options *options);
/* Sets the learning rate of a group, which the schedule multiplies; between steps. Like all options
 * it is not saved. */
MN_API mn_status mn_optimizer_set_lr(mn_optimizer *optimizer, int group, double lr);

/* What became of a step. */
typedef enum mn_step_outcome { MN_STEP_APPLIED = 0, MN_STEP_SKIPPED = 1 } mn_step_outcome;

/* Applies the gradients of all parameters that have one (MN_ERR_NO_GRADIENT if none has;
 * MN_ERR_STATE if they are still scaled, or if a scaler has unscaled them and its update is over).
 * Without a scaler a step is always applied. */
MN_API mn_status mn_optimizer_step(mn_optimizer *optimizer);
/* Forgets all gradients. After an error was cleared, this is what to go on from: a step that was
 * begun and not finished is forgotten as well. */
MN_API mn_status mn_optimizer_zero_grad(mn_optimizer *optimizer);
/* Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm the 2-norm over all of them
 * (Pascanu et al. 2013, arXiv 1211.5063). max_norm INFINITY measures only. Gradients that are still
 * scaled are an error: unscale first. *norm, if given, gets the norm (waits for the device). */
MN_API mn_status mn_clip_grad_norm(mn_optimizer *optimizer, double max_norm, double *norm);
/* Every element of every gradient to [-limit, limit]; NaN stays. limit > 0. Gradients that are
 * still scaled are an error. */
MN_API mn_status mn_clip_grad_value(mn_optimizer *optimizer, double limit);

typedef struct mn_optimizer_stats {
    int64_t applied, skipped; /* steps */
    int64_t nonfinite;        /* steps whose gradient was not finite (measured or skipped) */
    double lr;                /* of the next step, of group 0 */
    double grad_norm;         /* last norm measured */
} mn_optimizer_stats;
/* Waits for the device. */
MN_API mn_status mn_optimizer_stats_get(mn_optimizer *optimizer, mn_optimizer_stats *stats);

/* Exponential moving average of parameters (Polyak and Juditsky 1992), in f32 (f64 for f64), that
 * begins at their values. */
typedef struct mn_ema mn_ema;
typedef struct mn_ema_options {
    size_t size;
    double decay; /* default 0.999; in [0, 1] */
} mn_ema_options;
MN_API mn_ema_options mn_ema_options_default(void);
/* Keeps the parameters alive. Free with mn_ema_free; while swapped, the parameters then keep the
 * averages. */
MN_API mn_ema *mn_ema_create(mn_context *context, mn_tensor *const *parameters, int count,
                             const mn_ema_options *options);
MN_API void mn_ema_free(mn_ema *ema);
/* average = decay average + (1 - decay) p, after a step; nothing if that step of `optimizer` was
 * skipped, which the device decides. optimizer NULL: always. An error while swapped. */
MN_API mn_status mn_ema_update(mn_ema *ema, const mn_optimizer *optimizer);
/* Puts the averages into the parameters, for evaluation; the next call puts the parameters' own
 * values back, bit for bit, whatever was written into them since. A step in between is
 * MN_ERR_STATE. */
MN_API mn_status mn_ema_swap(mn_ema *ema);

/* ---------------------------------------------------------------------------------------------
 * Automatic mixed precision: autocast and loss scaling, then what shows where 16 bits do harm:
 * trace, shadow check, monitor
 * ------------------------------------------------------------------------------------------ */

/* -- autocast -- */

/* Opens a region in which every op's inputs are cast by its rule, to `dtype` (MN_F16 or MN_BF16)
 * where the rule lowers; MN_F32 opens a disabled region, in which nothing is cast; others are
 * MN_ERR_DTYPE. Regions nest, and belong to the context, whatever thread uses it. Rules are those
 * of PyTorch's CUDA lists on every device. Inputs that are no floats, or f64, and ops that only
 * write in place are left alone. end closes the innermost one (MN_ERR_STATE without one). */
MN_API mn_status mn_autocast_begin(mn_context *context, mn_dtype dtype);
MN_API mn_status mn_autocast_end(mn_context *context);
/* The dtype of the innermost region; MN_F32 when disabled or outside. */
MN_API mn_dtype mn_autocast_dtype(const mn_context *context);
/* Overrides an op's rule in this context, the op named as in the table of ops (MN_ERR_ARGUMENT if
 * there is none, and for MN_CAST_FP32_OUT where it is not the op's own rule); restored by
 * mn_autocast_reset_rules. */
MN_API mn_status mn_autocast_set_rule(mn_context *context, const char *op, mn_cast_rule rule);
MN_API mn_status mn_autocast_reset_rules(mn_context *context);
/* Replaces all overrides by those of "op=RULE,op=RULE" (NULL: none), rules named as
 * mn_cast_rule_name does. */
MN_API mn_status mn_autocast_set_rules(mn_context *context, const char *text);

/* -- loss scaling -- */

typedef struct mn_grad_scaler mn_grad_scaler;
typedef struct mn_grad_scaler_options {
    size_t size;
    bool enabled;            /* default true; false: scale 1, step = optimizer step */
    double init_scale;       /* default 65536 */
    double growth_factor;    /* default 2, > 1 */
    double backoff_factor;   /* default 0.5, in (0, 1) */
    int64_t growth_interval; /* default 2000, >= 1; growth at or past it */
    double min_scale;        /* default 0: none */
    double max_scale;        /* default FLT_MAX */
} mn_grad_scaler_options;
MN_API mn_grad_scaler_options mn_grad_scaler_options_default(void);

/* Dynamic loss scaling (Micikevicius et al. 2018, arXiv 1710.03740; semantics of
 * torch.amp.GradScaler). Free with mn_grad_scaler_free. */
MN_API mn_grad_scaler *mn_grad_scaler_create(mn_context *context,
                                             const mn_grad_scaler_options *options);
MN_API void mn_grad_scaler_free(mn_grad_scaler *scaler);
/* loss * scale * weight in f32, recorded. */
MN_API mn_tensor *mn_grad_scaler_scale(mn_grad_scaler *scaler, mn_tensor *loss, double weight);
/* Backward of that; marks the gradients as scaled. Meeting plain or unscaled gradients, ones
 * of another scale, or ones left over from a finished step, is MN_ERR_STATE. */
MN_API mn_status mn_grad_scaler_backward(mn_grad_scaler *scaler, mn_tensor *loss, double weight);
/* tensor / scale in f32 (f64 for f64), recorded; the tensor itself if disabled. For gradients of a
 * scaled loss that mn_gradients gives, before update: a penalty on them is added to the unscaled
 * loss, and the sum goes through mn_grad_scaler_backward (as PyTorch's "gradient penalty" example
 * with inv_scale). */
MN_API mn_tensor *mn_grad_scaler_unscale_tensor(mn_grad_scaler *scaler, mn_tensor *tensor);
/* Divides the scale out of the optimizer's gradients, checking them before and after. Once per
 * step. Optional: mn_grad_scaler_step does it if needed. */
MN_API mn_status mn_grad_scaler_unscale(mn_grad_scaler *scaler, mn_optimizer *optimizer);
/* Applies the optimizer's step, or skips it if a gradient is not finite. With `outcome` given it
 * waits for the device and says which. Parameters, momenta and 16-bit shadows do not change on a
 * skip. */
MN_API mn_status mn_grad_scaler_step(mn_grad_scaler *scaler, mn_optimizer *optimizer,
                                     mn_step_outcome *outcome);
/* Once per step, after every optimizer's: backs the scale off if any gradient was not finite, grows
 * it after growth_interval clean steps. A scale that cannot shrink further while gradients
 * overflow is latched as collapsed and reported by mn_grad_scaler_stats_get. */
MN_API mn_status mn_grad_scaler_update(mn_grad_scaler *scaler);

typedef struct mn_grad_scaler_stats {
    double scale;
    int64_t growth_tracker;    /* clean steps since the last change of scale */
    int64_t updates, backoffs; /* updates in all, and those that met a non-finite gradient */
    bool collapsed;
} mn_grad_scaler_stats;
/* Waits for the device. Disabled: scale 1. */
MN_API mn_status mn_grad_scaler_stats_get(mn_grad_scaler *scaler, mn_grad_scaler_stats *stats);
MN_API bool mn_grad_scaler_is_enabled(const mn_grad_scaler *scaler);
/* Setters, validated as the options; between steps only. */
MN_API mn_status mn_grad_scaler_set_scale(mn_grad_scaler *scaler, double scale);
MN_API mn_status mn_grad_scaler_set_growth_interval(mn_grad_scaler *scaler, int64_t interval);

/* -- trace: what ran, under which rule, in which dtypes -- */

/* A record of every call of an op from begin to end.
 * Tensors are told apart by the number of their storage, and none is kept alive. Several may be
 * open at once. Recording needs host memory, whose lack fails the call that was to be recorded. */
typedef struct mn_trace mn_trace;
typedef struct mn_trace_options {
    size_t size;
    int64_t limit; /* entries kept, default 100000; more are only counted */
} mn_trace_options;
MN_API mn_trace_options mn_trace_options_default(void);
MN_API mn_trace *mn_trace_begin(mn_context *context, const mn_trace_options *options);
/* No more is recorded; what was stays until free, which also ends. Both accept NULL. */
MN_API void mn_trace_end(mn_trace *trace);
MN_API void mn_trace_free(mn_trace *trace);

/* A tensor as it was during the call. */
typedef struct mn_trace_tensor {
    bool present; /* false: an optional input that was not given; the rest is then 0 or "" */
    bool written; /* an output, or an input that was written in place */
    mn_dtype dtype;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    uint64_t storage;      /* equal for tensors that share memory, such as views and what backward
                              reads of forward */
    const char *parameter; /* its name if it is a parameter, else "" */
} mn_trace_tensor;
typedef struct mn_trace_entry {
    const char *op;    /* as in the table of ops, or of a custom op */
    const char *layer; /* path; backward: of the op whose gradient it makes; "": none */
    mn_direction direction;
    const char *backward_of; /* the op whose backward applied this one; "": none */
    bool in_region;          /* inside an autocast region that is on: the next three tell of it */
    mn_dtype region;
    mn_cast_rule rule; /* that fired; of a cast that autocast made, the rule of its reason */
    bool overridden;   /* the rule is not that of the table of ops */
    bool is_cast;      /* a cast that autocast made for the next op */
    mn_served_by served;
    int input_count, output_count;
    const mn_trace_tensor *inputs, *outputs; /* as the op got them, after autocast */
} mn_trace_entry;
/* How many entries there are, how many came after the limit, and entry i in the order of calls
 * (false: out of range), whose pointers live as long as the trace. */
MN_API int64_t mn_trace_count(const mn_trace *trace);
MN_API int64_t mn_trace_lost(const mn_trace *trace);
MN_API bool mn_trace_get(const mn_trace *trace, int64_t index, mn_trace_entry *entry);

typedef struct mn_trace_dot_options {
    size_t size;
    const char *title; /* default NULL: none */
    bool legend;       /* default true */
} mn_trace_dot_options;
MN_API mn_trace_dot_options mn_trace_dot_options_default(void);
/* The trace as a graph in Graphviz's language: calls as nodes in the colour of their result's
 * dtype, grouped by layer, tensors as edges from who wrote them last, labelled (for more than 100
 * calls, which Graphviz would take long to lay out, by tooltips). *text, which a zero ends, is
 * given back with mn_buffer_free; *bytes counts the zero. NULL and 0 on failure. */
MN_API mn_status mn_trace_dot(const mn_trace *trace, const mn_trace_dot_options *options,
                              char **text, size_t *bytes);

/* -- shadow check: FP32 and 16 bit side by side -- */

/* Builds the loss (one element) of batch `batch`, counted from 0, from the caller's model and data,
 * in the region that the check has opened: it opens none itself, runs no backward from the loss,
 * and steps nothing. Called twice or more for each batch, it must do the same each time; only in
 * which ops it runs may depend on mn_autocast_dtype. NULL: it has failed. */
typedef mn_tensor *(*mn_shadow_fn)(mn_context *context, int64_t batch, void *user);
typedef struct mn_shadow_options {
    size_t size;
    mn_dtype dtype;    /* MN_BF16 (default) or MN_F16 */
    double tolerance;  /* of mn_shadow_row.rms; default NAN: 0.25 for f16, 0.5 for bf16, which the
                          gradients of a deep network do not reach */
    double loss_scale; /* of backward in both precisions, so that it leaves no trace in the errors;
                          default 0: 1 for bf16; for f16 the largest power of two up to 65536 with
                          which no gradient of batch 0 overflows (65536 if there is none) */
    int64_t batches;   /* default 1 */
    bool backward;     /* default true: also backward from the loss, if it requires a gradient */
} mn_shadow_options;
MN_API mn_shadow_options mn_shadow_options_default(void);

/* One call of an op, the worst over its outputs and all batches. Errors are relative to the result
 * in FP32. NaN: not measured, also where FP32 itself has nothing but rounding (a sum that cancels).
 * INFINITY: something is not finite where FP32 is, or is not 0 where all of FP32 is. */
typedef struct mn_shadow_row {
    const char *layer; /* path, "" for none; backward: of the op whose gradient it is */
    const char *op;
    const char *backward_of; /* op whose backward made the call, else "" */
    mn_direction direction;
    int64_t occurrence; /* which of the calls that are alike in all of the above, from 0 */
    mn_dtype dtype;     /* of its result in the 16-bit run */
    double error;       /* largest difference / largest magnitude; near 1 in backward where a single
                           relu or maximum decides otherwise, which is no fault */
    double rms;         /* sqrt(sum of squared differences / sum of squares) */
    double local_error; /* as error, to what the op gives in f32 for the inputs that it got, before
                           autocast cast them: what the op itself adds */
    int64_t nonfinite;  /* elements, of all batches, that are not finite where FP32's are */
    int64_t compared, unmatched; /* batches; unmatched: only one precision made the call, or its
                                    results differ in size or were written since */
} mn_shadow_row;

typedef struct mn_shadow_report {
    int64_t row_count; /* in the order of the calls */
    const mn_shadow_row *rows;
    int64_t first;           /* first row whose rms is past the tolerance; -1: none */
    int64_t worst_local;     /* row of the largest local error; -1: all are 0 */
    int64_t past, unmatched; /* rows past the tolerance; rows with unmatched batches */
    double loss_fp32, loss;  /* means over the batches */
    int64_t batches;         /* this and the next two: as chosen */
    mn_dtype dtype;
    double tolerance;
    double loss_scale; /* as used; 1 without backward */
} mn_shadow_report;

/* Runs every batch in FP32 and in 16 bit, with the same weights, random position and dropout masks,
 * and compares the floating results of every op, backward included. Casts, views and ops that only
 * write in place have no row: their effect shows in the ops that read it. An op that takes no f32
 * has no local error. Nothing stays changed: no gradient of a leaf is touched, and what ops write
 * into tensors that were there before (running statistics) is put back bit for bit, which counts as
 * a write; what the function writes by mn_tensor_write or mn_tensor_data_mut is not. Keeps the
 * results of a whole batch, forward and backward, in f32, and waits for the device at every op.
 * NULL on failure, also of the function. The report outlives the context. */
MN_API mn_shadow_report *mn_shadow_check(mn_context *context, mn_shadow_fn function, void *user,
                                         const mn_shadow_options *options);
MN_API void mn_shadow_report_free(mn_shadow_report *report);

/* -- numerics monitor: what 16 bits do to the numbers -- */

/* What a floating dtype holds. Values between half of the smallest and the smallest normal one lose
 * digits; what is at most half of the smallest becomes 0. */
typedef struct mn_float_limits {
    double largest, smallest_normal, smallest; /* 0 for dtypes that are not floating */
} mn_float_limits;
MN_API mn_float_limits mn_float_limits_get(mn_dtype dtype);

/* Looks on while ops run and keeps, for each place where values are made, statistics of them: how
 * large, how small, how many not finite, what 16-bit stores turned into zero, which updates of
 * parameters were lost to rounding, and what was first not finite in each step. All is counted on
 * the device, by our own kernels, and nothing waits for it but mn_monitor_collect. While it is on
 * a step takes about twice as long; off, or without a monitor, it costs nothing. It needs
 * some 3 KB per place and a copy of the parameters, which count as tensors in mn_memory_stats. */
typedef struct mn_monitor mn_monitor;
typedef struct mn_monitor_options {
    size_t size;
    bool updates; /* default true: updates lost to rounding, for which parameters are copied */
} mn_monitor_options;
MN_API mn_monitor_options mn_monitor_options_default(void);
/* Starts enabled. Free with mn_monitor_free, before or after the context. */
MN_API mn_monitor *mn_monitor_create(mn_context *context, const mn_monitor_options *options);
MN_API void mn_monitor_free(mn_monitor *monitor);
/* Begins a step, of that number in what is reported: what is not finite from here on is searched
 * for anew. To be called before each step, retried ones as well, whether enabled or not. */
MN_API mn_status mn_monitor_step(mn_monitor *monitor, int64_t step);
/* Looks on or not, from here on; switch between steps, such as for every 100th of them.
 * MN_ERR_STATE if another monitor looks on at the context: there may be one at a time. */
MN_API mn_status mn_monitor_enable(mn_monitor *monitor, bool enabled);
/* Waits for the device and brings to the host what the getters below give; their pointers are valid
 * until the next collect. Counts are since creation. */
MN_API mn_status mn_monitor_collect(mn_monitor *monitor);

/* Bin i of a histogram counts finite values x with floor(log2 |x|) = MN_MONITOR_LOWEST + i. The
 * first and the last bin hold what is smaller and larger as well (of f64). */
#define MN_MONITOR_LOWEST (-150)
#define MN_MONITOR_BINS   278
/* One place: an output of an op in a layer and direction, in one dtype. Gradients appear as they
 * are in backward, with the loss scale in them; after unscaling as what grad_unscale gives. */
typedef struct mn_monitor_row {
    const char *layer;       /* path; in backward that of the op whose gradient it is; "": none */
    const char *op;          /* that ran */
    const char *backward_of; /* op whose gradient that is part of; "": none */
    const char *parameter;   /* the one that is cast, stepped, or whose gradient is summed or
                                unscaled; "": none. "#N" if it has no name */
    mn_direction direction;
    mn_dtype dtype;
    int output;
    bool is_cast;      /* made by autocast, as an input of another op */
    mn_cast_rule rule; /* autocast's for the op, or for the one whose gradient it is, as overridden
                          at the time of collect */
    int64_t calls, count, zeros, infinities, nans;
    double largest, smallest;      /* finite magnitudes, not 0; 0: there were none */
    const int64_t *histogram;      /* [MN_MONITOR_BINS] */
    int64_t stored, lost;          /* non-zero values stored in 16 bit; those that became 0. Of all
                                      16-bit outputs of a call: in the row of the first of them */
    int64_t updates, updates_lost; /* elements with a gradient or momentum in applied steps; those
                                      of them that did not change */
} mn_monitor_row;
MN_API const mn_monitor_row *mn_monitor_rows(const mn_monitor *monitor, int *count);

/* Why something became not finite. */
typedef enum mn_overflow_cause {
    MN_OVERFLOW_FORWARD = 0,  /* the op made it of finite values, in forward: no loss scale helps */
    MN_OVERFLOW_BACKWARD = 1, /* likewise in backward, or in scaling the loss: a lower scale may */
    MN_OVERFLOW_UPDATE = 2,   /* likewise in unscaling, clipping or stepping */
    MN_OVERFLOW_INPUT = 3 /* one of the first five floating inputs was not finite and came from no
                             op: data, a parameter */
} mn_overflow_cause;
/* The first op of a step with an output that is not finite. */
typedef struct mn_overflow {
    int64_t step;
    mn_overflow_cause cause;
    const mn_monitor_row *row; /* where */
    double largest;            /* finite magnitude in that output */
    int64_t infinities, nans;  /* in it */
    int input;                 /* INPUT: the first such one among the floating inputs, from 0 */
    const char *input_name;    /* its name, if it is a parameter; else "" */
} mn_overflow;
/* Those of the steps since the last but one collect, oldest first; at most the last 64. */
MN_API const mn_overflow *mn_monitor_overflows(const mn_monitor *monitor, int *count);
/* "step 12: conv2: conv2d (forward, f16) is not finite; largest finite value 64512: no loss scale
 * can mend that" into buffer; returns buffer. */
MN_API const char *mn_overflow_describe(const mn_overflow *overflow, char *buffer, size_t size);

typedef struct mn_monitor_totals {
    int64_t stored[3], lost[3];    /* by mn_direction, of 16-bit stores */
    int64_t updates, updates_lost; /* of parameters */
    int64_t overflows;             /* steps with something not finite */
} mn_monitor_totals;
/* Sums over the rows, as collected. */
MN_API mn_monitor_totals mn_monitor_totals_get(const mn_monitor *monitor);

/* What would become of a row's finite values, not 0, multiplied by 2^shift and rounded to a dtype:
 * shares in [0, 1], by the histogram's bins; `overflows` is exact. Of no values: all 0. */
typedef struct mn_monitor_fit {
    bool overflows;   /* the largest would become infinite */
    double overflow;  /* share that would */
    double subnormal; /* share that would lose digits */
    double lost;      /* share that would become 0 */
} mn_monitor_fit;
MN_API mn_monitor_fit mn_monitor_fit_get(const mn_monitor_row *row, mn_dtype dtype, int shift);

/* ---------------------------------------------------------------------------------------------
 * State dictionaries and checkpoint files
 * ------------------------------------------------------------------------------------------ */

/* Named tensors in host memory (file order) and named strings. Every stateful object saves into and
 * loads from one. Files are safetensors: `safetensors.torch.load_file` opens them. */
typedef struct mn_state_dict mn_state_dict;
/* An empty dictionary; free accepts NULL. */
MN_API mn_state_dict *mn_state_dict_create(mn_context *context);
MN_API void mn_state_dict_free(mn_state_dict *dict);
/* Number of tensors, and entry i in insertion order; pointers live until the dictionary changes. */
typedef struct mn_state_entry {
    const char *name;
    mn_dtype dtype;
    int ndim;
    const int64_t *shape; /* file order */
    const void *data;
    size_t bytes;
} mn_state_entry;
MN_API int64_t mn_state_dict_count(const mn_state_dict *dict);
MN_API bool mn_state_dict_entry(const mn_state_dict *dict, int64_t index, mn_state_entry *entry);
MN_API bool mn_state_dict_find(const mn_state_dict *dict, const char *name, mn_state_entry *entry);
/* Adds a tensor (copied; a name already there is MN_ERR_ARGUMENT) or sets a string. get_string
 * gives NULL if there is none. */
MN_API mn_status mn_state_dict_put(mn_state_dict *dict, const mn_state_entry *entry);
MN_API mn_status mn_state_dict_set_string(mn_state_dict *dict, const char *key, const char *value);
MN_API const char *mn_state_dict_get_string(const mn_state_dict *dict, const char *key);
/* Number of strings, and pair i in insertion order. */
MN_API int64_t mn_state_dict_string_count(const mn_state_dict *dict);
MN_API bool mn_state_dict_string(const mn_state_dict *dict, int64_t index, const char **key,
                                 const char **value);
/* Writes to a temporary file beside `path`, flushes and renames it: a failure leaves the old file
 * whole. Read trusts nothing in the file; on failure it returns NULL. */
MN_API mn_status mn_state_dict_write(mn_state_dict *dict, const char *path);
MN_API mn_state_dict *mn_state_dict_read(mn_context *context, const char *path);
/* The same bytes in memory. to_buffer allocates them with the context's allocator: give them back
 * with mn_buffer_free, which wants the size as well and ignores NULL. On any failure *data is
 * NULL. from_buffer copies what it takes and trusts as little as read; messages call the place
 * "buffer".
 */
MN_API mn_status mn_state_dict_to_buffer(mn_state_dict *dict, void **data, size_t *bytes);
MN_API mn_state_dict *mn_state_dict_from_buffer(mn_context *context, const void *data,
                                                size_t bytes);
MN_API void mn_buffer_free(mn_context *context, void *data, size_t bytes);
/* Writes any bytes in the way of mn_state_dict_write. *error, which may be NULL, names the path. */
MN_API mn_status mn_file_save(const char *path, const void *data, size_t bytes, mn_error *error);

/* Save and load of optimizers ("optimizer.<parameter>.momentum_buffer", and PyTorch's other names
 * exp_avg, exp_avg_sq, square_avg; groups do not show), scalers ("scaler.scale", ...) and averages
 * ("ema.<parameter>"), into one dictionary with their model if you like. Load checks everything
 * first and changes nothing on an error; optimizers and averages convert floating tensors of
 * another dtype; averages are loaded while not swapped. States of another kind of optimizer are
 * MN_ERR_MISMATCH. Options (learning rate, schedule, decay, ...) are not saved: make the optimizer
 * with the same ones. Loading a scaler from a dictionary without scaler state leaves it as it is.
 * Load takes a dictionary of any context, save one of the object's own. */
MN_API mn_status mn_optimizer_save_state(mn_optimizer *optimizer, mn_state_dict *dict);
MN_API mn_status mn_optimizer_load_state(mn_optimizer *optimizer, const mn_state_dict *dict);
MN_API mn_status mn_ema_save_state(mn_ema *ema, mn_state_dict *dict);
MN_API mn_status mn_ema_load_state(mn_ema *ema, const mn_state_dict *dict);
MN_API mn_status mn_grad_scaler_save_state(mn_grad_scaler *scaler, mn_state_dict *dict);
MN_API mn_status mn_grad_scaler_load_state(mn_grad_scaler *scaler, const mn_state_dict *dict);

/* ---------------------------------------------------------------------------------------------
 * Modules and models
 * ------------------------------------------------------------------------------------------ */

typedef struct mn_module mn_module;

/* Layers. A layer gets its parameters from mn_module_init on the root of its model: initialised as
 * PyTorch's defaults do (uniform in +-1/sqrt(fan_in); batch norm 1 and 0), each from the random
 * stream of its full name. */
typedef struct mn_conv2d_layer_options {
    size_t size;
    int in_channels, out_channels;                     /* default 1; multiples of groups */
    int kernel[2], stride[2], padding[2], dilation[2]; /* defaults: 1, 1, 0, 1 */
    int groups;                                        /* default 1 */
    bool bias;                                         /* default true */
} mn_conv2d_layer_options;
MN_API mn_conv2d_layer_options mn_conv2d_layer_options_default(void);
MN_API mn_module *mn_conv2d_layer(mn_context *context, const mn_conv2d_layer_options *options);
MN_API mn_module *mn_linear_layer(mn_context *context, int in_features, int out_features,
                                  bool bias);
MN_API mn_module *mn_batch_norm_layer(mn_context *context, int channels);
/* Weight 1 and bias 0; eps 1e-5. Layer norm is over the last axis. */
MN_API mn_module *mn_group_norm_layer(mn_context *context, int groups, int channels);
MN_API mn_module *mn_layer_norm_layer(mn_context *context, int features);
typedef enum mn_activation {
    MN_ACTIVATION_RELU = 0,
    MN_ACTIVATION_GELU = 1,
    MN_ACTIVATION_SILU = 2,
    MN_ACTIVATION_TANH = 3,
    MN_ACTIVATION_SIGMOID = 4
} mn_activation;
/* The functions of the same names, element by element. mn_relu_layer: MN_ACTIVATION_RELU. */
MN_API mn_module *mn_activation_layer(mn_context *context, mn_activation activation);
MN_API mn_module *mn_relu_layer(mn_context *context);
MN_API mn_module *mn_leaky_relu_layer(mn_context *context, double slope);
/* mn_dropout in training mode, p in [0, 1]; x itself in evaluation mode. Masks differ by the
 * layer's path in its model. */
MN_API mn_module *mn_dropout_layer(mn_context *context, double p);
MN_API mn_module *mn_max_pool2d_layer(mn_context *context, const mn_pool2d_options *options);
MN_API mn_module *mn_avg_pool2d_layer(mn_context *context, const mn_pool2d_options *options);
MN_API mn_module *mn_upsample2d_layer(mn_context *context, const mn_upsample2d_options *options);
MN_API mn_module *mn_global_avg_pool2d_layer(mn_context *context);
/* [N,H,W,C] -> [N, C*H*W] in C,H,W order, so that weights mean the same as PyTorch's. */
MN_API mn_module *mn_flatten_layer(mn_context *context);
/* An empty chain; mn_sequential_add appends a child under a name and takes it over (also when it
 * fails: the child is then freed, unless a chain owns it). A NULL child is the error already
 * pending. */
MN_API mn_module *mn_sequential(mn_context *context);
MN_API mn_status mn_sequential_add(mn_module *sequential, const char *name, mn_module *child);
/* A chain with a way around it: relu(chain(x) + shortcut(x)). mn_sequential_add appends to its
 * chain; mn_residual_shortcut sets the shortcut, once, and takes the child over in the same way.
 * Without one it is x itself. */
MN_API mn_module *mn_residual(mn_context *context);
MN_API mn_status mn_residual_shortcut(mn_module *residual, const char *name, mn_module *child);
/* A layer in a chain is the chain's: freeing it does nothing. NULL is ignored. */
MN_API void mn_module_free(mn_module *module);

/* A model by name for images of the given size, initialised: "lenet5", "cnn-small", and the
 * residual networks "resnet8" and "resnet20" (He et al. 2015, arXiv 1512.03385, section 4.2, with
 * 1x1 convolutions where shapes change) and "resnet18" (the same with 64 to 512 channels), whose
 * tensors have torchvision's names. Too small images are MN_ERR_SHAPE. */
typedef struct mn_model_options {
    size_t size;
    int height, width, channels, classes; /* defaults 28, 28, 1, 10 */
} mn_model_options;
MN_API mn_model_options mn_model_options_default(void);
MN_API mn_module *mn_model_create(mn_context *context, const char *name,
                                  const mn_model_options *options);
/* Names of the models there are; NULL for index out of range. */
MN_API const char *mn_model_name(int index);

/* What a model costs. The bytes are measured on the context's device, in pieces of 64. What is kept
 * for backward is per image: training-mode forward passes of two and of three images run, and the
 * difference counts, so that parameters and whatever else is there once do not. */
typedef struct mn_model_summary {
    int64_t parameters;        /* numbers in them */
    double forward_flops;      /* of one image, as mn_module_forward_flops */
    uint64_t kept_bytes_f32;   /* left by a forward pass for backward to read, with the images */
    uint64_t kept_bytes_16bit; /* the same in an autocast region (bf16; f16 takes as much) */
    /* Most at once beside the parameters, workspaces included, in an evaluation-mode forward pass
     * of one image under no-grad. */
    uint64_t inference_peak_bytes;
} mn_model_summary;
/* Makes the model, runs it and frees it; summary is written only on success. Resets the context's
 * peak. An error in a no-grad section. */
MN_API mn_status mn_model_summarize(mn_context *context, const char *name,
                                    const mn_model_options *options, mn_model_summary *summary);

/* Makes and names the parameters of a root's tree ("conv1.weight", ...) and initialises them from
 * the context's seed. Call it when the tree is complete and before anything else is done with it;
 * mn_model_create has done it. */
MN_API mn_status mn_module_init(mn_module *module);
/* Converts all parameters to f32, f16 or bf16 in place, under the same names, and forgets their
 * gradients; buffers stay f32. On the root of an initialised tree, before an optimizer or average
 * is made of the parameters or anything else retains one: else MN_ERR_STATE. On an error nothing
 * has changed. */
MN_API mn_status mn_module_set_parameter_dtype(mn_module *module, mn_dtype dtype);
/* Result for input x, a tensor of the scope; opens an inner scope per layer, so that only results
 * outlive it. MN_ERR_STATE before mn_module_init. */
MN_API mn_tensor *mn_module_forward(mn_module *module, mn_tensor *x);
/* Training mode (default) or evaluation mode, of the whole tree: batch norm and dropout differ. */
MN_API mn_status mn_module_set_training(mn_module *module, bool training);
/* All parameters in order (borrowed pointers; the array lives as long as the module); none before
 * mn_module_init. */
MN_API mn_tensor *const *mn_module_parameters(mn_module *module, int *count);
/* Parameters and buffers under PyTorch's names. Load checks all names and shapes first; a tensor
 * that the module has not is MN_ERR_MISMATCH, but for names that begin with "optimizer.",
 * "scaler.", "ema.", "progress." or "data.". As in PyTorch, floating tensors of another dtype, such
 * as those of a model saved in 16 bit, are converted, and where num_batches_tracked is missing the
 * module's own stays. */
MN_API mn_status mn_module_save_state(mn_module *module, mn_state_dict *dict);
MN_API mn_status mn_module_load_state(mn_module *module, const mn_state_dict *dict);
/* A copy of a module's buffers (batch norm's running statistics and counts) on the device, for
 * putting them back when a forward pass should not have been, such as that of a skipped step which
 * is tried again. create (NULL on an error) copies them, save copies them anew, restore puts the
 * last copy back; on an error nothing is copied. Neither waits for the device. The buffers live on
 * as long as the copy. MN_ERR_STATE before mn_module_init. */
typedef struct mn_module_buffers mn_module_buffers;
MN_API mn_module_buffers *mn_module_buffers_create(mn_module *module);
MN_API mn_status mn_module_buffers_save(mn_module_buffers *buffers);
MN_API mn_status mn_module_buffers_restore(mn_module_buffers *buffers);
MN_API void mn_module_buffers_free(mn_module_buffers *buffers);
/* Floating-point operations of one forward pass of `batch` images (2 per multiply-add, convolution
 * and linear layers only); 0 if the module has not run on images yet. */
MN_API double mn_module_forward_flops(mn_module *module, int64_t batch);

/* ---------------------------------------------------------------------------------------------
 * Data sets and loaders. They need no context: errors go into the mn_error given.
 * ------------------------------------------------------------------------------------------ */

/* Images [count, height, width, channels] in bytes and their labels, in memory or fetched. */
typedef struct mn_dataset mn_dataset;

/* Opens "fashion-mnist[:DIR]", "mnist:DIR" or "synthetic:HxWxC:CLASSES[:COUNT]" (learnable
 * patterns; COUNT by default 2048 for training, 512 for testing); `train` chooses the part. IDX
 * files may be plain or .gz. Every fault names file and byte or index. NULL allocator: the C
 * library's. Free with mn_dataset_free. */
MN_API mn_dataset *mn_dataset_open(const char *spec, bool train, const mn_allocator *allocator,
                                   mn_error *error);
/* A data set of the caller's bytes: images u8 [count,h,w,c] (shape = count,h,w,c) and labels in
 * [0, classes), both copied. */
MN_API mn_dataset *mn_dataset_from_memory(const uint8_t *images, const int64_t *labels,
                                          const int64_t shape[4], int classes,
                                          const mn_allocator *allocator, mn_error *error);
/* A data set whose images are fetched one by one when a batch is made. */
typedef struct mn_dataset_source {
    size_t size;
    /* Writes image `index` (height*width*channels bytes) and its label; false: it cannot, which is
     * MN_ERR_IO naming the index. Called by mn_dataset_normalization and by loaders, from their
     * threads where they prefetch, but never twice at once for one data set. The same index must
     * always give the same. It must not call into this data set's loaders. */
    bool (*get)(void *user, int64_t index, uint8_t *image, int64_t *label);
    void *user;
    int64_t shape[4]; /* count, h, w, c */
    int classes;
    const char *name;     /* default "callback"; copied, at most 63 bytes of it */
    uint64_t fingerprint; /* of the content, such as a version number of yours; default 0 */
} mn_dataset_source;
MN_API mn_dataset_source mn_dataset_source_default(void);
/* Fetches nothing yet: mn_dataset_info.fingerprint is made from sizes, classes and the source's
 * fingerprint, and labels are checked as they come (out of [0, classes) is MN_ERR_ARGUMENT). */
MN_API mn_dataset *mn_dataset_from_callback(const mn_dataset_source *source,
                                            const mn_allocator *allocator, mn_error *error);
MN_API void mn_dataset_free(mn_dataset *dataset);

typedef struct mn_dataset_info {
    int64_t count, height, width, channels;
    int classes;
    const char *name; /* as it was opened, but without a path; "memory"; or the source's */
    const char *const *class_names; /* `classes` names, or NULL */
    uint64_t fingerprint;           /* of images and labels, or as the source says */
} mn_dataset_info;
/* Getter; pointers live as long as the data set. */
MN_API mn_dataset_info mn_dataset_info_get(const mn_dataset *dataset);
/* Image i (height*width*channels bytes) and its label; false for i out of range and for a data set
 * from a callback, whose images are nowhere. */
MN_API bool mn_dataset_get(const mn_dataset *dataset, int64_t index, const uint8_t **image,
                           int64_t *label);

/* Mean and standard deviation per channel of pixels / 255. */
typedef struct mn_normalization {
    int channels;
    float mean[4], deviation[4];
} mn_normalization;
/* Computed over the first `limit` images (0: all), each fetched once from a callback. At most 4
 * channels. A channel that never changes has deviation 1. */
MN_API mn_status mn_dataset_normalization(const mn_dataset *dataset, int64_t limit,
                                          mn_normalization *normalization, mn_error *error);

typedef struct mn_loader mn_loader;
typedef struct mn_loader_options {
    size_t size;
    int64_t batch;     /* default 64 */
    bool shuffle;      /* default true: a permutation by (seed, epoch) */
    uint64_t seed;     /* default 1 */
    int64_t limit;     /* first so many images only; 0 (default): all */
    double validation; /* fraction held out by the seed; default 0; leaves neither part empty */
    bool held_out;     /* true: iterate over the held-out part */
    bool prefetch;     /* default true: a thread prepares the next batches */
    mn_normalization normalization; /* channels 0 (default): none, pixels / 255 */
    mn_allocator allocator;         /* all NULL: the C library's */
} mn_loader_options;
MN_API mn_loader_options mn_loader_options_default(void);

/* One batch in host memory: images f32 [count,h,w,c], labels i64 [count]; valid until the next call
 * on the loader. */
typedef struct mn_batch {
    int64_t count, height, width, channels;
    const float *images;
    const int64_t *labels;
} mn_batch;

/* Iterates over a data set, which must outlive it. The last batch of an epoch may be smaller. */
MN_API mn_loader *mn_loader_create(const mn_dataset *dataset, const mn_loader_options *options,
                                   mn_error *error);
MN_API void mn_loader_free(mn_loader *loader);
/* Images in the part that it iterates over. */
MN_API int64_t mn_loader_count(const mn_loader *loader);
/* Starts epoch `epoch` (from 0) at image `position` of its order. */
MN_API mn_status mn_loader_start(mn_loader *loader, int64_t epoch, int64_t position,
                                 mn_error *error);
/* The next batch; at the end of the epoch batch->count is 0. An image that could not be fetched
 * fails the call that wants its batch, and all after it until mn_loader_start. */
MN_API mn_status mn_loader_next(mn_loader *loader, mn_batch *batch, mn_error *error);
/* Seconds that mn_loader_next has waited for data so far. */
MN_API double mn_loader_wait_seconds(const mn_loader *loader);

/* ---------------------------------------------------------------------------------------------
 * Training
 * ------------------------------------------------------------------------------------------ */

/* Words: a micro-step is forward and backward of one micro-batch; a step is one optimizer step,
 * applied or skipped, over a window of micro-batches, however often the window was attempted (see
 * mn_train_options.retry).
 * Skipped steps, where there is loss scaling: in warm-up, before the first applied step, the scale
 * searches downward; after growth, one that is skipped at a scale higher than that of the step
 * before shows that the scale had grown too far. Both belong to dynamic loss scaling. Warnings are
 * given (options.notice and log, each once in a process) for what does not: 4 overflowing attempts
 * in a row without an applied step in between, after warm-up; overflows in more than 10 of the last
 * 100 steps after warm-up, growth left out; an overflow at a scale of at most 1; a scale that is
 * down to min_scale. A skipped update is a diagnosis, not a sign of convergence. */
typedef struct mn_trainer mn_trainer;
typedef struct mn_step {
    mn_context *context;
    mn_module *model;
    mn_optimizer *optimizer;
    mn_grad_scaler *scaler; /* never NULL; disabled where no scaling is wanted */
    mn_dtype amp;           /* MN_F16, MN_BF16, or MN_F32 for off */
    mn_tensor *images;      /* f32 [n,h,w,c] */
    mn_tensor *labels;      /* i64 [n] */
    double weight;          /* samples of this micro-batch / samples of the window */
    double clip_norm;       /* INFINITY: do not clip, measure only */
    bool window_complete;   /* last micro-batch of the window: step */
    int64_t step;           /* the step being attempted, from 1 */
    int64_t retry;          /* attempts at its window before this one */
    mn_trainer *trainer;    /* for mn_step_report */
} mn_step;
/* One micro-step, called by the loop inside a scope of its own. */
typedef mn_status (*mn_step_fn)(mn_step *step, void *user);
/* The usual micro-step: autocast forward, cross entropy, scaled backward; at the end of a window
 * unscale, clip, step, update, zero_grad. `user` is ignored. */
MN_API mn_status mn_step_default(mn_step *step, void *user);
/* Hands loss (scalar) and logits of a micro-batch to the loop's statistics, without waiting. */
MN_API mn_status mn_step_report(mn_step *step, mn_tensor *loss, mn_tensor *logits);

/* What the host learns of a step, a few steps late. */
typedef struct mn_step_result {
    int64_t step, epoch; /* from 1 */
    int64_t samples, correct;
    double loss; /* mean over the window's samples */
    double lr, scale, grad_norm;
    bool skipped, nonfinite;
    int64_t retries; /* attempts before the last one, which is what the rest is of */
} mn_step_result;

typedef struct mn_metrics {
    int64_t count, correct;
    double loss, accuracy; /* means over the samples */
} mn_metrics;

/* What is known after an epoch; NaN stands for "not measured" (null in JSON). Bytes are of the
 * whole process (RSS) and of tensors and workspaces after the first 5 steps. */
typedef struct mn_epoch_result {
    int64_t epoch, steps; /* steps so far, applied or skipped */
    double train_loss, train_accuracy;
    double validation_loss, validation_accuracy, validation_accuracy_fp32;
    double test_loss, test_accuracy, test_accuracy_fp32;
    double images_per_s, data_wait_fraction, seconds;
    int64_t skipped_steps, nonfinite;       /* of the run so far, not of this epoch */
    int64_t skipped_warmup, skipped_growth; /* of those skipped; see "Words" */
    int64_t retries;                        /* attempts beyond the first of each step */
    double scale;
    uint64_t peak_tensor_bytes, peak_rss_bytes; /* the first is 0 if no step was measured */
    /* As in mn_train_monitor, so far. */
    double underflow_fraction, underflow_forward, underflow_backward;
} mn_epoch_result;

typedef struct mn_progress {
    mn_step_result last; /* newest step known */
    int64_t steps, total_steps;
    int64_t epochs; /* in all; last.epoch is the current one */
    int64_t skipped_steps;
    double loss, accuracy; /* running means of this epoch */
    double images_per_s, seconds_left;
} mn_progress;

/* Everything that describes a run. The part that identifies it (model, data, hyper-parameters,
 * seed, rules) is kept in its checkpoint; how it is run (threads, paths, logging) is not. */
typedef struct mn_train_options {
    size_t size;
    const char *model;                      /* default "lenet5" */
    const char *data;                       /* default "fashion-mnist" */
    const mn_dataset *train_set, *test_set; /* already open, in place of `data`; or NULL */
    mn_dtype amp;                           /* default MN_F32: off */
    int64_t epochs, steps;                  /* default 5, 0; steps > 0 replaces epochs */
    int64_t stop_after;        /* end after so many steps without changing the schedule; 0: no */
    int64_t batch, accumulate; /* default 64, 1 */
    const char *optimizer;     /* "sgd" (default), "adam", "adamw" or "rmsprop" */
    const char *parameters;    /* "f32" (default), or "bf16", "bf16-master", "bf16-stochastic":
                                  bf16 with that rounding of the optimizer */
    double lr;                 /* default NAN: 0.05 for sgd, 1e-3 for the others */
    double momentum;           /* default 0.9; of sgd and rmsprop, the others have none */
    double weight_decay;       /* default 5e-4; adamw: decoupled */
    mn_schedule_kind schedule; /* default cosine over the planned steps */
    int64_t warmup, step_size; /* as in mn_schedule, default 0 */
    double gamma;              /* as in mn_schedule, default NAN: 0.1; both of `step` only */
    double clip_norm;          /* default INFINITY */
    mn_grad_scaler_options scaler; /* `enabled` is ignored: the scaler is on for f16, else unused */
    /* For f16, default 0: at most so many further attempts at a window whose gradients overflow, at
     * the scale that each has backed off to, on the same batches, at the same random position, from
     * the buffers (running statistics) that the window began with. Still skipped after the last, or
     * once the scale has collapsed, it is a skipped step that leaves no trace in the buffers. What
     * counts is the run's own optimizer: others of a step function step in each attempt. The
     * scaler's and optimizer's counters count attempts; results, `cancel` and schedules go by
     * steps. Waits for the device once an attempt, and keeps the window's images in host memory. */
    int64_t retry;
    uint64_t seed;            /* default 1 */
    double validation;        /* fraction held out, default 0.1 */
    int64_t limit;            /* default 0: all images */
    const char *rules;        /* overrides "op=RULE,op=RULE" or NULL */
    const char *checkpoint;   /* path or NULL */
    int64_t checkpoint_every; /* steps; 0: at the end only */
    const char *resume;       /* path or NULL */
    bool resume_anyway;       /* go on although the run's identity differs */
    bool fp32_metrics;        /* also evaluate in FP32 each epoch */
    int64_t monitor; /* N: a numerics monitor looks on at steps 1, 1 + N, ...; 0: at none. No figure
                        of time or memory counts these steps, and no result depends on it; but
                        what it holds is tensor memory */
    mn_context_options context;
    mn_step_fn step; /* NULL: mn_step_default */
    void *step_user;
    void *user;                                     /* handed to the callbacks; each may be NULL */
    void (*log)(void *user, const char *json_line); /* one event, no newline */
    void (*progress)(void *user, const mn_progress *progress); /* after steps */
    void (*epoch)(void *user, const mn_epoch_result *result);
    /* Such as: another precision on resume; and what context.warn would be told, if that is NULL.
     */
    void (*notice)(void *user, const char *line);
    bool (*cancel)(void *user); /* asked once a window: true stops after it, with checkpoint */
} mn_train_options;
MN_API mn_train_options mn_train_options_default(void);

/* What a run's monitor has seen in those steps of this process that it looked on at. Shares from 0
 * to 1; NaN: of nothing. */
typedef struct mn_train_monitor {
    int64_t steps;
    mn_monitor_totals totals;
    /* Of values, not 0, stored in 16 bit: those that became 0. In all, by direction, and in the
     * layer with the largest share (NULL: none lost any). */
    double underflow_fraction, underflow_forward, underflow_backward, worst_underflow;
    const char *worst_layer;
    double updates_lost; /* of updates of parameters: those that changed nothing */
    int row_count, overflow_count;
    const mn_monitor_row *rows;
    const mn_overflow *overflows; /* of all steps looked on at, oldest first */
} mn_train_monitor;

typedef struct mn_train_result {
    const char *model, *data;
    int64_t parameters, epoch_count;
    const mn_epoch_result *epochs;
    int64_t step_count; /* steps this process has run, each in step_results */
    const mn_step_result *step_results;
    int64_t total_steps; /* in all, also before a resume; so are the next, as in mn_epoch_result */
    int64_t skipped_steps, skipped_warmup, skipped_growth, retries;
    double seconds;
    bool cancelled; /* stopped by `cancel` */
    /* Rows of mn_compare: the step at which gradients overflowed at the smallest loss scale, where
     * the run ended; 0: it did not. mn_train fails with MN_ERR_COLLAPSED instead. */
    int64_t collapsed_step;
    const mn_train_monitor *monitor; /* NULL: there was none */
} mn_train_result;
/* Trains. Returns NULL and fills *error on failure; free the result with mn_train_result_free.
 * Writes nothing but the checkpoint. */
MN_API mn_train_result *mn_train(const mn_train_options *options, mn_error *error);
MN_API void mn_train_result_free(mn_train_result *result);

/* Loss and accuracy of a model over what a loader iterates over (its epoch 0, from the start),
 * without gradients, in evaluation mode (restored after). amp MN_F32: off. */
MN_API mn_status mn_evaluate(mn_module *model, mn_loader *loader, mn_dtype amp, mn_metrics *metrics,
                             mn_error *error);

typedef struct mn_eval_options {
    size_t size;
    const char *checkpoint; /* required */
    const char *data;       /* NULL: as the checkpoint says */
    mn_dtype amp;           /* default MN_F32 */
    int64_t batch, limit;   /* default 256, 0 */
    mn_context_options context;
} mn_eval_options;
MN_API mn_eval_options mn_eval_options_default(void);
/* Metrics of a checkpoint's model on a data set's test part. *model_name, if given, receives the
 * model's name (static storage). */
MN_API mn_status mn_eval_checkpoint(const mn_eval_options *options, mn_metrics *metrics,
                                    const char **model_name, mn_error *error);

typedef struct mn_compare_options {
    size_t size;
    mn_train_options train; /* of each run; amp, seed, checkpoint and resume are ignored */
    const char *precisions; /* default "fp32,bf16,fp16"; the reference is fp32 */
    int seeds;              /* default 1: seeds train.seed, train.seed + 1, ... */
    double margin;          /* of the verdict, in percentage points; default 0.6 */
    const char *report;     /* folder for report.json and report.html; NULL: none */
    void (*run_begin)(void *user, const char *precision, uint64_t seed); /* or NULL */
} mn_compare_options;
MN_API mn_compare_options mn_compare_options_default(void);

typedef struct mn_compare_row {
    const char *precision;
    uint64_t seed;
    const mn_train_result *run;
} mn_compare_row;
typedef struct mn_compare_deviation {
    const char *precision;
    double accuracy_delta_pp_mean, accuracy_delta_pp_sd; /* to the reference, paired by seed */
    double interval_low_pp, interval_high_pp;            /* 90 percent, Student t; NaN for n < 2 */
    int n;         /* pairs of runs that came to their end; 0: the numbers are NaN */
    int collapsed; /* runs that collapsed or diverged, or whose reference did: no verdict then */
    double max_loss_delta, throughput_ratio, memory_ratio;
    const char *verdict; /* static storage */
} mn_compare_deviation;
typedef struct mn_compare_result {
    int row_count, deviation_count;
    const mn_compare_row *rows;
    const mn_compare_deviation *deviations;
    bool cancelled;
} mn_compare_result;
/* Trains the same run in several precisions and compares with FP32, paired by seed. */
MN_API mn_compare_result *mn_compare(const mn_compare_options *options, mn_error *error);
MN_API void mn_compare_result_free(mn_compare_result *result);

/* What one format would make of a row. */
typedef struct mn_range_fit {
    double factor;         /* largest magnitude over the format's largest; above 1: overflows */
    mn_monitor_fit plain;  /* of the values as they are */
    int scale_log2;        /* gradients: largest power of two to scale by without overflow */
    mn_monitor_fit scaled; /* gradients: at the loss scale of the whole run, see below */
} mn_range_fit;
typedef struct mn_range_row {
    const mn_monitor_row *row;
    bool exempt; /* stays f32 under autocast whatever the format: losses, statistics, sums */
    mn_range_fit fit[2]; /* in f16, bf16 */
} mn_range_row;
typedef struct mn_range_result {
    int count;
    const mn_range_row *rows; /* in order of the first step's calls */
    int64_t steps;
    /* For f16, bf16, over the rows that are not exempt: whether the run was finite and no forward
     * value overflows, the largest power of two that is a loss scale at which no gradient does,
     * ... */
    bool fits[2];
    int scale_log2[2];
    double lost[2]; /* ... and the largest share of a row's gradients that becomes 0 at it */
} mn_range_result;
/* Would the model fit into 16 bits? Trains it as mn_train does, with `amp` MN_F32 or MN_BF16 and a
 * constant learning rate, for options->steps steps (0: 50), of a new model or from
 * options->resume on, and measures the values of every op. Writes no file, and calls no callback
 * but `notice`. NULL on failure, with *error filled; free with mn_range_result_free. */
MN_API mn_range_result *mn_range(const mn_train_options *options, mn_error *error);
MN_API void mn_range_result_free(mn_range_result *result);

/* How long the calls of each op take: every call that the context makes until end, timed on its
 * own. A device that queues work is waited for before and after each call, so that steps take
 * longer than they do unwatched. */
typedef struct mn_profile mn_profile;
typedef struct mn_profile_row {
    const char *op;
    mn_direction direction;
    int64_t calls;
    double seconds; /* of all calls together, as are the next two */
    double flops;   /* of products and convolutions, padding among them; 0: not counted */
    double bytes;   /* of the tensors read or written, each once; 0 for views */
} mn_profile_row;
/* NULL if there is no memory. End comes before the context is freed; free, which also ends, may
 * come later. Both accept NULL. */
MN_API mn_profile *mn_profile_begin(mn_context *context);
MN_API void mn_profile_end(mn_profile *profile);
MN_API void mn_profile_free(mn_profile *profile);
/* Row `index`, after end those with the longest time first; false: there are no more. */
MN_API bool mn_profile_get(const mn_profile *profile, int64_t index, mn_profile_row *row);

typedef struct mn_bench_options {
    size_t size;
    const char *model;                    /* default "lenet5" */
    int64_t batch, steps, warmup;         /* default 64, 50, 5 */
    mn_dtype amp;                         /* default MN_F32: off */
    int height, width, channels, classes; /* of the synthetic data; default 28, 28, 1, 10 */
    bool profile;                         /* default false */
    mn_context_options context;
} mn_bench_options;
MN_API mn_bench_options mn_bench_options_default(void);
typedef struct mn_bench_result {
    double images_per_s_median, images_per_s_min, images_per_s_max;
    double step_ms_median, step_ms_min, step_ms_max;
    uint64_t peak_tensor_bytes, peak_rss_bytes;
    double gflop_per_step, gflops;
    int threads;
    double seconds;      /* of all timed steps */
    mn_profile *profile; /* of these, if it was asked for, else NULL; free it */
} mn_bench_result;
/* Throughput and memory of whole training steps on synthetic data, after warm-up. */
MN_API mn_status mn_bench(const mn_bench_options *options, mn_bench_result *result,
                          mn_error *error);

typedef struct mn_shadow_model_options {
    size_t size;
    const char *checkpoint; /* whose model is checked, on the data set's test part; or NULL */
    const char *model;      /* else a new one of this name, on the training part; default lenet5 */
    const char *data;       /* NULL: as the checkpoint says, or fashion-mnist */
    const char *rules;      /* as in mn_train_options; NULL: the checkpoint's, or none */
    int64_t batch;          /* images of a batch, default 64 */
    mn_shadow_options check;
    mn_context_options context;
} mn_shadow_model_options;
MN_API mn_shadow_model_options mn_shadow_model_options_default(void);
/* mn_shadow_check of a training step's loss, in training mode. NULL on failure, which fills *error.
 */
MN_API mn_shadow_report *mn_shadow_model(const mn_shadow_model_options *options, mn_error *error);

#ifdef __cplusplus
}
#endif
#endif
