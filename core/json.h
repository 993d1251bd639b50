/* core/json.h: reading JSON text that nobody vouches for. A cursor walks over the text in order;
 * every step says what it expects and fails with the byte where something else is. */
#ifndef MN_CORE_JSON_H
#define MN_CORE_JSON_H

#include "core/core.h"

typedef struct mn_json {
    mn_context *context;
    const char *source; /* named in messages */
    const char *text;
    size_t length;
    void *tokens;
    size_t token_bytes;
    int count, next; /* tokens, and the one to come */
    size_t at;       /* first byte not consumed */
} mn_json;

/* Splits text (not NUL-terminated, below 2 GiB, brackets at most 32 deep) into tokens; close also
 * after a failure. */
mn_status mn_json_open(mn_json *json, mn_context *context, const char *source, const char *text,
                       size_t length);
void mn_json_close(mn_json *json);
/* Records MN_ERR_FORMAT "source: header byte N: text". */
mn_status mn_json_fail(mn_json *json, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Enters an object or array: open is '{' or '['. */
mn_status mn_json_enter(mn_json *json, char open);
/* *more: another member follows; the comma before it, or else the closing bracket, is consumed. */
mn_status mn_json_more(mn_json *json, char close, bool first, bool *more);
/* A string, and a key with its colon. The copy is UTF-8 without NUL bytes and is freed with
 * mn_host_strfree. */
mn_status mn_json_string(mn_json *json, char **value);
mn_status mn_json_key(mn_json *json, char **value);
/* A whole number in [0, INT64_MAX]. */
mn_status mn_json_integer(mn_json *json, int64_t *value);
/* Nothing but white space is left. */
mn_status mn_json_end(mn_json *json);

/* True for UTF-8 without overlong forms, surrogates and values above 10FFFF. */
bool mn_utf8_valid(const char *text, size_t length);

#endif
