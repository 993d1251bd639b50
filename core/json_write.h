/* core/json_write.h: arrays that grow, outside of any context, and text in one: formatted, and as
 * JSON (core/json.h reads it). Commas and colons are put in; the caller keeps begin and end, and
 * key and value, in step. Running out of memory is latched: what follows does nothing and
 * mn_out_text returns NULL. */
#ifndef MN_CORE_JSON_WRITE_H
#define MN_CORE_JSON_WRITE_H

#include "core/base.h"

/* Zeroed except for the allocator and item_bytes. */
typedef struct mn_list {
    mn_allocator allocator;
    size_t item_bytes;
    void *items;
    int64_t count;
    size_t bytes; /* at items */
} mn_list;
mn_list mn_list_new(const mn_allocator *allocator, size_t item_bytes);
/* Room for `more` items behind the last, and a copy of them there; false if memory ran out. */
bool mn_list_reserve(mn_list *list, size_t more);
bool mn_list_append(mn_list *list, const void *items, size_t more);
void mn_list_free(mn_list *list);

typedef struct mn_json_out {
    mn_list text; /* without the terminating zero, for which there is room */
    bool comma;   /* the next key or value needs one in front */
    bool failed;
} mn_json_out;

/* NULL or an all-NULL allocator: the C library's. Free with mn_out_free. */
void mn_out_init(mn_json_out *json, const mn_allocator *allocator);
void mn_out_free(mn_json_out *json);
/* Empties the buffer for the next document, keeping its memory. */
void mn_out_reset(mn_json_out *json);
/* The text so far, valid until the next call on json; NULL if memory ran out. */
char *mn_out_text(mn_json_out *json);

/* Formatted text, as it is. */
void mn_put(mn_json_out *json, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* bracket: '{' or '[', '}' or ']'. A key may be NULL: none. */
void mn_out_begin(mn_json_out *json, const char *key, char bracket);
void mn_out_end(mn_json_out *json, char bracket);

/* Each with a key in front, NULL for none. Strings are escaped as UTF-8; a byte that is not UTF-8
 * becomes U+FFFD; NULL gives null. Numbers are the shortest decimals that read back equal; "nan",
 * "inf" and "-inf" as strings. Measured: as numbers, but NaN, "not measured", gives null. */
void mn_out_string(mn_json_out *json, const char *key, const char *value);
void mn_out_number(mn_json_out *json, const char *key, double value);
void mn_out_measured(mn_json_out *json, const char *key, double value);
void mn_out_integer(mn_json_out *json, const char *key, int64_t value);
void mn_out_unsigned(mn_json_out *json, const char *key, uint64_t value);
void mn_out_boolean(mn_json_out *json, const char *key, bool value);

/* The members of a struct, in order. */
typedef enum mn_field_kind {
    MN_FIELD_STRING,
    MN_FIELD_NUMBER,
    MN_FIELD_MEASURED,
    MN_FIELD_INTEGER,
    MN_FIELD_UNSIGNED,
    MN_FIELD_BOOLEAN
} mn_field_kind;
typedef struct mn_field {
    const char *key;
    mn_field_kind kind;
    size_t offset;
} mn_field;
void mn_out_fields(mn_json_out *json, const mn_field *fields, size_t count, const void *from);

/* The shortest decimal of a finite number that reads back equal, whatever the locale. */
#define MN_NUMBER_TEXT 40
void mn_number_text(double value, char text[MN_NUMBER_TEXT]);

#endif
