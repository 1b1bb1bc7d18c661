/* NVLinks, one by one. A link the GPU does not have is an invalid argument. */

#include <stdio.h>

#include "call.h"
#include "pci.h"

static nvmlReturn_t begin_on_link(struct call *call, nvmlDevice_t device, const char *function, unsigned int link,
                                  const struct json **found) {
    char path[32];
    nvmlReturn_t result = call_begin_on(call, device, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct json *links = json_find(call->self, "nvlinks");
    if (json_length(links) == 0) {
        return call_end(NVML_ERROR_NOT_SUPPORTED);
    }
    snprintf(path, sizeof path, "%u", link);
    *found = json_find(links, path);
    return *found != NULL ? NVML_SUCCESS : call_end(NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t link_u32(nvmlDevice_t device, const char *function, unsigned int link, const char *path,
                             unsigned int *value) {
    struct call call;
    const struct json *found = NULL;
    nvmlReturn_t result = begin_on_link(&call, device, function, link, &found);
    return result == NVML_SUCCESS ? call_end(read_u32(found, path, value)) : result;
}

NVML_API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
    return link_u32(device, __func__, link, "active", active);
}

NVML_API nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
    return link_u32(device, __func__, link, "version", version);
}

NVML_API nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability,
                                       unsigned int *has) {
    char path[32];
    snprintf(path, sizeof path, "capabilities.%u", capability);
    return link_u32(device, __func__, link, path, has);
}

NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type) {
    return link_u32(device, __func__, link, "remote_type", type);
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    struct call call;
    const struct json *found = NULL;
    nvmlReturn_t result = begin_on_link(&call, device, __func__, link, &found);
    return result == NVML_SUCCESS ? call_end(pci_info(found, "remote", pci)) : result;
}

NVML_API nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                         unsigned long long *value) {
    struct call call;
    char path[32];
    const struct json *found = NULL;
    nvmlReturn_t result = begin_on_link(&call, device, __func__, link, &found);
    snprintf(path, sizeof path, "errors.%u", counter);
    return result == NVML_SUCCESS ? call_end(read_u64(found, path, value)) : result;
}
