#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32 };

static struct json *parse_value(const char **at, int depth);

static void skip_space(const char **at) {
    while (isspace((unsigned char)**at)) {
        ++*at;
    }
}

static int take(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) {
        return 0;
    }
    *at += length;
    return 1;
}

static int escaped(const char **at) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found = **at == '\0' ? NULL : strchr(from, **at);
    if (found != NULL) {
        ++*at;
        return to[found - from];
    }
    if (**at != 'u') {
        return -1;
    }
    char digits[5] = {0};
    for (int each = 0; each < 4; each++) {
        digits[each] = (*at)[each + 1];
        if (!isxdigit((unsigned char)digits[each])) {
            return -1;
        }
    }
    *at += 5;
    long code = strtol(digits, NULL, 16);
    return code > 0 && code < 0x80 ? (int)code : '?'; /* names of this fake are ASCII */
}

static char *parse_text(const char **at) {
    if (!take(at, "\"")) {
        return NULL;
    }
    char *text = malloc(strlen(*at) < 4096 ? strlen(*at) + 1 : 4097);
    size_t length = 0;
    while (text != NULL && **at != '"') {
        int character = (unsigned char)**at;
        *at += character != '\0';
        if (character == '\\') {
            character = escaped(at);
        }
        if (character <= 0 || length == 4096) {
            free(text);
            return NULL;
        }
        text[length++] = (char)character;
    }
    if (text != NULL) {
        ++*at;
        text[length] = '\0';
        char *fitted = realloc(text, length + 1);
        text = fitted != NULL ? fitted : text;
    }
    return text;
}

static int parse_number(const char **at, struct json *into) {
    char *end = NULL;
    if (!isdigit((unsigned char)**at) && **at != '-') {
        return 0;
    }
    into->kind = JSON_NUMBER;
    into->number = strtod(*at, &end);
    if (end == *at) {
        return 0;
    }
    size_t digits = strspn(*at, "-0123456789");
    into->whole = end == *at + digits;
    if (into->whole) {
        errno = 0;
        into->integer = **at == '-' ? strtoll(*at, NULL, 10) : (int64_t)strtoull(*at, NULL, 10);
        into->whole = errno == 0;
    }
    *at = end;
    return 1;
}

static int parse_members(const char **at, struct json *into, int depth, const char *end) {
    struct json **last = &into->child;
    skip_space(at);
    if (take(at, end)) {
        return 1;
    }
    do {
        char *key = NULL;
        skip_space(at);
        if (into->kind == JSON_OBJECT) {
            key = parse_text(at);
            skip_space(at);
            if (key == NULL || !take(at, ":")) {
                free(key);
                return 0;
            }
        }
        *last = parse_value(at, depth + 1);
        if (*last == NULL) {
            free(key);
            return 0;
        }
        (*last)->key = key;
        last = &(*last)->next;
        skip_space(at);
    } while (take(at, ","));
    return take(at, end);
}

static int parse_into(const char **at, struct json *into, int depth) {
    if (take(at, "null")) {
        into->kind = JSON_NULL;
        return 1;
    }
    if (take(at, "true") || take(at, "false")) {
        into->kind = JSON_BOOLEAN;
        into->integer = (*at)[-2] == 'u'; /* the u of "true" */
        into->number = (double)into->integer;
        into->whole = 1;
        return 1;
    }
    if (**at == '"') {
        into->kind = JSON_TEXT;
        into->text = parse_text(at);
        return into->text != NULL;
    }
    if (take(at, "[")) {
        into->kind = JSON_LIST;
        return parse_members(at, into, depth, "]");
    }
    if (take(at, "{")) {
        into->kind = JSON_OBJECT;
        return parse_members(at, into, depth, "}");
    }
    return parse_number(at, into);
}

static struct json *parse_value(const char **at, int depth) {
    struct json *value = depth < DEEPEST ? calloc(1, sizeof *value) : NULL;
    skip_space(at);
    if (value != NULL && !parse_into(at, value, depth)) {
        json_free(value);
        return NULL;
    }
    return value;
}

struct json *json_parse(const char *text) {
    struct json *tree = parse_value(&text, 0);
    if (tree == NULL) {
        return NULL;
    }
    skip_space(&text);
    if (*text != '\0') {
        json_free(tree);
        return NULL;
    }
    return tree;
}

void json_free(struct json *tree) {
    while (tree != NULL) {
        struct json *next = tree->next;
        json_free(tree->child);
        free(tree->key);
        free(tree->text);
        free(tree);
        tree = next;
    }
}

static const struct json *step(const struct json *tree, const char *name, size_t length) {
    size_t number = 0;
    size_t wanted = tree->kind == JSON_LIST ? strtoul(name, NULL, 10) : 0;
    for (const struct json *each = tree->child; each != NULL; each = each->next, number++) {
        if (tree->kind == JSON_LIST ? number == wanted
                                    : strncmp(each->key, name, length) == 0 && each->key[length] == '\0') {
            return each;
        }
    }
    return NULL;
}

const struct json *json_find(const struct json *tree, const char *path) {
    while (tree != NULL && *path != '\0') {
        size_t length = strcspn(path, ".");
        tree = step(tree, path, length);
        path += length + (path[length] == '.');
    }
    return tree;
}

size_t json_length(const struct json *list) {
    size_t length = 0;
    for (const struct json *each = list != NULL ? list->child : NULL; each != NULL; each = each->next) {
        length++;
    }
    return length;
}
