/* Checkpoint files that other programs wrote, that are hostile, and that are damaged. */
#include "support_state.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    {"", 0, "too early"},
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
    {"{\"__metadata__\":{\"minim.checksum\":\"000000000000000\\u0030\"}}", 0, "16"},
    {"{\"__metadata__\":{\"minim.checksum\":\"0000000000000000\"}}", 0, "does not match"},
    {"{\"__metadata__\":{\"minim.format\":\"1\"}}", 0, "checksum is missing"},
    {"{\"__metadata__\":{\"minim.format\":\"2\"}}", 0, "format \"2\""},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\udc00\\ud800\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\\u0041\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\u12\"}}", 0, "header byte"},
    {"{\"__metadata__\":{\"a\":\"\\u12", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\\ud83d\\ude0", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"\xc3", 0, "bad character or escape"},
    {"{\"__metadata__\":{\"a\":\"b", 0, "too early"},
    {"{\"__metadata__\":{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00E9\"}}", 0, NULL},
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

/* Reads the bytes as a file and from memory: the same dictionary or the same error, which stays
 * pending. */
static mn_state_dict *read_bytes(const unsigned char *bytes, size_t size)
{
    char message[1024];
    mn_context *ctx = mn_test_context;
    unsigned char *exact = malloc(size ? size : 1); /* so that sanitizers see a byte too many */
    memcpy(exact, bytes, size);
    mn_state_dict *memory = mn_state_dict_from_buffer(ctx, exact, size);
    mn_status status = mn_error_status(ctx);
    snprintf(message, sizeof message, "%s", mn_error_message(ctx));
    free(exact);
    mn_error_clear(ctx);
    mn_test_spill(bytes, size);
    mn_state_dict *file = mn_state_dict_read(ctx, mn_test_state_path);
    ck_assert_int_eq(status, mn_error_status(ctx));
    ck_assert_int_eq(memory == NULL, file == NULL);
    const char *text = strstr(mn_error_message(ctx), "/state: ");
    ck_assert(status == MN_OK || (text && strncmp(message, "buffer: ", 8) == 0));
    ck_assert(status == MN_OK || strcmp(text + 8, message + 8) == 0);
    ck_assert(!file || mn_test_state_same(file, memory));
    mn_state_dict_free(memory);
    return file;
}

START_TEST(headers)
{
    const header_case *at = &header_cases[_i];
    unsigned char bytes[512];
    mn_state_dict *dict = read_bytes(bytes, build_file(bytes, at->header, at->data_bytes));
    if (at->error) {
        ck_assert_msg(dict == NULL, "%s was accepted", at->header);
        mn_test_expect(mn_test_context, MN_ERR_FORMAT, at->error);
    } else {
        ck_assert_msg(dict != NULL, "%s: %s", at->header, mn_error_message(mn_test_context));
    }
    mn_state_dict_free(dict);
    ck_assert_uint_eq(mn_memory_stats_get(mn_test_context).live_bytes, 0);
}
END_TEST

START_TEST(foreign_file_content)
{
    unsigned char bytes[512];
    mn_state_entry entry;
    mn_test_spill(bytes, build_file(bytes, header_cases[2].header, 9));
    mn_state_dict *dict = mn_state_dict_read(mn_test_context, mn_test_state_path);
    ck_assert(mn_state_dict_find(dict, "v", &entry) && entry.bytes == 1);
    ck_assert(mn_state_dict_find(dict, "w", &entry) && entry.bytes == 8 && entry.ndim == 1);
    mn_state_dict_free(dict);
    mn_test_spill(bytes, build_file(bytes, header_cases[4].header, 0));
    dict = mn_state_dict_read(mn_test_context, mn_test_state_path);
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
    ck_assert_ptr_null(read_bytes(bytes, 8 + length));
    mn_test_expect(mn_test_context, MN_ERR_FORMAT, "'{' expected");
    free(bytes);
}
END_TEST

START_TEST(wrong_lengths)
{
    const uint64_t lengths[] = {9, 1u << 20, 100000001, UINT64_MAX, (uint64_t)1 << 63};
    unsigned char bytes[16] = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(bytes, &lengths[i], 8);
        ck_assert_ptr_null(read_bytes(bytes, sizeof bytes));
        mn_test_expect(mn_test_context, MN_ERR_FORMAT, "announced");
    }
    ck_assert_ptr_null(read_bytes(bytes, 7));
    mn_test_expect(mn_test_context, MN_ERR_FORMAT, "too few");
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

START_TEST(truncated_anywhere)
{
    size_t size;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    unsigned char *bytes = mn_test_slurp(&size);
    for (size_t length = 0; length < size; length++) {
        ck_assert_ptr_null(read_bytes(bytes, length));
        ck_assert_int_eq(mn_error_status(mn_test_context), MN_ERR_FORMAT);
        mn_error_clear(mn_test_context);
    }
    bytes[size] = 0;
    ck_assert_ptr_null(read_bytes(bytes, size + 1));
    mn_test_expect(mn_test_context, MN_ERR_FORMAT, "bytes of data");
    free(bytes);
    mn_state_dict_free(dict);
}
END_TEST

/* Every byte of the file with every bit flipped in turn, and all of them. */
START_TEST(flipped_anywhere)
{
    size_t size;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    unsigned char *bytes = mn_test_slurp(&size);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit <= 8; bit++) {
            unsigned char mask = (unsigned char)(bit < 8 ? 1u << bit : 0xffu);
            bytes[i] ^= mask;
            mn_state_dict *back = read_bytes(bytes, size);
            ck_assert_msg(!back || mn_test_state_same(dict, back), "byte %zu, mask %x", i, mask);
            ck_assert(back || mn_error_status(mn_test_context) == MN_ERR_FORMAT);
            mn_error_clear(mn_test_context);
            mn_state_dict_free(back);
            bytes[i] ^= mask;
        }
    }
    free(bytes);
    mn_state_dict_free(dict);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *tcase = tcase_create("checkpoint");
    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, mn_test_state_open, mn_test_state_close);
    tcase_add_loop_test(tcase, headers, 0, (int)(sizeof header_cases / sizeof *header_cases));
    tcase_add_test(tcase, foreign_file_content);
    tcase_add_test(tcase, deep_nesting_is_harmless);
    tcase_add_test(tcase, wrong_lengths);
    tcase_add_test(tcase, truncated_anywhere);
    tcase_add_test(tcase, flipped_anywhere);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_FORK_GETENV);
}
