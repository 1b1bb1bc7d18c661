"""The service level indicators: the question that each answers, the series that answer it, and its alerts.

A test holds that each alert depends on the series, and that each series is on a panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch_alerts.rules import Alert
from rankwatch_alerts.sli import Sli
from rankwatch_alerts.sli import sli as _sli
from rankwatch_alerts.slis_learning import LEARNING
from rankwatch_alerts.slis_life import LIFE
from rankwatch_alerts.slis_spending import COSTS, GOODPUT

_OWN_PAST = "what is good differs between runs; the panel shows the run's own past"
_CONTEXT = "context for other alerts: alone it says nothing about a run"
_COST = "run_cause:rankwatch_lost_time:share"

_STEPS = (
    _sli(
        "progress",
        "Does the run complete steps?",
        "run:rankwatch_progress_timestamp_seconds:max",
        alerts=(Alert.RUN_STALLED,),
    ),
    _sli(
        "step latency",
        "How long do steps take: p50, p95, p99?",
        "rankwatch_step_duration_seconds",
        no_alert=_OWN_PAST,
    ),
    _sli(
        "step split",
        "Which part of the step takes the time?",
        "rankwatch_step_phase_seconds_total",
        alerts=(
            Alert.SLOW_STAGE,
            Alert.SLOW_DATA_LOADING,
        ),
    ),
    _sli("throughput", "How many samples and tokens a second?", "rankwatch_work_total", no_alert=_OWN_PAST),
)
_COLLECTIVES = (
    _sli(
        "gradient synchronisation",
        "How long do collectives take, and how much of it is waiting?",
        "rankwatch_collective_seconds_total",
        "rankwatch_collective_wait_seconds_total",
        "group:rankwatch_collective_transfer_seconds:mean",
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    _sli(
        "bus bandwidth",
        "How fast are transfers, by group, operation and size?",
        "group:rankwatch_collective_bus_bandwidth:max",
        no_alert="the alert on the network judges the time of a transfer against its own past",
    ),
)
_STRAGGLERS = (
    _sli(
        "slow rank",
        "Which rank does the run wait for, why, and what does it cost?",
        "rank:rankwatch_straggler:slowdown",
        "rank:rankwatch_step_local_seconds:residual",
        alerts=(Alert.STRAGGLER,),
    ),
    _sli(
        "slow stage",
        "Is a pipeline stage slower than the others?",
        "stage:rankwatch_step_compute_seconds:ratio",
        alerts=(Alert.SLOW_STAGE,),
    ),
    _sli(
        "unequal batches",
        "Do ranks wait for unequal batches?",
        "run:rankwatch_unequal_batches:share",
        _COST,
        alerts=(Alert.UNEQUAL_BATCHES,),
    ),
    _sli(
        "data loading",
        "Do most ranks wait for input?",
        "run:rankwatch_slow_data_loading:share",
        _COST,
        alerts=(Alert.SLOW_DATA_LOADING,),
    ),
    _sli(
        "network",
        "Did transfers become slow?",
        "group:rankwatch_network_degraded:share",
        _COST,
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    _sli("jitter", "Are ranks late in turn?", "run:rankwatch_jitter:share", _COST, alerts=(Alert.JITTER,)),
)
_GPUS = (
    _sli(
        "GPU utilisation",
        "Are the GPUs busy?",
        "rankwatch_gpu_utilization_ratio",
        "rankwatch_gpu_activity_ratio",
        no_alert=_CONTEXT,
    ),
    _sli(
        "GPU memory",
        "How full are the GPUs?",
        "rankwatch_gpu_memory_used_bytes",
        "rankwatch_rank_gpu_memory_reserved_bytes",
        no_alert="an allocator uses all memory in health; running out ends the run",
    ),
    _sli(
        "GPU power and clocks",
        "What do the GPUs draw, and how fast do they run?",
        "rankwatch_gpu_power_watts",
        "rankwatch_gpu_clock_hertz",
        no_alert="throttling has an alert, and says when a clock is held back",
    ),
    _sli(
        "GPU throttling",
        "Which GPU is held back, and why?",
        "rankwatch_gpu_throttle_seconds_total",
        alerts=(
            Alert.GPU_THROTTLED,
            Alert.GPU_POWER_BRAKE,
        ),
    ),
    _sli(
        "GPU temperature",
        "How hot are the GPUs?",
        "rankwatch_gpu_temperature_celsius",
        no_alert="heat matters once it throttles, which has an alert",
    ),
    _sli(
        "GPU memory errors",
        "Does a GPU's memory fail?",
        "rankwatch_gpu_ecc_errors_total",
        alerts=(Alert.GPU_ECC_UNCORRECTED,),
    ),
    _sli(
        "XID errors",
        "What did the driver report?",
        "rankwatch_gpu_xid_errors_total",
        "rankwatch_gpu_xid_last_timestamp_seconds",
        alerts=(Alert.GPU_XID,),
    ),
    _sli(
        "GPU recovery",
        "Must a GPU be reset or replaced?",
        "rankwatch_gpu_recovery_action",
        "rankwatch_gpu_row_remap_failed",
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
        alerts=(
            Alert.NVLINK_ERRORS,
            Alert.NVLINK_DOWN,
        ),
    ),
    _sli(
        "PCIe",
        "Does a GPU have its full link?",
        "rankwatch_gpu_pcie_width",
        alerts=(Alert.GPU_PCIE_DEGRADED,),
    ),
)
_NETWORK = (
    _sli(
        "NIC errors and drops",
        "Does a NIC fail?",
        "rankwatch_network_receive_errors_total",
        alerts=(Alert.NIC_ERRORS,),
    ),
    _sli("NIC link", "Is the link up?", "rankwatch_network_up", alerts=(Alert.NIC_DOWN,)),
    _sli(
        "TCP retransmits",
        "Are segments sent again?",
        "rankwatch_tcp_retransmitted_segments_total",
        no_alert=_CONTEXT,
    ),
    _sli(
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
    _sli(
        "RDMA errors",
        "Does a port lose or repeat packets?",
        "rankwatch_rdma_errors_total",
        alerts=(Alert.RDMA_ERRORS,),
    ),
    _sli(
        "RDMA congestion",
        "Do ports mark or pause traffic?",
        "rankwatch_rdma_congestion_total",
        no_alert=_CONTEXT,
    ),
)
_HOSTS = (
    _sli("host CPU", "Has the node CPU to spare?", "rankwatch_host_cpu_seconds_total", no_alert=_CONTEXT),
    _sli(
        "host memory",
        "Does the node run out of memory?",
        "rankwatch_host_oom_kills_total",
        alerts=(Alert.OOM_KILL,),
    ),
    _sli(
        "checkpoint disk",
        "Is there space for checkpoints?",
        "rankwatch_filesystem_available_bytes",
        alerts=(Alert.CHECKPOINT_DISK_FILLING,),
    ),
    _sli("disk latency", "How long do writes take?", "rankwatch_disk_write_seconds_total", no_alert=_CONTEXT),
    _sli(
        "clock",
        "Is the node's clock right?",
        "rankwatch_host_clock_max_error_seconds",
        no_alert="no verdict depends on it: the diagnosis aligns the clocks of ranks by their collectives",
    ),
)
_TELEMETRY = (
    _sli(
        "agents",
        "Does every node report?",
        "rankwatch_agent_info",
        alerts=(
            Alert.TELEMETRY_ABSENT,
            Alert.NODE_LOST,
        ),
    ),
    _sli(
        "collectors",
        "Does every source of data work?",
        "rankwatch_collector_state",
        alerts=(Alert.COLLECTOR_FAILING,),
    ),
    _sli(
        "black boxes",
        "Is anything of a run left out?",
        "rankwatch_blackbox_faults_total",
        alerts=(Alert.BLACK_BOXES_LEFT_OUT,),
    ),
)

_REPLICAS = (
    _sli(
        "replicas",
        "Do ranks that must hold the same parameters hold the same?",
        "rankwatch_rank_fingerprint",
        "rankwatch_rank_fingerprint_step",
        "rankwatch_rank_fingerprint_gradient_norm",
        "run:rankwatch_replicas_equal:step",
        alerts=(Alert.REPLICAS_DISAGREE,),
    ),
)

_CHECKPOINTS = (
    _sli(
        "checkpoint outcome",
        "Do saves succeed, and do they verify?",
        "rankwatch_checkpoint_operations_total",
        "rankwatch_checkpoint_stage_failures_total",
        "rankwatch_checkpoint_background_failures_total",
        alerts=(Alert.CHECKPOINT_FAILED,),
    ),
    _sli(
        "checkpoint age",
        "How old is the newest complete checkpoint, and the newest verified one?",
        "run:rankwatch_checkpoint_good_timestamp_seconds:max",
        "run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
        "run:rankwatch_checkpoint_complete_timestamp_seconds:max",
        "rankwatch_checkpoint_last_saved_timestamp_seconds",
        "rankwatch_checkpoint_last_verified_timestamp_seconds",
        alerts=(Alert.CHECKPOINT_STALE,),
    ),
    _sli(
        "work at risk",
        "How much training would a crash lose now?",
        "run:rankwatch_work_at_risk_seconds:sum",
        "run:rankwatch_gpu_work_at_risk_seconds:sum",
        no_alert="the age of the last good checkpoint has one, whatever the size of the run",
    ),
    _sli(
        "checkpoint time",
        "How long do saves take, in which stage, and how long do they block training?",
        "rankwatch_checkpoint_stage_seconds_total",
        "rankwatch_checkpoint_blocking_seconds_total",
        "rankwatch_checkpoint_operation_seconds_total",
        no_alert="what is long depends on the interval; the advice about the interval weighs both",
    ),
    _sli(
        "checkpoint throughput",
        "How many bytes per second do checkpoints move?",
        "rankwatch_checkpoint_operation_bytes_total",
        "rankwatch_checkpoint_stage_bytes_total",
        no_alert=_OWN_PAST,
    ),
    _sli(
        "slowest writer",
        "Which rank holds up the save of all?",
        "rank:rankwatch_checkpoint_write_skew_seconds:max",
        "run:rankwatch_checkpoint_write_seconds:median",
        alerts=(Alert.CHECKPOINT_WRITER_SLOW,),
    ),
    _sli(
        "overlapping saves",
        "Is a save finished when the next one begins?",
        "rankwatch_checkpoint_saves_overlapped_total",
        "rankwatch_checkpoint_saves_pending",
        alerts=(Alert.CHECKPOINT_OVERLAP,),
    ),
    _sli(
        "resume",
        "From which step did the run resume, and what had to be done again?",
        "rankwatch_rank_restored_step",
        "rankwatch_rank_steps_lost_total",
        "rankwatch_rank_resumes_total",
        alerts=(Alert.RESUMED_FROM_OLDER,),
    ),
)


SLIS: Mapping[str, tuple[Sli, ...]] = MappingProxyType(
    {
        "Steps": _STEPS,
        "Learning": LEARNING,
        "Life of runs": LIFE,
        "Collectives": _COLLECTIVES,
        "Stragglers": _STRAGGLERS,
        "Replicas": _REPLICAS,
        "Checkpoints": _CHECKPOINTS,
        "Goodput": GOODPUT,
        "Cost": COSTS,
        "GPUs": _GPUS,
        "Network": _NETWORK,
        "Hosts": _HOSTS,
        "Telemetry": _TELEMETRY,
    }
)
"""Every indicator, by what it is about."""
