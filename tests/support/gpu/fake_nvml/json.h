/* JSON text as a tree. */

#ifndef FAKE_NVML_JSON_H
#define FAKE_NVML_JSON_H

#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOLEAN, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT };

struct json {
    enum json_kind kind;
    char *key;          /* of a member of an object, else NULL */
    char *text;         /* JSON_TEXT */
    double number;      /* JSON_NUMBER; JSON_BOOLEAN: 0 or 1 */
    int64_t integer;    /* the same where it is whole; above INT64_MAX the bits of a uint64_t */
    int whole;
    struct json *child; /* first of a list or an object */
    struct json *next;
};

/* The tree of a text that ends in NUL, or NULL where it is no JSON or nests too deep. */
struct json *json_parse(const char *text);

void json_free(struct json *tree);

/* What lies at "power.usage_mw" or "fields.138.3"; NULL where nothing lies there. */
const struct json *json_find(const struct json *tree, const char *path);

size_t json_length(const struct json *list);

#endif
