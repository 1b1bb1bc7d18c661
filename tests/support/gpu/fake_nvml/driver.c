/* The driver as a whole: nvmlInit and nvmlShutdown, versions, errors in words, the GPUs there are. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

static unsigned int users;
static unsigned long long generation; /* of the driver that these users initialised */

static void log_call(const char *function) {
    const char *path = getenv("RANKWATCH_FAKE_NVML_LOG");
    char line[64];
    int length = snprintf(line, sizeof line, "%ld %s\n", (long)getpid(), function);
    int file = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file >= 0) {
        if (write(file, line, (size_t)length) != length) {
            perror(path);
        }
        close(file);
    }
}

nvmlReturn_t driver_state(int opening) {
    if (users == 0 && !opening) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (number_or(0, "driver", "absent")) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (!opening && number_or(0, "driver", "generation") != generation) {
        return NVML_ERROR_UNINITIALIZED; /* the driver was loaded anew since */
    }
    return NVML_SUCCESS;
}

NVML_API nvmlInitWithFlags(unsigned int flags) {
    struct call call;
    (void)flags;
    log_call("nvmlInit");
    nvmlReturn_t result = call_begin_opening(&call, "nvmlInit");
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned long long now = number_or(0, "driver", "generation");
    users = now == generation ? users + 1 : 1;
    generation = now;
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

NVML_API nvmlShutdown(void) {
    struct call call;
    log_call("nvmlShutdown");
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS) {
        call_end(result);
    }
    users -= users > 0; /* also where the driver is gone */
    return NVML_SUCCESS;
}

static nvmlReturn_t version(const char *function, const char *name, char *buffer, unsigned int size) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, function);
    if (result == NVML_SUCCESS) {
        const char *text = text_at("driver", "%s", name);
        snprintf(buffer, size, "%s", text != NULL ? text : "");
        call_end(result);
    }
    return result;
}

NVML_API nvmlSystemGetDriverVersion(char *buffer, unsigned int length) {
    return version(__func__, "version", buffer, length);
}

NVML_API nvmlSystemGetNVMLVersion(char *buffer, unsigned int length) {
    return version(__func__, "nvml_version", buffer, length);
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *cuda) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    return result == NVML_SUCCESS ? call_end(READ(*cuda, "driver", "cuda_version")) : result;
}

NVML_API nvmlDeviceGetCount_v2(unsigned int *count) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    return result == NVML_SUCCESS ? call_end(READ(*count, "gpus", "#")) : result;
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    struct device asked = {(int)index, -1};
    BEGIN_ON(call, &asked)
    *device = device_handle((int)index, -1);
    return call_end(result);
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t error) {
    static const char *const words[] = {
        [0] = "Success",
        [1] = "Uninitialized",
        [2] = "Invalid Argument",
        [3] = "Not Supported",
        [6] = "Not Found",
        [7] = "Insufficient Size",
        [9] = "Driver Not Loaded",
        [10] = "Timeout",
        [12] = "NVML Shared Library Not Found",
        [13] = "Function Not Found",
        [4] = "Insufficient Permissions",
        [15] = "GPU is lost",
        [16] = "GPU requires reset",
        [18] = "Driver/library version mismatch",
        [20] = "Insufficient Memory",
        [25] = "Argument version mismatch",
    };
    const char *found = error < sizeof words / sizeof words[0] ? words[error] : NULL;
    return found != NULL ? found : "Unknown Error";
}
