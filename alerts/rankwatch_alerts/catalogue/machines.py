"""The indicators of GPUs, network and hosts."""

from __future__ import annotations

from functools import partial

from rankwatch_alerts.catalogue.sli import Good, sli
from rankwatch_alerts.delivery import Owner
from rankwatch_alerts.rules import Alert

_CONTEXT = "context for other alerts: alone it says nothing about a run"

_sli = partial(sli, owner=Owner.PLATFORM, absent=(Alert.COLLECTOR_FAILING, Alert.TELEMETRY_ABSENT))
"""What a collector of the agent reads on each node."""

GPUS = (
    _sli(
        "GPU utilisation",
        "Are the GPUs of a run busy?",
        "rankwatch_gpu_utilization_ratio",
        "rankwatch_gpu_activity_ratio",
        "run:rankwatch_gpu_utilization:mean",
        figure="run:rankwatch_gpu_utilization:mean",
        unit="share of the time",
        good=Good.HIGHER,
        objective="gpu_utilization_objectives",
        needs="an NVIDIA GPU",
        alerts=(Alert.UTILISATION_LOW, Alert.GPUS_IDLE),
    ),
    _sli(
        "GPU memory",
        "How full are the GPUs?",
        "rankwatch_gpu_memory_used_bytes",
        "rankwatch_rank_gpu_memory_reserved_bytes",
        figure="max by (cluster, node) (rankwatch_gpu_memory_used_bytes)",
        unit="bytes, fullest GPU",
        good=Good.NEITHER,
        needs="an NVIDIA GPU",
        no_alert="an allocator uses all memory in health; running out ends the run",
    ),
    _sli(
        "GPU power and clocks",
        "What do the GPUs draw, and how fast do they run?",
        "rankwatch_gpu_power_watts",
        "rankwatch_gpu_clock_hertz",
        figure="sum by (cluster, node) (rankwatch_gpu_power_watts)",
        unit="watts",
        good=Good.NEITHER,
        needs="an NVIDIA GPU",
        no_alert="throttling has an alert, and says when a clock is held back",
    ),
    _sli(
        "GPU throttling",
        "Which GPU is held back, and why?",
        "rankwatch_gpu_throttle_seconds_total",
        figure=(
            "max by (cluster, node, gpu) "
            '(rate(rankwatch_gpu_throttle_seconds_total{reason=~"thermal|.*_thermal_slowdown"}[$window]))'
        ),
        unit="share of the time",
        good=Good.LOWER,
        objective="throttle_share",
        window="event_window_seconds",
        needs="an NVIDIA GPU",
        alerts=(
            Alert.GPU_THROTTLED,
            Alert.GPU_POWER_BRAKE,
        ),
    ),
    _sli(
        "GPU temperature",
        "How hot are the GPUs?",
        "rankwatch_gpu_temperature_celsius",
        figure="max by (cluster, node) (rankwatch_gpu_temperature_celsius)",
        unit="degrees Celsius",
        good=Good.LOWER,
        needs="an NVIDIA GPU",
        no_alert="heat matters once it throttles, which has an alert",
    ),
    _sli(
        "GPU memory errors",
        "Does a GPU's memory fail?",
        "rankwatch_gpu_ecc_errors_total",
        figure=(
            "sum by (cluster, node, gpu) "
            '(increase(rankwatch_gpu_ecc_errors_total{kind="uncorrected", scope="volatile"}[$window]))'
        ),
        unit="errors",
        good=Good.LOWER,
        objective=0.0,
        window="event_window_seconds",
        needs="an NVIDIA GPU",
        alerts=(Alert.GPU_ECC_UNCORRECTED,),
    ),
    _sli(
        "XID errors",
        "What did the driver report?",
        "rankwatch_gpu_xid_errors_total",
        "rankwatch_gpu_xid_last_timestamp_seconds",
        figure="sum by (cluster, node, gpu, xid) (increase(rankwatch_gpu_xid_errors_total[$window]))",
        unit="errors",
        good=Good.LOWER,
        objective=0.0,
        window="event_window_seconds",
        needs="an NVIDIA GPU",
        alerts=(Alert.GPU_XID,),
    ),
    _sli(
        "GPU recovery",
        "Must a GPU be reset or replaced?",
        "rankwatch_gpu_recovery_action",
        "rankwatch_gpu_row_remap_failed",
        figure="sum by (cluster, node) (rankwatch_gpu_row_remap_failed)",
        unit="GPUs to replace",
        good=Good.LOWER,
        objective=0.0,
        needs="an NVIDIA GPU",
        alerts=(
            Alert.GPU_NEEDS_RESET,
            Alert.GPU_NEEDS_REPLACEMENT,
        ),
    ),
    _sli(
        "GPUs present",
        "Are all GPUs there?",
        "rankwatch_gpus_expected",
        "rankwatch_gpus_visible",
        "rankwatch_gpu_up",
        figure=(
            "sum by (cluster, node) (rankwatch_gpus_expected)"
            " - on (cluster, node)"
            " sum by (cluster, node) (rankwatch_gpus_visible)"
        ),
        unit="GPUs",
        good=Good.LOWER,
        objective=0.0,
        needs="an NVIDIA GPU",
        alerts=(
            Alert.GPUS_MISSING,
            Alert.GPU_LOST,
        ),
    ),
    _sli(
        "NVLink",
        "Are the links between GPUs up and clean?",
        "rankwatch_gpu_nvlink_errors_total",
        "rankwatch_gpu_nvlinks_active",
        figure="sum by (cluster, node, gpu) (increase(rankwatch_gpu_nvlink_errors_total[$window]))",
        unit="errors",
        good=Good.LOWER,
        objective="nvlink_errors",
        window="event_window_seconds",
        needs="NVLink",
        alerts=(
            Alert.NVLINK_ERRORS,
            Alert.NVLINK_DOWN,
        ),
    ),
    _sli(
        "PCIe",
        "Does a GPU have its full link?",
        "rankwatch_gpu_pcie_width",
        figure="min by (cluster, node, gpu) (rankwatch_gpu_pcie_width)",
        unit="lanes",
        good=Good.HIGHER,
        needs="an NVIDIA GPU",
        alerts=(Alert.GPU_PCIE_DEGRADED,),
    ),
)

NETWORK = (
    _sli(
        "NIC errors and drops",
        "Does a NIC fail?",
        "rankwatch_network_receive_errors_total",
        figure="sum by (cluster, node, device) (rate(rankwatch_network_receive_errors_total[$window]))",
        unit="errors / second",
        good=Good.LOWER,
        objective="network_error_rate",
        window="event_window_seconds",
        alerts=(Alert.NIC_ERRORS,),
    ),
    _sli(
        "NIC link",
        "Is the link up?",
        "rankwatch_network_up",
        figure="min by (cluster, node, device) (rankwatch_network_up)",
        unit="1 if up",
        good=Good.HIGHER,
        alerts=(Alert.NIC_DOWN,),
    ),
    _sli(
        "TCP retransmits",
        "Are segments sent again?",
        "rankwatch_tcp_retransmitted_segments_total",
        figure=(
            "sum by (cluster, node) (rate(rankwatch_tcp_retransmitted_segments_total[$window]))"
            " / on (cluster, node)"
            " sum by (cluster, node) (rate(rankwatch_tcp_sent_segments_total[$window]))"
        ),
        unit="share of the segments",
        good=Good.LOWER,
        objective="tcp_retransmit_share",
        window="event_window_seconds",
        alerts=(Alert.TCP_RETRANSMITS,),
    ),
    _sli(
        "RDMA link",
        "Is the port up, and does it stay up?",
        "rankwatch_rdma_port_state",
        "rankwatch_rdma_port_up",
        "rankwatch_rdma_link_downed_total",
        figure="min by (cluster, node, device, port) (rankwatch_rdma_port_up)",
        unit="1 if up",
        good=Good.HIGHER,
        objective=1.0,
        needs="RDMA",
        alerts=(
            Alert.RDMA_LINK_DOWN,
            Alert.RDMA_LINK_FLAPPING,
        ),
    ),
    _sli(
        "RDMA errors",
        "Does a port lose or repeat packets?",
        "rankwatch_rdma_errors_total",
        figure="sum by (cluster, node, device, port) (rate(rankwatch_rdma_errors_total[$window]))",
        unit="errors / second",
        good=Good.LOWER,
        window="event_window_seconds",
        needs="RDMA",
        alerts=(Alert.RDMA_ERRORS,),
    ),
    _sli(
        "RDMA congestion",
        "Do switches mark packets, because their queues are full?",
        "rankwatch_rdma_congestion_total",
        figure=(
            "sum by (cluster, node, device) (rate(rankwatch_rdma_congestion_total"
            '{counter=~"np_ecn_marked_roce_packets|RxECNMrkd|rx_ecn_marked_pkts|cc_rx_ce_pkts"}[$window]))'
            " / on (cluster, node, device)"
            " sum by (cluster, node, device) (rate(rankwatch_rdma_receive_packets_total[$window]))"
        ),
        unit="share of the packets",
        good=Good.LOWER,
        objective="rdma_congestion_share",
        window="step_window_seconds",
        needs="RDMA",
        alerts=(Alert.RDMA_CONGESTION,),
    ),
)

HOSTS = (
    _sli(
        "host CPU",
        "Has the node CPU to spare?",
        "rankwatch_host_cpu_seconds_total",
        figure=(
            '1 - sum by (cluster, node) (rate(rankwatch_host_cpu_seconds_total{mode="idle"}[$window]))'
            " / on (cluster, node)"
            " sum by (cluster, node) (rate(rankwatch_host_cpu_seconds_total[$window]))"
        ),
        unit="share that is busy",
        good=Good.LOWER,
        window="step_window_seconds",
        no_alert=_CONTEXT,
    ),
    _sli(
        "host memory",
        "Does the node run out of memory?",
        "rankwatch_host_oom_kills_total",
        figure="sum by (cluster, node) (increase(rankwatch_host_oom_kills_total[$window]))",
        unit="processes killed",
        good=Good.LOWER,
        objective=0.0,
        window="event_window_seconds",
        alerts=(Alert.OOM_KILL,),
    ),
    _sli(
        "checkpoint disk",
        "Is there space for checkpoints?",
        "rankwatch_filesystem_available_bytes",
        figure=(
            "min by (cluster, node, path) (rankwatch_filesystem_available_bytes)"
            " / on (cluster, node, path)"
            " min by (cluster, node, path) (rankwatch_filesystem_size_bytes)"
        ),
        unit="share that is free",
        good=Good.HIGHER,
        objective="disk_free_share",
        needs="a checkpoint path",
        alerts=(Alert.CHECKPOINT_DISK_FILLING, Alert.CHECKPOINT_SPACE_SHORT),
    ),
    _sli(
        "disk latency",
        "How long do writes take?",
        "rankwatch_disk_write_seconds_total",
        figure=(
            "sum by (cluster, node, path) (rate(rankwatch_disk_write_seconds_total[$window]))"
            " / on (cluster, node, path)"
            " sum by (cluster, node, path) (rate(rankwatch_disk_writes_total[$window]))"
        ),
        unit="seconds / write",
        good=Good.LOWER,
        window="event_window_seconds",
        needs="a checkpoint path on a block device",
        no_alert=_CONTEXT,
    ),
    _sli(
        "clock",
        "Is the node's clock right?",
        "rankwatch_host_clock_max_error_seconds",
        "node:rankwatch_host_clock_ahead_seconds:max",
        figure="max by (cluster, node) (rankwatch_host_clock_max_error_seconds)",
        unit="seconds",
        good=Good.LOWER,
        objective="clock_error_seconds",
        alerts=(Alert.CLOCK_WRONG,),
    ),
)
