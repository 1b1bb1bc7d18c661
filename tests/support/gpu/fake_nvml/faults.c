/* ECC errors and rows of memory that were replaced. */

#include <stdio.h>

#include "call.h"

NVML_API nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = read_u32(call.self, "ecc.mode", current);
    return call_end(result == NVML_SUCCESS ? read_u32(call.self, "ecc.pending", pending) : result);
}

NVML_API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind, unsigned int scope,
                                     unsigned long long *errors) {
    char path[48];
    if (kind > 1 || scope > 1) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    snprintf(path, sizeof path, "ecc.%s.%s", kind == 0 ? "corrected" : "uncorrected",
             scope == 0 ? "volatile" : "aggregate");
    return device_u64(device, __func__, path, errors);
}

NVML_API nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                   unsigned int *pending, unsigned int *failure) {
    struct call call;
    static const char *const paths[] = {"correctable", "uncorrectable", "pending", "failure"};
    unsigned int *values[] = {correctable, uncorrectable, pending, failure};
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct json *rows = json_find(call.self, "remapped_rows");
    for (size_t each = 0; each < 4 && result == NVML_SUCCESS; each++) {
        result = read_u32(rows, paths[each], values[each]);
    }
    return call_end(result);
}
