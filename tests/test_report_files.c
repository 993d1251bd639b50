/* tests/test_report_files.c: writing a report: folders, faults of the file system, memory that runs
 * out, locales. */
#include "tests/support_counting.h"
#include "tests/support_report.h"
#include "tests/support_suite.h"

#include <check.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(makes_the_folders)
{
    char deep[128];
    mn_made_new(1, 1, 10);
    snprintf(deep, sizeof deep, "%s/a//b/c/", mn_made_folder);
    mn_made.options.report = deep;
    free(mn_made_report("report.json"));
    free(mn_made_report("report.html")); /* again, over the first */
}
END_TEST

START_TEST(same_runs_same_report)
{
    mn_made_new(3, 2, 50);
    char *first = mn_made_report("report.html"), *second = mn_made_report("report.html");
    ck_assert_str_eq(first, second);
    free(first);
    free(second);
    first = mn_made_report("report.json");
    second = mn_made_report("report.json");
    ck_assert_str_eq(first, second);
    free(first);
    free(second);
}
END_TEST

static void check_refused(mn_status status, const char *word)
{
    mn_error error;
    ck_assert_int_eq(mn_made_write(&error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.message, word) != NULL, "%s", error.message);
}

START_TEST(folder_that_cannot_be)
{
    char name[128];
    mn_made_new(1, 1, 10);
    snprintf(name, sizeof name, "%s/file", mn_made_folder);
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    mn_made.options.report = name;
    check_refused(MN_ERR_IO, name);
    char below[160];
    snprintf(below, sizeof below, "%s/below", name);
    mn_made.options.report = below;
    check_refused(MN_ERR_IO, name);
    mn_made.options.report = "/proc/minim-report";
    check_refused(MN_ERR_IO, "/proc/minim-report");
    mn_made.options.report = "";
    check_refused(MN_ERR_ARGUMENT, "--report");
    mn_made.options.report = NULL;
    check_refused(MN_ERR_ARGUMENT, "--report");
}
END_TEST

START_TEST(folder_without_permission)
{
    mn_made_new(1, 1, 10);
    if (geteuid() == 0) /* may write everywhere */
        return;
    ck_assert_int_eq(chmod(mn_made_folder, 0500), 0);
    check_refused(MN_ERR_IO, "report.json");
    ck_assert_int_eq(chmod(mn_made_folder, 0700), 0);
    ck_assert_int_eq(mn_made_entries(mn_made_folder), 0);
}
END_TEST

/* Writes the report with files of at most so many bytes. No ck_assert in between: Check's own
 * messages are in a file too, and hold the path of this source. */
static mn_status write_limited(rlim_t bytes, mn_error *error)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit whole = limit;
    limit.rlim_cur = bytes;
    int set = setrlimit(RLIMIT_FSIZE, &limit);
    mn_status status = mn_made_write(error);
    int reset = setrlimit(RLIMIT_FSIZE, &whole);
    ck_assert_int_eq(set, 0);
    ck_assert_int_eq(reset, 0);
    return status;
}

static void check_limited(rlim_t bytes, const char *name)
{
    mn_error error;
    ck_assert_int_eq(write_limited(bytes, &error), MN_ERR_IO);
    ck_assert_int_eq(error.status, MN_ERR_IO);
    ck_assert_msg(strstr(error.message, mn_made_path(name)) != NULL, "%s", error.message);
    ck_assert_int_eq(mn_made_entries(mn_made_folder), 2);
}

/* A full disk: what was there stays, and nothing half is left. */
START_TEST(file_that_cannot_be_finished)
{
    mn_made_new(1, 1, 10);
    char *before = mn_made_report("report.html");
    mn_made.options.margin = 0.75;
    signal(SIGXFSZ, SIG_IGN);
    check_limited(1000, "report.json");
    check_limited(10000, "report.html"); /* enough for report.json */
    char *after = mn_made_read("report.html");
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
    after = mn_made_read("report.json");
    mn_json_check(after, "config.margin", "0.75");
    free(after);
}
END_TEST

START_TEST(file_that_cannot_be_replaced)
{
    mn_made_new(1, 1, 10);
    ck_assert_int_eq(mkdir(mn_made_path("report.html"), 0700), 0);
    check_refused(MN_ERR_IO, mn_made_path("report.html"));
    ck_assert_int_eq(mn_made_entries(mn_made_folder),
                     2); /* report.json and the folder in the way */
}
END_TEST

/* Each allocation fails once: all is given back, and a report that is written is whole. */
START_TEST(memory_runs_out)
{
    mn_test_counter counter = {.fail_at = 0};
    int failures = 0;
    mn_error error;
    mn_status status;
    mn_made_new(2, 2, 40);
    char *whole = mn_made_report("report.html");
    mn_made.options.train.context.allocator = mn_test_counting(&counter);
    do { /* until a report needs fewer allocations than the one that fails */
        counter.calls = 0;
        counter.fail_at++;
        status = mn_made_write(&error);
        ck_assert_int_eq(counter.blocks, 0);
        ck_assert_msg(status == MN_OK || status == MN_ERR_MEMORY, "%s", error.message);
        ck_assert_int_eq(error.status, status);
        failures += status != MN_OK;
        char *html = mn_made_read("report.html");
        ck_assert(strcmp(html, whole) == 0);
        free(html);
    } while (counter.calls >= counter.fail_at);
    ck_assert_int_eq(status, MN_OK);
    ck_assert_int_gt(failures, 8);
    ck_assert_int_eq(mn_made_entries(mn_made_folder), 2);
    free(whole);
}
END_TEST

/* Where the decimal separator is a comma, the files have points all the same. */
START_TEST(locale_does_not_matter)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    mn_made_new(1, 2, 50);
    char *plain = mn_made_report("report.html");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]))
            break;
    char *html = mn_made_report("report.html");
    setlocale(LC_ALL, "C");
    ck_assert_str_eq(plain, html);
    free(plain);
    free(html);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report files");
    TCase *writing = tcase_create("writing");
    tcase_add_checked_fixture(writing, mn_made_folder_make, mn_made_folder_remove);
    tcase_set_timeout(writing, 60);
    suite_add_tcase(suite, writing);
    tcase_add_test(writing, makes_the_folders);
    tcase_add_test(writing, same_runs_same_report);
    tcase_add_test(writing, folder_that_cannot_be);
    tcase_add_test(writing, folder_without_permission);
    tcase_add_test(writing, file_that_cannot_be_finished);
    tcase_add_test(writing, file_that_cannot_be_replaced);
    tcase_add_test(writing, memory_runs_out);
    tcase_add_test(writing, locale_does_not_matter);
    return mn_test_run(suite, CK_FORK_GETENV);
}
