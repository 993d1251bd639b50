/* core/json.h: reading JSON text that nobody vouches for. A cursor walks over the text in order;
 * every step says what it expects and fails with the byte where something else is. */
#ifndef MN_CORE_JSON_H
#define MN_CORE_JSON_H

#include "core/core.h"

typedef struct mn_json {
    mn_context *context;
    const char *source; /* named in messages */
    const char *text;   /* not NUL-terminated */
    size_t length, at;
    char *strings; /* where the next string is decoded to; `length` bytes hold them all */
} mn_json;

/* Records MN_ERR_FORMAT "source: header byte N: text". */
mn_status mn_json_fail(mn_json *json, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Consumes the character, which must come next. */
mn_status mn_json_take(mn_json *json, char character);
/* *more: another member follows; the comma before it, or else the closing bracket, is consumed. */
mn_status mn_json_more(mn_json *json, char close, bool first, bool *more);
/* The next key of an object with its colon; NULL: the object has ended. */
mn_status mn_json_key(mn_json *json, bool first, const char **key);
/* A string, as UTF-8 without NUL bytes. */
mn_status mn_json_string(mn_json *json, const char **value);
/* A whole number in [0, INT64_MAX]. */
mn_status mn_json_integer(mn_json *json, int64_t *value);
/* Nothing but white space is left. */
mn_status mn_json_end(mn_json *json);

/* Bytes of the UTF-8 sequence that a text of `left` bytes, or one with a zero at its end, begins
 * with; 0 if there is none: overlong forms, surrogates and values above 10FFFF are none. */
size_t mn_utf8_sequence(const char *text, size_t left);
bool mn_utf8_valid(const char *text);

#endif
