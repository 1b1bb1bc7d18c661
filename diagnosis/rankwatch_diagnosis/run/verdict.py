"""What is concluded about a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rankwatch_diagnosis.hang.verdict import HangVerdict
from rankwatch_diagnosis.loss.detection import Findings
from rankwatch_diagnosis.straggler.verdict import Verdict


class RunState(StrEnum):
    """How a run is, by the boxes that were read."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    """Its ranks wait for operations that do not complete, or make no progress."""
    LOST = "lost"
    """A process of it is gone without a last word, while others live or were ended by that."""
    FAILED = "failed"
    """An exception ended ranks."""
    PREEMPTED = "preempted"
    TERMINATED = "terminated"
    """SIGTERM ended it."""
    FINISHED = "finished"
    ENDED = "ended"
    """No process is left, and the boxes do not tell why."""


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """State, whom it is to blame on, and everything behind it."""

    run: str
    state: RunState
    ranks: tuple[int, ...]
    """Ranks to blame for the state: lost, failed or waited for; of a running one those that slow it down."""
    why: str
    """One sentence."""
    hang: HangVerdict
    straggler: Verdict | None
    """None where NumPy is not installed."""
    loss: tuple[int, Findings] | None
    """Rank whose loss was judged, and the findings; None where none is reported."""
    progress: Mapping[str, object]
    checkpoints: Mapping[str, object]
    ranks_seen: tuple[Mapping[str, object], ...]
    sources: Mapping[str, object]
