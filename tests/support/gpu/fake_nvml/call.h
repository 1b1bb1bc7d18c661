/* What every function of the library does first and last. */

#ifndef FAKE_NVML_CALL_H
#define FAKE_NVML_CALL_H

#include "state.h"

enum { MAX_GPUS = 64, MAX_INSTANCES = 8 };

/* What a handle points to. Handles stay the same for as long as the process lives. */
struct device {
    int gpu;
    int instance; /* of MIG; -1: the GPU itself */
};

struct call {
    const struct json *node;
    const struct json *gpu;  /* of a call on a device: its GPU */
    const struct json *self; /* the same, or the MIG instance the handle stands for */
};

/*
 * Begin a call on the node or on a device. Where it returns NVML_SUCCESS the caller must finish with call_end;
 * anything else is to be returned as it is. Never returns where the node tells the function to hang.
 * nvmlInit alone begins with call_begin_opening, which needs no initialised library.
 */
nvmlReturn_t call_begin_opening(struct call *call, const char *function);
nvmlReturn_t call_begin(struct call *call, const char *function);
nvmlReturn_t call_begin_on(struct call *call, nvmlDevice_t device, const char *function);
nvmlReturn_t call_end(nvmlReturn_t result);

/* What call_begin_on does once it has found call->gpu: hang, GPU_IS_LOST, the GPU's verdict. */
nvmlReturn_t call_on_gpu(const struct call *call, const char *function);

/* What the node or a GPU says about a function or the number of a field: an error, not supported or success. */
nvmlReturn_t call_verdict(const struct json *owner, const char *function);

/* The handle of a GPU (instance -1) or of one of its MIG instances. */
nvmlDevice_t device_handle(size_t gpu, int instance);

/* One value at a path of the device, the whole of most functions. */
nvmlReturn_t device_u32(nvmlDevice_t device, const char *function, const char *path, unsigned int *value);
nvmlReturn_t device_u64(nvmlDevice_t device, const char *function, const char *path, unsigned long long *value);
nvmlReturn_t device_text(nvmlDevice_t device, const char *function, const char *path, char *buffer,
                         unsigned int size);

/* lifecycle.c: whether the driver is there and, unless nvmlInit asks, the library initialised for it. */
nvmlReturn_t lifecycle_state(const struct json *node, int opening);

#endif
