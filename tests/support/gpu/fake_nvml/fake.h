/* What the functions of the fake library share. */

#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

#include "nvml.h"

enum { MAX_GPUS = 64, MAX_INSTANCES = 8 };

/* What a handle points to. A handle stays the same for as long as the process lives. */
struct device {
    int gpu;
    int instance; /* of MIG; -1 for the GPU itself */
};

/* state.c: the file with one sorted line "path=value" for each value of the node. */
void state_open(void);   /* takes the file's name from the environment */
int state_refresh(void); /* reads the file again if it was replaced; 0 where it describes no node */
int state_has_faults(void); /* whether any function is told to hang or to fail: looked up only then */
double state_now(void);  /* seconds of CLOCK_MONOTONIC */

/* The text at "<prefix>.<format>"; NULL where there is none. */
const char *text_at(const char *prefix, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The number there, stored in 4 or 8 bytes. NOT_SUPPORTED where there is none; the error of "!<error>". */
nvmlReturn_t number_at(void *into, size_t size, const char *prefix, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
nvmlReturn_t real_at(double *into, const char *prefix, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define READ(into, ...) number_at(&(into), sizeof(into), __VA_ARGS__)

/* The number there, or `otherwise` where there is none. */
unsigned long long number_or(unsigned long long otherwise, const char *prefix, const char *name);

/* call.c: every function begins and ends a call. */
struct call {
    int gpu;
    char owner[24]; /* path of the GPU: "gpus.3" */
    char self[64];  /* path of what the handle stands for: the same, or a MIG instance of it */
};

/* Anything but NVML_SUCCESS is to be returned as it is. Never returns where the function is told to hang. */
nvmlReturn_t call_begin(struct call *call, const char *function);
nvmlReturn_t call_begin_opening(struct call *call, const char *function); /* of nvmlInit */
nvmlReturn_t call_begin_on(struct call *call, nvmlDevice_t device, const char *function);
nvmlReturn_t call_end(nvmlReturn_t result);
#define BEGIN_ON(call, device)                                        \
    struct call call;                                                 \
    nvmlReturn_t result = call_begin_on(&call, device, __func__);     \
    if (result != NVML_SUCCESS) {                                     \
        return result;                                                \
    }

/* What the node (prefix "") or a GPU is told to answer to a function or the number of a field. */
nvmlReturn_t call_verdict(const char *prefix, const char *function);

nvmlDevice_t device_handle(int gpu, int instance);

/* driver.c: whether the driver is there and, unless nvmlInit asks, initialised. */
nvmlReturn_t driver_state(int opening);

#endif
