/* The PCIe link. */

#include "call.h"

NVML_API nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kib_per_second) {
    if (counter > 1) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return device_u32(device, __func__, counter == 0 ? "pcie.tx_kib" : "pcie.rx_kib", kib_per_second);
}

NVML_API nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
    return device_u32(device, __func__, "pcie.generation", generation);
}

NVML_API nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
    return device_u32(device, __func__, "pcie.max_generation", generation);
}

NVML_API nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *width) {
    return device_u32(device, __func__, "pcie.width", width);
}

NVML_API nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *width) {
    return device_u32(device, __func__, "pcie.max_width", width);
}

NVML_API nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *replays) {
    return device_u32(device, __func__, "pcie.replays", replays);
}
