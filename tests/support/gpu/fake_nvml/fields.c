/* nvmlDeviceGetFieldValues: many values in one call, each with a result of its own. */

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "call.h"

/* Fields the real library answers as an unsigned int; whole numbers otherwise go as unsigned long long. */
static int is_narrow(unsigned int field) {
    static const unsigned int narrow[] = {82, 90, 91, 94, 95, 142, 143, 144, 145, 226, 227, 230};
    for (size_t each = 0; each < sizeof narrow / sizeof narrow[0]; each++) {
        if (narrow[each] == field) {
            return 1;
        }
    }
    return 0;
}

static nvmlReturn_t read_whole(const struct json *tree, const char *path, nvmlFieldValue_t *field) {
    unsigned long long value = 0;
    nvmlReturn_t result = read_u64(tree, path, &value);
    if (is_narrow(field->fieldId)) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        field->value.uiVal = (unsigned int)value;
    } else {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->value.ullVal = value;
    }
    return result;
}

/* The scope UINT_MAX asks for the sum over all links. */
static nvmlReturn_t read_sum(const struct json *links, nvmlFieldValue_t *field) {
    unsigned long long sum = 0;
    for (const struct json *each = links->child; each != NULL; each = each->next) {
        sum += number_or(each, "", 0);
    }
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = sum;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_field(const struct json *gpu, nvmlFieldValue_t *field) {
    char path[48];
    snprintf(path, sizeof path, "fields.%u", field->fieldId);
    const struct json *found = json_find(gpu, path);
    if (found != NULL && found->kind == JSON_LIST) {
        if (field->scopeId == UINT_MAX) {
            return read_sum(found, field);
        }
        if (field->scopeId >= json_length(found)) {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        snprintf(path, sizeof path, "fields.%u.%u", field->fieldId, field->scopeId);
        found = json_find(gpu, path);
    }
    if (found != NULL && found->kind == JSON_NUMBER && !found->whole) {
        field->valueType = NVML_VALUE_TYPE_DOUBLE;
        return read_double(gpu, path, &field->value.dVal);
    }
    return read_whole(gpu, path, field);
}

static nvmlReturn_t ask(const struct call *call, nvmlFieldValue_t *field) {
    char number[16];
    snprintf(number, sizeof number, "%u", field->fieldId);
    nvmlReturn_t result = call_verdict(call->node, number);
    if (result == NVML_SUCCESS) {
        result = call_verdict(call->gpu, number);
    }
    return result == NVML_SUCCESS ? read_field(call->self, field) : result;
}

NVML_API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    struct call call;
    struct timespec now;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (count <= 0) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    for (int each = 0; each < count; each++) {
        values[each].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[each].latencyUsec = 0;
        values[each].nvmlReturn = ask(&call, &values[each]);
    }
    return call_end(NVML_SUCCESS);
}
