/* tests/support_state.h: what the tests of state dictionaries and of their files share: a context
 * and a folder per test, a dictionary to save, and files as bytes. */
#ifndef MINIM_TESTS_SUPPORT_STATE_H
#define MINIM_TESTS_SUPPORT_STATE_H

#include "core/state_dict.h"

extern mn_context *mn_test_context;
extern char mn_test_state_folder[24];
extern char mn_test_state_path[64]; /* of a file in the folder */

/* Fixture. close fails if the folder holds anything but the file. */
void mn_test_state_open(void);
void mn_test_state_close(void);
/* Number of files in the folder. */
int mn_test_state_files(void);
/* A few tensors, misaligned on purpose, numbers and strings. */
mn_state_dict *mn_test_state_sample(mn_context *owner);
/* True if b holds what a holds and nothing else, in any order. */
bool mn_test_state_same(const mn_state_dict *a, const mn_state_dict *b);
/* The file's bytes, at most 1 MiB (to be freed), and the other way. */
unsigned char *mn_test_slurp(size_t *size);
void mn_test_spill(const void *bytes, size_t size);

#endif
