/* GPM: activity between two samples of the same GPU or MIG instance. */

#include <stdlib.h>
#include <string.h>

#include "call.h"

/* Metrics between these numbers count since the last reboot; the others are means over the time between samples. */
enum { FIRST_COUNTER = 248, LAST_COUNTER = 404 };

static const double SHORTEST_SECONDS = 0.1;

struct gpm_sample {
    struct gpm_sample *next;
    double taken_at; /* 0: never */
    int gpu, instance;
    double values[NVML_GPM_METRIC_MAX];
    nvmlReturn_t results[NVML_GPM_METRIC_MAX];
};

static struct gpm_sample *samples; /* those allocated and not freed, so that any other pointer is refused */

static struct gpm_sample **position(nvmlGpmSample_t sample) {
    struct gpm_sample **at = &samples;
    while (*at != NULL && *at != sample) {
        at = &(*at)->next;
    }
    return at;
}

static int known(nvmlGpmSample_t sample) {
    return sample != NULL && *position(sample) == sample;
}

NVML_API nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *sample = calloc(1, sizeof **sample);
    if (*sample == NULL) {
        return call_end(NVML_ERROR_MEMORY);
    }
    (*sample)->next = samples;
    samples = *sample;
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!known(sample)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    *position(sample) = sample->next;
    free(sample);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (support->version != 1) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    support->isSupportedDevice = (unsigned int)number_or(call.self, "gpm.supported", 0);
    return call_end(NVML_SUCCESS);
}

static void take(nvmlGpmSample_t sample, const struct json *metrics) {
    for (size_t each = 0; each < NVML_GPM_METRIC_MAX; each++) {
        sample->results[each] = NVML_ERROR_NOT_SUPPORTED;
        sample->values[each] = 0;
    }
    for (const struct json *each = metrics->child; each != NULL; each = each->next) {
        unsigned long number = each->key != NULL ? strtoul(each->key, NULL, 10) : 0;
        if (number > 0 && number < NVML_GPM_METRIC_MAX) {
            sample->results[number] = read_double(each, "", &sample->values[number]);
        }
    }
    sample->taken_at = state_now();
}

static nvmlReturn_t sample_of(const struct call *call, const struct json *owner, nvmlGpmSample_t sample) {
    const struct json *metrics = json_find(owner, "gpm.metrics");
    if (!known(sample)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (metrics == NULL || !number_or(call->gpu, "gpm.supported", 0)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    take(sample, metrics);
    return NVML_SUCCESS;
}

NVML_API nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = sample_of(&call, call.self, sample);
    if (result == NVML_SUCCESS) {
        sample->gpu = device->gpu;
        sample->instance = -1;
    }
    return call_end(result);
}

NVML_API nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample) {
    struct call call;
    nvmlReturn_t result = call_begin_on(&call, device, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct json *found = json_find(call.gpu, "mig.devices");
    for (found = found != NULL ? found->child : NULL; found != NULL; found = found->next) {
        if (number_or(found, "gpu_instance", ~0ULL) == gpu_instance) {
            break;
        }
    }
    result = found != NULL ? sample_of(&call, found, sample) : NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) {
        sample->gpu = device->gpu;
        sample->instance = (int)gpu_instance;
    }
    return call_end(result);
}

static int comparable(const struct gpm_sample *before, const struct gpm_sample *after) {
    return before->taken_at > 0 && before->gpu == after->gpu && before->instance == after->instance &&
           after->taken_at - before->taken_at >= SHORTEST_SECONDS;
}

static void compare(const struct gpm_sample *before, const struct gpm_sample *after, nvmlGpmMetric_t *metric) {
    unsigned int id = metric->metricId;
    memset(&metric->metricInfo, 0, sizeof metric->metricInfo);
    metric->value = 0;
    metric->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
    if (id == 0 || id >= NVML_GPM_METRIC_MAX) {
        return;
    }
    metric->nvmlReturn = before->results[id] != NVML_SUCCESS ? before->results[id] : after->results[id];
    if (metric->nvmlReturn == NVML_SUCCESS) {
        int counts = id >= FIRST_COUNTER && id <= LAST_COUNTER;
        metric->value = counts ? after->values[id] : (before->values[id] + after->values[id]) / 2;
    }
}

NVML_API nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (asked->version != 1) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (!known(asked->sample1) || !known(asked->sample2) || asked->numMetrics == 0 ||
        asked->numMetrics > NVML_GPM_METRIC_MAX || !comparable(asked->sample1, asked->sample2)) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (unsigned int each = 0; each < asked->numMetrics; each++) {
        compare(asked->sample1, asked->sample2, &asked->metrics[each]);
    }
    return call_end(NVML_SUCCESS);
}
