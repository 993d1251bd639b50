/* The one op case list. Each case runs through every check of test_op_cases.c: finite differences,
 * every dtype against f64, kernel sets, thread counts, the deferred device, NaN in the tail. */
#ifndef MN_TESTS_SUPPORT_CASES_H
#define MN_TESTS_SUPPORT_CASES_H

#include "core/core.h"

#define CASE_INPUTS 5

typedef enum input_kind {
    NORMAL,   /* standard normal, of the case's dtype */
    DISTINCT, /* distinct multiples of 1/8 in random order: no ties, exact in every dtype */
    STATE,    /* positive, f32 (f64 in f64 cases), no gradient: running statistics */
    PARAM,    /* normal, f32 (f64 in f64 cases): batch norm's weight and bias */
    COUNT,    /* i64 scalar 0 */
    LABELS    /* i64 in [0, parameter 0) */
} input_kind;

typedef struct case_input {
    input_kind kind;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
} case_input;

typedef struct op_case {
    const char *name;
    const char *ops; /* names of ops.def that it reaches, forward and backward */
    mn_tensor *(*build)(mn_context *context, mn_tensor **inputs, const int64_t *parameters);
    case_input inputs[CASE_INPUTS]; /* up to the first with ndim -1 or past the end */
    int input_count;
    int64_t parameters[10];
    bool forward_only; /* nothing to differentiate */
    bool no_tail;      /* NaN in the last element of input 0 is not followed */
} op_case;

extern const op_case op_cases[];
extern const int op_case_count;

#endif
