/* Values of a device, one call for each. */

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

static nvmlReturn_t device_number(nvmlDevice_t device, const char *function, void *into, size_t size,
                                  const char *name) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    return result == NVML_SUCCESS ? call_end(number_at(into, size, call.self, "%s", name)) : result;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *function, char *buffer, unsigned int size,
                                const char *name) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const char *text = text_at(call.self, "%s", name);
    if (text != NULL) {
        snprintf(buffer, size, "%s", text);
    }
    return call_end(text != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

#define NUMBER(function, type, name)                                                   \
    NVML_API function(nvmlDevice_t device, type *value) {                              \
        return device_number(device, __func__, value, sizeof *value, name);            \
    }
#define TEXT(function, name)                                                           \
    NVML_API function(nvmlDevice_t device, char *buffer, unsigned int length) {        \
        return device_text(device, __func__, buffer, length, name);                    \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor_number")
NUMBER(nvmlDeviceGetArchitecture, unsigned int, "architecture")
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power.usage_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power.enforced_limit_mw")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "power.energy_mj")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks_event_reasons.current")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clocks_event_reasons.current")
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, "clocks_event_reasons.supported")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, "clocks_event_reasons.supported")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie.generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie.max_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie.max_width")
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, "event_types")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, "mig.max_devices")
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned int, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned int, "compute_instance")

TEXT(nvmlDeviceGetVbiosVersion, "firmware.vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "firmware.inforom")
NUMBER(nvmlDeviceGetPerformanceState, unsigned int, "performance_state")
NUMBER(nvmlDeviceGetNumFans, unsigned int, "fans.#")

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    BEGIN_ON(call, device)
    memset(pci, 0, sizeof *pci);
    result = READ(pci->bus, call.self, "pci.bus");
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", 0, pci->bus & 0xFF);
    return call_end(result);
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    BEGIN_ON(call, device)
    return call_end(READ(rates->gpu, call.self, "utilization.gpu") ?: READ(rates->memory, call.self, "utilization.memory"));
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    BEGIN_ON(call, device)
    if (memory->version != VERSION_OF(nvmlMemory_v2_t, 2)) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    return call_end(READ(memory->total, call.self, "memory.total") ?: READ(memory->reserved, call.self, "memory.reserved")
                    ?: READ(memory->free, call.self, "memory.free") ?: READ(memory->used, call.self, "memory.used"));
}

/* The older call counts what is reserved as used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t newer = {.version = VERSION_OF(nvmlMemory_v2_t, 2)};
    BEGIN_ON(call, device)
    result = READ(newer.total, call.self, "memory.total") ?: READ(newer.reserved, call.self, "memory.reserved")
             ?: READ(newer.free, call.self, "memory.free") ?: READ(newer.used, call.self, "memory.used");
    *memory = (nvmlMemory_t){.total = newer.total, .free = newer.free, .used = newer.used + newer.reserved};
    return call_end(result);
}

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    return sensor == 0 ? device_number(device, __func__, celsius, sizeof *celsius, "temperature.gpu")
                       : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *asked) {
    if (asked->version != VERSION_OF(nvmlTemperature_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return device_number(device, __func__, &asked->temperature, sizeof asked->temperature, "temperature.gpu");
}

NVML_API nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
    if (margin->version != VERSION_OF(nvmlMarginTemperature_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return device_number(device, __func__, &margin->marginTemperature, sizeof(int), "temperature.margin");
}

NVML_API nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent) {
    BEGIN_ON(call, device)
    return call_end(READ(*percent, call.self, "fans.%u", fan));
}

NVML_API nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    *period_us = 167000;
    return device_number(device, __func__, percent, sizeof *percent, "utilization.encoder");
}

NVML_API nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    *period_us = 167000;
    return device_number(device, __func__, percent, sizeof *percent, "utilization.decoder");
}

NVML_API nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    static const char *const names[] = {"clocks.graphics", "clocks.sm", "clocks.memory", "clocks.video"};
    return type < 4 ? device_number(device, __func__, mhz, sizeof *mhz, names[type]) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    static const char *const names[] = {"max_clocks.graphics", "max_clocks.sm", "max_clocks.memory", "max_clocks.video"};
    return type < 4 ? device_number(device, __func__, mhz, sizeof *mhz, names[type]) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kb_per_second) {
    const char *name = counter == 0 ? "pcie.tx_kib" : "pcie.rx_kib";
    return device_number(device, __func__, kb_per_second, sizeof *kb_per_second, name);
}

/* A link that the GPU does not have is an invalid argument. */
NVML_API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
    BEGIN_ON(call, device)
    unsigned long long ports = number_or(0, call.self, "nvlinks.#");
    if (link >= ports) {
        return call_end(ports == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    }
    return call_end(READ(*active, call.self, "nvlinks.%u.active", link));
}

NVML_API nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    BEGIN_ON(call, device)
    return call_end(READ(info->state, call.self, "fabric.state") ?: READ(info->status, call.self, "fabric.status"));
}

NVML_API nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info) {
    BEGIN_ON(call, device)
    if (info->version != VERSION_OF(nvmlGpuFabricInfo_v2_t, 2)) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    return call_end(READ(info->state, call.self, "fabric.state") ?: READ(info->status, call.self, "fabric.status")
                    ?: READ(info->healthMask, call.self, "fabric.health_mask"));
}

NVML_API nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    BEGIN_ON(call, device)
    return call_end(READ(*current, call.self, "ecc.mode") ?: READ(*pending, call.self, "ecc.pending"));
}

NVML_API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind, unsigned int scope,
                                     unsigned long long *errors) {
    BEGIN_ON(call, device)
    return call_end(READ(*errors, call.self, "ecc.%s.%s", kind == 0 ? "corrected" : "uncorrected",
                         scope == 0 ? "volatile" : "aggregate"));
}

NVML_API nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *sram) {
    BEGIN_ON(call, device)
    if (sram->version != VERSION_OF(nvmlEccSramErrorStatus_t, 1)) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    return call_end(READ(sram->bThresholdExceeded, call.self, "sram.exceeded")
                    ?: READ(sram->volatileCor, call.self, "sram.volatile.corrected")
                    ?: READ(sram->volatileUncParity, call.self, "sram.volatile.parity")
                    ?: READ(sram->volatileUncSecDed, call.self, "sram.volatile.secded")
                    ?: READ(sram->aggregateCor, call.self, "sram.aggregate.corrected")
                    ?: READ(sram->aggregateUncParity, call.self, "sram.aggregate.parity")
                    ?: READ(sram->aggregateUncSecDed, call.self, "sram.aggregate.secded"));
}

NVML_API nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks) {
    BEGIN_ON(call, device)
    return call_end(READ(banks->max, call.self, "remap_banks.max") ?: READ(banks->high, call.self, "remap_banks.high")
                    ?: READ(banks->partial, call.self, "remap_banks.partial")
                    ?: READ(banks->low, call.self, "remap_banks.low") ?: READ(banks->none, call.self, "remap_banks.none"));
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_t *processes) {
    BEGIN_ON(call, device)
    unsigned int room = *count;
    result = READ(*count, call.self, "processes.compute.#");
    if (result != NVML_SUCCESS || *count > room) {
        return call_end(result != NVML_SUCCESS ? result : NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (unsigned int each = 0; each < *count; each++) {
        processes[each] = (nvmlProcessInfo_t){.usedGpuMemory = ULLONG_MAX, .gpuInstanceId = UINT_MAX}; /* unknown */
        READ(processes[each].pid, call.self, "processes.compute.%u.pid", each);
        READ(processes[each].usedGpuMemory, call.self, "processes.compute.%u.memory", each);
    }
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    BEGIN_ON(call, device)
    return call_end(READ(*current, call.self, "mig.mode") ?: READ(*pending, call.self, "mig.mode"));
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance) {
    BEGIN_ON(call, device)
    if (index >= MAX_INSTANCES || index >= number_or(0, call.self, "mig.max_devices")) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    if (text_at(call.self, "mig.devices.%u.uuid", index) == NULL) {
        return call_end(NVML_ERROR_NOT_FOUND);
    }
    *instance = device_handle(call.gpu, (int)index);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    BEGIN_ON(call, device)
    return call_end(READ(attributes->gpuInstanceSliceCount, call.self, "attributes.gpu_slices")
                    ?: READ(attributes->computeInstanceSliceCount, call.self, "attributes.compute_slices")
                    ?: READ(attributes->memorySizeMB, call.self, "attributes.memory_mb"));
}
