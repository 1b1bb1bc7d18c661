"""What a rule is: alert names, rules and groups as values, and the pieces that PromQL is written with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from textwrap import dedent
from types import MappingProxyType

from rankwatch_alerts.label_names import in_query, in_template


class Alert(StrEnum):
    """Name of an alert; its runbook is runbooks/<name>.md."""

    STRAGGLER = "RankwatchStraggler"
    SLOW_STAGE = "RankwatchSlowStage"
    UNEQUAL_BATCHES = "RankwatchUnequalBatches"
    SLOW_DATA_LOADING = "RankwatchSlowDataLoading"
    NETWORK_DEGRADED = "RankwatchNetworkDegraded"
    JITTER = "RankwatchJitter"
    STEP_TIME_REGRESSED = "RankwatchStepTimeRegressed"
    RUN_STALLED = "RankwatchRunStalled"
    COLLECTIVES_DESYNCHRONISED = "RankwatchCollectivesDesynchronised"
    RANK_LOST = "RankwatchRankLost"
    NODE_LOST = "RankwatchNodeLost"
    RUN_FAILED = "RankwatchRunFailed"
    RUN_CRASH_LOOPING = "RankwatchRunCrashLooping"
    PREEMPTION_STORM = "RankwatchPreemptionStorm"
    STARTUP_SLOW = "RankwatchStartupSlow"
    RUN_BEHIND_PLAN = "RankwatchRunBehindPlan"
    LOSS_NON_FINITE = "RankwatchLossNonFinite"
    LOSS_DIVERGING = "RankwatchLossDiverging"
    LOSS_PLATEAU = "RankwatchLossPlateau"
    NORM_EXPLODING = "RankwatchNormExploding"
    LOSS_SCALE_COLLAPSED = "RankwatchLossScaleCollapsed"
    REPLICAS_DISAGREE = "RankwatchReplicasDisagree"
    DATA_SKEW = "RankwatchDataSkew"
    CHECKPOINT_FAILED = "RankwatchCheckpointFailed"
    CHECKPOINT_DAMAGED = "RankwatchCheckpointDamaged"
    CHECKPOINT_STALE = "RankwatchCheckpointStale"
    CHECKPOINT_OVERLAP = "RankwatchCheckpointOverlap"
    CHECKPOINT_WRITER_SLOW = "RankwatchCheckpointWriterSlow"
    CHECKPOINT_SLOW = "RankwatchCheckpointSlow"
    CHECKPOINT_SPACE_SHORT = "RankwatchCheckpointSpaceShort"
    RESUME_FAILED = "RankwatchResumeFailed"
    RESUMED_FROM_OLDER = "RankwatchResumedFromOlder"
    TELEMETRY_ABSENT = "RankwatchTelemetryAbsent"
    COLLECTOR_FAILING = "RankwatchCollectorFailing"
    RULES_FAILING = "RankwatchRulesFailing"
    WATCHDOG = "RankwatchWatchdog"
    GPU_LOST = "RankwatchGpuLost"
    GPUS_MISSING = "RankwatchGpusMissing"
    GPU_DRIVER_UNRESPONSIVE = "RankwatchGpuDriverUnresponsive"
    GPU_XID = "RankwatchGpuXid"
    GPU_ECC_UNCORRECTED = "RankwatchGpuEccUncorrected"
    GPU_NEEDS_RESET = "RankwatchGpuNeedsReset"
    GPU_NEEDS_REPLACEMENT = "RankwatchGpuNeedsReplacement"
    GPU_THROTTLED = "RankwatchGpuThrottled"
    GPU_POWER_BRAKE = "RankwatchGpuPowerBrake"
    GPU_PCIE_DEGRADED = "RankwatchGpuPcieDegraded"
    NVLINK_DOWN = "RankwatchNvlinkDown"
    NVLINK_ERRORS = "RankwatchNvlinkErrors"
    RDMA_LINK_DOWN = "RankwatchRdmaLinkDown"
    RDMA_LINK_FLAPPING = "RankwatchRdmaLinkFlapping"
    RDMA_ERRORS = "RankwatchRdmaErrors"
    RDMA_CONGESTION = "RankwatchRdmaCongestion"
    NIC_DOWN = "RankwatchNicDown"
    NIC_ERRORS = "RankwatchNicErrors"
    TCP_RETRANSMITS = "RankwatchTcpRetransmits"
    CLOCK_WRONG = "RankwatchClockWrong"
    OOM_KILL = "RankwatchOomKill"
    CHECKPOINT_DISK_FILLING = "RankwatchCheckpointDiskFilling"
    SUCCESS_BUDGET = "RankwatchSuccessBudget"
    GOODPUT_BUDGET = "RankwatchGoodputBudget"
    REQUEUE_RATE = "RankwatchRequeueRate"
    FORECAST_OVER_BUDGET = "RankwatchForecastOverBudget"
    GPUS_IDLE = "RankwatchGpusIdle"
    UTILISATION_LOW = "RankwatchUtilisationLow"
    PRICE_UNKNOWN = "RankwatchPriceUnknown"
    RECORDS_MISSED = "RankwatchRecordsMissed"
    BLACK_BOXES_LEFT_OUT = "RankwatchBlackBoxesLeftOut"


ALERT_NAMES: tuple[str, ...] = tuple(str(each) for each in Alert)
HARDWARE_ALERTS = (
    *(Alert.GPU_LOST, Alert.GPUS_MISSING, Alert.GPU_DRIVER_UNRESPONSIVE, Alert.GPU_XID),
    *(Alert.GPU_ECC_UNCORRECTED, Alert.GPU_NEEDS_RESET, Alert.GPU_NEEDS_REPLACEMENT, Alert.GPU_THROTTLED),
    *(Alert.GPU_POWER_BRAKE, Alert.GPU_PCIE_DEGRADED, Alert.NVLINK_DOWN, Alert.NVLINK_ERRORS),
    *(Alert.RDMA_LINK_DOWN, Alert.RDMA_LINK_FLAPPING, Alert.RDMA_ERRORS, Alert.RDMA_CONGESTION),
    *(Alert.NIC_DOWN, Alert.NIC_ERRORS, Alert.TCP_RETRANSMITS, Alert.CLOCK_WRONG),
    *(Alert.OOM_KILL, Alert.CHECKPOINT_DISK_FILLING),
)
"""Alerts on a part of a node."""
RANK_KNOWN, RANK_UNKNOWN = "rank_known", "rank_unknown"
"""Label `reason` of a stall: with the ranks the run waits for, and without."""
NODE_UNSEEN = "node_unseen"
"""Label `reason` of absent telemetry: a node of a run that goes on."""
KILLED_WHILE_WAITING = "killed_while_waiting"
"""Label `reason` of lost ranks that do not explain a stall."""
PAGE_LABEL, MAY_PAGE, NO_PAGE = "page", "yes", "no"
"""Label of critical alerts of a run: whether the run is large enough to wake somebody."""
RUN_DEBUG_UID = "rankwatch-run-debug"
"""Uid of the dashboard every alert of a run links to."""
CHECKPOINTS_GOODPUT_UID = "rankwatch-checkpoints-goodput"
"""Uid of the dashboard of checkpoints, goodput and cost of a run."""
HARDWARE_UID = "rankwatch-hardware"
"""Uid of the dashboard alerts on hardware link to."""
ON_CALL_UID = "rankwatch-on-call"
"""Uid of the dashboard of all that is wrong now."""
FLEET_UID = "rankwatch-fleet"
"""Uid of the dashboard of all runs."""
AGENTS_UID = "rankwatch-agents"
"""Uid of the dashboard of the agents themselves."""
LEARNING_UID = "rankwatch-learning"
"""Uid of the dashboard of what a run learns."""

RUN = "cluster, run"
STAGE = "cluster, run, stage"
RANK = "cluster, run, rank, node"
"""A rank where it runs; summing by it drops `instance`, so that a restarted agent makes no duplicate."""
GROUP = "cluster, run, group, members"
"""A process group."""
MEMBER = f"{RANK}, group, members"
"""A rank in one of its process groups."""
COLLECTIVE = f"{GROUP}, operation, size_class"

RUNNING = 'state=~"starting|running"'
"""Matcher of `rankwatch_rank_state` for ranks that have not ended."""
ENDED = RUNNING.replace("=~", "!~")
"""Matcher for those that have."""


def lately(series: str, seconds: float) -> str:
    """Of times at which something was last seen: those of the last seconds, also through missed scrapes."""
    return f"(last_over_time({series}[{duration(seconds)}]) > time() - {seconds:.10g})"


class Severity(StrEnum):
    """Critical pages, warning opens a ticket, info is context."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class RecordingRule:
    """One recorded series."""

    record: str
    expression: str

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """The rule as Prometheus reads it; `names` are other names of labels."""
        return {"record": self.record, "expr": in_query(self.expression, names)}


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alerting rule; several may share an alert's name."""

    alert: str
    expression: str
    for_seconds: float
    keep_firing_seconds: float
    """How long it goes on after its condition was last seen: an agent that restarts is no recovery."""
    severity: Severity
    labels: Mapping[str, str]
    """Static labels beside the severity."""
    annotations: Mapping[str, str]
    """Summary, description and links; templates may use labels the expression has."""
    first_act: str = ""
    """What to do first, in the words of the description."""

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """The rule as Prometheus reads it; `names` are other names of labels."""
        labels = {names.get(name, name): in_template(text, names) for name, text in self.labels.items()}
        return {
            "alert": self.alert,
            "expr": in_query(self.expression, names),
            "for": duration(self.for_seconds),
            "keep_firing_for": duration(self.keep_firing_seconds),
            "labels": {"severity": str(self.severity), **labels},
            "annotations": {name: in_template(text, names) for name, text in self.annotations.items()},
        }


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """Rules evaluated one after another at the same instant."""

    name: str
    interval_seconds: float
    rules: tuple[RecordingRule, ...] | tuple[AlertRule, ...]

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """The group as Prometheus reads it; `names` are other names of labels."""
        return {
            "name": self.name,
            "interval": duration(self.interval_seconds),
            "rules": [each.as_dict(names) for each in self.rules],
        }


def recorded(record: str, expression: str) -> RecordingRule:
    """A recording rule from indented text."""
    return RecordingRule(record=record, expression=promql(expression))


def promql(text: str) -> str:
    """An expression without the indentation of the source it stands in."""
    lines = dedent(text).strip()
    return f"{lines}\n" if "\n" in lines else lines


def duration(seconds: float) -> str:
    """The shortest exact Prometheus duration: 300 -> `5m`, 90 -> `90s`, 0.25 -> `250ms`.

    Raises ValueError for a time that is negative or shorter than a millisecond, zero apart.
    """
    milliseconds = round(seconds * 1000)
    if seconds == 0:
        return "0s"
    if milliseconds < 1:
        raise ValueError(f"could not write a duration: {seconds} s is less than a millisecond")
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
