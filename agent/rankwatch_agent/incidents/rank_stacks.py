"""Where each rank stands: Python stacks, its last words, and what the kernel says of its process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.draft import Draft
from rankwatch_agent.incidents.error import EvidenceError
from rankwatch_agent.incidents.last_words import last_words, process_words
from rankwatch_agent.incidents.stacks import LIMITS, PROGRAM, find_py_spy, python_stacks
from rankwatch_agent.incidents.writer_process import writer_process
from rankwatch_agent.training.conditions import RankCondition

ALL_SECONDS = 40.0
"""For the stacks of all ranks together, and for their last words."""
_TOO_LATE = "the ranks before it took all the time there was"


def keep_processes(draft: Draft, procfs: Path = Path("/proc")) -> None:
    """What the kernel says of the process of each living rank, where it can be told which one that is.

    procfs: the agent's own, whose numbers of processes are those in which the kernel tells a lock's holder.
    """
    for rank in draft.ranks:
        name = f"stacks/{rank.rank}.process.txt"
        if rank.ended:
            continue
        with draft.attempt(name):
            pid = writer_process(rank.path)
            if pid is None:
                draft.lacks(name, "the process cannot be told from here: it is in a PID namespace of its own")
                continue
            draft.processes[rank.rank] = pid
            _write(draft, name, process_words(procfs, pid))


def keep_stacks(
    draft: Draft,
    *,
    environ: Mapping[str, str],
    each_seconds: float = LIMITS.seconds,
    all_seconds: float = ALL_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Python's stacks of the ranks whose process is known, by py-spy where PATH of `environ` has it."""
    program = find_py_spy(environ)
    end = monotonic() + all_seconds
    for rank in draft.ranks:
        name = f"stacks/{rank.rank}.txt"
        pid = draft.processes.get(rank.rank)
        if pid is None:
            draft.lacks(name, f"the rank is {rank.state.value}" if rank.ended else "its process is not known")
        elif program is None:
            draft.lacks(name, f"{PROGRAM} is not on PATH")
        else:
            with draft.attempt(name):
                left = min(each_seconds, end - monotonic())
                draft.folder.write(name, [_stacks(program, rank, pid, left)])


def keep_last_words(draft: Draft, monotonic: Callable[[], float] = time.monotonic) -> None:
    """Open phase, groups and last records of every rank, as text."""
    end = monotonic() + ALL_SECONDS
    for rank in draft.ranks:
        name = f"stacks/{rank.rank}.last_words.txt"
        with draft.attempt(name):
            if monotonic() > end:
                raise EvidenceError(EvidenceFault.BLACK_BOX, _TOO_LATE)
            _write(draft, name, last_words(rank, draft.incident.condition.moment))


def _stacks(program: str, rank: RankCondition, pid: int, seconds: float) -> bytes:
    if seconds <= 0.0:
        raise EvidenceError(EvidenceFault.STACKS, _TOO_LATE)
    if writer_process(rank.path) != pid:
        raise EvidenceError(EvidenceFault.STACKS, "the process has ended meanwhile")
    return python_stacks(program, pid, limits=LIMITS._replace(seconds=seconds))


def _write(draft: Draft, name: str, text: str) -> None:
    draft.folder.write(name, [text.encode("utf-8", "replace")])
