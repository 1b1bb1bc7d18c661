/* nvmlInit, nvmlShutdown and what concerns the driver as a whole. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "call.h"

static _Atomic unsigned int users;
static unsigned long long generation; /* of the driver these users initialised; changed under the lock of calls */

static void note(const char *function) {
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

nvmlReturn_t lifecycle_state(const struct json *node, int opening) {
    if (users == 0 && !opening) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (node == NULL || node->kind != JSON_OBJECT) {
        return NVML_ERROR_UNKNOWN;
    }
    if (number_or(node, "driver.absent", 0)) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (!opening && number_or(node, "driver.generation", 0) != generation) {
        return NVML_ERROR_UNINITIALIZED; /* the driver was loaded anew since */
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t initialise(void) {
    struct call call;
    note("nvmlInit");
    nvmlReturn_t result = call_begin_opening(&call, "nvmlInit");
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned long long now = number_or(call.node, "driver.generation", 0);
    users = now == generation ? users + 1 : 1;
    generation = now;
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlInit_v2(void) {
    return initialise();
}

NVML_API nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return initialise();
}

NVML_API nvmlShutdown(void) {
    struct call call;
    note("nvmlShutdown");
    if (users == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS) {
        call_end(result);
    }
    users--; /* also where the driver is gone */
    return NVML_SUCCESS;
}

static nvmlReturn_t driver_text(const char *function, const char *path, char *buffer, unsigned int size) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, function);
    return result == NVML_SUCCESS ? call_end(read_text(call.node, path, buffer, size)) : result;
}

NVML_API nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return driver_text(__func__, "driver.version", version, length);
}

NVML_API nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return driver_text(__func__, "driver.nvml_version", version, length);
}

static nvmlReturn_t cuda_version(const char *function, int *version) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, function);
    return result == NVML_SUCCESS ? call_end(read_int(call.node, "driver.cuda_version", version)) : result;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version) {
    return cuda_version(__func__, version);
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return cuda_version(__func__, version);
}
