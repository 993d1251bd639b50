/* train/json.c: JSON text in a growing buffer. */
#include "train/json.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 512, ALIGNMENT = 16 };

void mn_out_init(mn_json_out *json, const mn_allocator *allocator)
{
    *json = (mn_json_out){.allocator = mn_allocator_or_default(allocator)};
}

void mn_out_free(mn_json_out *json)
{
    if (json->text)
        json->allocator.free(json->allocator.user, json->text, json->capacity);
    json->text = NULL;
    json->length = json->capacity = 0;
}

void mn_out_reset(mn_json_out *json)
{
    json->length = 0;
    json->comma = json->failed = false;
    if (json->text)
        json->text[0] = '\0';
}

const char *mn_out_text(const mn_json_out *json)
{
    if (json->failed)
        return NULL;
    return json->text ? json->text : "";
}

/* ---- the buffer ------------------------------------------------------------------------------ */

/* Makes room for `more` bytes and the terminating zero. */
static bool reserve(mn_json_out *json, size_t more)
{
    size_t needed, capacity;
    if (!mn_size_add(json->length, more, &needed) || !mn_size_add(needed, 1, &needed))
        return false;
    if (needed <= json->capacity)
        return true;
    if (!mn_size_mul(json->capacity, 2, &capacity) || capacity < needed)
        capacity = needed < FIRST_CAPACITY ? FIRST_CAPACITY : needed;
    char *text = json->allocator.alloc(json->allocator.user, capacity, ALIGNMENT);
    if (!text)
        return false;
    if (json->text) {
        memcpy(text, json->text, json->length + 1);
        json->allocator.free(json->allocator.user, json->text, json->capacity);
    }
    json->text = text;
    json->capacity = capacity;
    return true;
}

static void append(mn_json_out *json, const char *bytes, size_t count)
{
    if (json->failed)
        return;
    if (!reserve(json, count)) {
        json->failed = true;
        return;
    }
    memcpy(json->text + json->length, bytes, count);
    json->length += count;
    json->text[json->length] = '\0';
}

static void append_text(mn_json_out *json, const char *text)
{
    append(json, text, strlen(text));
}

static void separate(mn_json_out *json)
{
    if (json->comma)
        append(json, ",", 1);
    json->comma = true;
}

static void value_text(mn_json_out *json, const char *text)
{
    separate(json);
    append_text(json, text);
}

/* ---- structure ------------------------------------------------------------------------------- */

static void begin(mn_json_out *json, const char *bracket)
{
    value_text(json, bracket);
    json->comma = false;
}

static void end(mn_json_out *json, const char *bracket)
{
    append_text(json, bracket);
    json->comma = true;
}

void mn_out_begin_object(mn_json_out *json)
{
    begin(json, "{");
}

void mn_out_end_object(mn_json_out *json)
{
    end(json, "}");
}

void mn_out_begin_array(mn_json_out *json)
{
    begin(json, "[");
}

void mn_out_end_array(mn_json_out *json)
{
    end(json, "]");
}

void mn_out_key(mn_json_out *json, const char *key)
{
    mn_out_string(json, key);
    append(json, ":", 1);
    json->comma = false;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at text; 0 if it is not one (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF). */
static size_t utf8_length(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned char low = 0x80, high = 0xbf;
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (length == 1)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    if (at[0] == 0xe0)
        low = 0xa0;
    if (at[0] == 0xf0)
        low = 0x90;
    if (at[0] == 0xed)
        high = 0x9f;
    if (at[0] == 0xf4)
        high = 0x8f;
    if (at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (at[i] < 0x80 || at[i] > 0xbf)
            return 0;
    return length;
}

static void append_control(mn_json_out *json, char byte)
{
    static const char from[] = "\b\f\n\r\t", to[] = "bfnrt";
    const char *found = strchr(from, byte);
    char text[8];
    if (found)
        snprintf(text, sizeof text, "\\%c", to[found - from]);
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)(unsigned char)byte);
    append_text(json, text);
}

void mn_out_string(mn_json_out *json, const char *value)
{
    if (!value) {
        mn_out_null(json);
        return;
    }
    value_text(json, "\"");
    while (*value) {
        size_t length = utf8_length(value);
        if (length == 0)
            append_text(json, "\xef\xbf\xbd");
        else if (*value == '"' || *value == '\\')
            append(json, *value == '"' ? "\\\"" : "\\\\", 2);
        else if ((unsigned char)*value < 0x20 || *value == 0x7f)
            append_control(json, *value);
        else
            append(json, value, length);
        value += length ? length : 1;
    }
    append(json, "\"", 1);
}

/* The decimal separator follows the locale and may be several bytes; JSON wants a point. */
static void make_point(char *text)
{
    size_t at = strspn(text, "+-0123456789");
    size_t width = strcspn(text + at, "+-0123456789eE");
    if (width == 0)
        return;
    text[at] = '.';
    memmove(text + at + 1, text + at + width, strlen(text + at + width) + 1);
}

void mn_number_text(double value, char text[MN_NUMBER_TEXT])
{
    /* Any decimal of at most 15 digits survives the way through a normal double, so that the
     * shortest one is what %.15g gives without its trailing zeros. */
    int digits = fabs(value) < DBL_MIN ? 1 : 15;
    do {
        snprintf(text, MN_NUMBER_TEXT, "%.*g", digits, value);
    } while (digits++ < 17 && strtod(text, NULL) != value);
    make_point(text);
}

void mn_out_number(mn_json_out *json, double value)
{
    char text[MN_NUMBER_TEXT];
    if (isnan(value)) {
        value_text(json, "\"nan\"");
    } else if (isinf(value)) {
        value_text(json, value > 0.0 ? "\"inf\"" : "\"-inf\"");
    } else {
        mn_number_text(value, text);
        value_text(json, text);
    }
}

void mn_out_measured(mn_json_out *json, double value)
{
    if (isnan(value))
        mn_out_null(json);
    else
        mn_out_number(json, value);
}

void mn_out_integer(mn_json_out *json, int64_t value)
{
    char text[MN_NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRId64, value);
    value_text(json, text);
}

void mn_out_unsigned(mn_json_out *json, uint64_t value)
{
    char text[MN_NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRIu64, value);
    value_text(json, text);
}

void mn_out_boolean(mn_json_out *json, bool value)
{
    value_text(json, value ? "true" : "false");
}

void mn_out_null(mn_json_out *json)
{
    value_text(json, "null");
}

void mn_out_add_string(mn_json_out *json, const char *key, const char *value)
{
    mn_out_key(json, key);
    mn_out_string(json, value);
}

void mn_out_add_number(mn_json_out *json, const char *key, double value)
{
    mn_out_key(json, key);
    mn_out_number(json, value);
}

void mn_out_add_measured(mn_json_out *json, const char *key, double value)
{
    mn_out_key(json, key);
    mn_out_measured(json, value);
}

void mn_out_add_integer(mn_json_out *json, const char *key, int64_t value)
{
    mn_out_key(json, key);
    mn_out_integer(json, value);
}

void mn_out_add_unsigned(mn_json_out *json, const char *key, uint64_t value)
{
    mn_out_key(json, key);
    mn_out_unsigned(json, value);
}

void mn_out_add_boolean(mn_json_out *json, const char *key, bool value)
{
    mn_out_key(json, key);
    mn_out_boolean(json, value);
}
