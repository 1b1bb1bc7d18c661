"""The closed vocabularies: phases of a step, lifecycle events, states, operations."""

from __future__ import annotations

from enum import StrEnum

DATA_WAIT = "data_wait"
COMMUNICATION = "communication"
OTHER = "other"
LOSS = "loss"
TOKENS = "tokens"
"""The unit of work that a step's time is compared with."""

PHASES: tuple[str, ...] = (
    DATA_WAIT,
    "forward",
    "backward",
    "optimizer",
    COMMUNICATION,
    "checkpoint",
    "evaluation",
)
"""Phases a training loop may open. `communication` also receives the exposed part of collectives
(time the training thread is blocked in them); what no phase claims is `other`."""

CHECKPOINT_OPERATIONS: tuple[str, ...] = ("save", "verify", "load")


class Lifecycle(StrEnum):
    """Events in the life of a rank, written to its black box."""

    STARTED = "started"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"
    EXITED = "exited"
    """The interpreter ended in order, but nobody said `finished`."""


class RankState(StrEnum):
    """State of a rank as the agent exports it."""

    STARTING = "starting"
    """The black box exists; no step has been completed yet."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"
    """An exception ended it; its type is exported."""
    EXITED = "exited"
    TERMINATED = "terminated"
    """SIGTERM ended it, for example from torchrun after another rank had died."""
    LOST = "lost"
    """The process is gone and said no goodbye: SIGKILL, OOM killer, segmentation fault."""


ENDED_STATES: frozenset[RankState] = frozenset(RankState) - {RankState.STARTING, RankState.RUNNING}


class CollectorState(StrEnum):
    """Outcome of a collector's last run; missing hardware differs from failure."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"


class DriverState(StrEnum):
    """The NVIDIA driver as the agent sees it."""

    STARTING = "starting"
    """Not asked yet."""
    IN_USE = "in_use"
    UNRESPONSIVE = "unresponsive"
    """A call did not return in time."""
    UNAVAILABLE = "unavailable"
    """It is not loaded, fails, or shows no GPU."""
    RELEASED = "released"
    """The agent let go of it on request, so that it can be unloaded."""
