"""The indicators of GPUs, network and hosts."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import sli
from rankwatch_alerts.rules import Alert

_CONTEXT = "context for other alerts: alone it says nothing about a run"

GPUS = (
    sli(
        "GPU utilisation",
        "Are the GPUs busy?",
        "rankwatch_gpu_utilization_ratio",
        "rankwatch_gpu_activity_ratio",
        no_alert=_CONTEXT,
    ),
    sli(
        "GPU memory",
        "How full are the GPUs?",
        "rankwatch_gpu_memory_used_bytes",
        "rankwatch_rank_gpu_memory_reserved_bytes",
        no_alert="an allocator uses all memory in health; running out ends the run",
    ),
    sli(
        "GPU power and clocks",
        "What do the GPUs draw, and how fast do they run?",
        "rankwatch_gpu_power_watts",
        "rankwatch_gpu_clock_hertz",
        no_alert="throttling has an alert, and says when a clock is held back",
    ),
    sli(
        "GPU throttling",
        "Which GPU is held back, and why?",
        "rankwatch_gpu_throttle_seconds_total",
        alerts=(
            Alert.GPU_THROTTLED,
            Alert.GPU_POWER_BRAKE,
        ),
    ),
    sli(
        "GPU temperature",
        "How hot are the GPUs?",
        "rankwatch_gpu_temperature_celsius",
        no_alert="heat matters once it throttles, which has an alert",
    ),
    sli(
        "GPU memory errors",
        "Does a GPU's memory fail?",
        "rankwatch_gpu_ecc_errors_total",
        alerts=(Alert.GPU_ECC_UNCORRECTED,),
    ),
    sli(
        "XID errors",
        "What did the driver report?",
        "rankwatch_gpu_xid_errors_total",
        "rankwatch_gpu_xid_last_timestamp_seconds",
        alerts=(Alert.GPU_XID,),
    ),
    sli(
        "GPU recovery",
        "Must a GPU be reset or replaced?",
        "rankwatch_gpu_recovery_action",
        "rankwatch_gpu_row_remap_failed",
        alerts=(
            Alert.GPU_NEEDS_RESET,
            Alert.GPU_NEEDS_REPLACEMENT,
        ),
    ),
    sli(
        "GPUs present",
        "Are all GPUs there?",
        "rankwatch_gpus_expected",
        "rankwatch_gpus_visible",
        "rankwatch_gpu_up",
        alerts=(
            Alert.GPUS_MISSING,
            Alert.GPU_LOST,
        ),
    ),
    sli(
        "NVLink",
        "Are the links between GPUs up and clean?",
        "rankwatch_gpu_nvlink_errors_total",
        "rankwatch_gpu_nvlinks_active",
        alerts=(
            Alert.NVLINK_ERRORS,
            Alert.NVLINK_DOWN,
        ),
    ),
    sli(
        "PCIe",
        "Does a GPU have its full link?",
        "rankwatch_gpu_pcie_width",
        alerts=(Alert.GPU_PCIE_DEGRADED,),
    ),
)

NETWORK = (
    sli(
        "NIC errors and drops",
        "Does a NIC fail?",
        "rankwatch_network_receive_errors_total",
        alerts=(Alert.NIC_ERRORS,),
    ),
    sli("NIC link", "Is the link up?", "rankwatch_network_up", alerts=(Alert.NIC_DOWN,)),
    sli(
        "TCP retransmits",
        "Are segments sent again?",
        "rankwatch_tcp_retransmitted_segments_total",
        no_alert=_CONTEXT,
    ),
    sli(
        "RDMA link",
        "Is the port up, and does it stay up?",
        "rankwatch_rdma_port_state",
        "rankwatch_rdma_port_up",
        "rankwatch_rdma_link_downed_total",
        alerts=(
            Alert.RDMA_LINK_DOWN,
            Alert.RDMA_LINK_FLAPPING,
        ),
    ),
    sli(
        "RDMA errors",
        "Does a port lose or repeat packets?",
        "rankwatch_rdma_errors_total",
        alerts=(Alert.RDMA_ERRORS,),
    ),
    sli(
        "RDMA congestion",
        "Do ports mark or pause traffic?",
        "rankwatch_rdma_congestion_total",
        no_alert=_CONTEXT,
    ),
)

HOSTS = (
    sli("host CPU", "Has the node CPU to spare?", "rankwatch_host_cpu_seconds_total", no_alert=_CONTEXT),
    sli(
        "host memory",
        "Does the node run out of memory?",
        "rankwatch_host_oom_kills_total",
        alerts=(Alert.OOM_KILL,),
    ),
    sli(
        "checkpoint disk",
        "Is there space for checkpoints?",
        "rankwatch_filesystem_available_bytes",
        alerts=(Alert.CHECKPOINT_DISK_FILLING,),
    ),
    sli("disk latency", "How long do writes take?", "rankwatch_disk_write_seconds_total", no_alert=_CONTEXT),
    sli(
        "clock",
        "Is the node's clock right?",
        "rankwatch_host_clock_max_error_seconds",
        no_alert="no verdict depends on it: the diagnosis aligns the clocks of ranks by their collectives",
    ),
)
