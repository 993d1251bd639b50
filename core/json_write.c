/* core/json_write.c: arrays that grow, and JSON text in one. */
#include "core/json_write.h"

#include "core/json.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 512 };

/* ---- arrays ---------------------------------------------------------------------------------- */

mn_list mn_list_new(const mn_allocator *allocator, size_t item_bytes)
{
    return (mn_list){.allocator = mn_allocator_or_default(allocator), .item_bytes = item_bytes};
}

bool mn_list_reserve(mn_list *list, size_t more)
{
    size_t wanted, used = (size_t)list->count * list->item_bytes;
    return mn_size_add((size_t)list->count, more, &wanted) &&
           mn_size_mul(wanted, list->item_bytes, &wanted) &&
           mn_allocator_grow(&list->allocator, &list->items, &list->bytes, used,
                             wanted < FIRST_BYTES ? FIRST_BYTES : wanted);
}

bool mn_list_append(mn_list *list, const void *items, size_t more)
{
    if (!mn_list_reserve(list, more))
        return false;
    memcpy((char *)list->items + (size_t)list->count * list->item_bytes, items,
           more * list->item_bytes);
    list->count += (int64_t)more;
    return true;
}

void mn_list_free(mn_list *list)
{
    if (list->items)
        list->allocator.free(list->allocator.user, list->items, list->bytes);
    list->items = NULL;
    list->bytes = 0;
    list->count = 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

void mn_out_init(mn_json_out *json, const mn_allocator *allocator)
{
    *json = (mn_json_out){.text = mn_list_new(allocator, 1)};
}

void mn_out_free(mn_json_out *json)
{
    mn_list_free(&json->text);
}

void mn_out_reset(mn_json_out *json)
{
    json->text.count = 0;
    json->comma = json->failed = false;
}

char *mn_out_text(mn_json_out *json)
{
    json->failed = json->failed || !mn_list_reserve(&json->text, 1);
    if (json->failed)
        return NULL;
    ((char *)json->text.items)[json->text.count] = '\0';
    return json->text.items;
}

static void append(mn_json_out *json, const char *bytes, size_t count)
{
    json->failed = json->failed || !mn_list_append(&json->text, bytes, count);
}

void mn_put(mn_json_out *json, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || json->failed || !mn_list_reserve(&json->text, (size_t)length + 1)) {
        json->failed = true;
        return;
    }
    va_start(arguments, format);
    vsnprintf((char *)json->text.items + json->text.count, (size_t)length + 1, format, arguments);
    va_end(arguments);
    json->text.count += length;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void append_string(mn_json_out *json, const char *value)
{
    append(json, "\"", 1);
    while (*value) {
        size_t length = mn_utf8_sequence(value, 4);
        if (length == 0)
            append(json, "\xef\xbf\xbd", 3);
        else if (*value == '"' || *value == '\\')
            append(json, *value == '"' ? "\\\"" : "\\\\", 2);
        else if ((unsigned char)*value < 0x20 || *value == 0x7f)
            mn_put(json, "\\u%04x", (unsigned)*value);
        else
            append(json, value, length);
        value += length ? length : 1;
    }
    append(json, "\"", 1);
}

/* A comma if one is due, and the key. */
static void begin_value(mn_json_out *json, const char *key)
{
    if (json->comma)
        append(json, ",", 1);
    json->comma = true;
    if (!key)
        return;
    append_string(json, key);
    append(json, ":", 1);
}

static void put_value(mn_json_out *json, const char *key, const char *text)
{
    begin_value(json, key);
    append(json, text, strlen(text));
}

void mn_out_begin(mn_json_out *json, const char *key, char bracket)
{
    put_value(json, key, (char[]){bracket, '\0'});
    json->comma = false;
}

void mn_out_end(mn_json_out *json, char bracket)
{
    append(json, &bracket, 1);
    json->comma = true;
}

void mn_out_string(mn_json_out *json, const char *key, const char *value)
{
    if (!value) {
        put_value(json, key, "null");
        return;
    }
    begin_value(json, key);
    append_string(json, value);
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

void mn_out_number(mn_json_out *json, const char *key, double value)
{
    char text[MN_NUMBER_TEXT];
    if (mn_isfinite_f64(value))
        mn_number_text(value, text);
    put_value(json, key,
              mn_isfinite_f64(value) ? text
              : mn_isnan_f64(value)  ? "\"nan\""
              : value > 0.0          ? "\"inf\""
                                     : "\"-inf\"");
}

void mn_out_measured(mn_json_out *json, const char *key, double value)
{
    if (mn_isnan_f64(value))
        mn_out_string(json, key, NULL);
    else
        mn_out_number(json, key, value);
}

void mn_out_integer(mn_json_out *json, const char *key, int64_t value)
{
    begin_value(json, key);
    mn_put(json, "%" PRId64, value);
}

void mn_out_unsigned(mn_json_out *json, const char *key, uint64_t value)
{
    begin_value(json, key);
    mn_put(json, "%" PRIu64, value);
}

void mn_out_boolean(mn_json_out *json, const char *key, bool value)
{
    put_value(json, key, value ? "true" : "false");
}

void mn_out_fields(mn_json_out *json, const mn_field *fields, size_t count, const void *from)
{
    for (const mn_field *field = fields; field < fields + count; field++) {
        const void *at = (const char *)from + field->offset;
        switch (field->kind) {
        case MN_FIELD_STRING:
            mn_out_string(json, field->key, *(const char *const *)at);
            break;
        case MN_FIELD_NUMBER:
            mn_out_number(json, field->key, *(const double *)at);
            break;
        case MN_FIELD_MEASURED:
            mn_out_measured(json, field->key, *(const double *)at);
            break;
        case MN_FIELD_INTEGER:
            mn_out_integer(json, field->key, *(const int64_t *)at);
            break;
        case MN_FIELD_UNSIGNED:
            mn_out_unsigned(json, field->key, *(const uint64_t *)at);
            break;
        case MN_FIELD_BOOLEAN:
            mn_out_boolean(json, field->key, *(const bool *)at);
            break;
        }
    }
}
