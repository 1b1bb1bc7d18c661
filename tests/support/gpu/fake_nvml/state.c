/* The node as the file describes it now. A value is a text, a number, "<number>+<growth a second>" or "!<error>". */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "fake.h"

struct line {
    const char *key, *value;
};

static char path[4096];
static struct stat seen;
static char *text;
static struct line *lines;
static size_t line_count;
static int faults;
static double loaded_at;

double state_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((constructor)) static void note_load(void) {
    loaded_at = state_now();
}

void state_open(void) {
    const char *name = getenv("RANKWATCH_FAKE_NVML");
    snprintf(path, sizeof path, "%s", name != NULL ? name : "");
}

static void forget(void) {
    free(text);
    free(lines);
    text = NULL;
    lines = NULL;
    line_count = 0;
    faults = 0;
}

static void split(void) {
    size_t room = 1;
    for (const char *at = text; *at != '\0'; at++) {
        room += *at == '\n';
    }
    lines = calloc(room, sizeof *lines);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && lines != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        if (value != NULL) {
            *value = '\0';
            lines[line_count++] = (struct line){line, value + 1};
            faults |= strstr(line, "hang.") || strstr(line, "errors.") || strstr(line, "unsupported.");
        }
    }
}

static void load(void) {
    FILE *file = fopen(path, "re");
    forget();
    if (file == NULL) {
        return;
    }
    if (fstat(fileno(file), &seen) == 0 && (text = calloc(1, (size_t)seen.st_size + 1)) != NULL &&
        fread(text, 1, (size_t)seen.st_size, file) == (size_t)seen.st_size) {
        split();
    }
    fclose(file);
}

int state_refresh(void) {
    struct stat now;
    if (stat(path, &now) != 0) {
        memset(&seen, 0, sizeof seen);
        forget();
    } else if (now.st_ino != seen.st_ino || now.st_mtim.tv_sec != seen.st_mtim.tv_sec ||
               now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec) {
        load();
    }
    return text_at("driver", "version") != NULL;
}

int state_has_faults(void) {
    return faults;
}

static int compare(const void *key, const void *line) {
    return strcmp(key, ((const struct line *)line)->key);
}

static const char *look_up(const char *prefix, const char *format, va_list arguments) {
    char key[160];
    int length = snprintf(key, sizeof key, *prefix != '\0' ? "%s." : "%s", prefix);
    vsnprintf(key + length, sizeof key - (size_t)length, format, arguments);
    const struct line *found = bsearch(key, lines, line_count, sizeof *lines, compare);
    return found != NULL ? found->value : NULL;
}

const char *text_at(const char *prefix, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(prefix, format, arguments);
    va_end(arguments);
    return found;
}

/* How much a counter has grown: since the epoch that the file names, or since this library was loaded. */
static double growth(const char *rate) {
    const char *epoch = text_at("driver", "epoch");
    return *rate == '+' ? strtod(rate + 1, NULL) * (state_now() - (epoch != NULL ? strtod(epoch, NULL) : loaded_at)) : 0;
}

static nvmlReturn_t check(const char *found) {
    if (found == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    return *found == '!' ? (nvmlReturn_t)strtoul(found + 1, NULL, 10) : NVML_SUCCESS;
}

nvmlReturn_t number_at(void *into, size_t size, const char *prefix, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(prefix, format, arguments);
    va_end(arguments);
    nvmlReturn_t result = check(found);
    if (result == NVML_SUCCESS) {
        char *rest = NULL;
        unsigned long long number = strtoull(found, &rest, 10);
        number += (unsigned long long)growth(rest);
        memcpy(into, &number, size); /* little-endian, as all machines of the tests */
    }
    return result;
}

nvmlReturn_t real_at(double *into, const char *prefix, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(prefix, format, arguments);
    va_end(arguments);
    *into = found != NULL ? strtod(found, NULL) : 0;
    return check(found);
}

unsigned long long number_or(unsigned long long otherwise, const char *prefix, const char *name) {
    unsigned long long number = 0;
    return READ(number, prefix, "%s", name) == NVML_SUCCESS ? number : otherwise;
}
