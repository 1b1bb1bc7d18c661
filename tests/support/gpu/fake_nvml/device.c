/* How many GPUs there are, and handles to them. */

#include <stdio.h>
#include <string.h>

#include "call.h"

static const struct json *gpus_of(const struct call *call) {
    return json_find(call->node, "gpus");
}

static size_t count_of(const struct call *call) {
    size_t count = json_length(gpus_of(call));
    return count < MAX_GPUS ? count : MAX_GPUS;
}

NVML_API nvmlDeviceGetCount_v2(unsigned int *count) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *count = (unsigned int)count_of(&call);
    return call_end(NVML_SUCCESS);
}

static const struct json *gpu_at(const struct call *call, size_t index) {
    char path[32];
    snprintf(path, sizeof path, "%zu", index);
    return json_find(gpus_of(call), path);
}

/* End a search with the handle of what was found, unless that GPU refuses to give one. */
static nvmlReturn_t hand_out(struct call *call, const char *function, size_t index, int instance,
                             nvmlDevice_t *device) {
    call->gpu = gpu_at(call, index);
    nvmlReturn_t result = call_on_gpu(call, function);
    if (result == NVML_SUCCESS) {
        *device = device_handle(index, instance);
    }
    return call_end(result);
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (index >= count_of(&call)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    return hand_out(&call, __func__, index, -1, device);
}

static int has_uuid(const struct json *device, const char *uuid) {
    const struct json *found = device != NULL ? json_find(device, "uuid") : NULL;
    return found != NULL && found->kind == JSON_TEXT && strcmp(found->text, uuid) == 0;
}

/* -1: the GPU itself; otherwise the number of its MIG instance; -2: neither. */
static int match_uuid(const struct json *gpu, const char *uuid) {
    if (has_uuid(gpu, uuid)) {
        return -1;
    }
    int number = 0;
    const struct json *instances = json_find(gpu, "mig.devices");
    for (const struct json *each = instances != NULL ? instances->child : NULL; each != NULL; each = each->next) {
        if (number < MAX_INSTANCES && has_uuid(each, uuid)) {
            return number;
        }
        number++;
    }
    return -2;
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (uuid == NULL) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (size_t index = 0; index < count_of(&call); index++) {
        int instance = match_uuid(gpu_at(&call, index), uuid);
        if (instance >= -1) {
            return hand_out(&call, __func__, index, instance, device);
        }
    }
    return call_end(NVML_ERROR_NOT_FOUND);
}

/* "00000000:1B:00.0", "0000:1b:00.0" and "1b:00.0" are one address. */
static int parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot) {
    if (text != NULL && sscanf(text, "%x:%x:%x", domain, bus, slot) == 3) {
        return 1;
    }
    *domain = 0;
    return text != NULL && sscanf(text, "%x:%x", bus, slot) == 2;
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    struct call call;
    unsigned int domain = 0, bus = 0, slot = 0;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!parse_bus_id(bus_id, &domain, &bus, &slot)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (size_t index = 0; index < count_of(&call); index++) {
        const struct json *gpu = gpu_at(&call, index);
        if (number_or(gpu, "pci.domain", 0) == domain && number_or(gpu, "pci.bus", 0) == bus &&
            number_or(gpu, "pci.device", 0) == slot) {
            return hand_out(&call, __func__, index, -1, device);
        }
    }
    return call_end(NVML_ERROR_NOT_FOUND);
}

NVML_API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *index = (unsigned int)(device->instance >= 0 ? device->instance : device->gpu);
    return call_end(NVML_SUCCESS);
}
