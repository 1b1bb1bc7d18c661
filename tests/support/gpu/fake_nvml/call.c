#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_GPUS][1 + MAX_INSTANCES];

/* "nvmlInit" means nvmlInit_v2 too; a name with a suffix means that version alone. */
static int names(const char *entry, const char *function) {
    size_t length = strlen(entry);
    if (strncmp(entry, function, length) != 0) {
        return 0;
    }
    const char *rest = function + length;
    return *rest == '\0' || (strncmp(rest, "_v", 2) == 0 && rest[2 + strspn(rest + 2, "0123456789")] == '\0');
}

static int listed(const struct json *list, const char *function) {
    for (const struct json *each = list != NULL ? list->child : NULL; each != NULL; each = each->next) {
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)each->integer);
        if (names(each->kind == JSON_TEXT ? each->text : number, function)) {
            return 1;
        }
    }
    return 0;
}

__attribute__((noreturn)) static void hang(void) {
    prctl(PR_SET_NAME, "nvml hangs"); /* so that a test can see that the call has begun */
    pthread_mutex_unlock(&lock);      /* other threads go on, as far as this fake is concerned */
    for (;;) {
        pause();
    }
}

static void hang_if_told(const struct json *owner, const char *function) {
    if (listed(json_find(owner, "hang"), function)) {
        hang();
    }
}

nvmlReturn_t call_verdict(const struct json *owner, const char *function) {
    const struct json *errors = json_find(owner, "errors");
    for (const struct json *each = errors != NULL ? errors->child : NULL; each != NULL; each = each->next) {
        if (each->key != NULL && names(each->key, function)) {
            return (nvmlReturn_t)each->integer;
        }
    }
    return listed(json_find(owner, "unsupported"), function) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t call_end(nvmlReturn_t result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static nvmlReturn_t begin(struct call *call, const char *function, int opening) {
    pthread_mutex_lock(&lock);
    memset(call, 0, sizeof *call);
    if (opening) {
        state_open();
    }
    call->node = state_refresh();
    nvmlReturn_t result = lifecycle_state(call->node, opening);
    if (result == NVML_SUCCESS) {
        hang_if_told(call->node, function);
        result = call_verdict(call->node, function);
    }
    return result == NVML_SUCCESS ? result : call_end(result);
}

nvmlReturn_t call_begin(struct call *call, const char *function) {
    return begin(call, function, 0);
}

nvmlReturn_t call_begin_opening(struct call *call, const char *function) {
    return begin(call, function, 1);
}

nvmlReturn_t call_on_gpu(const struct call *call, const char *function) {
    hang_if_told(call->gpu, function);
    if (number_or(call->gpu, "lost", 0)) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    return call_verdict(call->gpu, function);
}

nvmlDevice_t device_handle(size_t gpu, int instance) {
    struct device *device = &devices[gpu][1 + instance];
    device->gpu = (int)gpu;
    device->instance = instance;
    return device;
}

/* A handle that this library never gave is refused, not followed. */
static int given(nvmlDevice_t device) {
    uintptr_t offset = (uintptr_t)device - (uintptr_t)devices;
    if (device == NULL || offset >= sizeof devices || offset % sizeof(struct device) != 0) {
        return 0;
    }
    size_t number = offset / sizeof(struct device);
    size_t gpu = number / (1 + MAX_INSTANCES);
    return device->gpu == (int)gpu && device->instance == (int)(number % (1 + MAX_INSTANCES)) - 1;
}

static nvmlReturn_t find_device(struct call *call, nvmlDevice_t device) {
    char path[64];
    snprintf(path, sizeof path, "gpus.%d", device->gpu);
    call->gpu = call->self = json_find(call->node, path);
    if (call->gpu != NULL && device->instance >= 0) {
        snprintf(path, sizeof path, "mig.devices.%d", device->instance);
        call->self = json_find(call->gpu, path);
    }
    return call->self != NULL && call->self->kind == JSON_OBJECT ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t call_begin_on(struct call *call, nvmlDevice_t device, const char *function) {
    nvmlReturn_t result = call_begin(call, function);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = given(device) ? find_device(call, device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        result = call_on_gpu(call, function);
    }
    return result == NVML_SUCCESS ? result : call_end(result);
}

nvmlReturn_t device_u32(nvmlDevice_t device, const char *function, const char *path, unsigned int *value) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    return result == NVML_SUCCESS ? call_end(read_u32(call.self, path, value)) : result;
}

nvmlReturn_t device_u64(nvmlDevice_t device, const char *function, const char *path, unsigned long long *value) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    return result == NVML_SUCCESS ? call_end(read_u64(call.self, path, value)) : result;
}

nvmlReturn_t device_text(nvmlDevice_t device, const char *function, const char *path, char *buffer,
                         unsigned int size) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, function);
    return result == NVML_SUCCESS ? call_end(read_text(call.self, path, buffer, size)) : result;
}
