/* train/json.h: a writer of JSON text into a growing buffer (core/json.h reads it). Commas and
 * colons are put in by it; the caller keeps begin and end, and key and value, in step. Running out
 * of memory is latched: what follows does nothing and mn_out_text returns NULL. */
#ifndef MN_TRAIN_JSON_H
#define MN_TRAIN_JSON_H

#include "core/core.h"

typedef struct mn_json_out {
    mn_allocator allocator;
    char *text; /* `length` bytes and a terminating zero; NULL before anything is written */
    size_t length, capacity;
    bool comma; /* the next key or value needs one in front */
    bool failed;
} mn_json_out;

/* NULL or an all-NULL allocator: the C library's. Free with mn_out_free. */
void mn_out_init(mn_json_out *json, const mn_allocator *allocator);
void mn_out_free(mn_json_out *json);
/* Empties the buffer for the next document, keeping its memory. */
void mn_out_reset(mn_json_out *json);
/* The text so far, valid until the next call on json; NULL if memory ran out. */
const char *mn_out_text(const mn_json_out *json);

void mn_out_begin_object(mn_json_out *json);
void mn_out_end_object(mn_json_out *json);
void mn_out_begin_array(mn_json_out *json);
void mn_out_end_array(mn_json_out *json);
void mn_out_key(mn_json_out *json, const char *key);

/* Escaped as UTF-8; a byte that is not UTF-8 becomes U+FFFD. NULL gives null. */
void mn_out_string(mn_json_out *json, const char *value);
/* The shortest decimal that reads back equal; "nan", "inf" and "-inf" as strings. */
void mn_out_number(mn_json_out *json, double value);
/* As mn_out_number, but NaN stands for "not measured" and gives null. */
void mn_out_measured(mn_json_out *json, double value);
void mn_out_integer(mn_json_out *json, int64_t value);
void mn_out_unsigned(mn_json_out *json, uint64_t value);
void mn_out_boolean(mn_json_out *json, bool value);
void mn_out_null(mn_json_out *json);

/* A member of an object: key and value. */
void mn_out_add_string(mn_json_out *json, const char *key, const char *value);
void mn_out_add_number(mn_json_out *json, const char *key, double value);
void mn_out_add_measured(mn_json_out *json, const char *key, double value);
void mn_out_add_integer(mn_json_out *json, const char *key, int64_t value);
void mn_out_add_unsigned(mn_json_out *json, const char *key, uint64_t value);
void mn_out_add_boolean(mn_json_out *json, const char *key, bool value);

/* The shortest decimal of a finite number that reads back equal, whatever the locale. */
#define MN_NUMBER_TEXT 40
void mn_number_text(double value, char text[MN_NUMBER_TEXT]);

#endif
