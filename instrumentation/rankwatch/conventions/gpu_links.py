"""Metrics of what connects GPUs: PCIe, NVLink and its fabric, the chip-to-chip links to a Grace CPU."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label

_GPU = (Label.GPU,)

GPU_LINKS = (
    gauge(
        "rankwatch_gpu_pcie_throughput_bytes",
        "bytes",
        (Label.GPU, Label.DIRECTION),
        "PCIe bytes per second, transmit and receive (from GPM, else nvmlDeviceGetPcieThroughput).",
    ),
    gauge(
        "rankwatch_gpu_pcie_generation",
        "1",
        _GPU,
        "Present generation of the PCIe link; it falls while the GPU is idle.",
    ),
    gauge("rankwatch_gpu_pcie_generation_max", "1", _GPU, "Highest generation that GPU and slot support."),
    gauge("rankwatch_gpu_pcie_width", "1", _GPU, "Present lanes of the PCIe link."),
    gauge("rankwatch_gpu_pcie_width_max", "1", _GPU, "Most lanes that GPU and slot support."),
    counter(
        "rankwatch_gpu_pcie_replays_total", "1", _GPU, "PCIe packets that were sent again (NVML field 94)."
    ),
    gauge("rankwatch_gpu_nvlinks", "1", _GPU, "NVLink ports of the GPU."),
    gauge("rankwatch_gpu_nvlinks_active", "1", _GPU, "NVLink ports that are up."),
    counter(
        "rankwatch_gpu_nvlink_bytes_total",
        "bytes",
        (Label.GPU, Label.DIRECTION),
        "Bytes over all NVLinks, transmit and receive (NVML fields 138, 139; NVLink 5: 202, 204); a link "
        "that is down counts with its last value.",
    ),
    counter(
        "rankwatch_gpu_nvlink_errors_total",
        "1",
        (Label.GPU, Label.KIND),
        "Errors over all NVLinks by kind: replay, recovery, crc; on NVLink 5 also malformed_packet, "
        "buffer_overrun, effective, symbol, link_recovery_failed.",
    ),
    gauge(
        "rankwatch_gpu_nvlink_link_up",
        "1",
        (Label.GPU, Label.LINK),
        "1 where the NVLink is up. Series of single links are off by default (nvlink_per_link).",
    ),
    counter(
        "rankwatch_gpu_nvlink_link_bytes_total",
        "bytes",
        (Label.GPU, Label.LINK, Label.DIRECTION),
        "Bytes of one NVLink, transmit and receive.",
    ),
    counter(
        "rankwatch_gpu_nvlink_link_errors_total",
        "1",
        (Label.GPU, Label.LINK, Label.KIND),
        "Errors of one NVLink by kind.",
    ),
    gauge(
        "rankwatch_gpu_c2c_links",
        "1",
        _GPU,
        "Chip-to-chip links to the Grace CPU (NVML field 170); GPUs without any have no series of them.",
    ),
    gauge("rankwatch_gpu_c2c_links_active", "1", _GPU, "Chip-to-chip links that are up (NVML field 171)."),
    gauge(
        "rankwatch_gpu_c2c_links_low_power",
        "1",
        _GPU,
        "Chip-to-chip links in the low-power state (NVML field 234).",
    ),
    gauge(
        "rankwatch_gpu_c2c_bandwidth_bytes",
        "bytes",
        _GPU,
        "Bytes per second that the active chip-to-chip links can carry together (NVML field 172).",
    ),
    counter(
        "rankwatch_gpu_c2c_errors_total",
        "1",
        (Label.GPU, Label.KIND),
        "Errors over all chip-to-chip links by kind: crc, replay, replay_back_to_back (NVML fields 231-233).",
    ),
    gauge(
        "rankwatch_gpu_fabric_state",
        "1",
        (Label.GPU, Label.STATE),
        "1 for the present state of the NVLink fabric probe: not_started, in_progress, completed, failed "
        "(nvmlDeviceGetGpuFabricInfoV); GPUs without a fabric have no series.",
    ),
    gauge(
        "rankwatch_gpu_fabric_degraded",
        "1",
        (Label.GPU, Label.REASON),
        "1 for each fault in the health mask of the NVLink fabric, 0 for each fault that it denies: "
        "degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery, "
        "incorrect_configuration, no_partition, fabric_manager_disconnected.",
    ),
)
