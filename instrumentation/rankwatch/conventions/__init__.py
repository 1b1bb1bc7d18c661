"""Every name rankwatch speaks: metrics, labels, phases, events, operations, environment variables.

Agent, rules, dashboards, runbooks and documentation take their names from here, and a test
fails on any that does not come from here. Importing it costs nothing: no dependency, no side effect.
"""

from rankwatch.conventions import environment
from rankwatch.conventions.capabilities import Capability, Unseen
from rankwatch.conventions.declaration import Kind, Metric
from rankwatch.conventions.goodput import GoodputState
from rankwatch.conventions.labels import Label
from rankwatch.conventions.metrics import METRICS, metric
from rankwatch.conventions.vocabulary import (
    CHECKPOINT,
    CHECKPOINT_OPERATIONS,
    COMMUNICATION,
    DATA_WAIT,
    ENDED_STATES,
    EVALUATION,
    LOSS,
    OTHER,
    PHASES,
    TOKENS,
    BoxFault,
    Cause,
    CheckpointStage,
    CollectorState,
    DriverState,
    FailureKind,
    Lifecycle,
    Outcome,
    RankState,
    SlowPhase,
    StartCause,
)

__all__ = [
    "environment",
    "Label",
    "Kind",
    "Metric",
    "METRICS",
    "metric",
    "Cause",
    "SlowPhase",
    "PHASES",
    "DATA_WAIT",
    "COMMUNICATION",
    "OTHER",
    "CHECKPOINT",
    "EVALUATION",
    "LOSS",
    "TOKENS",
    "CHECKPOINT_OPERATIONS",
    "CheckpointStage",
    "Lifecycle",
    "GoodputState",
    "RankState",
    "ENDED_STATES",
    "Capability",
    "Unseen",
    "BoxFault",
    "CollectorState",
    "DriverState",
    "FailureKind",
    "Outcome",
    "StartCause",
]
