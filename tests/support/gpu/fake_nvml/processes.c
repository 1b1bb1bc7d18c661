/* Processes on a device. */

#include <limits.h>

#include "call.h"

/* A number the driver does not know is all ones, as in the real library. */
static nvmlProcessInfo_t describe(const struct json *process) {
    return (nvmlProcessInfo_t){
        .pid = (unsigned int)number_or(process, "pid", 0),
        .usedGpuMemory = number_or(process, "memory", ULLONG_MAX),
        .gpuInstanceId = (unsigned int)number_or(process, "gpu_instance", UINT_MAX),
        .computeInstanceId = (unsigned int)number_or(process, "compute_instance", UINT_MAX),
    };
}

static nvmlReturn_t list(nvmlDevice_t device, const char *function, const char *path, unsigned int *count,
                         nvmlProcessInfo_t *processes) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct json *found = json_find(call.self, path);
    if (found == NULL || found->kind != JSON_LIST) {
        return call_end(NVML_ERROR_NOT_SUPPORTED);
    }
    unsigned int room = *count, number = 0;
    *count = (unsigned int)json_length(found);
    if (*count > room || (*count > 0 && processes == NULL)) {
        return call_end(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (const struct json *each = found->child; each != NULL; each = each->next) {
        processes[number++] = describe(each);
    }
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_t *processes) {
    return list(device, __func__, "processes.compute", count, processes);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_t *processes) {
    return list(device, __func__, "processes.graphics", count, processes);
}
