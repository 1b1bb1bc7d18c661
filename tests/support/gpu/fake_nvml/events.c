/* Events of GPUs, delivered once to each set that was registered before they happened. */

#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "fake.h"

enum { POLL_MILLISECONDS = 20 };

struct event_set {
    struct {
        unsigned long long types; /* 0: not registered */
        unsigned long long last;  /* id of the newest event that is not to be delivered any more */
    } gpus[MAX_GPUS];
};

NVML_API nvmlEventSetCreate(nvmlEventSet_t *set) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *set = calloc(1, sizeof **set);
    return call_end(*set != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

NVML_API nvmlEventSetFree(nvmlEventSet_t set) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    free(set);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    BEGIN_ON(call, device)
    if ((types & ~number_or(0, call.owner, "event_types")) != 0) {
        return call_end(NVML_ERROR_NOT_SUPPORTED);
    }
    unsigned long long events = number_or(0, "events", "#"); /* ids count from 1, in order */
    set->gpus[call.gpu].last = events;
    set->gpus[call.gpu].types = types;
    return call_end(NVML_SUCCESS);
}

/* Deliver the oldest event that this set has not been given; lost GPUs deliver too. */
static nvmlReturn_t deliver(struct event_set *set, nvmlEventData_t *data) {
    unsigned int events = (unsigned int)number_or(0, "events", "#");
    for (unsigned int each = 0; each < events; each++) {
        unsigned int gpu = 0;
        unsigned long long type = 0;
        if (READ(gpu, "events", "%u.gpu", each) != NVML_SUCCESS || gpu >= MAX_GPUS ||
            READ(type, "events", "%u.type", each) != NVML_SUCCESS || !(set->gpus[gpu].types & type) ||
            each < set->gpus[gpu].last) {
            continue;
        }
        set->gpus[gpu].last = each + 1;
        *data = (nvmlEventData_t){device_handle((int)gpu, -1), type, 0, UINT_MAX, UINT_MAX};
        return READ(data->eventData, "events", "%u.data", each);
    }
    return NVML_ERROR_TIMEOUT;
}

NVML_API nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    const double end = state_now() + timeout_ms / 1e3;
    const struct timespec pause = {.tv_nsec = POLL_MILLISECONDS * 1000000L};
    for (;;) {
        struct call call;
        nvmlReturn_t result = call_begin(&call, __func__);
        if (result == NVML_SUCCESS) {
            result = call_end(deliver(set, data));
        }
        if (result != NVML_ERROR_TIMEOUT || state_now() >= end) {
            return result;
        }
        nanosleep(&pause, NULL);
    }
}
