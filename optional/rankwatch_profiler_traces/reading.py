"""A directory of traces, one per rank, as a table of operations with what the traces did not show."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.operations.table import MOST_ROWS, OperationTable, clean
from rankwatch_profiler_traces.matching import RankTimeline, as_table, share_collectives
from rankwatch_profiler_traces.notes import collectives_of, facts_of, notes_on
from rankwatch_profiler_traces.recording import Recording
from rankwatch_profiler_traces.stream import (
    Framing,
    Place,
    groups_of,
    place_of,
    rank_of,
    stream_events,
    world_size_of,
)
from rankwatch_profiler_traces.timeline import Timeline, lay_out

SUFFIXES = (".json", ".json.gz")
_MOST_FILES = 4_096
_MOST_WORKERS = 16
_ALONE_BYTES = 16 << 20
"""Of all traces: reading less takes no longer than starting a process."""
_SAFE_PATH = "PYTHONSAFEPATH"


class TraceTable(NamedTuple):
    """What the traces of a job gave."""

    table: OperationTable
    skipped: Mapping[str, int]
    """Reason -> rows left out."""
    facts: Mapping[str, object]
    """Counts for the evidence, ready for JSON."""
    collectives: Sequence[Mapping[str, object]]
    """Per operation and group, the costliest first; ready for JSON."""
    notes: tuple[str, ...]
    """Sentences on what the traces do not show."""


def trace_files(directory: Path) -> list[Path]:
    """Return the files of a directory that are called as traces are; raises UserError where there is none."""
    try:
        found = sorted(each for each in directory.iterdir() if each.name.lower().endswith(SUFFIXES))
    except OSError as error:
        raise UserError(f"could not read {directory}: {error.strerror or error}") from error
    files = [each for each in found if each.is_file()]
    if not files:
        raise UserError(f"{directory} holds no trace: no file whose name ends in {' or '.join(SUFFIXES)}")
    if len(files) > _MOST_FILES:
        raise UserError(f"{directory} holds {len(files):,} files of traces; at most {_MOST_FILES:,} are read")
    return files


def read_traces(directory: Path) -> TraceTable:
    """Read all traces of a directory. Raises UserError where they give no table."""
    traces = of_one_kind(_read_all(trace_files(directory)))
    usable = [each for each in traces if each.timeline is not None]
    if not usable:
        more = f"; so with {len(traces) - 1} more" if len(traces) > 1 else ""
        raise UserError(f"{traces[0].file}: {traces[0].error}{more}")
    refuse_twins(usable)
    first = min(each.origin_ns for each in usable)
    ranks = [
        RankTimeline(each.rank, each.place, each.timeline, (each.origin_ns - first) * 1e-9)
        for each in usable
        if each.timeline is not None
    ]
    steps = common_steps(ranks)
    shared = share_collectives(ranks, steps)
    table = as_table(ranks, steps, shared)
    if len(table) > MOST_ROWS:
        raise UserError(
            f"{directory} holds {len(table):,} operations, and at most {MOST_ROWS:,} are taken: "
            "trace fewer steps"
        )
    table, skipped = clean(table, incomplete=0, broken=0)
    if not len(table):
        raise UserError(f"{directory} holds no operation of any step")
    notes = notes_on(traces, ranks, steps, shared)
    return TraceTable(table, skipped, facts_of(traces, ranks, steps), collectives_of(ranks, steps), notes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_all(files: Sequence[Path]) -> list[Trace]:
    """Read the files side by side, where that is worth the processes; in the order of the files."""
    workers = min(len(os.sched_getaffinity(0)), len(files), _MOST_WORKERS)
    if workers == 1 or sum(map(_size, files)) < _ALONE_BYTES:
        return [read_trace(each) for each in files]
    try:
        with _safe_path(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            return list(pool.map(read_trace, files))
    except BrokenProcessPool as error:
        raise UserError(
            f"a process that read the traces of {files[0].parent} was killed: is memory short?"
        ) from error


@contextmanager
def _safe_path() -> Iterator[None]:
    """Have Python start without its working directory in the path while the block runs: multiprocessing
    starts it by `-c`, and who made the traces may have put modules beside them."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


_NO_RANK = "it names its rank neither in distributedInfo nor in its file name, such as rank3_trace.json"
_FIRST = Place(stage=0, replica=0)
_NO_WORK = "no kernel and no operator of the CPU is recorded"
_NO_STEPS = (
    "no step can be told from the next: call profiler.step() at the end of each, or record at least 4 steps "
    "with an optimizer of torch.optim or with the same collectives in each"
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One file, read."""

    file: str
    rank: int = -1
    world_size: int = 0
    """Ranks of the job; 0 where it is unknown."""
    place: Place = _FIRST
    origin_ns: int = 0
    """Wall-clock time of the timeline's origin, on the clock of its host."""
    timeline: Timeline | None = None
    """None where nothing of the file is of use."""
    error: str = ""
    """Why it is not."""
    events: int = 0
    broken: int = 0
    """Events that are damaged or have no usable time."""
    left_out: int = 0
    """Collectives beyond what one trace may hold."""
    cut_off: bool = False
    shapes: bool = True
    """`record_shapes` was on."""


def read_trace(path: Path) -> Trace:
    """Read one file; what is wrong with it is in `error`."""
    framing = Framing()
    recording = Recording()
    events = 0
    try:
        for block in stream_events(path, framing):
            events += len(block)
            recording.add(block)
    except UserError as error:
        return Trace(file=path.name, error=str(error).removeprefix(f"{path} "), cut_off=framing.cut_off)
    rank = rank_of(framing.fields, path.name)
    timeline = None
    if rank is not None:
        timeline = lay_out(recording, rank, tuple(groups_of(framing.fields)))
    if timeline is not None and framing.cut_off:
        timeline = timeline._replace(steps=timeline.steps[:-1])
    reason = _reason(rank, recording, timeline, cut_off=framing.cut_off)
    return Trace(
        file=path.name,
        rank=-1 if rank is None else rank,
        world_size=world_size_of(framing.fields),
        place=_FIRST if rank is None else place_of(rank, framing.fields),
        origin_ns=_origin_ns(framing, timeline),
        timeline=None if reason else timeline,
        error=reason,
        events=events,
        broken=framing.broken + recording.unusable,
        left_out=recording.left_out,
        cut_off=framing.cut_off,
        shapes=bool(framing.fields.get("record_shapes")),
    )


def _reason(rank: int | None, recording: Recording, timeline: Timeline | None, *, cut_off: bool) -> str:
    """Return why a trace is of no use; empty if it is of some."""
    if rank is None:
        return _NO_RANK
    if not len(recording.kernels) and not len(recording.operators) and not recording.calls:
        return _NO_WORK
    if timeline is None or not timeline.steps:
        return "it is cut off before a step is whole" if cut_off else _NO_STEPS
    return ""


def _origin_ns(framing: Framing, timeline: Timeline | None) -> int:
    base = framing.fields.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < 1 << 63 else 0
    return base_ns + (0 if timeline is None else round(timeline.origin_microseconds * 1e3))


def of_one_kind(traces: Sequence[Trace]) -> list[Trace]:
    """Refuse traces without kernels where others hold some: they are of no use beside them."""
    if not any(each.timeline is not None and each.timeline.on_device for each in traces):
        return list(traces)
    return [
        replace(each, timeline=None, error="it holds no kernels, while other traces do")
        if each.timeline is not None and not each.timeline.on_device
        else each
        for each in traces
    ]


def refuse_twins(traces: Sequence[Trace]) -> None:
    """Raise UserError where two files hold the same step of one rank: they are of two runs."""
    holder: dict[tuple[int, int], str] = {}
    for each in traces:
        for line in each.timeline.steps if each.timeline else ():
            other = holder.setdefault((each.rank, line.step), each.file)
            if other != each.file:
                raise UserError(
                    f"{other} and {each.file} both hold step {line.step} of rank {each.rank}: "
                    "leave the traces of one run in the directory"
                )


def common_steps(ranks: Sequence[RankTimeline]) -> frozenset[int]:
    """Return the steps of all ranks, else of at least half of them. Raises UserError where there are none."""
    of_rank: dict[int, set[int]] = defaultdict(set)
    for each in ranks:
        of_rank[each.rank].update(line.step for line in each.timeline.steps)
    everywhere = frozenset(set.intersection(*of_rank.values()))
    if everywhere:
        return everywhere
    holders = Counter(step for steps in of_rank.values() for step in steps)
    often = frozenset(step for step, count in holders.items() if 2 * count > len(of_rank))
    if not often:
        shown = ", ".join(f"rank {rank} {_span(of_rank[rank])}" for rank in sorted(of_rank)[:4])
        raise UserError(
            f"the ranks were traced in different steps: {shown}; give all ranks the same schedule"
        )
    return often


def _span(steps: set[int]) -> str:
    return f"from {min(steps)} to {max(steps)}" if steps else "in none"
