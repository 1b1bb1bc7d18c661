/* What a device is called. */

#include <stdio.h>
#include <string.h>

#include "call.h"
#include "pci.h"

NVML_API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    return device_text(device, __func__, "name", name, length);
}

NVML_API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    return device_text(device, __func__, "uuid", uuid, length);
}

NVML_API nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    return device_text(device, __func__, "serial", serial, length);
}

NVML_API nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length) {
    return device_text(device, __func__, "board_part_number", number, length);
}

NVML_API nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board) {
    return device_u32(device, __func__, "board_id", board);
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    return device_u32(device, __func__, "minor_number", minor);
}

NVML_API nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
    return device_u32(device, __func__, "architecture", architecture);
}

NVML_API nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
    return device_u32(device, __func__, "persistence_mode", mode);
}

NVML_API nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
    return device_u32(device, __func__, "performance_state", state);
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_int(call.self, "compute_capability.0", major);
    return call_end(result == NVML_SUCCESS ? read_int(call.self, "compute_capability.1", minor) : result);
}

nvmlReturn_t pci_info(const struct json *tree, const char *path, nvmlPciInfo_t *info) {
    const struct json *pci = json_find(tree, path);
    memset(info, 0, sizeof *info);
    nvmlReturn_t result = read_u32(pci, "bus", &info->bus);
    info->domain = (unsigned int)number_or(pci, "domain", 0);
    info->device = (unsigned int)number_or(pci, "device", 0);
    info->pciDeviceId = (unsigned int)number_or(pci, "device_id", 0);
    info->pciSubSystemId = (unsigned int)number_or(pci, "subsystem_id", 0);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xFFFF,
             info->bus & 0xFF, info->device & 0xFF);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus & 0xFF,
             info->device & 0xFF);
    return result;
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    return result == NVML_SUCCESS ? call_end(pci_info(call.self, "pci", pci)) : result;
}
