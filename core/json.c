/* core/json.c: the JSON cursor. What it is asked for is all that it accepts, so nothing recurses
 * and depth is no danger. */
#include "core/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

mn_status mn_json_fail(mn_json *json, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);
    return mn_fail(json->context, MN_ERR_FORMAT, "%s: header byte %zu: %s", json->source, json->at,
                   text);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The next character that is no white space, '\0' at the end. */
static char next(mn_json *json)
{
    for (; json->at < json->length; json->at++) {
        char c = json->text[json->at];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return c;
    }
    return '\0';
}

mn_status mn_json_take(mn_json *json, char character)
{
    if (next(json) != character)
        return json->at == json->length ? mn_json_fail(json, "the JSON text ends too early")
                                        : mn_json_fail(json, "'%c' expected", character);
    json->at++;
    return MN_OK;
}

mn_status mn_json_more(mn_json *json, char close, bool first, bool *more)
{
    *more = next(json) != close;
    if (!*more)
        json->at++;
    return *more && !first ? mn_json_take(json, ',') : MN_OK;
}

mn_status mn_json_key(mn_json *json, bool first, const char **key)
{
    bool more;
    *key = NULL;
    MN_TRY(mn_json_more(json, '}', first, &more));
    if (!more)
        return MN_OK;
    MN_TRY(mn_json_string(json, key));
    return mn_json_take(json, ':');
}

mn_status mn_json_end(mn_json *json)
{
    next(json);
    return json->at == json->length ? MN_OK : mn_json_fail(json, "the JSON text should end here");
}

mn_status mn_json_integer(mn_json *json, int64_t *value)
{
    bool zero = next(json) == '0';
    size_t start = json->at;
    *value = 0;
    for (; json->at < json->length; json->at++) {
        int digit = json->text[json->at] - '0';
        if (digit < 0 || digit > 9)
            break;
        if (*value > (INT64_MAX - digit) / 10)
            return mn_json_fail(json, "the number is too large");
        *value = *value * 10 + digit;
    }
    char after = next(json);
    if (json->at == start || (zero && json->at > start + 1) || after == '.' || (after | 32) == 'e')
        return mn_json_fail(json, "a whole number that is not negative expected");
    return MN_OK;
}

/* ---- strings --------------------------------------------------------------------------------- */

size_t mn_utf8_sequence(const char *text, size_t left)
{
    static const unsigned char lead[] = {0, 0x00, 0xc2, 0xe0, 0xf0};
    static const unsigned char lead_end[] = {0, 0x7f, 0xdf, 0xef, 0xf4};
    const unsigned char *c = (const unsigned char *)text;
    for (size_t length = 1; length <= 4 && length <= left; length++) {
        if (c[0] < lead[length] || c[0] > lead_end[length])
            continue;
        for (size_t i = 1; i < length; i++) {
            if ((c[i] & 0xc0) != 0x80)
                return 0;
        }
        bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
        bool surrogate = c[0] == 0xed && c[1] > 0x9f;
        bool beyond = c[0] == 0xf4 && c[1] > 0x8f;
        return overlong || surrogate || beyond ? 0 : length;
    }
    return 0;
}

bool mn_utf8_valid(const char *text)
{
    size_t sequence = 1;
    for (; *text && sequence > 0; text += sequence)
        sequence = mn_utf8_sequence(text, 4);
    return sequence > 0;
}

static size_t encode_utf8(uint32_t code, char *out)
{
    static const unsigned char mark[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(mark[length] | code);
    return length;
}

/* The value of \uXXXX at `at`; 0 if it is none, or zero. */
static uint32_t unicode_escape(const char *at, const char *end)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    uint32_t code = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return 0;
    for (int i = 2; i < 6; i++) {
        const char *digit = at[i] ? strchr(digits, at[i]) : NULL;
        if (!digit)
            return 0;
        code = code * 16 + (uint32_t)(digit - digits - (digit - digits > 15 ? 6 : 0));
    }
    return code;
}

/* Decodes one character or escape to *out and moves it on. Bytes consumed, 0 if malformed. */
static size_t decode(const char *at, const char *end, char **out)
{
    static const char escapes[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (*at != '\\') {
        size_t length = (unsigned char)*at < 0x20 ? 0 : mn_utf8_sequence(at, (size_t)(end - at));
        memcpy(*out, at, length);
        *out += length;
        return length;
    }
    const char *escape = end - at > 1 && at[1] ? strchr(escapes, at[1]) : NULL;
    if (escape) {
        *(*out)++ = values[escape - escapes];
        return 2;
    }
    uint32_t code = unicode_escape(at, end);
    bool pair = code >= 0xd800 && code <= 0xdfff;
    if (pair) {
        uint32_t low = unicode_escape(at + 6, end);
        if (code > 0xdbff || low < 0xdc00 || low > 0xdfff)
            return 0;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code == 0)
        return 0;
    *out += encode_utf8(code, *out);
    return pair ? 12 : 6;
}

mn_status mn_json_string(mn_json *json, const char **value)
{
    const char *end = json->text + json->length;
    if (next(json) != '"')
        return mn_json_fail(json, "a string expected");
    *value = json->strings;
    json->at++;
    while (json->at < json->length && json->text[json->at] != '"') {
        size_t used = decode(json->text + json->at, end, &json->strings);
        if (used == 0)
            return mn_json_fail(json, "bad character or escape in a string");
        json->at += used;
    }
    MN_TRY(mn_json_take(json, '"'));
    *json->strings++ = '\0'; /* room: the quotes were not copied */
    return MN_OK;
}
