/* The one op case list, in parts: support_cases_<part>.c. Each case runs through every check of
 * test_op_cases.c: finite differences, every dtype against f64, kernel sets, thread counts, the
 * deferred device, NaN in the tail; and bench/ops.c times it. */
#ifndef MN_TESTS_SUPPORT_CASES_H
#define MN_TESTS_SUPPORT_CASES_H

#include "core/core.h"

#define CASE_INPUTS 6

typedef enum input_kind {
    NOTHING,  /* after the last input */
    NORMAL,   /* standard normal, of the case's dtype */
    DISTINCT, /* distinct multiples of 1/8 in random order: no ties, exact in every dtype */
    POSITIVE, /* in [0.5, 1.5), of the case's dtype: for logarithms, roots, divisors */
    UNIT,     /* in (0.05, 0.95), of the case's dtype: probabilities */
    STATE,    /* positive, f32 (f64 in f64 cases), no gradient: running statistics */
    PARAM,    /* normal, f32 (f64 in f64 cases): weight and bias of a normalisation */
    COUNT,    /* i64 scalar 0 */
    LABELS,   /* i64 in [0, p[0]) */
    MASK      /* u8, 0 or 1 */
} input_kind;

typedef struct case_input {
    input_kind kind;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
} case_input;

/* One of build, unary and binary makes the result. */
typedef struct op_case op_case;
struct op_case {
    const char *name;
    mn_tensor *(*build)(mn_context *context, mn_tensor **inputs, const op_case *c);
    mn_tensor *(*unary)(mn_tensor *x);
    mn_tensor *(*binary)(mn_tensor *a, mn_tensor *b);
    case_input inputs[CASE_INPUTS];
    int64_t p[10];     /* whole numbers that build knows the meaning of */
    double f[4];       /* numbers */
    bool forward_only; /* nothing to differentiate */
    bool no_tail;      /* NaN in the last element of input 0 is not followed */
    bool once;         /* its backward cannot be differentiated, and says so */
};

/* Each ends with a case without a name. */
extern const op_case mn_cases_math[], mn_cases_shape[], mn_cases_image[], mn_cases_loss[],
    mn_cases_step[];

/* For bench/ops.c: realistic sizes, which no test runs. */
extern const op_case mn_cases_large[];

/* Over all parts. */
int mn_case_count(void);
const op_case *mn_case_at(int index);
int mn_case_inputs(const op_case *c);
mn_tensor *mn_case_build(mn_context *context, mn_tensor **inputs, const op_case *c);
/* Values of input `index`, as f64 representable in `rounded`; and its dtype in a case of `dtype`.
 */
void mn_case_draw(const op_case *c, int index, mn_dtype rounded, int64_t count, double *values);
mn_dtype mn_case_dtype(input_kind kind, mn_dtype dtype);
bool mn_case_wants_gradient(const op_case *c, int index);

/* How the lists are written: N(2, 3) is a normal input of shape [2,3]. */
#define CASE(...)                                                                                  \
    {                                                                                              \
        .name = __VA_ARGS__                                                                        \
    }
#define INPUT(kind, ...)                                                                           \
    {                                                                                              \
        kind, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                           \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define SCALAR(kind)                                                                               \
    {                                                                                              \
        kind, 0,                                                                                   \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define N(...) INPUT(NORMAL, __VA_ARGS__)
#define D(...) INPUT(DISTINCT, __VA_ARGS__)

#endif
