/* State dictionaries, and checkpoint files that are whole, foreign, damaged or cannot be written.
 */
#include "core/json.h"
#include "core/state_dict.h"
#include "support_counting.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/minim-test-XXXXXX";
static char path[64];
static mn_context *context;

static void set_up(void)
{
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state", folder);
    context = mn_context_create(NULL, NULL);
    ck_assert_ptr_nonnull(context);
}

static int count_files(void)
{
    int count = 0;
    DIR *directory = opendir(folder);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 2;
}

static void tear_down(void)
{
    mn_context_free(context);
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); /* no temporary file may be left */
}

static void expect_error(mn_status status, const char *part)
{
    ck_assert_int_eq(mn_error_status(context), status);
    ck_assert_msg(strstr(mn_error_message(context), part) != NULL, "\"%s\" lacks \"%s\"",
                  mn_error_message(context), part);
    mn_error_clear(context);
}

/* ---- dictionaries ---------------------------------------------------------------------------- */

/* A few tensors, misaligned on purpose, numbers and strings. */
static mn_state_dict *sample(mn_context *owner)
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

static bool same_content(const mn_state_dict *a, const mn_state_dict *b)
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

START_TEST(put_and_find)
{
    mn_state_dict *dict = sample(context);
    mn_state_entry entry;
    int64_t steps;
    double scale;
    ck_assert_int_eq(mn_state_dict_count(dict), 7);
    ck_assert(mn_state_dict_entry(dict, 1, &entry));
    ck_assert_str_eq(entry.name, "w");
    ck_assert(((const float *)entry.data)[1] == -2);
    ck_assert(!mn_state_dict_entry(dict, 7, &entry) && !mn_state_dict_entry(dict, -1, &entry));
    ck_assert(!mn_state_dict_find(dict, "W", &entry));
    ck_assert_int_eq(mn_state_dict_get_i64(dict, "steps", &steps), MN_OK);
    ck_assert_int_eq(mn_state_dict_get_f64(dict, "scale", &scale), MN_OK);
    ck_assert(steps == -5 && scale == 0.1);
    ck_assert_int_eq(mn_state_dict_get_i64(dict, "scale", &steps), MN_ERR_MISMATCH);
    expect_error(MN_ERR_MISMATCH, "\"scale\" is [] f64");
    ck_assert_int_eq(mn_state_dict_get_f64(dict, "nothing", &scale), MN_ERR_MISMATCH);
    expect_error(MN_ERR_MISMATCH, "nothing");
    ck_assert_int_eq(mn_state_dict_set_string(dict, "model", "other"), MN_OK);
    ck_assert_str_eq(mn_state_dict_get_string(dict, "model"), "other");
    ck_assert_int_eq(mn_state_dict_string_count(dict), 2);
    ck_assert_ptr_null(mn_state_dict_get_string(dict, "none"));
    mn_state_dict_free(dict);
    mn_state_dict_free(NULL);
}
END_TEST

START_TEST(wrong_entries_are_refused)
{
    mn_state_dict *dict = sample(context);
    const int64_t two[] = {2};
    const float data[2] = {1, 2};
    mn_state_entry entry = {"w", MN_F32, 1, two, data, 8};
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
    expect_error(MN_ERR_ARGUMENT, "there already");
    entry.name = "new";
    entry.bytes = 4;
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_SHAPE);
    expect_error(MN_ERR_SHAPE, "needs 8");
    entry.bytes = 8;
    entry.data = NULL;
    ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
    expect_error(MN_ERR_ARGUMENT, "data");
    entry.data = data;
    const char *names[] = {NULL, "", "__metadata__", "\xff", "\xc0\x80", "\xed\xa0\x80"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        entry.name = names[i];
        ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_ERR_ARGUMENT);
        mn_error_clear(context);
    }
    ck_assert_int_eq(mn_state_dict_put(dict, NULL), MN_ERR_ARGUMENT);
    mn_error_clear(context);
    ck_assert_int_eq(mn_state_dict_set_string(dict, MN_STATE_KEY_CHECKSUM, ""), MN_ERR_ARGUMENT);
    expect_error(MN_ERR_ARGUMENT, "file format");
    ck_assert_int_eq(mn_state_dict_count(dict), 7);
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(many_names)
{
    mn_state_dict *dict = mn_state_dict_create(context);
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
        ck_assert_int_eq(mn_state_dict_get_i64(dict, name, &value), MN_OK);
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
    mn_tensor *filter = mn_tensor_create(context, MN_F16, 4, shape);
    mn_tensor_write_f64(filter, values, 60);
    mn_state_dict *dict = mn_state_dict_create(context);
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
    expect_error(MN_ERR_MISMATCH, "\"f\" is [2,5,3,2] f16, [2,3,2,5] f16 is wanted");
    ck_assert_int_eq(mn_state_dict_get_tensor(dict, "g", filter, MN_LAYOUT_FILTER, true),
                     MN_ERR_MISMATCH);
    expect_error(MN_ERR_MISMATCH, "\"g\" is missing");
    mn_tensor *scalar = mn_full(context, MN_F32, 0, NULL, 1);
    ck_assert_int_eq(mn_state_dict_put_tensor(dict, "s", scalar, MN_LAYOUT_FILTER), MN_ERR_SHAPE);
    expect_error(MN_ERR_SHAPE, "no filter");
    mn_state_dict_free(dict);
}
END_TEST

/* ---- whole files ----------------------------------------------------------------------------- */

static unsigned char *slurp(size_t *size)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    unsigned char *bytes = malloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void spill(const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

START_TEST(round_trip)
{
    size_t size;
    size_t again_size;
    mn_state_dict *dict = sample(context);
    ck_assert_int_eq(mn_state_dict_write(dict, path), MN_OK);
    unsigned char *bytes = slurp(&size);
    mn_state_dict *back = mn_state_dict_read(context, path);
    ck_assert_msg(back != NULL, "%s", mn_error_message(context));
    ck_assert(same_content(dict, back));
    ck_assert_int_eq(mn_state_dict_write(back, path), MN_OK);
    unsigned char *again = slurp(&again_size);
    ck_assert_uint_eq(size, again_size);
    ck_assert_mem_eq(bytes, again, size);
    ck_assert_int_eq(count_files(), 1);
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
    back = mn_state_dict_create(context);
    ck_assert_int_eq(mn_state_dict_write(back, path), MN_OK);
    mn_state_dict_free(back);
    back = mn_state_dict_read(context, path);
    ck_assert_int_eq(mn_state_dict_count(back) + mn_state_dict_string_count(back), 0);
    mn_state_dict_free(back);
}
END_TEST

/* ---- foreign and hostile headers ------------------------------------------------------------- */

typedef struct header_case {
    const char *header;
    size_t data_bytes;
    const char *error; /* part of the message; NULL: it is fine */
} header_case;

#define W "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static const header_case header_cases[] = {
    {"{" W "}", 8, NULL},
    {" \t{" W " , \"v\" : { \"shape\":[] ,\"dtype\":\"U8\", \"data_offsets\":[ 8 , 9 ] } } \n", 9,
     NULL},
    {"{\"v\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}," W "}", 9, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}," W "}", 8, NULL},
    {"{\"\\u00e9\\ud83d\\ude00\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     NULL},
    {"{}", 0, NULL},
    {"", 0, "'{' expected"},
    {"[]", 0, "'{' expected"},
    {"{" W, 8, "too early"},
    {"{" W "} x", 8, "header byte"},
    {"{" W "}{}", 8, "should end here"},
    {"{" W ",}", 8, "a string expected"},
    {"{" W " " W "}", 8, "header byte"},
    {"{" W "," W "}", 8, "inside one"},
    {"{" W ",\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9,
     "a second tensor \"w\""},
    {"{" W "}", 9, "9 bytes of data, the tensors take 8"},
    {"{" W "}", 7, "data_offsets end at 8, the data at 7"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}", 9, "after a gap"},
    {"{" W ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "inside one"},
    {"{" W ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "inside one"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "begin and end"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "begin and end"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", 8, "more than 2"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "needs 12 bytes"},
    {"{\"w\":{\"dtype\":\"F8\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"F8\" is not known"},
    {"{\"w\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a string expected"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "not negative"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "whole number"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", 8, "whole number"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[true],\"data_offsets\":[0,8]}}", 8, "whole number"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "whole number"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "'[' expected"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]}}", 8, "whole number"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}}", 8,
     "too large"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "too large"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     "too large"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
     "more than 6"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "not all there"},
    {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2]}}", 8, "a second \"dtype\""},
    {"{\"w\":{\"type\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown key"},
    {"{\"w\":[]}", 0, "'{' expected"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "without a name"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "a string expected"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "second metadata string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "second __metadata__"},
    {"{\"__metadata__\":{\"minim.checksum\":\"12\"}}", 0, "16"},
    {"{\"__metadata__\":{\"minim.checksum\":\"0000000000000000\"}}", 0, "does not match"},
    {"{\"__metadata__\":{\"minim.format\":\"1\"}}", 0, "checksum is missing"},
    {"{\"__metadata__\":{\"minim.format\":\"2\"}}", 0, "format \"2\""},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\udc00\\ud800\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\\u0041\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\u12\"}}", 0, "header byte"},
    {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "header byte"},
    {"{\"__metadata__\":{\"a\":\"\x01\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\xff\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\xc1\x81\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\" \"b\"}}", 0, "header byte"},
    {"{\"__metadata__\":{\"a\":\"b\":\"c\"}}", 0, "header byte"},
    {"{\"__metadata__\":{:\"b\"}}", 0, "header byte"},
    {"{\"__metadata__\":{\"a\":[[[[[[[[\"b\"]]]]]]]]}}", 0, "a string expected"},
};

static size_t build_file(unsigned char *bytes, const char *header, size_t data_bytes)
{
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memset(bytes + 8 + length, 7, data_bytes);
    return 8 + length + data_bytes;
}

START_TEST(headers)
{
    const header_case *at = &header_cases[_i];
    unsigned char bytes[512];
    spill(bytes, build_file(bytes, at->header, at->data_bytes));
    mn_state_dict *dict = mn_state_dict_read(context, path);
    if (at->error) {
        ck_assert_msg(dict == NULL, "%s was accepted", at->header);
        expect_error(MN_ERR_FORMAT, at->error);
    } else {
        ck_assert_msg(dict != NULL, "%s: %s", at->header, mn_error_message(context));
    }
    mn_state_dict_free(dict);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 0);
}
END_TEST

START_TEST(foreign_file_content)
{
    unsigned char bytes[512];
    mn_state_entry entry;
    spill(bytes, build_file(bytes, header_cases[2].header, 9));
    mn_state_dict *dict = mn_state_dict_read(context, path);
    ck_assert(mn_state_dict_find(dict, "v", &entry) && entry.bytes == 1);
    ck_assert(mn_state_dict_find(dict, "w", &entry) && entry.bytes == 8 && entry.ndim == 1);
    mn_state_dict_free(dict);
    spill(bytes, build_file(bytes, header_cases[4].header, 0));
    dict = mn_state_dict_read(context, path);
    ck_assert(mn_state_dict_find(dict, "\xc3\xa9\xf0\x9f\x98\x80", &entry));
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(deep_nesting_is_harmless)
{
    enum { DEPTH = 200000 };
    unsigned char *bytes = malloc(2 * DEPTH + 64);
    uint64_t length = 2 * DEPTH + 6;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, "{\"a\":", 5);
    memset(bytes + 13, '[', DEPTH);
    memset(bytes + 13 + DEPTH, ']', DEPTH);
    bytes[13 + 2 * DEPTH] = '}';
    spill(bytes, 8 + length);
    ck_assert_ptr_null(mn_state_dict_read(context, path));
    expect_error(MN_ERR_FORMAT, "nested more than 32");
    free(bytes);
}
END_TEST

START_TEST(wrong_lengths)
{
    const uint64_t lengths[] = {9, 1u << 20, 100000001, UINT64_MAX, (uint64_t)1 << 63};
    unsigned char bytes[16] = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(bytes, &lengths[i], 8);
        spill(bytes, sizeof bytes);
        ck_assert_ptr_null(mn_state_dict_read(context, path));
        expect_error(MN_ERR_FORMAT, "announced");
    }
    spill(bytes, 7);
    ck_assert_ptr_null(mn_state_dict_read(context, path));
    expect_error(MN_ERR_FORMAT, "too few");
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

START_TEST(truncated_anywhere)
{
    size_t size;
    mn_state_dict *dict = sample(context);
    ck_assert_int_eq(mn_state_dict_write(dict, path), MN_OK);
    unsigned char *bytes = slurp(&size);
    for (size_t length = 0; length < size; length++) {
        spill(bytes, length);
        ck_assert_ptr_null(mn_state_dict_read(context, path));
        ck_assert_int_eq(mn_error_status(context), MN_ERR_FORMAT);
        mn_error_clear(context);
    }
    bytes[size] = 0;
    spill(bytes, size + 1);
    ck_assert_ptr_null(mn_state_dict_read(context, path));
    expect_error(MN_ERR_FORMAT, "bytes of data");
    free(bytes);
    mn_state_dict_free(dict);
}
END_TEST

/* Every byte of the file with every bit flipped in turn, and all of them. */
START_TEST(flipped_anywhere)
{
    size_t size;
    mn_state_dict *dict = sample(context);
    ck_assert_int_eq(mn_state_dict_write(dict, path), MN_OK);
    unsigned char *bytes = slurp(&size);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit <= 8; bit++) {
            unsigned char mask = (unsigned char)(bit < 8 ? 1u << bit : 0xffu);
            bytes[i] ^= mask;
            spill(bytes, size);
            mn_state_dict *back = mn_state_dict_read(context, path);
            ck_assert_msg(!back || same_content(dict, back), "byte %zu, mask %x", i, mask);
            ck_assert(back || mn_error_status(context) == MN_ERR_FORMAT);
            mn_error_clear(context);
            mn_state_dict_free(back);
            bytes[i] ^= mask;
        }
    }
    free(bytes);
    mn_state_dict_free(dict);
}
END_TEST

/* ---- the operating system -------------------------------------------------------------------- */

START_TEST(paths_that_cannot_be)
{
    char long_path[80];
    mn_state_dict *dict = sample(context);
    snprintf(long_path, sizeof long_path, "%s/none/file", folder);
    ck_assert_int_eq(mn_state_dict_write(dict, long_path), MN_ERR_IO);
    expect_error(MN_ERR_IO, "No such file");
    ck_assert_ptr_null(mn_state_dict_read(context, long_path));
    expect_error(MN_ERR_IO, "none/file: cannot open: No such file");
    ck_assert_ptr_null(mn_state_dict_read(context, folder));
    expect_error(MN_ERR_IO, "not a regular file");
    ck_assert_int_eq(mn_state_dict_write(dict, folder), MN_ERR_IO);
    expect_error(MN_ERR_IO, "cannot replace");
    ck_assert_int_eq(mn_state_dict_write(dict, ""), MN_ERR_ARGUMENT);
    expect_error(MN_ERR_ARGUMENT, "no path");
    ck_assert_ptr_null(mn_state_dict_read(context, NULL));
    expect_error(MN_ERR_ARGUMENT, "no path");
    ck_assert_int_eq(mn_state_dict_write(NULL, path), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_ptr_null(mn_state_dict_read(context, path)); /* and does not hang */
    expect_error(MN_ERR_IO, "not a regular file");
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(names_in_the_way)
{
    char stale[96];
    mn_state_dict *dict = sample(context);
    snprintf(stale, sizeof stale, "%s.tmp.%ld", path, (long)getpid());
    fclose(fopen(stale, "w"));
    ck_assert_int_eq(mn_state_dict_write(dict, path), MN_OK);
    ck_assert_int_eq(count_files(), 2);
    unlink(stale);
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mn_state_dict_write(dict, "state"), MN_OK);
    ck_assert_int_eq(chdir("/"), 0);
    mn_state_dict_free(dict);
}
END_TEST

START_TEST(full_disk_leaves_the_old_file)
{
    struct rlimit old;
    size_t size;
    size_t after_size;
    mn_state_dict *dict = sample(context);
    ck_assert_int_eq(mn_state_dict_write(dict, path), MN_OK);
    unsigned char *bytes = slurp(&size);
    mn_state_dict_set_string(dict, "more", "text");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t limit = 0; limit < size; limit += 61) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, old.rlim_max});
        mn_status status = mn_state_dict_write(dict, path);
        setrlimit(RLIMIT_FSIZE, &old);
        ck_assert_int_eq(status, MN_ERR_IO);
        expect_error(MN_ERR_IO, "state: cannot write: File too large");
        ck_assert_int_eq(count_files(), 1);
    }
    signal(SIGXFSZ, handler);
    unsigned char *after = slurp(&after_size);
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
    mn_state_dict *dict = sample(owner);
    mn_state_dict *back = NULL;
    if (dict && mn_state_dict_put_tensor(dict, "f", tensor, MN_LAYOUT_FILTER) == MN_OK &&
        mn_state_dict_write(dict, path) == MN_OK)
        back = mn_state_dict_read(owner, path);
    bool done = back && same_content(dict, back) &&
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
        ck_assert_int_le(count_files(), 1);
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
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, put_and_find);
    tcase_add_test(tcase, wrong_entries_are_refused);
    tcase_add_test(tcase, many_names);
    tcase_add_test(tcase, filters_change_order);
    tcase_add_test(tcase, round_trip);
    tcase_add_loop_test(tcase, headers, 0, (int)(sizeof header_cases / sizeof *header_cases));
    tcase_add_test(tcase, foreign_file_content);
    tcase_add_test(tcase, deep_nesting_is_harmless);
    tcase_add_test(tcase, wrong_lengths);
    tcase_add_test(tcase, truncated_anywhere);
    tcase_add_test(tcase, flipped_anywhere);
    tcase_add_test(tcase, paths_that_cannot_be);
    tcase_add_test(tcase, names_in_the_way);
    tcase_add_test(tcase, full_disk_leaves_the_old_file);
    tcase_add_test(tcase, every_allocation_may_fail);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
