"""What a rule is: alert names, rules and groups as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from rankwatch_alerts.label_names import in_query, in_template


class Alert(StrEnum):
    """Name of an alert; its runbook is runbooks/<name>.md."""

    RUN_STALLED = "RankwatchRunStalled"
    NODE_LOST = "RankwatchNodeLost"
    RUN_FAILED = "RankwatchRunFailed"
    RUN_SLOW = "RankwatchRunSlow"
    RUN_LATE = "RankwatchRunLate"
    LOSS_DIVERGING = "RankwatchLossDiverging"
    REPLICAS_DISAGREE = "RankwatchReplicasDisagree"
    CHECKPOINT_AT_RISK = "RankwatchCheckpointAtRisk"
    CHECKPOINT_SLOW = "RankwatchCheckpointSlow"
    SUCCESS_BUDGET = "RankwatchSuccessBudget"
    GOODPUT_BUDGET = "RankwatchGoodputBudget"
    GPUS_WASTED = "RankwatchGpusWasted"
    OVER_BUDGET = "RankwatchOverBudget"
    GPU_FAULT = "RankwatchGpuFault"
    GPU_DEGRADED = "RankwatchGpuDegraded"
    LINK_DOWN = "RankwatchLinkDown"
    LINK_ERRORS = "RankwatchLinkErrors"
    HOST_FAULT = "RankwatchHostFault"
    TELEMETRY_ABSENT = "RankwatchTelemetryAbsent"
    TELEMETRY_INCOMPLETE = "RankwatchTelemetryIncomplete"
    WATCHDOG = "RankwatchWatchdog"


ALERT_NAMES: tuple[str, ...] = tuple(str(each) for each in Alert)
HARDWARE_ALERTS = (Alert.GPU_FAULT, Alert.GPU_DEGRADED, Alert.LINK_DOWN, Alert.LINK_ERRORS, Alert.HOST_FAULT)
"""Alerts on a part of a node."""
PRODUCT = "rankwatch"
"""Label `product` of every alert, by which a foreign Alertmanager knows them."""
RUN_DEBUG_UID = "rankwatch-run-debug"
CHECKPOINTS_GOODPUT_UID = "rankwatch-checkpoints-goodput"
HARDWARE_UID = "rankwatch-hardware"
ON_CALL_UID = "rankwatch-on-call"
FLEET_UID = "rankwatch-fleet"
AGENTS_UID = "rankwatch-agents"
LEARNING_UID = "rankwatch-learning"
"""Uids of the dashboards. An alert that names none links to that of its run, RUN_DEBUG_UID."""


def shipped_rules() -> Path:
    """Return the folder of the files of rules: in an installed package, or in the repository."""
    here = Path(__file__).parent
    return next(each for each in (here / "shipped_rules", here.parent / "rules") if each.is_dir())


class Severity(StrEnum):
    """Critical pages, warning opens a ticket, info is context."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


REASONS = ("reason", "cause")
"""Labels that tell the rules of one alert apart."""


def reason_of(labels: Mapping[str, str]) -> str:
    """Return the reason that an alert or its rule has; empty for none."""
    return next((labels[each] for each in REASONS if each in labels), "")


@dataclass(frozen=True, kw_only=True)
class RecordingRule:
    """One recorded series."""

    record: str
    expression: str
    labels: tuple[str, ...]
    """All labels that the series has; `cluster` is empty where the agents are told none."""
    help: str

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """Return the rule as Prometheus reads it; `names` are other names of labels."""
        return {"record": self.record, "expr": in_query(self.expression, names)}


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alerting rule; several may share an alert's name."""

    alert: str
    expression: str
    for_seconds: float
    keep_firing_seconds: float
    """How long it goes on after its condition was last seen: an agent that restarts is no recovery."""
    labels: Mapping[str, str]
    """Static labels; without `severity`, the expression has it: that of the run."""
    annotations: Mapping[str, str]
    """Summary, description and links; templates may use labels the expression has."""
    reasons: tuple[str, ...] = ("",)
    """Values of its label `reason` or `cause`; ("",) if it has none, or none that is known beforehand."""
    first_acts: Mapping[str, str] = field(default_factory=dict)
    """First thing to do, in the words of the description, by reason; `""` where the rule names none."""

    @property
    def severity(self) -> Severity | None:
        """The severity, or None where the run decides."""
        return Severity(self.labels["severity"]) if "severity" in self.labels else None

    @property
    def reason(self) -> str:
        """What tells the rules of one alert apart; empty if the series has it."""
        return reason_of(self.labels)

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """Return the rule as Prometheus reads it; `names` are other names of labels."""
        return {
            "alert": self.alert,
            "expr": in_query(self.expression, names),
            "for": duration(self.for_seconds),
            "keep_firing_for": duration(self.keep_firing_seconds),
            "labels": {names.get(name, name): text for name, text in self.labels.items()},
            "annotations": {name: in_template(text, names) for name, text in self.annotations.items()},
        }


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """Rules evaluated one after another at the same instant."""

    name: str
    interval_seconds: float
    rules: tuple[RecordingRule | AlertRule, ...]
    of_fleet: bool = False
    """Looks at machines, whoever runs there, or at all runs of a class: where runs are divided among several
    servers, it belongs to the one that has the machines."""

    def as_dict(self, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
        """Return the group as Prometheus reads it; `names` are other names of labels."""
        return {
            "name": self.name,
            "interval": duration(self.interval_seconds),
            "rules": [each.as_dict(names) for each in self.rules],
        }


def duration(seconds: float) -> str:
    """Return the shortest exact Prometheus duration: 300 -> `5m`, 90 -> `90s`, 0.25 -> `250ms`.

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
