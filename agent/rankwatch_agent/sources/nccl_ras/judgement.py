"""From one answer after another to the state of each communicator.

Launch counts that differ say little by themselves: in a run that works they differ at most moments. What
differs and stays the same, while nothing else in the job moves either, is a desync. Counts that are equal
and stay so mean that all ranks have launched the operation at which they stand: the devices or the network
hold it up, or the hosts have nothing to do; which of these only the flight recorder can tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import StrEnum
from typing import NamedTuple

from rankwatch_agent.sources.nccl_ras.report import Absence, Communicator, Report

SUSPECT_POLLS = 2
"""Answers without a change from which a communicator is suspect."""
STUCK_POLLS = 5
"""Answers without a change from which it is stuck: five minutes at the default interval. Ray takes ten
minutes, as 40 answers 15 seconds apart (ray-project/ray#64928)."""


class State(StrEnum):
    """States of a communicator, the best first; the order is that of SGLang (sgl-project/sglang#32929)."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    STUCK = "stuck"
    ERROR = "error"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a communicator is in its state."""

    MOVING = "moving"
    """Something was launched since the answer before."""
    IDLE = "idle"
    """Nothing was launched on it, while others of the job moved."""
    FIRST_ANSWER = "first_answer"
    ENDING = "ending"
    """Its ranks are about to destroy it, or have aborted it."""
    STARTING = "starting"
    """It stands still before all of its ranks are initialised."""
    DESYNC = "desync"
    """Its ranks differ in what they launched, and stay so."""
    BELOW_LAUNCH = "below_launch"
    """Its ranks have launched the same, and nothing more; nor does any other communicator of the job move."""
    UNRESPONSIVE = "unresponsive"
    """Processes did not answer RAS."""
    NCCL_ERROR = "nccl_error"
    PROCESS_DEAD = "process_dead"


SEVERITY = tuple(State)
"""The best state first."""


class Judged(NamedTuple):
    """A communicator and what is held of it."""

    communicator: Communicator
    state: State
    reason: Reason


class Judge:
    """Remembers the answers of one RAS service, as far as the next one needs them."""

    def __init__(self) -> None:
        self._marks: dict[str, Hashable] = {}
        self._unchanged: dict[str, int] = {}
        self._job_unchanged = 0

    def judge(self, report: Report) -> list[Judged]:
        """The communicators of this answer; the worst first, then the largest."""
        marks = {each.name: each.mark for each in report.communicators}
        self._unchanged = {
            name: self._unchanged.get(name, 0) + 1 if self._marks[name] == mark else 0
            for name, mark in marks.items()
            if name in self._marks
        }
        # Where launches are not told, nobody knows whether the job moves.
        still = marks == self._marks and not report.unnamed
        self._job_unchanged = self._job_unchanged + 1 if still else 0
        self._marks = marks
        found = [Judged(each, *self._state(each)) for each in report.communicators]
        return sorted(found, key=_importance)

    def _state(self, each: Communicator) -> tuple[State, Reason]:
        return next(self._findings(each))

    def _findings(self, each: Communicator) -> Iterator[tuple[State, Reason]]:
        """What holds, the gravest first; there is always one."""
        unchanged = self._unchanged.get(each.name)
        if Absence.DEAD in each.absences:
            yield State.DEAD, Reason.PROCESS_DEAD
        if each.failed:
            yield State.ERROR, Reason.NCCL_ERROR
        if each.uneven and unchanged:
            yield self._still(unchanged, self._job_unchanged), Reason.DESYNC
        if Absence.UNRESPONSIVE in each.absences:
            yield State.SUSPECT, Reason.UNRESPONSIVE
        if each.ending:
            yield State.UNKNOWN, Reason.ENDING
        if unchanged is None:
            yield State.UNKNOWN, Reason.FIRST_ANSWER
        elif not unchanged:
            yield State.HEALTHY, Reason.MOVING
        elif not self._job_unchanged:
            yield State.HEALTHY, Reason.IDLE
        still = self._still(min(unchanged or 0, self._job_unchanged), self._job_unchanged)
        yield still, Reason.STARTING if each.starting else Reason.BELOW_LAUNCH

    @staticmethod
    def _still(unchanged: int, job_unchanged: int) -> State:
        if unchanged < SUSPECT_POLLS:
            return State.UNKNOWN
        return State.STUCK if min(unchanged, job_unchanged) >= STUCK_POLLS else State.SUSPECT


def _importance(judged: Judged) -> tuple[int, int, str]:
    return -SEVERITY.index(judged.state), -judged.communicator.size, judged.communicator.name
