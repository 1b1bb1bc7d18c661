"""A directory of traces, one per rank, as a table of operations with what the traces did not show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.operations.table import MOST_ROWS, OperationTable, clean
from rankwatch_diagnosis.traces.matching import RankTimeline, as_table, share_collectives
from rankwatch_diagnosis.traces.notes import collectives_of, facts_of, notes_on
from rankwatch_diagnosis.traces.trace import Trace, common_steps, of_one_kind, read_trace, refuse_twins

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


def holds_traces(directory: Path) -> bool:
    """True for a directory with a file that is called as the profiler calls its traces."""
    try:
        return any("trace" in each.name and each.name.endswith(SUFFIXES) for each in directory.iterdir())
    except OSError:
        return False


def trace_files(directory: Path) -> list[Path]:
    """The files of a directory that are called as traces are; raises UserError where there is none."""
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
    """Inside, Python starts without its working directory in the path: multiprocessing starts it by `-c`, and
    who made the traces may have put modules beside them."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
