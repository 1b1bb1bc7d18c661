"""Metrics that say who uses which GPU, and what another exporter on the node says of it."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

ATTRIBUTION = (
    info(
        "rankwatch_gpu_pod_info",
        (Label.GPU, Label.MIG, Label.POD_NAMESPACE, Label.POD_NAME, Label.POD_CONTAINER),
        "A container that was given the GPU (or a MIG instance of it), as the kubelet lists it; always 1.",
    ),
    info(
        "rankwatch_gpu_slurm_info",
        (Label.GPU, Label.MIG, Label.SLURM_JOB),
        "A SLURM job that uses the GPU (or a MIG instance of it), by the job map or by SLURM_JOB_ID in the "
        "environment of a process on it; always 1.",
    ),
    info(
        "rankwatch_rank_gpu_info",
        (Label.RUN, Label.RANK, Label.GPU),
        "The GPU (or MIG instance) a rank works on, as torch or the trainer names it; always 1.",
    ),
    gauge(
        "rankwatch_gpu_allocations_unmatched",
        "1",
        (Label.SOURCE,),
        "What is in use and belongs to no GPU known here: devices the kubelet gave to a container, files of "
        "SLURM's job map; also processes on a GPU whose environment may not be read (source slurm).",
    ),
    counter(
        "rankwatch_attribution_failures_total",
        "1",
        (Label.SOURCE,),
        "Attempts to learn who uses which GPU that failed: calls to the kubelet (shown after the next one "
        "that succeeds), listings and files of SLURM's job map. The GPUs then have no owner in the metrics.",
    ),
)

DCGM = (
    gauge(
        "rankwatch_dcgm_field",
        "1",
        (Label.GPU, Label.MIG, Label.FIELD),
        "A field of dcgm-exporter that rankwatch has no metric of its own for, in DCGM's unit and under its "
        "name before DCGM 4; `mig` is `gpu_instance N` where the UUID is unknown.",
    ),
    gauge(
        "rankwatch_dcgm_gpus_unmatched",
        "1",
        (),
        "GPUs in the answer of dcgm-exporter that NVML does not show. Where NVML shows no GPU at all, they "
        "are exported under the names from dcgm-exporter and are not counted here.",
    ),
)
