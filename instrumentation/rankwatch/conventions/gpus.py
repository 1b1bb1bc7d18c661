"""Metrics of GPUs, their driver and their users. `gpu` is a UUID; unknown values have no series."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.gpu_links import GPU_LINKS
from rankwatch.conventions.labels import Label

_GPU = (Label.GPU,)

GPU_DRIVER = (
    gauge(
        "rankwatch_gpus_expected",
        "1",
        (),
        "NVIDIA GPUs on the PCI bus (/sys/bus/pci), independent of the driver. Where the bus never showed "
        "one, the most that the driver showed.",
    ),
    gauge(
        "rankwatch_gpus_visible",
        "1",
        (),
        "GPUs that answer through NVML; 0 while the driver does not answer.",
    ),
    gauge(
        "rankwatch_gpu_driver_state",
        "1",
        (Label.STATE,),
        "1 for the present state of the driver (starting, in_use, unresponsive, unavailable, released); the "
        "other states have no series.",
    ),
    counter(
        "rankwatch_gpu_driver_unresponsive_total",
        "1",
        (),
        "Driver calls that did not return in time, so that their worker was killed.",
    ),
    counter("rankwatch_gpu_worker_starts_total", "1", (), "Worker processes started to query the driver."),
    gauge(
        "rankwatch_nvidia_module_loaded",
        "1",
        (Label.MODULE,),
        "1 where the kernel module is loaded: nvidia, nvidia_uvm, nvidia_peermem, gdrdrv. Without "
        "nvidia_peermem, GPUDirect RDMA needs dma-buf.",
    ),
    info(
        "rankwatch_gpu_driver_info",
        (Label.DRIVER_VERSION, Label.NVML_VERSION, Label.CUDA_VERSION),
        "Versions of the driver, of NVML and of the newest CUDA that the driver supports; always 1.",
    ),
)

GPU_IDENTITY = (
    gauge(
        "rankwatch_gpu_up",
        "1",
        _GPU,
        "1 while the GPU answers, 0 once it is lost; a lost GPU keeps its identity.",
    ),
    info(
        "rankwatch_gpu_info",
        (Label.GPU, Label.INDEX, Label.PCI_BUS_ID, Label.MODEL, Label.ARCHITECTURE, Label.SERIAL),
        "Names of a GPU: UUID, NVML index, PCI bus id, model, architecture, serial number; always 1.",
    ),
    info(
        "rankwatch_gpu_firmware_info",
        (Label.GPU, Label.VBIOS_VERSION, Label.INFOROM_VERSION),
        "Versions of the GPU's VBIOS and of its InfoROM image; always 1.",
    ),
    gauge("rankwatch_gpu_persistence_mode", "1", _GPU, "1 where the driver stays loaded without a client."),
    gauge(
        "rankwatch_gpu_supported",
        "1",
        (Label.MODEL, Label.FEATURE),
        "1 where every GPU of the model on this node supports the feature, 0 where at least one does not.",
    ),
    counter(
        "rankwatch_gpu_readings_rejected_total",
        "1",
        (Label.FEATURE,),
        "Values of the driver that were outside the plausible range of their unit and were left out.",
    ),
    gauge(
        "rankwatch_gpu_counters_suspect",
        "1",
        _GPU,
        "1 where the GPU reports full utilisation while all its activity counters stay at exactly 0.",
    ),
)

GPU_LOAD = (
    gauge(
        "rankwatch_gpu_utilization_ratio",
        "1",
        _GPU,
        "Share of time in which a kernel ran (nvmlDeviceGetUtilizationRates), no matter how much of the GPU "
        "the kernel used.",
    ),
    gauge(
        "rankwatch_gpu_memory_controller_utilization_ratio",
        "1",
        _GPU,
        "Share of time in which device memory was read or written (nvmlDeviceGetUtilizationRates).",
    ),
    gauge(
        "rankwatch_gpu_video_utilization_ratio",
        "1",
        (Label.GPU, Label.UNIT),
        "Share of time in which the video encoder or decoder worked (nvmlDeviceGetEncoderUtilization and "
        "nvmlDeviceGetDecoderUtilization). Decoders load images and video for training.",
    ),
    gauge(
        "rankwatch_gpu_performance_state",
        "1",
        _GPU,
        "Performance state from 0 (P0, the fastest) to 15.",
    ),
    gauge(
        "rankwatch_gpu_activity_ratio",
        "1",
        (Label.GPU, Label.UNIT),
        "Activity of a unit (graphics, sm, sm_occupancy, integer, tensor, dram, fp64, fp32, fp16) since the "
        "previous collection (GPM, Hopper and newer).",
    ),
    gauge("rankwatch_gpu_memory_total_bytes", "bytes", _GPU, "Device memory (nvmlDeviceGetMemoryInfo_v2)."),
    gauge(
        "rankwatch_gpu_memory_used_bytes", "bytes", _GPU, "Device memory in use, without the reserved part."
    ),
    gauge("rankwatch_gpu_memory_free_bytes", "bytes", _GPU, "Free device memory."),
    gauge(
        "rankwatch_gpu_memory_reserved_bytes",
        "bytes",
        _GPU,
        "Device memory that the driver reserves for itself.",
    ),
    gauge(
        "rankwatch_gpu_bar1_total_bytes",
        "bytes",
        _GPU,
        "BAR1: the window through which the host, NICs and peers reach device memory.",
    ),
    gauge("rankwatch_gpu_bar1_used_bytes", "bytes", _GPU, "BAR1 in use."),
    gauge("rankwatch_gpu_processes", "1", _GPU, "Processes with a compute context on the GPU."),
    gauge(
        "rankwatch_gpu_process_memory_bytes",
        "bytes",
        (Label.GPU, Label.PID),
        "Device memory of a process, by its process id on the host, where the driver knows it.",
    ),
)

GPU_HEAT = (
    gauge(
        "rankwatch_gpu_temperature_celsius",
        "celsius",
        (Label.GPU, Label.SENSOR),
        "Temperature by sensor: core, memory.",
    ),
    gauge(
        "rankwatch_gpu_temperature_margin_celsius",
        "celsius",
        _GPU,
        "Degrees left before the GPU slows down (nvmlDeviceGetMarginTemperature).",
    ),
    gauge(
        "rankwatch_gpu_temperature_threshold_celsius",
        "celsius",
        (Label.GPU, Label.THRESHOLD),
        "Temperatures at which the GPU acts: shutdown, slowdown, memory_max, gpu_max.",
    ),
    gauge(
        "rankwatch_gpu_temperature_margin_threshold_celsius",
        "celsius",
        (Label.GPU, Label.THRESHOLD),
        "The same thresholds as values of rankwatch_gpu_temperature_margin_celsius, on GPUs from Ada and "
        "Hopper on (NVML fields 193-196); beyond the slowdown they are negative.",
    ),
    gauge(
        "rankwatch_gpu_fan_speed_ratio",
        "1",
        (Label.GPU, Label.FAN),
        "Intended speed of a fan as share of its highest; a blocked fan shows the same.",
    ),
    gauge("rankwatch_gpu_power_watts", "watts", _GPU, "Power drawn (nvmlDeviceGetPowerUsage)."),
    gauge("rankwatch_gpu_power_limit_watts", "watts", _GPU, "Enforced power limit."),
    gauge(
        "rankwatch_gpu_power_threshold_watts",
        "watts",
        (Label.GPU, Label.THRESHOLD),
        "Power limits of the board: min, max, default, and the one that was requested.",
    ),
    counter("rankwatch_gpu_energy_joules_total", "joules", _GPU, "Energy used since the driver was loaded."),
    gauge(
        "rankwatch_gpu_clock_hertz",
        "hertz",
        (Label.GPU, Label.CLOCK),
        "Present clock: graphics, sm, memory, video.",
    ),
    gauge("rankwatch_gpu_clock_max_hertz", "hertz", (Label.GPU, Label.CLOCK), "Highest possible clock."),
    counter(
        "rankwatch_gpu_throttle_seconds_total",
        "seconds",
        (Label.GPU, Label.REASON),
        "Time in which the clocks were held down, by reason: sw_power_cap, thermal, sync_boost, board_limit, "
        "low_utilization, reliability (NVML fields 74-79); sw_thermal_slowdown, hw_thermal_slowdown, "
        "hw_power_brake_slowdown (fields 269-271; drivers 575 to 580.65: 251-253). Reasons overlap and "
        "must not be added up.",
    ),
    gauge(
        "rankwatch_gpu_throttle_active",
        "1",
        (Label.GPU, Label.REASON),
        "1 for each reason that holds the clocks down now, 0 for the other reasons of the GPU: gpu_idle, "
        "applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, "
        "hw_thermal_slowdown, hw_power_brake_slowdown, display_clock_setting, board_limit, reliability.",
    ),
)

GPU_FAULTS = (
    counter(
        "rankwatch_gpu_ecc_errors_total",
        "1",
        (Label.GPU, Label.KIND, Label.SCOPE),
        "ECC errors: corrected, uncorrected; volatile (since the driver was loaded), aggregate (lifetime).",
    ),
    gauge(
        "rankwatch_gpu_remapped_rows",
        "1",
        (Label.GPU, Label.KIND),
        "Memory rows that were replaced after corrected and after uncorrected errors.",
    ),
    gauge("rankwatch_gpu_row_remap_pending", "1", _GPU, "1 where a reset is needed to replace a row."),
    gauge(
        "rankwatch_gpu_row_remap_failed", "1", _GPU, "1 where a row could not be replaced: replace the GPU."
    ),
    gauge(
        "rankwatch_gpu_row_remap_banks",
        "1",
        (Label.GPU, Label.AVAILABILITY),
        "Banks of device memory by the spare rows that they have left: max, high, partial, low, none "
        "(nvmlDeviceGetRowRemapperHistogram).",
    ),
    gauge("rankwatch_gpu_ecc_mode", "1", _GPU, "1 where ECC is on."),
    gauge("rankwatch_gpu_ecc_mode_pending", "1", _GPU, "1 where ECC is on from the next reset on."),
    gauge(
        "rankwatch_gpu_sram_ecc_threshold_exceeded",
        "1",
        _GPU,
        "1 where uncorrectable SRAM errors exceed NVIDIA's limit: replace the GPU "
        "(nvmlDeviceGetSramEccErrorStatus, which needs root).",
    ),
    counter(
        "rankwatch_gpu_sram_ecc_errors_total",
        "1",
        (Label.GPU, Label.KIND, Label.SCOPE),
        "ECC errors of the SRAM: corrected, uncorrected_parity, uncorrected_secded; volatile (since the "
        "driver was loaded), aggregate (lifetime).",
    ),
    gauge(
        "rankwatch_gpu_retired_pages",
        "1",
        (Label.GPU, Label.KIND),
        "Pages of device memory taken out of use after corrected and after uncorrected errors (before "
        "Ampere).",
    ),
    gauge(
        "rankwatch_gpu_page_retirement_pending",
        "1",
        _GPU,
        "1 where a reset is needed to take a page out of use (before Ampere).",
    ),
    gauge(
        "rankwatch_gpu_recovery_action",
        "1",
        (Label.GPU, Label.ACTION),
        "1 for the action the driver requests: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
        "recover_imex_domain, bus_reset, system_reboot (NVML field 230, else 226 and 227). gpu_reset also "
        "where the driver refuses calls until the GPU is reset.",
    ),
)

GPU_MIG = (
    info(
        "rankwatch_gpu_mig_info",
        (Label.GPU, Label.MIG, Label.PROFILE, Label.GPU_INSTANCE, Label.COMPUTE_INSTANCE),
        "A MIG instance of a GPU: UUID, profile, instance ids; always 1.",
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

ATTRIBUTION = (
    info(
        "rankwatch_gpu_pod_info",
        (Label.GPU, Label.MIG, Label.POD_NAMESPACE, Label.POD_NAME, Label.POD_CONTAINER),
        "A container that the GPU (or a MIG instance of it) is allocated to, by the kubelet; always 1.",
    ),
    info(
        "rankwatch_gpu_slurm_info",
        (Label.GPU, Label.MIG, Label.SLURM_JOB),
        "A SLURM job that uses the GPU (or a MIG instance of it), by the job map or by SLURM_JOB_ID in the "
        "environment of a process on it; always 1.",
    ),
    gauge(
        "rankwatch_rank_gpu_start_timestamp_seconds",
        "seconds",
        (Label.RUN, Label.RANK, Label.GPU),
        "Unix time at which the rank started that works on this GPU or MIG instance, while it runs.",
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
        "Allocations that match no known GPU: devices that the kubelet lists, files of SLURM's job map. "
        "Source slurm also counts processes on a GPU whose environment the agent may not read.",
    ),
    counter(
        "rankwatch_attribution_failures_total",
        "1",
        (Label.SOURCE,),
        "Failed attempts to find out who uses which GPU: calls to the kubelet (shown after the next call "
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
