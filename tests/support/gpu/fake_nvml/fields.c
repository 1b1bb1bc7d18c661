/* nvmlDeviceGetFieldValues: many values in one call, each with its own result. */

#include <stdio.h>
#include <time.h>

#include "fake.h"

/* Fields that the real library answers as an unsigned int; all others are unsigned long long here. */
static int is_narrow(unsigned int field) {
    static const unsigned int narrow[] = {29,  30,  31,  82,  94,  142, 143, 144, 145, 170,
                                          171, 172, 193, 194, 195, 196, 226, 227, 230, 234};
    for (size_t each = 0; each < sizeof narrow / sizeof narrow[0]; each++) {
        if (narrow[each] == field) {
            return 1;
        }
    }
    return 0;
}

static nvmlReturn_t read_field(const struct call *call, nvmlFieldValue_t *field) {
    char number[16];
    unsigned long long links = 0;
    snprintf(number, sizeof number, "%u", field->fieldId);
    nvmlReturn_t result = call_verdict("", number) ?: call_verdict(call->owner, number);
    if (result != NVML_SUCCESS) {
        return result;
    }
    int narrow = is_narrow(field->fieldId);
    field->valueType = narrow ? NVML_VALUE_TYPE_UNSIGNED_INT : NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    size_t size = narrow ? sizeof field->value.uiVal : sizeof field->value.ullVal;
    if (READ(links, call->self, "fields.%u.#", field->fieldId) != NVML_SUCCESS) {
        return number_at(&field->value, size, call->self, "fields.%u", field->fieldId);
    }
    if (field->scopeId >= links) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return number_at(&field->value, size, call->self, "fields.%u.%u", field->fieldId, field->scopeId);
}

NVML_API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    BEGIN_ON(call, device)
    for (int each = 0; each < count; each++) {
        values[each].nvmlReturn = read_field(&call, &values[each]);
    }
    return call_end(NVML_SUCCESS);
}
