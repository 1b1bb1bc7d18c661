"""How an attempt of a run ended, by the ends of its ranks on one node: the root cause first.

The rank that fails first ends the others: they fail in their collectives, are aborted, or get SIGTERM from
their launcher. These are victims, and no cause. The same judgement serves the agent and commands.

A rank, or a worker of it, may have been killed by the kernel for lack of memory. The kernel logs process ids
of the host. The agent knows the one of a rank where it shares the host's PID namespace; where it does not,
the moment and the name of the process have to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.states import FailureKind, Outcome, RankState
from rankwatch.lifecycle import KILLED_SUFFIX
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.node_events import OomKill
from rankwatch_agent.training.life.failures import KILLED, Failure

_SAME_MOMENT_SECONDS = 1.0
"""A rank that says it was preempted may do so this much after another one whose failure follows from it."""


class RankEnd(NamedTuple):
    """A process of a rank that has ended. Moments are seconds on one clock for all ranks of the attempt."""

    rank: int
    state: RankState
    failure: Failure | None
    """Its failure, also if the kernel killed it; None where it did not fail, or nothing is known."""
    in_collective: bool
    """Its newest collective ended with an error."""
    started: float
    ended: float
    """Its last sign of life: exact where it reported its end."""
    sigterm_at: float | None = None
    """When it received SIGTERM; None where it did not, or a handler of its own took the signal."""
    found_ended: float | None = None
    """When it was seen that it was gone."""
    pid: int | None = None
    """Of the host; None where the agent cannot see it."""
    cgroup: str = ""
    """Its path in the hierarchy of memory; empty where it was not seen."""

    @property
    def was_terminated(self) -> bool:
        """SIGTERM came before its end, so whatever it then failed by follows from that."""
        return self.sigterm_at is not None and self.sigterm_at <= self.ended + _SAME_MOMENT_SECONDS


class StopRequest(NamedTuple):
    """The scheduler or the cloud has announced that the node has to stop."""

    moment: float
    """On the clock of the ranks."""
    text: str


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    outcome: Outcome
    kind: FailureKind | None = None
    """None unless a process failed or was lost."""
    rank: int | None = None
    """The rank that ended first; None where none is to blame."""
    exception: str = ""
    """Type of its exception, or name of the signal."""
    message: str = ""
    """Of the exception, the kernel's line about a kill, or the text of the notice."""
    place: str = ""
    """The innermost line of its traceback."""

    @property
    def has_root_cause(self) -> bool:
        """A rank of this node ended the attempt; it is no victim of another node's."""
        return self.kind is not None and self.kind is not FailureKind.COLLECTIVE


def judge(ranks: Sequence[RankEnd], requests: Sequence[StopRequest] = ()) -> AttemptEnd:
    """Judge how the attempt of these ranks, all of which have ended, came to its end.

    requests: that fell into the life of the attempt.
    """
    failed = min((each for each in ranks if _failed_by_itself(each)), key=_ended, default=None)
    lost = min((each for each in ranks if _is_lost(each)), key=_ended, default=None)
    stopped = (each for each in ranks if each.state in (RankState.PREEMPTED, RankState.INTERRUPTED))
    stop = min(stopped, key=_ended, default=None)
    notice = min(requests, key=lambda each: each.moment, default=None)
    if notice is not None and not _came_before(failed, notice.moment) and not _was_gone(lost, notice.moment):
        return AttemptEnd(Outcome.PREEMPTED, message=notice.text)
    if stop is not None and not _came_before(failed or lost, stop.ended):
        outcome = Outcome.PREEMPTED if stop.state is RankState.PREEMPTED else Outcome.INTERRUPTED
        return AttemptEnd(outcome, rank=stop.rank)
    if failed is not None:
        return _by_failure(Outcome.FAILED, failed)
    if lost is not None:
        return AttemptEnd(Outcome.LOST, FailureKind.LOST, lost.rank)
    aborted = _first_of_kind(ranks, FailureKind.WATCHDOG_ABORT)
    if aborted is not None:
        return _by_failure(Outcome.FAILED, aborted)
    victim = min(
        (each for each in ranks if each.failure and not each.was_terminated), key=_ended, default=None
    )
    if victim is not None and victim.failure is not None:
        failure = victim.failure
        return AttemptEnd(
            Outcome.FAILED, FailureKind.COLLECTIVE, None, failure.exception, failure.message, failure.place
        )
    states = {each.state for each in ranks}
    if RankState.TERMINATED in states or any(each.was_terminated for each in ranks):
        return AttemptEnd(Outcome.TERMINATED)
    return AttemptEnd(Outcome.FINISHED if states == {RankState.FINISHED} else Outcome.EXITED)


def _came_before(end: RankEnd | None, stop: float) -> bool:
    return end is not None and end.ended < stop


def _was_gone(lost: RankEnd | None, moment: float) -> bool:
    """Return True if it was seen to be gone by then. Its last sign of life may be much older than its end."""
    return lost is not None and (lost.found_ended or lost.ended) < moment


def _failed_by_itself(end: RankEnd) -> bool:
    failure = end.failure
    if failure is None or end.state not in (RankState.FAILED, RankState.LOST):
        return False
    if failure.kind in (FailureKind.COLLECTIVE, FailureKind.WATCHDOG_ABORT):
        return False
    if failure.by_signal:
        return True
    return not end.in_collective and not end.was_terminated


def _is_lost(end: RankEnd) -> bool:
    """Return True if it was lost. SIGKILL after SIGTERM ends the time that a launcher gives its ranks."""
    return end.state is RankState.LOST and end.failure is None and not end.was_terminated


def _first_of_kind(ranks: Iterable[RankEnd], kind: FailureKind) -> RankEnd | None:
    found = (each for each in ranks if each.failure is not None and each.failure.kind is kind)
    return min(found, key=_ended, default=None)


def _by_failure(outcome: Outcome, end: RankEnd) -> AttemptEnd:
    failure = end.failure
    assert failure is not None
    return AttemptEnd(outcome, failure.kind, end.rank, failure.exception, failure.message, failure.place)


def _ended(end: RankEnd) -> float:
    return end.ended


CLOCK_SECONDS = 30.0
"""By how much the clock of the kernel's log may be off, on a machine that has run for months."""
NEAR_SECONDS = 10.0
"""A kill of a process that is known only by its name is this close to the end of the rank."""
_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]{1,200})\)|worker.{0,60}killed by signal: Killed"
)
_PROGRAMS = re.compile(r"python|pt_|ray::|torch", re.IGNORECASE)
_MOST_CGROUP_BYTES = 1 << 14


def failure_by_kill(end: RankEnd, kills: Sequence[OomKill]) -> Failure | None:
    """Return the failure that a kill explains, with the kernel's line as its message; None for none."""
    failure = end.failure if end.failure is None or end.failure.exception != KILLED else None
    kill = _own_kill(end, kills) if failure is None else _kill_of_worker(end, failure, kills)
    return None if kill is None else Failure(KILLED, FailureKind.HOST_OUT_OF_MEMORY, kill.line)


def _own_kill(end: RankEnd, kills: Sequence[OomKill]) -> OomKill | None:
    if end.state is not RankState.LOST:
        return None
    during = [each for each in kills if each.moment > end.started - CLOCK_SECONDS]
    if end.pid is not None:
        return next((each for each in reversed(during) if each.pid == end.pid), None)
    last = end.ended if end.found_ended is None else end.found_ended
    near = (
        each
        for each in reversed(during)
        if end.ended - NEAR_SECONDS < each.moment < last + NEAR_SECONDS and _PROGRAMS.match(each.name)
    )
    return next(near, None)


def _kill_of_worker(end: RankEnd, failure: Failure, kills: Sequence[OomKill]) -> OomKill | None:
    """Find the kill of a process that loaded data: the rank then fails by an exception that names it."""
    told = _WORKER.search(failure.message)
    if told is None:
        return None
    pids = {int(each) for each in re.findall(r"\d{1,9}", told[1] or "")}
    for kill in reversed(kills):
        near = abs(kill.moment - end.ended) < CLOCK_SECONDS + NEAR_SECONDS
        same_cgroup = bool(end.cgroup) and kill.cgroup == end.cgroup
        hidden = end.pid is None and _PROGRAMS.match(kill.name) is not None
        if near and (kill.pid in pids or same_cgroup or hidden):
            return kill
    return None


def write_kill(box: Path, owner: int, line: str) -> None:
    """Keep the kernel's line beside a box, for whoever asks after the end of the rank. Raises OSError.

    The directory belongs to the user of the training: nothing that lies there is followed or overwritten.
    """
    with Folder.open(box.parent) as folder:
        folder.write(f"{box.stem}{KILLED_SUFFIX}", line.encode(), owner=owner)


def memory_cgroup(procfs: Path, pid: int) -> str:
    """Return the path of a process in the memory hierarchy, as the kernel's log has it; empty if unknown."""
    try:
        with (procfs / str(pid) / "cgroup").open() as file:
            lines = file.read(_MOST_CGROUP_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    unified = ""
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            return path
        if not controllers:
            unified = path
    return unified
