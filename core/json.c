/* core/json.c: the JSON cursor. jsmn finds the tokens; since it lets much pass, every byte between
 * them is checked here. */
#include "core/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

enum { MAX_DEPTH = 32 };

/* ---- opening --------------------------------------------------------------------------------- */

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

/* jsmn's time is quadratic in the depth; nothing that is read here is deep. */
static mn_status check_depth(mn_json *json)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < json->length; i++) {
        char c = json->text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']'))
            depth--;
        json->at = i;
        if (depth > MAX_DEPTH)
            return mn_json_fail(json, "nested more than %d deep", (int)MAX_DEPTH);
    }
    json->at = 0;
    return MN_OK;
}

static mn_status check_count(mn_json *json, int count, size_t position)
{
    if (count >= 0)
        return MN_OK;
    json->at = position;
    return mn_json_fail(json, count == JSMN_ERROR_PART ? "the JSON text ends too early"
                                                       : "this is not JSON");
}

mn_status mn_json_open(mn_json *json, mn_context *context, const char *source, const char *text,
                       size_t length)
{
    jsmn_parser parser;
    *json = (mn_json){.context = context, .source = source, .text = text, .length = length};
    MN_TRY(check_depth(json));
    jsmn_init(&parser);
    int count = jsmn_parse(&parser, text, length, NULL, 0);
    MN_TRY(check_count(json, count, parser.pos));
    jsmntok_t *tokens = mn_host_calloc(context, (size_t)count, sizeof *tokens);
    if (!tokens)
        return mn_error_status(context);
    json->tokens = tokens;
    json->token_bytes = (size_t)count * sizeof *tokens;
    jsmn_init(&parser);
    json->count = jsmn_parse(&parser, text, length, tokens, (unsigned)count);
    return check_count(json, json->count, parser.pos);
}

void mn_json_close(mn_json *json)
{
    if (json->tokens)
        mn_host_free(json->context, json->tokens, json->token_bytes);
    json->tokens = NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void skip_space(mn_json *json)
{
    while (json->at < json->length && strchr(" \t\r\n", json->text[json->at]) &&
           json->text[json->at] != '\0')
        json->at++;
}

static bool is_next(mn_json *json, char character)
{
    skip_space(json);
    return json->at < json->length && json->text[json->at] == character;
}

static mn_status expect(mn_json *json, char character)
{
    if (!is_next(json, character))
        return mn_json_fail(json, "'%c' expected", character);
    json->at++;
    return MN_OK;
}

/* The next token if it is of that type and begins right here, else NULL. */
static const jsmntok_t *take(mn_json *json, jsmntype_t type)
{
    const jsmntok_t *token = (const jsmntok_t *)json->tokens + json->next;
    skip_space(json);
    if (json->next >= json->count || token->type != type)
        return NULL;
    size_t start = (size_t)token->start - (type == JSMN_STRING ? 1 : 0);
    if (start != json->at)
        return NULL;
    json->next++;
    return token;
}

mn_status mn_json_enter(mn_json *json, char open)
{
    if (!take(json, open == '{' ? JSMN_OBJECT : JSMN_ARRAY))
        return mn_json_fail(json, "'%c' expected", open);
    json->at++;
    return MN_OK;
}

mn_status mn_json_more(mn_json *json, char close, bool first, bool *more)
{
    *more = !is_next(json, close);
    if (!*more) {
        json->at++;
        return MN_OK;
    }
    return first ? MN_OK : expect(json, ',');
}

mn_status mn_json_end(mn_json *json)
{
    skip_space(json);
    if (json->at < json->length)
        return mn_json_fail(json, "the JSON text should end here");
    return MN_OK;
}

mn_status mn_json_integer(mn_json *json, int64_t *value)
{
    const jsmntok_t *token = take(json, JSMN_PRIMITIVE);
    if (!token)
        return mn_json_fail(json, "a whole number expected");
    *value = 0;
    for (int i = token->start; i < token->end; i++) {
        int digit = json->text[i] - '0';
        bool leading_zero = i > token->start && json->text[token->start] == '0';
        if (digit < 0 || digit > 9 || leading_zero)
            return mn_json_fail(json, "a whole number that is not negative expected");
        if (*value > (INT64_MAX - digit) / 10)
            return mn_json_fail(json, "the number is too large");
        *value = *value * 10 + digit;
    }
    json->at = (size_t)token->end;
    return MN_OK;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at text, 0 if there is no valid one. */
static size_t utf8_sequence(const unsigned char *text, size_t left)
{
    static const unsigned char lead[] = {0, 0x00, 0xc2, 0xe0, 0xf0};
    static const unsigned char lead_end[] = {0, 0x7f, 0xdf, 0xef, 0xf4};
    for (size_t length = 1; length <= 4 && length <= left; length++) {
        if (text[0] < lead[length] || text[0] > lead_end[length])
            continue;
        for (size_t i = 1; i < length; i++) {
            if ((text[i] & 0xc0) != 0x80)
                return 0;
        }
        bool overlong = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
        bool surrogate = text[0] == 0xed && text[1] > 0x9f;
        bool beyond = text[0] == 0xf4 && text[1] > 0x8f;
        return overlong || surrogate || beyond ? 0 : length;
    }
    return 0;
}

bool mn_utf8_valid(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t sequence = utf8_sequence((const unsigned char *)text + i, length - i);
        if (sequence == 0)
            return false;
        i += sequence;
    }
    return true;
}

static size_t encode_utf8(uint32_t code, char out[4])
{
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char mark[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(mark[length] | code);
    return length;
}

/* Four hexadecimal digits, which must lie before end. */
static bool hex4(const char *at, const char *end, uint32_t *code)
{
    static const char digits[] = "0123456789abcdef";
    *code = 0;
    if (end - at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char lower = at[i] >= 'A' && at[i] <= 'F' ? (char)(at[i] - 'A' + 'a') : at[i];
        const char *digit = lower ? strchr(digits, lower) : NULL;
        if (!digit)
            return false;
        *code = *code * 16 + (uint32_t)(digit - digits);
    }
    return true;
}

/* Decodes \uXXXX or a pair of them; at stands behind the first u. Bytes consumed, 0 if malformed.
 */
static size_t decode_unicode(const char *at, const char *end, char out[4], size_t *produced)
{
    uint32_t high;
    uint32_t low;
    if (!hex4(at, end, &high) || high == 0)
        return 0;
    if (high < 0xd800 || high > 0xdfff) {
        *produced = encode_utf8(high, out);
        return 4;
    }
    if (high > 0xdbff || end - at < 10 || at[4] != '\\' || at[5] != 'u' ||
        !hex4(at + 6, end, &low) || low < 0xdc00 || low > 0xdfff)
        return 0;
    *produced = encode_utf8(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), out);
    return 10;
}

/* Decodes one character or escape. Bytes consumed, 0 if malformed. */
static size_t decode_one(const char *at, const char *end, char out[4], size_t *produced)
{
    static const char escapes[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    if ((unsigned char)*at < 0x20)
        return 0;
    if (*at != '\\') {
        *produced = utf8_sequence((const unsigned char *)at, (size_t)(end - at));
        memcpy(out, at, *produced);
        return *produced;
    }
    if (end - at < 2)
        return 0;
    if (at[1] == 'u') {
        size_t used = decode_unicode(at + 2, end, out, produced);
        return used ? used + 2 : 0;
    }
    const char *escape = at[1] ? strchr(escapes, at[1]) : NULL;
    if (!escape)
        return 0;
    out[0] = values[escape - escapes];
    *produced = 1;
    return 2;
}

/* Decodes all of [at, end) into out (NULL: only counts). The place of a fault, or NULL. */
static const char *decode(const char *at, const char *end, char *out, size_t *length)
{
    *length = 0;
    while (at < end) {
        char bytes[4];
        size_t produced = 0;
        size_t used = decode_one(at, end, bytes, &produced);
        if (used == 0)
            return at;
        if (out)
            memcpy(out + *length, bytes, produced);
        *length += produced;
        at += used;
    }
    return NULL;
}

mn_status mn_json_string(mn_json *json, char **value)
{
    size_t length;
    const jsmntok_t *token = take(json, JSMN_STRING);
    if (!token)
        return mn_json_fail(json, "a string expected");
    const char *begin = json->text + token->start;
    const char *end = json->text + token->end;
    const char *fault = decode(begin, end, NULL, &length);
    if (fault) {
        json->at = (size_t)(fault - json->text);
        return mn_json_fail(json, "bad character or escape in a string");
    }
    char *copy = mn_host_alloc(json->context, length + 1);
    if (!copy)
        return mn_error_status(json->context);
    decode(begin, end, copy, &length);
    copy[length] = '\0';
    *value = copy;
    json->at = (size_t)token->end + 1;
    return MN_OK;
}

mn_status mn_json_key(mn_json *json, char **value)
{
    MN_TRY(mn_json_string(json, value));
    mn_status status = expect(json, ':');
    if (status != MN_OK) {
        mn_host_strfree(json->context, *value);
        *value = NULL;
    }
    return status;
}
