/* What every function does first and last: one call at a time, and the faults that the node is told to show. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "fake.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_GPUS][1 + MAX_INSTANCES];

/* The entry of a function in a list of faults, by its name with or without its version: nvmlInit_v2, nvmlInit. */
static const char *entry(const char *prefix, const char *list, const char *function) {
    if (!state_has_faults()) {
        return NULL;
    }
    const char *suffix = strstr(function, "_v");
    const char *found = text_at(prefix, "%s.%s", list, function);
    if (found == NULL && suffix != NULL) {
        found = text_at(prefix, "%s.%.*s", list, (int)(suffix - function), function);
    }
    return found;
}

static void hang_if_told(const char *prefix, const char *function) {
    if (entry(prefix, "hang", function) != NULL) {
        prctl(PR_SET_NAME, "nvml hangs"); /* so that a test can see that the call has begun */
        pthread_mutex_unlock(&lock);      /* other threads go on, as far as this fake is concerned */
        for (;;) {
            pause();
        }
    }
}

nvmlReturn_t call_verdict(const char *prefix, const char *function) {
    const char *error = entry(prefix, "errors", function);
    if (error != NULL) {
        return (nvmlReturn_t)strtoul(error, NULL, 10);
    }
    return entry(prefix, "unsupported", function) != NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t call_end(nvmlReturn_t result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static nvmlReturn_t begin(struct call *call, const char *function, int opening) {
    pthread_mutex_lock(&lock);
    memset(call, 0, sizeof *call);
    if (opening) {
        state_open();
    }
    nvmlReturn_t result = state_refresh() ? driver_state(opening) : NVML_ERROR_UNKNOWN;
    if (result == NVML_SUCCESS) {
        hang_if_told("", function);
        result = call_verdict("", function);
    }
    return result == NVML_SUCCESS ? result : call_end(result);
}

nvmlReturn_t call_begin(struct call *call, const char *function) {
    return begin(call, function, 0);
}

nvmlReturn_t call_begin_opening(struct call *call, const char *function) {
    return begin(call, function, 1);
}

nvmlReturn_t call_begin_on(struct call *call, nvmlDevice_t device, const char *function) {
    nvmlReturn_t result = call_begin(call, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if ((unsigned long long)device->gpu >= number_or(0, "gpus", "#")) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    call->gpu = device->gpu;
    snprintf(call->owner, sizeof call->owner, "gpus.%d", device->gpu);
    snprintf(call->self, sizeof call->self, "gpus.%d", device->gpu);
    if (device->instance >= 0) {
        snprintf(call->self, sizeof call->self, "gpus.%d.mig.devices.%d", device->gpu, device->instance);
    }
    hang_if_told(call->owner, function);
    result = number_or(0, call->owner, "lost") ? NVML_ERROR_GPU_IS_LOST : call_verdict(call->owner, function);
    return result == NVML_SUCCESS ? result : call_end(result);
}

nvmlDevice_t device_handle(int gpu, int instance) {
    devices[gpu][1 + instance] = (struct device){gpu, instance};
    return &devices[gpu][1 + instance];
}
