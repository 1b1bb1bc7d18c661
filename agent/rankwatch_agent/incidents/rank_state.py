"""Adds the state of each rank to a bundle: Python stacks, final state by its black box, state of its
process."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.states import EvidenceFault
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.children import Limits
from rankwatch.untrusted.text import printable
from rankwatch_agent.incidents.bundle import MAX_RANKS, Bundle, EvidenceError
from rankwatch_agent.incidents.limited_process import run_limited
from rankwatch_agent.incidents.registry import MAX_ROOT_CAUSES, RootCause
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.writers import writer_of
from rankwatch_agent.sources.kernel_files import read_kernel_file
from rankwatch_agent.sources.rank_process import read_facts, since
from rankwatch_agent.training.conditions import RankCondition, RunCondition

ALL_SECONDS = 40.0
"""Time for the stacks of all ranks together, and for their final states."""
PY_SPY = "py-spy"
LIMITS = Limits(seconds=10.0, cpu_seconds=10, memory_bytes=2 << 30, output_bytes=1 << 20)
LAST_RECORDS = 20
"""Records of the ring in the final state."""
_PROCESS_FILES = ("status", "wchan", "stack", "syscall")
"""All but the first need root, or permission to trace the process."""
_MAX_CHARACTERS = 16384
STOPPED_STATE = "stopped"
"""State of a rank that is known as a root cause by its process alone."""
_TIME_USED_UP = "the ranks before it used up the time"


def add_process_states(bundle: Bundle, procfs: Path = Path("/proc")) -> None:
    """Adds what the kernel shows of the process of each living rank, where that process is known.

    procfs: the agent's own, whose process ids are those of the kernel's lock holders.
    """
    for rank in bundle.ranks:
        name = f"stacks/{rank.rank}.process.txt"
        if rank.ended:
            continue
        with bundle.part(name):
            pid = writer_of(rank.path)
            if pid is None:
                bundle.add_missing(name, "its process is unknown here: it is in a PID namespace of its own")
                continue
            bundle.processes[rank.rank] = pid
            if (facts := read_facts(procfs, pid)) is not None:
                bundle.facts[rank.rank] = facts
            _write(bundle, name, process_state(procfs, pid))


def stopped_ranks(condition: RunCondition, procfs: Path = Path("/proc")) -> tuple[RootCause, ...]:
    """Returns the living ranks whose process a signal has stopped: they hold the run up."""
    found = []
    for rank in condition.ranks[:MAX_RANKS]:
        if rank.ended:
            continue
        pid = writer_of(rank.path)
        facts = None if pid is None else read_facts(procfs, pid)
        if facts is not None and facts.stopped:
            found.append(RootCause(rank.rank, STOPPED_STATE, rank.open_phase[0] if rank.open_phase else ""))
    return tuple(found[:MAX_ROOT_CAUSES])


def look_again(bundle: Bundle, procfs: Path = Path("/proc")) -> None:
    """Keeps of a process that was blocked only what is still so."""
    for rank, before in bundle.facts.items():
        bundle.facts[rank] = since(before, read_facts(procfs, before.pid))


def add_stacks(
    bundle: Bundle,
    *,
    environ: Mapping[str, str],
    each_seconds: float = LIMITS.seconds,
    all_seconds: float = ALL_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Adds Python stacks of the ranks whose process is known, if py-spy is on the PATH of `environ`."""
    program = shutil.which(PY_SPY, path=environ.get("PATH"))
    end = monotonic() + all_seconds
    for rank in bundle.ranks:
        name = f"stacks/{rank.rank}.txt"
        pid = bundle.processes.get(rank.rank)
        if pid is None:
            bundle.add_missing(
                name, f"the rank is {rank.state.value}" if rank.ended else "its process is unknown"
            )
        elif program is None:
            bundle.add_missing(name, f"{PY_SPY} is not on PATH")
        else:
            with bundle.part(name):
                left = min(each_seconds, end - monotonic())
                bundle.folder.write(name, [_stacks(program, rank, pid, left)])


def add_final_states(bundle: Bundle, monotonic: Callable[[], float] = time.monotonic) -> None:
    """Adds open phase, process groups and last records of every rank, as text."""
    end = monotonic() + ALL_SECONDS
    for rank in bundle.ranks:
        name = f"stacks/{rank.rank}.final_state.txt"
        with bundle.part(name):
            if monotonic() > end:
                raise EvidenceError(EvidenceFault.BLACK_BOX, _TIME_USED_UP)
            _write(bundle, name, final_state(rank, bundle.incident.condition.moment))


def _stacks(program: str, rank: RankCondition, pid: int, seconds: float) -> bytes:
    """Returns what py-spy prints of the process.

    It does not pause the process: stacks may be torn if the process goes on, but not if it stands. Raises
    EvidenceError where py-spy has no permission, fails or hangs.
    """
    if seconds <= 0.0:
        raise EvidenceError(EvidenceFault.STACKS, _TIME_USED_UP)
    if writer_of(rank.path) != pid:
        raise EvidenceError(EvidenceFault.STACKS, "the process has ended meanwhile")
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    result = run_limited(command, LIMITS._replace(seconds=seconds))
    if result.error:
        raise EvidenceError(EvidenceFault.STACKS, result.error)
    if not result.output.strip():
        raise EvidenceError(EvidenceFault.STACKS, f"{PY_SPY} printed nothing")
    return result.output


def process_state(procfs: Path, pid: int) -> str:
    """Returns the kernel's files about a process, as far as they are readable."""
    return "".join(_process_file(procfs / str(pid) / name) for name in _PROCESS_FILES)


def _process_file(path: Path) -> str:
    try:
        text = read_kernel_file(path)[:_MAX_CHARACTERS].rstrip()
    except (NotApplicable, CollectError) as error:
        text = f"({error})"
    return _text([f"== {path.name}", *text.splitlines()])


def final_state(rank: RankCondition, moment: float) -> str:
    """Returns the open phase, the process groups and the last records of a rank. `moment` is monotonic."""
    return _text(_final_state_lines(rank, moment))


def _final_state_lines(rank: RankCondition, moment: float) -> Iterator[str]:
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
        found = reader.read_to_end()
        last = deque((each for part in found for each in part.records()), maxlen=LAST_RECORDS)
        if not reader.at_end:
            yield "the last records are left out: they come faster than they can be read"
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


def _text(lines: Iterable[str]) -> str:
    """Joins lines. No name in them can steer a terminal."""
    return "".join(printable(line, keep="\t") + "\n" for line in lines)


def _write(bundle: Bundle, name: str, text: str) -> None:
    bundle.folder.write(name, [text.encode("utf-8", "replace")])
