/* A GPU cut into instances. */

#include <stdio.h>

#include "call.h"

NVML_API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_u32(call.self, "mig.mode", current);
    return call_end(result == NVML_SUCCESS ? read_u32(call.self, "mig.pending", pending) : result);
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    return device_u32(device, __func__, "mig.max_devices", count);
}

NVML_API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_instance) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *is_instance = device->instance >= 0;
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance) {
    struct call call;
    char path[32];
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (index >= MAX_INSTANCES || index >= number_or(call.self, "mig.max_devices", 0)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    snprintf(path, sizeof path, "mig.devices.%u", index);
    const struct json *found = json_find(call.self, path);
    if (found == NULL || found->kind != JSON_OBJECT) {
        return call_end(NVML_ERROR_NOT_FOUND);
    }
    *instance = device_handle((size_t)device->gpu, (int)index);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, instance, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (instance->instance < 0) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    *device = device_handle((size_t)instance->gpu, -1);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    return device_u32(device, __func__, "gpu_instance", id);
}

NVML_API nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    return device_u32(device, __func__, "compute_instance", id);
}

NVML_API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct json *found = json_find(call.self, "attributes");
    result = read_u32(found, "multiprocessors", &attributes->multiprocessorCount);
    attributes->sharedCopyEngineCount = (unsigned int)number_or(found, "copy_engines", 0);
    attributes->sharedDecoderCount = (unsigned int)number_or(found, "decoders", 0);
    attributes->sharedEncoderCount = (unsigned int)number_or(found, "encoders", 0);
    attributes->sharedJpegCount = (unsigned int)number_or(found, "jpegs", 0);
    attributes->sharedOfaCount = (unsigned int)number_or(found, "ofas", 0);
    attributes->gpuInstanceSliceCount = (unsigned int)number_or(found, "gpu_slices", 0);
    attributes->computeInstanceSliceCount = (unsigned int)number_or(found, "compute_slices", 0);
    attributes->memorySizeMB = number_or(found, "memory_mb", 0);
    return call_end(result);
}
