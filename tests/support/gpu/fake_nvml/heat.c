/* Temperature, power, clocks and what holds them down. */

#include <stdio.h>

#include "call.h"

static nvmlReturn_t temperature(nvmlDevice_t device, const char *function, unsigned int sensor, int *celsius) {
    if (sensor != 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return device_u32(device, function, "temperature.gpu", (unsigned int *)celsius);
}

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    return temperature(device, __func__, sensor, (int *)celsius);
}

NVML_API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *asked) {
    if (asked->version != VERSION_OF(nvmlTemperature_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return temperature(device, __func__, asked->sensorType, &asked->temperature);
}

NVML_API nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius) {
    char path[48];
    snprintf(path, sizeof path, "temperature.thresholds.%u", threshold);
    return device_u32(device, __func__, path, celsius);
}

NVML_API nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
    if (margin->version != VERSION_OF(nvmlMarginTemperature_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return device_u32(device, __func__, "temperature.margin", (unsigned int *)&margin->marginTemperature);
}

NVML_API nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    return device_u32(device, __func__, "power.usage_mw", milliwatts);
}

NVML_API nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return device_u32(device, __func__, "power.limit_mw", milliwatts);
}

NVML_API nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return device_u32(device, __func__, "power.enforced_limit_mw", milliwatts);
}

NVML_API nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    return device_u64(device, __func__, "power.energy_mj", millijoules);
}

static nvmlReturn_t clock_of(nvmlDevice_t device, const char *function, const char *which, unsigned int type,
                             unsigned int *mhz) {
    static const char *const names[] = {"graphics", "sm", "memory", "video"};
    char path[48];
    if (type >= sizeof names / sizeof names[0]) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    snprintf(path, sizeof path, "%s.%s", which, names[type]);
    return device_u32(device, function, path, mhz);
}

NVML_API nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    return clock_of(device, __func__, "clocks", type, mhz);
}

NVML_API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    return clock_of(device, __func__, "max_clocks", type, mhz);
}

NVML_API nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return device_u64(device, __func__, "clocks_event_reasons.current", reasons);
}

NVML_API nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return device_u64(device, __func__, "clocks_event_reasons.current", reasons);
}

NVML_API nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return device_u64(device, __func__, "clocks_event_reasons.supported", reasons);
}

NVML_API nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return device_u64(device, __func__, "clocks_event_reasons.supported", reasons);
}
