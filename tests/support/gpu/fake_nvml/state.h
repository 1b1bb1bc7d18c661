/* The node as the JSON file describes it now. Everything here is called between call_begin and call_end. */

#ifndef FAKE_NVML_STATE_H
#define FAKE_NVML_STATE_H

#include "json.h"
#include "nvml.h"

/* Take the file's name from the environment; the file is read at the next state_refresh. */
void state_open(void);

/* Read the file again if it was replaced. The node, or NULL where it cannot be read. */
const struct json *state_refresh(void);

/* Seconds of CLOCK_MONOTONIC. */
double state_now(void);

/* Values at a path. NOT_SUPPORTED where there is none; the error where the value is {"error": code}. */
nvmlReturn_t read_u64(const struct json *tree, const char *path, unsigned long long *value);
nvmlReturn_t read_u32(const struct json *tree, const char *path, unsigned int *value);
nvmlReturn_t read_int(const struct json *tree, const char *path, int *value);
nvmlReturn_t read_double(const struct json *tree, const char *path, double *value);
nvmlReturn_t read_text(const struct json *tree, const char *path, char *buffer, unsigned int size);

/* The number at a path, or `otherwise` where there is none. */
unsigned long long number_or(const struct json *tree, const char *path, unsigned long long otherwise);

#endif
