/* GPM: the mean of two samples of the same GPU or MIG instance, taken at least 100 ms apart. */

#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { METRICS = 64 };

static const double SHORTEST_SECONDS = 0.1;

struct gpm_sample {
    double taken_at; /* 0: never */
    int gpu, instance;
    double values[METRICS];
    nvmlReturn_t results[METRICS];
};

NVML_API nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *sample = calloc(1, sizeof **sample);
    return call_end(*sample != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

NVML_API nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    free(sample);
    return call_end(NVML_SUCCESS);
}

NVML_API nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    BEGIN_ON(call, device)
    return call_end(READ(support->isSupportedDevice, call.self, "gpm.supported"));
}

/* `path`: "gpm" of the GPU or "mig.devices.N.gpm". */
static nvmlReturn_t take(const struct call *call, const char *path, int instance, nvmlGpmSample_t sample) {
    if (!number_or(0, call->owner, "gpm.supported")) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    for (int each = 0; each < METRICS; each++) {
        sample->results[each] = real_at(&sample->values[each], call->owner, "%s.metrics.%d", path, each);
    }
    sample->taken_at = state_now();
    sample->gpu = call->gpu;
    sample->instance = instance;
    return NVML_SUCCESS;
}

NVML_API nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    BEGIN_ON(call, device)
    return call_end(take(&call, "gpm", -1, sample));
}

NVML_API nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample) {
    BEGIN_ON(call, device)
    char path[] = "mig.devices.0.gpm";
    for (int each = 0; each < MAX_INSTANCES; each++) {
        unsigned int id = 0;
        path[sizeof "mig.devices." - 1] = (char)('0' + each);
        if (READ(id, call.owner, "mig.devices.%d.gpu_instance", each) == NVML_SUCCESS && id == gpu_instance) {
            return call_end(take(&call, path, (int)gpu_instance, sample));
        }
    }
    return call_end(NVML_ERROR_NOT_FOUND);
}

NVML_API nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
    struct call call;
    const struct gpm_sample *before = asked->sample1, *after = asked->sample2;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (asked->version != 1) {
        return call_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (before->taken_at == 0 || before->gpu != after->gpu || before->instance != after->instance ||
        after->taken_at - before->taken_at < SHORTEST_SECONDS) {
        return call_end(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (unsigned int each = 0; each < asked->numMetrics; each++) {
        nvmlGpmMetric_t *metric = &asked->metrics[each];
        unsigned int id = metric->metricId;
        metric->nvmlReturn = id < METRICS ? before->results[id] ?: after->results[id] : NVML_ERROR_NOT_SUPPORTED;
        metric->value = metric->nvmlReturn == NVML_SUCCESS ? (before->values[id] + after->values[id]) / 2 : 0;
    }
    return call_end(NVML_SUCCESS);
}
