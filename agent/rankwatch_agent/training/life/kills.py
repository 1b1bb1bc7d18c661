"""Finds the kill by the kernel that ended a rank, or a worker of it, for lack of memory.

The kernel logs process ids of the host. The agent knows the one of a rank where it shares the host's PID
namespace; where it does not, the moment and the name of the process have to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.states import FailureKind, RankState
from rankwatch.lifecycle import KILLED_SUFFIX
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.node_events import OomKill
from rankwatch_agent.training.failures import KILLED, Failure

CLOCK_SECONDS = 30.0
"""By how much the clock of the kernel's log may be off, on a machine that has run for months."""
NEAR_SECONDS = 10.0
"""A kill of a process that is known only by its name is this close to the end of the rank."""
_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]{1,200})\)|worker.{0,60}killed by signal: Killed"
)
_PROGRAMS = re.compile(r"python|pt_|ray::|torch", re.IGNORECASE)
_MOST_CGROUP_BYTES = 1 << 14


class RankProcess(NamedTuple):
    """What is known of a process that ended, to find its kill by. Moments are monotonic."""

    pid: int | None
    """Of the host; None where the agent cannot see it."""
    cgroup: str
    """Its path in the hierarchy of memory; empty where it was not seen."""
    started: float
    ended: float
    """Its last sign of life."""
    found_ended: float
    """When the agent saw that it was gone."""
    state: RankState
    failure: Failure | None


def failure_by_kill(process: RankProcess, kills: Sequence[OomKill]) -> Failure | None:
    """The failure that a kill explains, with the kernel's line as its message; None for none."""
    kill = _own_kill(process, kills) or _kill_of_worker(process, kills)
    if kill is None:
        return None
    return Failure(KILLED, FailureKind.HOST_OUT_OF_MEMORY, kill.line)


def _own_kill(process: RankProcess, kills: Sequence[OomKill]) -> OomKill | None:
    if process.state is not RankState.LOST or process.failure is not None:
        return None
    during = [each for each in kills if each.moment > process.started - CLOCK_SECONDS]
    if process.pid is not None:
        return next((each for each in reversed(during) if each.pid == process.pid), None)
    near = (
        each
        for each in reversed(during)
        if process.ended - NEAR_SECONDS < each.moment < process.found_ended + NEAR_SECONDS
    )
    return next((each for each in near if _PROGRAMS.match(each.name)), None)


def _kill_of_worker(process: RankProcess, kills: Sequence[OomKill]) -> OomKill | None:
    """Of a process that loaded data for the rank: the rank then fails by an exception that names it."""
    failure = process.failure
    told = _WORKER.search(failure.message) if failure is not None else None
    if told is None:
        return None
    pids = {int(each) for each in re.findall(r"\d{1,9}", told[1] or "")}
    for kill in reversed(kills):
        near = abs(kill.moment - process.ended) < CLOCK_SECONDS + NEAR_SECONDS
        same_cgroup = bool(process.cgroup) and kill.cgroup == process.cgroup
        hidden = process.pid is None and _PROGRAMS.match(kill.name) is not None
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
    """The path of a process in the hierarchy of memory, as the kernel's log has it; empty where unknown."""
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
