/* tests/support_state.c: see the header. */
#include "tests/support_state.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char mn_test_state_folder[24] = "/tmp/minim-test-XXXXXX";
char mn_test_state_path[64];
mn_context *mn_test_context;

void mn_test_state_open(void)
{
    strcpy(mn_test_state_folder, "/tmp/minim-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(mn_test_state_folder));
    snprintf(mn_test_state_path, sizeof mn_test_state_path, "%s/state", mn_test_state_folder);
    mn_test_context = mn_context_create(NULL, NULL);
    ck_assert_ptr_nonnull(mn_test_context);
}

int mn_test_state_files(void)
{
    int count = 0;
    DIR *directory = opendir(mn_test_state_folder);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 2;
}

void mn_test_state_close(void)
{
    mn_context_free(mn_test_context);
    unlink(mn_test_state_path);
    ck_assert_int_eq(rmdir(mn_test_state_folder), 0); /* no temporary file may be left */
}

mn_state_dict *mn_test_state_sample(mn_context *owner)
{
    static const int64_t three[] = {3};
    static const int64_t matrix[] = {2, 2};
    static const int64_t none[] = {4, 0};
    static const uint8_t bytes[] = {1, 2, 3};
    static const float floats[] = {1.5f, -2, 3, 4};
    static const uint16_t halves[] = {0x3c00, 0x7e01, 0x8000};
    mn_state_dict *dict = mn_state_dict_create(owner);
    mn_state_entry entries[] = {
        {"mask", MN_U8, 1, three, bytes, 3},
        {"w", MN_F32, 2, matrix, floats, 16},
        {"empty", MN_F32, 2, none, NULL, 0},
        {"half", MN_F16, 1, three, halves, 6},
        {"layer.0.\"\\\n\xc3\xa9", MN_BF16, 1, three, halves, 6},
    };
    if (!dict)
        return NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        mn_state_dict_put(dict, &entries[i]);
    mn_state_dict_put_i64(dict, "steps", -5);
    mn_state_dict_put_f64(dict, "scale", 0.1);
    mn_state_dict_set_string(dict, "model", "lenet5");
    mn_state_dict_set_string(dict, "odd", "a\"b\\c\td\xf0\x9f\x98\x80");
    return dict;
}

bool mn_test_state_same(const mn_state_dict *a, const mn_state_dict *b)
{
    mn_state_entry x;
    mn_state_entry y;
    const char *key;
    const char *value;
    if (mn_state_dict_count(a) != mn_state_dict_count(b) ||
        mn_state_dict_string_count(a) != mn_state_dict_string_count(b))
        return false;
    for (int64_t i = 0; mn_state_dict_entry(a, i, &x); i++) {
        if (!mn_state_dict_find(b, x.name, &y) || x.dtype != y.dtype || x.ndim != y.ndim ||
            memcmp(x.shape, y.shape, (size_t)x.ndim * sizeof *x.shape) != 0 || x.bytes != y.bytes ||
            (x.bytes > 0 && memcmp(x.data, y.data, x.bytes) != 0))
            return false;
    }
    for (int64_t i = 0; mn_state_dict_string(a, i, &key, &value); i++) {
        if (!mn_state_dict_get_string(b, key) || strcmp(mn_state_dict_get_string(b, key), value))
            return false;
    }
    return true;
}

unsigned char *mn_test_slurp(size_t *size)
{
    FILE *file = fopen(mn_test_state_path, "rb");
    ck_assert_ptr_nonnull(file);
    unsigned char *bytes = malloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

void mn_test_spill(const void *bytes, size_t size)
{
    FILE *file = fopen(mn_test_state_path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}
