/* How busy and how full a device is. */

#include "call.h"

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_u32(call.self, "utilization.gpu", &utilization->gpu);
    if (result == NVML_SUCCESS) {
        result = read_u32(call.self, "utilization.memory", &utilization->memory);
    }
    return call_end(result);
}

static nvmlReturn_t read_memory(const struct json *device, nvmlMemory_v2_t *memory) {
    const struct json *tree = json_find(device, "memory");
    struct {
        const char *name;
        unsigned long long *value;
    } values[] = {
        {"total", &memory->total}, {"reserved", &memory->reserved}, {"free", &memory->free}, {"used", &memory->used}};
    for (size_t each = 0; each < sizeof values / sizeof values[0]; each++) {
        nvmlReturn_t result = read_u64(tree, values[each].name, values[each].value);
        if (result != NVML_SUCCESS) {
            return result;
        }
    }
    return NVML_SUCCESS;
}

/* The older call counts what is reserved as used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct call call;
    nvmlMemory_v2_t newer = {0};
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_memory(call.self, &newer);
    *memory = (nvmlMemory_t){.total = newer.total, .free = newer.free, .used = newer.used + newer.reserved};
    return call_end(result);
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (memory->version != VERSION_OF(nvmlMemory_v2_t, 2)) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    return call_end(read_memory(call.self, memory));
}
