"""What a bundle holds of each rank: its files, its stacks, its final state and the state of its process.

The files are its black box, flight recorder, the stacks that it wrote on SIGTERM, and its newest log lines.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from rankwatch import checkpoint_paths
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.states import EvidenceFault
from rankwatch.errors import BlackBoxError
from rankwatch.lifecycle import CRASHED_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.logs.lines import PREVIOUS_SUFFIX, read_lines
from rankwatch.logs.lines import SUFFIX as LINES_SUFFIX
from rankwatch.trackers import finding as trackers
from rankwatch.untrusted.children import Limits
from rankwatch.untrusted.folders import look
from rankwatch.untrusted.text import printable, redacted, shown_json
from rankwatch_agent.incidents.bundle import MAX_RANKS, Bundle, EvidenceError, open_untrusted
from rankwatch_agent.incidents.episodes import MAX_ROOT_CAUSES, RootCause
from rankwatch_agent.incidents.limited_process import run_limited
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.writers import writer_of
from rankwatch_agent.sources.kernel_files import read_kernel_file
from rankwatch_agent.sources.rank_process import read_facts, since
from rankwatch_agent.training.checkpoints.operations import noted_beside
from rankwatch_agent.training.conditions import RankCondition, RunCondition
from rankwatch_agent.training.flight_recorder.ask import (
    FlightRecorderClient,
    FlightRecorderError,
    SilentRankError,
    find_silent,
    main_recorder,
    socket_beside,
)
from rankwatch_agent.training.tracked_runs import trackers_beside

MAX_BOX_BYTES = layout.RING_OFFSET + layout.MAX_CAPACITY * layout.RECORD_SIZE
"""No readable black box is larger. One usually has 1.2 MB."""
_MOST_KERNEL_LINE_BYTES = 4096
MAX_STACK_BYTES = 4 << 20
ALL_SECONDS = 30.0
"""Time for the flight recorders of all ranks together."""
EACH_SECONDS = 3.0


def add_black_boxes(bundle: Bundle) -> None:
    """Copy the black boxes, and the notes beside them on experiment trackers and paths of checkpoints.
    Living ranks go on writing, so a record may be torn."""
    fault = EvidenceFault.BLACK_BOX
    for rank in bundle.ranks:
        name, owner = f"blackboxes/{bundle.incident.run}/{rank.rank}", rank.owner
        box = f"{name}{layout.SUFFIX}"
        bundle.copy(rank.path, box, owner=owner, fault=fault, max_bytes=MAX_BOX_BYTES)
        if found := trackers_beside(rank.path, owner):
            with bundle.part(f"{name}{trackers.SUFFIX}") as part:
                bundle.folder.write(part, [trackers.note_text(found).encode()])
        if noted := noted_beside(rank.path, owner):
            with bundle.part(f"{name}{checkpoint_paths.SUFFIX}") as part:
                bundle.folder.write(part, [checkpoint_paths.note_content(noted)])
        line = rank.path.with_suffix(KILLED_SUFFIX)
        if _has_content(line):
            kept = f"{name}{KILLED_SUFFIX}"
            bundle.copy(line, kept, owner=owner, fault=fault, max_bytes=_MOST_KERNEL_LINE_BYTES)


def add_terminated_stacks(bundle: Bundle) -> None:
    """Copy what faulthandler wrote in ranks that received SIGTERM, or crashed."""
    for rank, suffix in itertools.product(bundle.ranks, (TERMINATED_SUFFIX, CRASHED_SUFFIX)):
        source = rank.path.with_suffix(suffix)
        if _has_content(source):
            name, fault = f"stacks/{rank.rank}{suffix}.txt", EvidenceFault.STACKS
            bundle.copy(source, name, owner=rank.owner, fault=fault, max_bytes=MAX_STACK_BYTES)


def add_flight_recorders(
    bundle: Bundle,
    *,
    each_seconds: float = EACH_SECONDS,
    all_seconds: float = ALL_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Ask the flight recorders of living ranks for their dumps, one at a time: only one is in memory.

    First all are asked for something short, side by side, so that silent ranks cost their time once.

    A rank may have two recorders. The main one becomes flight_recorder/RANK.json, the other goes into a
    folder named after its handler.
    """
    end = monotonic() + all_seconds
    clients: dict[int, FlightRecorderClient] = {}
    for rank in bundle.ranks:
        name = _dump_name(rank)
        socket = socket_beside(rank.path)
        facts = bundle.facts.get(rank.rank)
        if rank.ended:
            bundle.add_missing(name, f"the rank is {rank.state.value}")
        elif socket is None:
            bundle.add_missing(name, "the rank serves no flight recorder")
        elif facts is not None and facts.stopped:
            bundle.add_missing(name, f"the process of the rank is stopped (state {facts.state})")
        else:
            clients[rank.rank] = FlightRecorderClient(socket, rank.owner, timeout_seconds=each_seconds)
    silent = find_silent(clients)
    for rank in bundle.ranks:
        if rank.rank in clients:
            with bundle.part(_dump_name(rank)):
                _add_answer(bundle, rank, clients[rank.rank], silent.get(rank.rank), end - monotonic())


def add_log_lines(bundle: Bundle) -> None:
    """Add the newest lines of each rank, and of the process that had the rank before, as JSON.

    Credentials are taken out here, and not by the rank: it writes each line in the training thread.
    """
    for rank in bundle.ranks:
        for suffix in (LINES_SUFFIX, PREVIOUS_SUFFIX):
            source, name = rank.path.with_suffix(suffix), f"logs/{rank.rank}{suffix}.jsonl"
            if _has_content(source):
                with bundle.part(name):
                    bundle.folder.write(name, _json_lines(source, rank.owner))
            elif suffix == LINES_SUFFIX:
                bundle.add_missing(name, "the rank keeps no log lines")


def _json_lines(source: Path, owner: int) -> Iterator[bytes]:
    with open_untrusted(source, owner, EvidenceFault.LOG_LINES) as file:
        try:
            found = read_lines(file, source)
        except (BlackBoxError, OSError) as error:
            raise EvidenceError(EvidenceFault.LOG_LINES, str(error)) from None
    for line in found:
        entry = line._asdict() | {"source": line.source.name.lower(), "text": redacted(line.text)}
        yield shown_json(msgspec.json.encode(entry).decode() + "\n").encode()


def _dump_name(rank: RankCondition) -> str:
    return f"flight_recorder/{rank.rank}.json"


def _add_answer(
    bundle: Bundle,
    rank: RankCondition,
    client: FlightRecorderClient,
    failure: FlightRecorderError | None,
    seconds: float,
) -> None:
    try:
        if failure is not None:
            raise failure
        if seconds <= 0.0:
            raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, "the ranks before it used up the time")
        replies = client.ask()
    except FlightRecorderError as error:
        if isinstance(error, SilentRankError):
            bundle.silent.add(rank.rank)
        raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, str(error)) from None
    main = main_recorder(replies)
    for handler, reply in replies.items():
        folder = "flight_recorder" if handler == main else f"flight_recorder_{handler}"
        bundle.folder.write(f"{folder}/{rank.rank}.json", [bytes(reply)])


def _has_content(path: Path) -> bool:
    try:
        return look(path).st_size > 0
    except OSError:
        return False


STACK_SECONDS = 40.0
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
    """Add what the kernel shows of the process of each living rank, where that process is known.

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
    """Return the living ranks whose process a signal has stopped: they hold the run up."""
    found = []
    for rank in condition.ranks[:MAX_RANKS]:
        if rank.ended:
            continue
        pid = writer_of(rank.path)
        facts = None if pid is None else read_facts(procfs, pid)
        if facts is not None and facts.stopped:
            found.append(RootCause(rank.rank, STOPPED_STATE, rank.open_phase[0] if rank.open_phase else ""))
    return tuple(found[:MAX_ROOT_CAUSES])


def reread_processes(bundle: Bundle, procfs: Path = Path("/proc")) -> None:
    """Keep of a process that was blocked only what is still so."""
    for rank, before in bundle.facts.items():
        bundle.facts[rank] = since(before, read_facts(procfs, before.pid))


def add_stacks(
    bundle: Bundle,
    *,
    environ: Mapping[str, str],
    each_seconds: float = LIMITS.seconds,
    all_seconds: float = STACK_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Add Python stacks of the ranks whose process is known, if py-spy is on the PATH of `environ`."""
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
    """Add open phase, process groups and last records of every rank, as text."""
    end = monotonic() + STACK_SECONDS
    for rank in bundle.ranks:
        name = f"stacks/{rank.rank}.final_state.txt"
        with bundle.part(name):
            if monotonic() > end:
                raise EvidenceError(EvidenceFault.BLACK_BOX, _TIME_USED_UP)
            _write(bundle, name, final_state(rank, bundle.incident.condition.moment))


def _stacks(program: str, rank: RankCondition, pid: int, seconds: float) -> bytes:
    """Return what py-spy prints of the process.

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
    """Return the kernel's files about a process, as far as they are readable."""
    return "".join(_process_file(procfs / str(pid) / name) for name in _PROCESS_FILES)


def _process_file(path: Path) -> str:
    try:
        text = read_kernel_file(path)[:_MAX_CHARACTERS].rstrip()
    except (NotApplicable, CollectError) as error:
        text = f"({error})"
    return _text([f"== {path.name}", *text.splitlines()])


def final_state(rank: RankCondition, moment: float) -> str:
    """Return the open phase, the process groups and the last records of a rank. `moment` is monotonic."""
    idle = _ago(moment, rank.last_progress)
    lines = [f"rank {rank.rank}: {rank.state.value}, {idle} without progress", "no phase is open"]
    if rank.open_phase is not None:
        lines[1] = f"in phase {rank.open_phase[0]} for {_ago(moment, rank.open_phase[1])}"
    for group in rank.groups:
        waits = f"one waits for {_ago(moment, group.oldest)}" if group.oldest else "none is known to wait"
        name = f"{group.name} ({group.members})"
        lines.append(f"group {name}: {group.enqueued} enqueued, last {group.operation}, {waits}")
    try:
        lines.extend(_last_records(rank.path, moment))
    except (BlackBoxError, OSError) as error:
        lines.append(f"its records cannot be read: {error}")
    return _text(lines)


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
    """Join the lines. No name in them can steer a terminal."""
    return "".join(printable(line, keep="\t") + "\n" for line in lines)


def _write(bundle: Bundle, name: str, text: str) -> None:
    bundle.folder.write(name, [text.encode("utf-8", "replace")])
