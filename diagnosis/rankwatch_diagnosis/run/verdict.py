"""The verdict on a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rankwatch_diagnosis.hang.verdict import HangVerdict
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.run.ending import EndedAttempt
from rankwatch_diagnosis.run.loss_by_rank import RankLosses
from rankwatch_diagnosis.run.replicas import Replicas
from rankwatch_diagnosis.run.visibility import Capabilities
from rankwatch_diagnosis.straggler.verdict import Verdict


class RunState(StrEnum):
    """The state of a run, by the boxes that were read."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    """Its ranks wait for operations that do not complete, or make no progress."""
    LOST = "lost"
    """A process of it is gone without giving a reason, while others live or were ended by that."""
    FAILED = "failed"
    """An exception ended ranks."""
    INTERRUPTED = "interrupted"
    """Ctrl-C, or SIGINT, ended it."""
    PREEMPTED = "preempted"
    TERMINATED = "terminated"
    """SIGTERM ended it."""
    FINISHED = "finished"
    ENDED = "ended"
    """No process is left, and the boxes do not show why."""


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """The state of a run, the ranks to blame for it, and all the evidence."""

    run: str
    state: RunState
    ranks: tuple[int, ...]
    """Ranks to blame for the state: lost, failed or waited for; of a running one those that slow it down."""
    why: str
    """One sentence."""
    hang: HangVerdict
    straggler: Verdict | None
    """None where NumPy is not installed."""
    loss: tuple[int, LossVerdict] | None
    """Rank whose loss was judged, and the findings; None where none is reported."""
    losses: RankLosses
    """The losses of the ranks beside each other."""
    replicas: Replicas
    """Whether ranks that must hold the same parameters do."""
    phases: Mapping[str, object]
    """Where a step goes; empty where no rank holds a whole step."""
    contention: Mapping[str, object]
    """What shows that the ranks lack CPUs; empty where they have enough."""
    capabilities: Capabilities
    """What zero-code recording sees of the training loop."""
    trackers: tuple[str, ...]
    """Where experiment trackers show the run."""
    ended_attempts: tuple[EndedAttempt, ...]
    """How each attempt that is over ended, as far as boxes of it are left."""
    progress: Mapping[str, object]
    checkpoints: Mapping[str, object]
    ranks_seen: tuple[Mapping[str, object], ...]
    sources: Mapping[str, object]


def verdict_word(verdict: RunVerdict) -> str:
    """The verdict in a word: `stalled`, else the cause of a slowdown; empty where that was not judged."""
    if verdict.state is RunState.STALLED:
        return verdict.state.value
    return "" if verdict.straggler is None else verdict.straggler.cause.value


def worst_anomaly(verdict: RunVerdict) -> Severity | None:
    """Of the loss; None without an anomaly."""
    if verdict.loss is None:
        return None
    found = {each.severity for each in verdict.loss[1].anomalies}
    return next((each for each in reversed(Severity) if each in found), None)
