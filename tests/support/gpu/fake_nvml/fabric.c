/* The NVLink fabric as the GPU sees it. */

#include <stdio.h>
#include <string.h>

#include "call.h"

static nvmlReturn_t read_cluster(const struct json *fabric, unsigned char *cluster) {
    char text[33] = "";
    nvmlReturn_t result = read_text(fabric, "cluster_uuid", text, sizeof text);
    for (size_t each = 0; result == NVML_SUCCESS && each < 16; each++) {
        if (sscanf(text + 2 * each, "%2hhx", cluster + each) != 1) {
            return NVML_ERROR_UNKNOWN;
        }
    }
    return result;
}

static nvmlReturn_t read_fabric(const struct json *device, nvmlGpuFabricInfo_v3_t *info) {
    const struct json *fabric = json_find(device, "fabric");
    unsigned int summary = (unsigned int)number_or(fabric, "health_summary", 0);
    nvmlReturn_t result = read_u32(fabric, "state", &info->state);
    info->status = (nvmlReturn_t)number_or(fabric, "status", 0);
    info->cliqueId = (unsigned int)number_or(fabric, "clique_id", 0);
    info->healthMask = (unsigned int)number_or(fabric, "health_mask", 0);
    info->healthSummary = (unsigned char)summary;
    return result == NVML_SUCCESS ? read_cluster(fabric, info->clusterUuid) : result;
}

NVML_API nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    struct call call;
    nvmlGpuFabricInfo_v3_t newest = {0};
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_fabric(call.self, &newest);
    memcpy(info->clusterUuid, newest.clusterUuid, sizeof info->clusterUuid);
    info->status = newest.status;
    info->cliqueId = newest.cliqueId;
    info->state = newest.state;
    return call_end(result);
}

/* Takes the second or the third version of the struct; the second lacks the last member of the third. */
NVML_API nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info) {
    struct call call;
    nvmlGpuFabricInfo_v3_t newest = {.version = info->version};
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (info->version != VERSION_OF(nvmlGpuFabricInfo_v2_t, 2) &&
        info->version != VERSION_OF(nvmlGpuFabricInfo_v3_t, 3)) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    result = read_fabric(call.self, &newest);
    memcpy(info, &newest, info->version & 0xFFFF); /* a version carries the size of its struct */
    return call_end(result);
}
