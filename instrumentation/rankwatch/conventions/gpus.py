"""Metrics of GPUs and their driver. `gpu` is a UUID; a value the driver does not know has no series."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_GPU = (Label.GPU,)

GPU_DRIVER = (
    gauge(
        "rankwatch_gpus_expected",
        "1",
        (),
        "NVIDIA GPUs on the PCI bus (/sys/bus/pci), whatever the driver says.",
    ),
    gauge("rankwatch_gpus_visible", "1", (), "GPUs that answer through NVML; 0 while the driver does not."),
    gauge(
        "rankwatch_gpu_driver_state",
        "1",
        (Label.STATE,),
        "1 for the present state of the driver as the agent sees it (starting, in_use, unresponsive, "
        "unavailable, released); other states have no series.",
    ),
    counter(
        "rankwatch_gpu_driver_unresponsive_total",
        "1",
        (),
        "Collections in which a driver call did not return in time and its worker was killed.",
    ),
    counter("rankwatch_gpu_worker_starts_total", "1", (), "Worker processes started to talk to the driver."),
    info(
        "rankwatch_gpu_driver_info",
        (Label.DRIVER_VERSION, Label.NVML_VERSION, Label.CUDA_VERSION),
        "Versions of driver, NVML and the newest CUDA the driver supports; always 1.",
    ),
)

GPU_IDENTITY = (
    gauge(
        "rankwatch_gpu_up",
        "1",
        _GPU,
        "1 where the GPU answers, 0 where it was seen and is now lost; it keeps its identity.",
    ),
    info(
        "rankwatch_gpu_info",
        (Label.GPU, Label.INDEX, Label.PCI_BUS_ID, Label.MODEL, Label.ARCHITECTURE, Label.SERIAL),
        "Identity of a GPU by UUID: NVML index, PCI bus id, model, architecture, serial number; always 1.",
    ),
    gauge(
        "rankwatch_gpu_supported",
        "1",
        (Label.MODEL, Label.FEATURE),
        "1 where every GPU of the model on this node answers for the feature, 0 where one says that it "
        "is not supported.",
    ),
    counter(
        "rankwatch_gpu_readings_rejected_total",
        "1",
        (Label.FEATURE,),
        "Values of the driver that lay outside the range of their unit and were left out.",
    ),
    gauge(
        "rankwatch_gpu_counters_suspect",
        "1",
        _GPU,
        "1 where the GPU claims to be fully utilised while all activity counters stay at exactly 0.",
    ),
)

GPU_LOAD = (
    gauge(
        "rankwatch_gpu_utilization_ratio",
        "1",
        _GPU,
        "Share of time in which a kernel ran (nvmlDeviceGetUtilizationRates); says nothing about how much "
        "of the GPU it used.",
    ),
    gauge(
        "rankwatch_gpu_memory_controller_utilization_ratio",
        "1",
        _GPU,
        "Share of time in which device memory was read or written (nvmlDeviceGetUtilizationRates).",
    ),
    gauge(
        "rankwatch_gpu_activity_ratio",
        "1",
        (Label.GPU, Label.UNIT),
        "Activity of a unit (graphics, sm, sm_occupancy, integer, tensor, dram, fp64, fp32, fp16) since the "
        "previous collection (GPM, Hopper and newer).",
    ),
    gauge("rankwatch_gpu_memory_total_bytes", "bytes", _GPU, "Device memory (nvmlDeviceGetMemoryInfo_v2)."),
    gauge("rankwatch_gpu_memory_used_bytes", "bytes", _GPU, "Device memory in use, reserved left out."),
    gauge("rankwatch_gpu_memory_free_bytes", "bytes", _GPU, "Device memory free."),
    gauge("rankwatch_gpu_memory_reserved_bytes", "bytes", _GPU, "Device memory the driver keeps for itself."),
    gauge("rankwatch_gpu_processes", "1", _GPU, "Processes with a compute context on the GPU."),
    gauge(
        "rankwatch_gpu_process_memory_bytes",
        "bytes",
        (Label.GPU, Label.PID),
        "Device memory of a process, by its process id on the host, where the driver tells.",
    ),
)

GPU_HEAT = (
    gauge(
        "rankwatch_gpu_temperature_celsius",
        "celsius",
        (Label.GPU, Label.SENSOR),
        "Temperature: core, memory.",
    ),
    gauge(
        "rankwatch_gpu_temperature_margin_celsius",
        "celsius",
        _GPU,
        "Degrees left before the GPU slows down (nvmlDeviceGetMarginTemperature).",
    ),
    gauge("rankwatch_gpu_power_watts", "watts", _GPU, "Power drawn (nvmlDeviceGetPowerUsage)."),
    gauge("rankwatch_gpu_power_limit_watts", "watts", _GPU, "Power limit enforced."),
    counter("rankwatch_gpu_energy_joules_total", "joules", _GPU, "Energy used since the driver was loaded."),
    gauge(
        "rankwatch_gpu_clock_hertz",
        "hertz",
        (Label.GPU, Label.CLOCK),
        "Clock now: graphics, sm, memory, video.",
    ),
    gauge("rankwatch_gpu_clock_max_hertz", "hertz", (Label.GPU, Label.CLOCK), "Highest clock possible."),
    counter(
        "rankwatch_gpu_throttle_seconds_total",
        "seconds",
        (Label.GPU, Label.REASON),
        "Time the clocks were held down, by reason: sw_power_cap, thermal, sync_boost, board_limit, "
        "low_utilization, reliability (NVML fields 74-79); sw_thermal_slowdown, hw_thermal_slowdown, "
        "hw_power_brake_slowdown (fields 269-271). Reasons overlap and must not be added up.",
    ),
    gauge(
        "rankwatch_gpu_throttle_active",
        "1",
        (Label.GPU, Label.REASON),
        "1 for each reason that holds the clocks down now, 0 for the others the GPU knows: gpu_idle, "
        "applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, "
        "hw_thermal_slowdown, hw_power_brake_slowdown, display_clock_setting, board_limit, reliability.",
    ),
)

GPU_LINKS = (
    gauge(
        "rankwatch_gpu_pcie_throughput_bytes",
        "bytes",
        (Label.GPU, Label.DIRECTION),
        "PCIe bytes per second, transmit and receive (GPM, else nvmlDeviceGetPcieThroughput).",
    ),
    gauge("rankwatch_gpu_pcie_generation", "1", _GPU, "Generation of the PCIe link now; falls when idle."),
    gauge("rankwatch_gpu_pcie_generation_max", "1", _GPU, "Highest generation of GPU and slot."),
    gauge("rankwatch_gpu_pcie_width", "1", _GPU, "Lanes of the PCIe link now."),
    gauge("rankwatch_gpu_pcie_width_max", "1", _GPU, "Most lanes of GPU and slot."),
    counter("rankwatch_gpu_pcie_replays_total", "1", _GPU, "PCIe packets sent again (NVML field 94)."),
    gauge("rankwatch_gpu_nvlinks", "1", _GPU, "NVLink ports of the GPU."),
    gauge("rankwatch_gpu_nvlinks_active", "1", _GPU, "NVLink ports that are up."),
    counter(
        "rankwatch_gpu_nvlink_bytes_total",
        "bytes",
        (Label.GPU, Label.DIRECTION),
        "Bytes over all NVLinks, transmit and receive (NVML fields 138, 139; NVLink 5: 202, 204); a link "
        "that is down keeps its last value.",
    ),
    counter(
        "rankwatch_gpu_nvlink_errors_total",
        "1",
        (Label.GPU, Label.KIND),
        "Errors over all NVLinks by kind: replay, recovery, crc; on NVLink 5 also malformed_packet, "
        "buffer_overrun, effective, symbol, link_recovery_failed.",
    ),
    gauge(
        "rankwatch_gpu_fabric_state",
        "1",
        (Label.GPU, Label.STATE),
        "1 for the state of the NVLink fabric probe: not_started, in_progress, completed, failed "
        "(nvmlDeviceGetGpuFabricInfoV); GPUs without a fabric have no series.",
    ),
    gauge(
        "rankwatch_gpu_fabric_degraded",
        "1",
        (Label.GPU, Label.REASON),
        "1 for each complaint in the health mask of the NVLink fabric; 0 for those it denies: "
        "degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery, "
        "incorrect_configuration, no_partition, fabric_manager_disconnected.",
    ),
)

GPU_FAULTS = (
    counter(
        "rankwatch_gpu_ecc_errors_total",
        "1",
        (Label.GPU, Label.KIND, Label.SCOPE),
        "ECC errors: corrected, uncorrected; volatile (since the driver was loaded), aggregate (for life).",
    ),
    gauge(
        "rankwatch_gpu_remapped_rows",
        "1",
        (Label.GPU, Label.KIND),
        "Memory rows replaced for good, after corrected and after uncorrected errors.",
    ),
    gauge("rankwatch_gpu_row_remap_pending", "1", _GPU, "1 where a row waits for a reset to be replaced."),
    gauge(
        "rankwatch_gpu_row_remap_failed", "1", _GPU, "1 where a row could not be replaced: the GPU must go."
    ),
    gauge(
        "rankwatch_gpu_recovery_action",
        "1",
        (Label.GPU, Label.ACTION),
        "1 for what the driver asks for: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
        "recover_imex_domain, bus_reset, system_reboot (NVML field 230, else 226 and 227).",
    ),
)

GPU_MIG = (
    info(
        "rankwatch_gpu_mig_info",
        (Label.GPU, Label.MIG, Label.PROFILE, Label.GPU_INSTANCE, Label.COMPUTE_INSTANCE),
        "A MIG instance by UUID on its GPU; always 1.",
    ),
    gauge(
        "rankwatch_gpu_mig_memory_total_bytes",
        "bytes",
        (Label.GPU, Label.MIG),
        "Device memory of a MIG instance.",
    ),
    gauge(
        "rankwatch_gpu_mig_memory_used_bytes",
        "bytes",
        (Label.GPU, Label.MIG),
        "Device memory in use in a MIG instance.",
    ),
    gauge(
        "rankwatch_gpu_mig_activity_ratio",
        "1",
        (Label.GPU, Label.MIG, Label.UNIT),
        "Activity of a unit of a MIG instance since the previous collection (GPM).",
    ),
)

GPUS = (*GPU_DRIVER, *GPU_IDENTITY, *GPU_LOAD, *GPU_HEAT, *GPU_LINKS, *GPU_FAULTS, *GPU_MIG)
