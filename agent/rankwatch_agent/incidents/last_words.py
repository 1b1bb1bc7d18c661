"""What a rank was doing, as text: by its black box, and by the kernel where its process is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.errors import BlackBoxError
from rankwatch_agent.incidents.printable import printable
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import read_kernel_file
from rankwatch_agent.training.conditions import RankCondition

LAST_RECORDS = 20
"""Records of the ring that are told."""
_MOST_RECORDS = 1 << 19
"""About a second's work; a ring has 16,384 unless somebody wants more."""
_PROCESS_FILES = ("status", "wchan", "stack", "syscall")
"""What the kernel says; all but the first are root's, or of whoever may trace the process."""
_MOST_CHARACTERS = 16384


def last_words(rank: RankCondition, moment: float) -> str:
    """The open phase, the process groups and the last records; `moment` is monotonic."""
    return printable("".join(f"{line}\n" for line in _lines(rank, moment)))


def process_words(procfs: Path, pid: int) -> str:
    """The kernel's files about a process, those that may be read."""
    return printable("".join(_process_part(procfs / str(pid) / name) for name in _PROCESS_FILES))


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
