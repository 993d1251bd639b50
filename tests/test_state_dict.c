/* State dictionaries, and writing them to files that can and cannot be written. */
#include "support_counting.h"
#include "support_state.h"
#include "tests/support_suite.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- dictionaries ---------------------------------------------------------------------------- */

START_TEST(put_and_find)
{
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    mn_state_entry entry;
    int64_t steps;
    double scale;
    ck_assert_int_eq(mn_state_dict_count(dict), 7);
    ck_assert(mn_state_dict_entry(dict, 1, &entry));
    ck_assert_str_eq(entry.name, "w");
    ck_assert(((const float *)entry.data)[1] == -2);
    ck_assert(!mn_state_dict_entry(dict, 7, &entry) && !mn_state_dict_entry(dict, -1, &entry));
    ck_assert(!mn_state_dict_find(dict, "W", &entry));
    ck_assert_int_eq(mn_state_dict_get_i64(mn_test_context, dict, "steps", &steps), MN_OK);
    ck_assert_int_eq(mn_state_dict_get_f64(mn_test_context, dict, "scale", &scale), MN_OK);
    ck_assert(steps == -5 && scale == 0.1);
    ck_assert_int_eq(mn_state_dict_get_i64(mn_test_context, dict, "scale", &steps),
                     MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH, "\"scale\" is [] f64");
    ck_assert_int_eq(mn_state_dict_get_f64(mn_test_context, dict, "nothing", &scale),
                     MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH, "nothing");
    ck_assert_int_eq(mn_state_dict_set_string(dict, "model", "other"), MN_OK);
    ck_assert_str_eq(mn_state_dict_get_string(dict, "model"), "other");
    ck_assert_int_eq(mn_state_dict_string_count(dict), 2);
    ck_assert_ptr_null(mn_state_dict_get_string(dict, "none"));
    mn_state_dict_free(dict);
    mn_state_dict_free(NULL);
}
END_TEST

/* A value that the dictionary itself holds, and is about to replace. */
START_TEST(strings_may_come_from_itself)
{
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    const char *model = mn_state_dict_get_string(dict, "model");
    ck_assert_int_eq(mn_state_dict_set_string(dict, "model", model), MN_OK);
    ck_assert_str_eq(mn_state_dict_get_string(dict, "model"), "lenet5");
    ck_assert_int_eq(mn_state_dict_string_count(dict), 2);
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(wrong_entries_are_refused)
{
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    const int64_t two[] = {2};
    const float data[2] = {1, 2};
    mn_state_entry entry = {"w", MN_F32, 1, two, data, 8};
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "there already");
    entry.name = "new";
    entry.bytes = 4;
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_SHAPE);
    mn_test_expect(mn_test_context, MN_ERR_SHAPE, "needs 8");
    entry.bytes = 8;
    entry.data = NULL;
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "data");
    entry.data = data;
    const char *names[] = {NULL, "", "__metadata__", "\xff", "\xc0\x80", "\xed\xa0\x80"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        entry.name = names[i];
        ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
        mn_error_clear(mn_test_context);
    }
    ck_assert_int_eq(mn_state_dict_put(dict, NULL), MN_ERR_ARGUMENT);
    mn_error_clear(mn_test_context);
    ck_assert_int_eq(mn_state_dict_set_string(dict, MN_STATE_KEY_CHECKSUM, ""), MN_ERR_ARGUMENT);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "file format");
    ck_assert_int_eq(mn_state_dict_count(dict), 7);
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(many_names)
{
    mn_state_dict *dict = mn_state_dict_create(mn_test_context);
    char name[32];
    int64_t value;
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "layer%d.weight", i);
        ck_assert_int_eq(mn_state_dict_put_i64(dict, name, i), MN_OK);
        if (i % 7 == 0) { /* what fails halfway is taken out again */
            void *data;
            mn_state_entry entry = {.name = "temporary", .dtype = MN_F32, .bytes = 4};
            ck_assert_int_eq(mn_state_dict_reserve(dict, &entry, &data), MN_OK);
            mn_state_dict_drop(dict);
            ck_assert(!mn_state_dict_find(dict, "temporary", NULL));
        }
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "layer%d.weight", i);
        ck_assert_int_eq(mn_state_dict_get_i64(mn_test_context, dict, name, &value), MN_OK);
        ck_assert_int_eq(value, i);
    }
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(filters_change_order)
{
    const int64_t shape[] = {2, 3, 2, 5}; /* K, R, S, C */
    double values[60];
    double back[60];
    mn_state_entry entry;
    for (int i = 0; i < 60; i++)
        values[i] = i;
    mn_tensor *filter = mn_tensor_create(mn_test_context, MN_F16, 4, shape);
    mn_tensor_write_f64(filter, values, 60);
    mn_state_dict *dict = mn_state_dict_create(mn_test_context);
    ck_assert_int_eq(mn_state_dict_put_tensor(dict, "f", filter, MN_LAYOUT_FILTER), MN_OK);
    ck_assert(mn_state_dict_find(dict, "f", &entry));
    ck_assert(entry.shape[1] == 5 && entry.shape[2] == 3 && entry.shape[3] == 2);
    for (int k = 0, i = 0; k < 2; k++)
        for (int c = 0; c < 5; c++)
            for (int r = 0; r < 3; r++)
                for (int s = 0; s < 2; s++, i++)
                    ck_assert(mn_f16_to_f32(((const mn_f16 *)entry.data)[i]) ==
                              (float)(((k * 3 + r) * 2 + s) * 5 + c));
    mn_tensor_fill(filter, 0);
    uint64_t version = mn_tensor_version(filter);
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "f", filter, MN_LAYOUT_FILTER, false), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(filter), version);
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "f", filter, MN_LAYOUT_FILTER, true), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(filter), version + 1);
    mn_tensor_read_f64(filter, back, 60);
    ck_assert_mem_eq(back, values, sizeof values);
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "f", filter, MN_LAYOUT_PLAIN, true),
                     MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH,
                   "\"f\" is [2,5,3,2] f16, [2,3,2,5] f16 is wanted");
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "g", filter, MN_LAYOUT_FILTER, true),
                     MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH, "\"g\" is missing");
    mn_tensor *scalar = mn_full(mn_test_context, MN_F32, 0, NULL, 1);
    ck_assert_int_eq(mn_state_dict_put_tensor(dict, "s", scalar, MN_LAYOUT_FILTER), MN_ERR_SHAPE);
    mn_test_expect(mn_test_context, MN_ERR_SHAPE, "no filter");
    mn_state_dict_free(dict);
}
END_TEST

/* Entry i of a [K,R,S,C] filter in file order, or of a plain tensor: i. */
static double in_file(bool filter, int64_t i, const int64_t shape[4])
{
    const int64_t area = shape[1] * shape[2], each = area * shape[3], at = i % each;
    return (double)(filter ? i - at + at % shape[3] * area + at / shape[3] : i);
}

/* Values past one piece and through all pairs of floating dtypes; numbers only from their own. */
START_TEST(floating_dtypes_are_converted)
{
    static const int64_t shape[] = {7, 3, 5, 11};
    const bool filter = _i % 2;
    const mn_layout layout = filter ? MN_LAYOUT_FILTER : MN_LAYOUT_PLAIN;
    const mn_dtype from = (mn_dtype)(_i / 2 % 4), to = (mn_dtype)(_i / 8);
    int64_t file_shape[] = {7, 3, 5, 11};
    double values[1155], back[1155];
    if (filter) {
        file_shape[1] = 11;
        file_shape[2] = 3;
        file_shape[3] = 5;
    }
    for (int i = 0; i < 1155; i++)
        values[i] = i % 251 - 100; /* exact in bf16 */
    values[0] = (double)NAN;
    values[1] = from == MN_F64 ? 1 + 0x1p-25 : 1;
    values[2] = from == MN_F16 ? -(double)INFINITY : from == MN_BF16 ? 0x1p100 : -1e300;
    mn_tensor *source = mn_tensor_create(mn_test_context, from, 4, file_shape);
    mn_tensor *target = mn_full(mn_test_context, to, 4, shape, 0);
    mn_tensor *right = mn_tensor_create(mn_test_context, to, 4, file_shape);
    mn_state_dict *dict = mn_state_dict_create(mn_test_context);
    mn_tensor_write_f64(source, values, 1155);
    ck_assert_int_eq(mn_tensor_copy(right, source), MN_OK);
    mn_tensor_read_f64(right, values, 1155);
    ck_assert_int_eq(mn_state_dict_put_tensor(dict, "f", source, MN_LAYOUT_PLAIN), MN_OK);
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "f", target, layout, true), MN_OK);
    mn_tensor_read_f64(target, back, 1155);
    for (int i = 0; i < 1155; i++) {
        const double is = back[i], wants = values[(int)in_file(filter, i, shape)];
        ck_assert_msg(is == wants || (isnan(is) && isnan(wants)), "element %d: %g, not %g", i, is,
                      wants);
    }
    mn_tensor *whole = mn_full(mn_test_context, MN_I32, 4, shape, 0);
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "f", whole, layout, true), MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH, "i32 is wanted");
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(numbers_are_not_converted)
{
    double value = 0;
    mn_tensor *scalar = mn_full(mn_test_context, MN_F32, 0, NULL, 1);
    mn_state_dict *dict = mn_state_dict_create(mn_test_context);
    ck_assert_int_eq(mn_state_dict_put_tensor(dict, "s", scalar, MN_LAYOUT_PLAIN), MN_OK);
    ck_assert_int_eq(mn_state_dict_get_f64(mn_test_context, dict, "s", &value), MN_ERR_MISMATCH);
    mn_test_expect(mn_test_context, MN_ERR_MISMATCH, "\"s\" is [] f32, [] f64 is wanted");
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(round_trip)
{
    size_t size;
    size_t again_size;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    unsigned char *bytes = mn_test_slurp(&size);
    mn_state_dict *back = mn_state_dict_read(mn_test_context, mn_test_state_path);
    ck_assert_msg(back != NULL, "%s", mn_error_message(mn_test_context));
    ck_assert(mn_test_state_same(dict, back));
    ck_assert_int_eq(mn_state_dict_write(back, mn_test_state_path), MN_OK);
    unsigned char *again = mn_test_slurp(&again_size);
    ck_assert_uint_eq(size, again_size);
    ck_assert_mem_eq(bytes, again, size);
    ck_assert_int_eq(mn_test_state_files(), 1);
    /* Every tensor is aligned to its element size. */
    mn_state_entry entry;
    uint64_t length;
    memcpy(&length, bytes, 8);
    ck_assert_uint_eq(length % 8, 0);
    for (int64_t i = 0, at = 0; mn_state_dict_entry(back, i, &entry);
         at += (int64_t)entry.bytes, i++)
        ck_assert_int_eq(at % (int64_t)mn_dtype_size(entry.dtype), 0);
    free(bytes);
    free(again);
    mn_state_dict_free(dict);
    mn_state_dict_free(back);
    back = mn_state_dict_create(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(back, mn_test_state_path), MN_OK);
    mn_state_dict_free(back);
    back = mn_state_dict_read(mn_test_context, mn_test_state_path);
    ck_assert_int_eq(mn_state_dict_count(back) + mn_state_dict_string_count(back), 0);
    mn_state_dict_free(back);
}
END_TEST

/* ---- the operating system -------------------------------------------------------------------- */

START_TEST(paths_that_cannot_be)
{
    char long_path[80];
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    snprintf(long_path, sizeof long_path, "%s/none/file", mn_test_state_folder);
    ck_assert_int_eq(mn_state_dict_write(dict, long_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "No such file");
    ck_assert_ptr_null(mn_state_dict_read(mn_test_context, long_path));
    mn_test_expect(mn_test_context, MN_ERR_IO, "none/file: cannot open: No such file");
    ck_assert_ptr_null(mn_state_dict_read(mn_test_context, mn_test_state_folder));
    mn_test_expect(mn_test_context, MN_ERR_IO, "not a regular file");
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_folder), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "cannot replace a folder");
    ck_assert_int_eq(mn_state_dict_write(dict, ""), MN_ERR_ARGUMENT);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "no path");
    ck_assert_ptr_null(mn_state_dict_read(mn_test_context, NULL));
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "no path");
    ck_assert_int_eq(mn_state_dict_write(NULL, mn_test_state_path), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mkfifo(mn_test_state_path, 0600), 0);
    ck_assert_ptr_null(
        mn_state_dict_read(mn_test_context, mn_test_state_path)); /* and does not hang */
    mn_test_expect(mn_test_context, MN_ERR_IO, "not a regular file");
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "cannot replace a device or pipe");
    mn_state_dict_free(dict);
}
END_TEST

/* What a killed writer left is taken over; what is no such file is refused and left alone. */
START_TEST(names_in_the_way)
{
    char stale[96];
    struct stat info;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    snprintf(stale, sizeof stale, "%s.tmp", mn_test_state_path);
    FILE *file = fopen(stale, "w");
    for (int i = 0; i < 10000; i++)
        fputc('x', file);
    fclose(file);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    ck_assert_int_eq(mn_test_state_files(), 1);
    mn_state_dict *back = mn_state_dict_read(mn_test_context, mn_test_state_path);
    ck_assert(back && mn_test_state_same(dict, back));
    mn_state_dict_free(back);
    ck_assert_int_eq(symlink(mn_test_state_path, stale), 0);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "temporary file");
    ck_assert(lstat(stale, &info) == 0 && S_ISLNK(info.st_mode));
    unlink(stale);
    ck_assert_int_eq(mkfifo(stale, 0600), 0);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "temporary file");
    int reader = open(stale, O_RDONLY | O_NONBLOCK);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "state.tmp is in the way: not a regular file");
    close(reader);
    unlink(stale);
    ck_assert_int_eq(chdir(mn_test_state_folder), 0);
    ck_assert_int_eq(mn_state_dict_write(dict, "state"), MN_OK);
    ck_assert_int_eq(chdir("/"), 0);
    mn_state_dict_free(dict);
}
END_TEST

/* A second process is not let into a file that is being written. */
START_TEST(writers_do_not_mix)
{
    char stale[96];
    int ready[2];
    char byte;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    snprintf(stale, sizeof stale, "%s.tmp", mn_test_state_path);
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        int file = open(stale, O_WRONLY | O_CREAT, 0600);
        if (flock(file, LOCK_EX | LOCK_NB) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "another writer has it");
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    ck_assert_int_eq(mn_test_state_files(), 1);
    mn_state_dict_free(dict);
}
END_TEST

/* Writes and reads, each in a context of its own, while others do so. */
static void *write_and_read(void *size)
{
    char text[300] = "";
    size_t *bad = size;
    mn_context *context = mn_context_create(NULL, NULL);
    mn_state_dict *dict = mn_state_dict_create(context);
    memset(text, 'x', *bad);
    mn_state_dict_set_string(dict, "text", text);
    *bad = 0;
    for (int i = 0; i < 1000; i++) {
        if (mn_state_dict_write(dict, mn_test_state_path) != MN_OK)
            *bad += !strstr(mn_error_message(context), "another writer has it");
        mn_error_clear(context);
        mn_state_dict *back = mn_state_dict_read(context, mn_test_state_path);
        *bad += !back;
        mn_error_clear(context);
        mn_state_dict_free(back);
    }
    mn_state_dict_free(dict);
    mn_context_free(context);
    return NULL;
}

/* Nor is a second thread; at any time the file is whole. */
START_TEST(threads_do_not_mix)
{
    pthread_t threads[3];
    size_t sizes[3] = {3, 100, 250}; /* then how often something went wrong */
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_and_read, &sizes[i]), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(sizes[i], 0);
    ck_assert_int_eq(mn_test_state_files(), 1);
    mn_state_dict_free(dict);
}
END_TEST

/* A file that others may not read stays so, and is replaced in a folder that may not be read. */
START_TEST(permissions_are_kept)
{
    struct stat info;
    int code;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    ck_assert_int_eq(chmod(mn_test_state_path, 0400), 0);
    ck_assert_int_eq(chmod(mn_test_state_folder, 0300), 0);
    pid_t child = fork();
    if (child == 0) { /* as nobody: root may read everything */
        bool root = geteuid() == 0;
        if (root && (chown(mn_test_state_folder, 65534, 65534) != 0 || setuid(65534) != 0))
            _exit(2);
        _exit(mn_state_dict_write(dict, mn_test_state_path) != MN_OK);
    }
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(chmod(mn_test_state_folder, 0700), 0);
    ck_assert_int_eq(code, 0);
    ck_assert_int_eq(stat(mn_test_state_path, &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0600); /* its owner may replace it */
    mn_state_dict_free(dict);
}
END_TEST

/* Links stay, and what they lead to is replaced or made, beside itself. */
START_TEST(links_are_followed)
{
    char link[96], second[96], folder[96], real[112];
    struct stat info;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    snprintf(link, sizeof link, "%s/link", mn_test_state_folder);
    snprintf(second, sizeof second, "%s/second", mn_test_state_folder);
    snprintf(folder, sizeof folder, "%s/folder", mn_test_state_folder);
    snprintf(real, sizeof real, "%s/real", folder);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(symlink("folder/real", link), 0);
    ck_assert_int_eq(symlink(link, second), 0); /* absolute */
    for (int i = 0; i < 2; i++) {               /* to nothing, then to a file */
        ck_assert_int_eq(mn_state_dict_write(dict, second), MN_OK);
        ck_assert(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
        ck_assert(lstat(second, &info) == 0 && S_ISLNK(info.st_mode));
        ck_assert(lstat(real, &info) == 0 && S_ISREG(info.st_mode));
        ck_assert_int_eq(mn_test_state_files(), 3);
    }
    mn_state_dict *back = mn_state_dict_read(mn_test_context, second);
    ck_assert(back && mn_test_state_same(dict, back));
    mn_state_dict_free(back);
    unlink(real);
    ck_assert_int_eq(symlink(second, real), 0); /* round and round */
    ck_assert_int_eq(mn_state_dict_write(dict, second), MN_ERR_IO);
    mn_test_expect(mn_test_context, MN_ERR_IO, "second: cannot find the file");
    unlink(real);
    ck_assert_int_eq(rmdir(folder), 0); /* no temporary file may be left */
    unlink(link);
    unlink(second);
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(full_disk_leaves_the_old_file)
{
    struct rlimit old;
    size_t size;
    size_t after_size;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    unsigned char *bytes = mn_test_slurp(&size);
    mn_state_dict_set_string(dict, "more", "text");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t limit = 0; limit < size; limit += 61) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, old.rlim_max});
        mn_status status = mn_state_dict_write(dict, mn_test_state_path);
        setrlimit(RLIMIT_FSIZE, &old);
        ck_assert_int_eq(status, MN_ERR_IO);
        mn_test_expect(mn_test_context, MN_ERR_IO, "state: cannot write: File too large");
        ck_assert_int_eq(mn_test_state_files(), 1);
    }
    signal(SIGXFSZ, handler);
    unsigned char *after = mn_test_slurp(&after_size);
    ck_assert_uint_eq(after_size, size);
    ck_assert_mem_eq(after, bytes, size);
    free(after);
    free(bytes);
    mn_state_dict_free(dict);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* The counter's failure, for good once it has begun. */
static void *failing_alloc(void *user, size_t size, size_t alignment)
{
    mn_test_counter *counter = user;
    if (counter->fail_at > 0 && counter->calls >= counter->fail_at)
        return NULL;
    mn_allocator plain = mn_test_counting(counter);
    return plain.alloc(plain.user, size, alignment);
}

/* Builds, writes and reads; true if nothing failed. */
static bool use_dict(mn_context *owner)
{
    mn_tensor *tensor = mn_full(owner, MN_F32, 4, (const int64_t[]){2, 3, 3, 2}, 1);
    mn_state_dict *dict = mn_test_state_sample(owner);
    mn_state_dict *back = NULL;
    if (dict && mn_state_dict_put_tensor(dict, "f", tensor, MN_LAYOUT_FILTER) == MN_OK &&
        mn_state_dict_write(dict, mn_test_state_path) == MN_OK)
        back = mn_state_dict_read(owner, mn_test_state_path);
    bool done = back && mn_test_state_same(dict, back) &&
                mn_state_dict_get_tensor(back, "f", tensor, MN_LAYOUT_FILTER, true) == MN_OK;
    mn_state_dict_free(back);
    mn_state_dict_free(dict);
    return done;
}

START_TEST(every_allocation_may_fail)
{
    bool done = false;
    for (long fail_at = 1; !done; fail_at++) {
        mn_test_counter counter = {0};
        mn_context_options options = mn_context_options_default();
        options.threads = 1;
        options.allocator = mn_test_counting(&counter);
        options.allocator.alloc = failing_alloc;
        mn_context *owner = mn_context_create(&options, NULL);
        counter.fail_at = counter.calls + fail_at;
        done = use_dict(owner);
        ck_assert_int_eq(mn_error_status(owner), done ? MN_OK : MN_ERR_MEMORY);
        ck_assert_int_le(mn_test_state_files(), 1);
        mn_context_free(owner);
        ck_assert_int_eq(counter.blocks, 0);
        ck_assert_uint_eq(counter.bytes, 0);
        ck_assert_int_lt(fail_at, 300);
        ck_assert(!done || fail_at > 10);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_dict");
    TCase *tcase = tcase_create("state_dict");
    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, mn_test_state_open, mn_test_state_close);
    tcase_add_test(tcase, put_and_find);
    tcase_add_test(tcase, strings_may_come_from_itself);
    tcase_add_test(tcase, wrong_entries_are_refused);
    tcase_add_test(tcase, many_names);
    tcase_add_test(tcase, filters_change_order);
    tcase_add_loop_test(tcase, floating_dtypes_are_converted, 0, 32);
    tcase_add_test(tcase, numbers_are_not_converted);
    tcase_add_test(tcase, round_trip);
    tcase_add_test(tcase, paths_that_cannot_be);
    tcase_add_test(tcase, names_in_the_way);
    tcase_add_test(tcase, writers_do_not_mix);
    tcase_add_test(tcase, threads_do_not_mix);
    tcase_add_test(tcase, permissions_are_kept);
    tcase_add_test(tcase, links_are_followed);
    tcase_add_test(tcase, full_disk_leaves_the_old_file);
    tcase_add_test(tcase, every_allocation_may_fail);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_FORK_GETENV);
}
