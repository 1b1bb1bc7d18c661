/* Errors in words, as the real library words them. */

#include "nvml.h"

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t error);

const char *nvmlErrorString(nvmlReturn_t error) {
    static const char *const words[] = {
        [0] = "Success",
        [1] = "Uninitialized",
        [2] = "Invalid Argument",
        [3] = "Not Supported",
        [4] = "Insufficient Permissions",
        [6] = "Not Found",
        [7] = "Insufficient Size",
        [8] = "Insufficient External Power",
        [9] = "Driver Not Loaded",
        [10] = "Timeout",
        [11] = "Interrupt Request Issue",
        [12] = "NVML Shared Library Not Found",
        [13] = "Function Not Found",
        [14] = "Corrupted infoROM",
        [15] = "GPU is lost",
        [16] = "GPU requires reset",
        [17] = "The operating system has blocked the request",
        [18] = "Driver/library version mismatch",
        [19] = "GPU is in use by another client",
        [20] = "Insufficient Memory",
        [21] = "No data",
        [25] = "Argument version mismatch",
        [27] = "Not ready",
        [28] = "GPU not found",
    };
    const char *found = error < sizeof words / sizeof words[0] ? words[error] : 0;
    return found != 0 ? found : "Unknown Error";
}
