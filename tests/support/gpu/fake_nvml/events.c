/* Events of GPUs, delivered once to each set that was registered before they happened. */

#include <limits.h>
#include <string.h>
#include <time.h>

#include "call.h"

enum { MAX_SETS = 64, POLL_MILLISECONDS = 20 };

struct registration {
    unsigned long long types; /* 0: not registered */
    unsigned long long last;  /* id of the newest event that is not to be delivered any more */
};

struct event_set {
    unsigned long long used; /* 0: free; otherwise different for each creation */
    struct registration gpus[MAX_GPUS];
};

static struct event_set sets[MAX_SETS];
static unsigned long long creations;

static int known(nvmlEventSet_t set) {
    uintptr_t offset = (uintptr_t)set - (uintptr_t)sets;
    return set != NULL && offset < sizeof sets && offset % sizeof *set == 0 && set->used != 0;
}

NVML_API nvmlEventSetCreate(nvmlEventSet_t *set) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (size_t each = 0; each < MAX_SETS; each++) {
        if (sets[each].used == 0) {
            memset(&sets[each], 0, sizeof sets[each]);
            sets[each].used = ++creations;
            *set = &sets[each];
            return call_end(NVML_SUCCESS);
        }
    }
    return call_end(NVML_ERROR_INSUFFICIENT_RESOURCES);
}

NVML_API nvmlEventSetFree(nvmlEventSet_t set) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!known(set)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    set->used = 0;
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    return device_u64(device, __func__, "event_types", types);
}

static unsigned long long newest_event(const struct json *node) {
    const struct json *events = json_find(node, "events");
    unsigned long long newest = 0;
    for (const struct json *each = events != NULL ? events->child : NULL; each != NULL; each = each->next) {
        unsigned long long id = number_or(each, "id", 0);
        newest = id > newest ? id : newest;
    }
    return newest;
}

NVML_API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!known(set) || device->instance >= 0) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    if ((types & ~number_or(call.gpu, "event_types", 0)) != 0) {
        return call_end(NVML_ERROR_NOT_SUPPORTED);
    }
    struct registration *registered = &set->gpus[device->gpu];
    if (registered->types == 0) {
        registered->last = newest_event(call.node);
    }
    registered->types |= types;
    return call_end(NVML_SUCCESS);
}

/* The oldest event this set has not been given, GPUs that are lost among them. */
static const struct json *pending(const struct call *call, struct event_set *set) {
    const struct json *events = json_find(call->node, "events");
    for (const struct json *each = events != NULL ? events->child : NULL; each != NULL; each = each->next) {
        unsigned long long gpu = number_or(each, "gpu", MAX_GPUS);
        if (gpu >= MAX_GPUS || !(set->gpus[gpu].types & number_or(each, "type", 0))) {
            continue;
        }
        unsigned long long id = number_or(each, "id", 0);
        if (id > set->gpus[gpu].last) {
            set->gpus[gpu].last = id;
            return each;
        }
    }
    return NULL;
}

static void describe(const struct json *event, nvmlEventData_t *data) {
    data->device = device_handle((size_t)number_or(event, "gpu", 0), -1);
    data->eventType = number_or(event, "type", 0);
    data->eventData = number_or(event, "data", 0);
    data->gpuInstanceId = (unsigned int)number_or(event, "gpu_instance", UINT_MAX);
    data->computeInstanceId = (unsigned int)number_or(event, "compute_instance", UINT_MAX);
}

/* One look: success with an event, timeout without one, or an error. `waiting` is 0 at the first look. */
static nvmlReturn_t look(nvmlEventSet_t set, const char *function, unsigned long long *waiting,
                         nvmlEventData_t *data) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!known(set) || (*waiting != 0 && set->used != *waiting)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT); /* freed, perhaps while we waited */
    }
    *waiting = set->used;
    const struct json *found = pending(&call, set);
    if (found == NULL) {
        return call_end(NVML_ERROR_TIMEOUT);
    }
    describe(found, data);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    const double end = state_now() + timeout_ms / 1e3;
    const struct timespec pause = {.tv_nsec = POLL_MILLISECONDS * 1000000L};
    unsigned long long waiting = 0;
    for (;;) {
        nvmlReturn_t result = look(set, __func__, &waiting, data);
        if (result != NVML_ERROR_TIMEOUT || state_now() >= end) {
            return result;
        }
        nanosleep(&pause, NULL);
    }
}
