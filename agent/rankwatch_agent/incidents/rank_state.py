"""Where each rank stands: Python stacks, its last words, and what the kernel says of its process."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.incidents import EvidenceFault
from rankwatch.errors import BlackBoxError
from rankwatch.settings import printable
from rankwatch_agent.incidents.bundle import Draft, EvidenceError
from rankwatch_agent.incidents.limited_process import Limits, run_limited
from rankwatch_agent.incidents.untrusted_copy import open_untrusted
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import read_kernel_file
from rankwatch_agent.training.conditions import RankCondition

_FLOCK = struct.Struct("hhqqi4x")


def writer_process(black_box: Path) -> int | None:
    """Process id of the living writer, in the agent's own numbering; None where it cannot be told.

    That is so where no process holds the lock, and where it is of a PID namespace that the agent does not
    see into (Linux then says 0 or -1). Raises EvidenceError where the file cannot be opened.
    """
    with open_untrusted(black_box, EvidenceFault.BLACK_BOX) as file:
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        try:
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
        except OSError:
            return None  # a file system without locks
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


LAST_RECORDS = 20
"""Records of the ring that are told."""
_MOST_RECORDS = 1 << 19
"""About a second's work; a ring has 16,384 unless somebody wants more."""
_PROCESS_FILES = ("status", "wchan", "stack", "syscall")
"""What the kernel says; all but the first are root's, or of whoever may trace the process."""
_MOST_CHARACTERS = 16384


def last_words(rank: RankCondition, moment: float) -> str:
    """The open phase, the process groups and the last records; `moment` is monotonic."""
    return printable("".join(f"{line}\n" for line in _lines(rank, moment)), keep="\n\t")


def process_words(procfs: Path, pid: int) -> str:
    """The kernel's files about a process, those that may be read."""
    return printable("".join(_process_part(procfs / str(pid) / name) for name in _PROCESS_FILES), keep="\n\t")


def _lines(rank: RankCondition, moment: float) -> Iterator[str]:
    yield f"rank {rank.rank}: {rank.state.value}, {_ago(moment, rank.last_progress)} without progress"
    if rank.open_phase is None:
        yield "no phase is open"
    else:
        yield f"in phase {rank.open_phase[0]} for {_ago(moment, rank.open_phase[1])}"
    for group in rank.groups:
        waits = f"one waits for {_ago(moment, group.oldest)}" if group.oldest else "none is known to wait"
        name = f"{group.name} ({group.members})"
        yield f"group {name}: {group.enqueued} enqueued, last {group.operation}, {waits}"
    try:
        yield from _last_records(rank.path, moment)
    except (BlackBoxError, OSError) as error:
        yield f"its records cannot be read: {error}"


def _last_records(path: Path, moment: float) -> Iterator[str]:
    reader = Reader(path)
    try:
        found = reader.read_to_end(_MOST_RECORDS)
        last = deque((each for part in found for each in part.records()), maxlen=LAST_RECORDS)
        if not reader.at_end:
            yield "the last records are left out: the ring is too long"
            return
        yield f"the last {len(last)} records, the newest first:"
        for each in reversed(last):
            kind = RecordKind(each.kind).name.lower()
            took = each.end - each.start
            yield f"  {_ago(moment, each.end)} ago: {kind} {reader.name(each.name)} ({took:.6f} s)"
    finally:
        reader.close()


def _ago(moment: float, then: float) -> str:
    return f"{max(0.0, moment - then):.1f} s"


def _process_part(path: Path) -> str:
    try:
        text = read_kernel_file(path)[:_MOST_CHARACTERS].rstrip()
    except (NotApplicable, CollectError) as error:
        text = f"({error})"
    return f"== {path.name}\n{text}\n"


PROGRAM = "py-spy"
LIMITS = Limits(seconds=10.0, output_bytes=1 << 20, memory_bytes=2 << 30)


def find_py_spy(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where py-spy lies on PATH; None where it is not installed."""
    return shutil.which(PROGRAM, path=environ.get("PATH"))


def python_stacks(program: str, pid: int, *, limits: Limits = LIMITS) -> bytes:
    """What py-spy prints of a process; raises EvidenceError where it is not allowed, fails or hangs."""
    ended = run_limited([program, "dump", "--nonblocking", "--pid", str(pid)], limits)
    if ended.problem:
        raise EvidenceError(EvidenceFault.STACKS, ended.problem)
    if not ended.output.strip():
        raise EvidenceError(EvidenceFault.STACKS, f"{PROGRAM} said nothing")
    return ended.output


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
