/* tests/support_counting.h: an allocator that counts what it gives and fails at the k-th call. For
 * one thread at a time. */
#ifndef MINIM_TESTS_SUPPORT_COUNTING_H
#define MINIM_TESTS_SUPPORT_COUNTING_H

#include "minim.h"

typedef struct mn_test_counter {
    long blocks;   /* not freed yet */
    long calls;    /* of alloc */
    long fail_at;  /* this call fails; 0: none */
    bool for_good; /* and all after it, as long as fail_at is set */
    size_t bytes;  /* not freed yet, by the sizes that free was given */
} mn_test_counter;

mn_allocator mn_test_counting(mn_test_counter *counter);

/* Runs in contexts in which all allocations from the k-th on fail, for k = 1, 2, ... until none is
 * asked for: each failure is MN_ERR_MEMORY, after it the run succeeds, and nothing leaks. */
void mn_test_exhaust(void (*run)(mn_context *context));

#endif
