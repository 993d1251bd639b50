/* amp/compare.h: results that are kept for a while, and how far others are from them. Private to
 * this folder. */
#ifndef MN_AMP_COMPARE_H
#define MN_AMP_COMPARE_H

#include "amp/internal.h"

/* Elements that outlive their tensor. Holding them takes no memory: an observer may not fail after
 * a call. */
typedef struct mn_kept {
    mn_storage *storage; /* one reference; NULL: none */
    size_t offset;
    uint64_t version;
    int64_t numel;
    mn_dtype dtype;
    double noise; /* FP32: what is smaller is nothing but rounding */
} mn_kept;

mn_kept mn_keep(const mn_tensor *tensor);
/* The same without the reference: for no longer than the tensor lives. */
mn_kept mn_kept_of(const mn_tensor *tensor);
/* Lets go of MN_MAX_OUTPUTS of them. */
void mn_kept_drop(mn_kept *outputs);

typedef struct mn_difference {
    double largest, reference; /* magnitudes, of it and of the FP32 value */
    double squares, reference_squares;
    int64_t nonfinite; /* where the reference is finite */
    int64_t other;     /* where the reference is not finite, and neither equal nor NaN in both */
} mn_difference;
/* Takes n more elements into *d. */
void mn_difference_add(mn_difference *d, int64_t n, const double *reference, const double *x);
enum { MN_COMPARE_CHUNK = 1024 }; /* elements at once */
typedef struct mn_comparer {
    mn_context *context;
    double a[MN_COMPARE_CHUNK], b[MN_COMPARE_CHUNK], raw[MN_COMPARE_CHUNK];
} mn_comparer;
/* Waits for the device. reference NULL: zeros. */
mn_difference mn_kept_compare(mn_comparer *comparer, const mn_kept *reference, const mn_kept *x);
/* The larger of *worst and error / of; INFINITY for what is not finite. NaN is less than anything.
 */
void mn_worsen(double *worst, double error, double of, int64_t nonfinite);

#endif
