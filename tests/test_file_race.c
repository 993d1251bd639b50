/* A writer that opens the temporary file just before another one is done with it. Linked in place
 * of the system's, flock lets the other one get done first. */
#include "support_state.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void (*meanwhile)(const char *temporary);

int flock(int file, int operation)
{
    char temporary[96];
    (void)file;
    (void)operation;
    snprintf(temporary, sizeof temporary, "%s.tmp", mn_test_state_path);
    if (meanwhile)
        meanwhile(temporary);
    return 0;
}

static void succeeds(const char *temporary)
{
    ck_assert_int_eq(rename(temporary, mn_test_state_path), 0);
}

static void fails(const char *temporary)
{
    ck_assert_int_eq(unlink(temporary), 0);
}

static void succeeds_and_a_third_comes(const char *temporary)
{
    succeeds(temporary);
    FILE *file = fopen(temporary, "w");
    ck_assert(file && fputs("third", file) >= 0 && fclose(file) == 0);
}

/* What is now the file is not written into; a third one's is neither taken nor removed. */
START_TEST(the_other_one_is_left_alone)
{
    static void (*const ends[])(const char *) = {succeeds, fails, succeeds_and_a_third_comes};
    char temporary[96];
    struct stat is;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    snprintf(temporary, sizeof temporary, "%s.tmp", mn_test_state_path);
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(temporary, "w");
        ck_assert(file && fputs("other", file) >= 0 && fclose(file) == 0);
        meanwhile = ends[i];
        ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
        mn_test_expect(mn_test_context, MN_ERR_IO, "another writer has it");
        ck_assert(stat(mn_test_state_path, &is) == 0 && is.st_size == 5);
        ck_assert_int_eq(mn_test_state_files(), i == 2 ? 2 : 1);
    }
    meanwhile = NULL;
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    mn_state_dict_free(dict);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file_race");
    TCase *tcase = tcase_create("file_race");
    tcase_add_checked_fixture(tcase, mn_test_state_open, mn_test_state_close);
    tcase_add_test(tcase, the_other_one_is_left_alone);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_FORK_GETENV);
}
