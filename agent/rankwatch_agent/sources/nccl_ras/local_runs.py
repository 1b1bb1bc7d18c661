"""The runs whose rank 0 lives on this node: of a job with many nodes only that node asks RAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.errors import BlackBoxError
from rankwatch_agent.sources.nccl_ras.report import Process, Report

_MAX_RUNS = 16
_MAX_RANKS = 64


class LocalRun(NamedTuple):
    """A run that is led from here."""

    run: str
    world_size: int
    ranks: Mapping[int, int]
    """Process id, as the process sees it -> rank; of the ranks that live here."""


def local_runs(directory: Path) -> list[LocalRun]:
    """The runs below a directory of black boxes whose rank 0 is alive; what cannot be read is left out."""
    found = []
    for leader in sorted(directory.glob(f"*/0{layout.SUFFIX}"))[: 4 * _MAX_RUNS]:
        first = _living(leader)
        if first is None:
            continue
        world_size, pid = first
        ranks = {pid: 0}
        for path in sorted(leader.parent.glob(f"*{layout.SUFFIX}"))[:_MAX_RANKS]:
            other = _living(path) if path != leader and path.stem.isdecimal() else None
            if other is not None:
                ranks.setdefault(other[1], int(path.stem))
        found.append(LocalRun(leader.parent.name, world_size, ranks))
    return found[:_MAX_RUNS]


def _living(path: Path) -> tuple[int, int] | None:
    """World size and process id of a black box in its place whose writer lives."""
    try:
        reader = Reader(path)
    except BlackBoxError:
        return None
    try:
        identity = reader.header.identity
        named = identity.run == path.parent.name and str(identity.rank) == path.stem
        return (identity.world_size, reader.header.pid) if named and reader.writer_alive() else None
    except OSError:
        return None
    finally:
        reader.close()


def run_of(report: Report | None, runs: Sequence[LocalRun]) -> LocalRun | None:
    """The run that a RAS service belongs to; None where that cannot be told.

    By the process ids where the answer has them: all living ranks of the run here must be among them. Else
    only where there is no other run.
    """
    if report is None or not report.pids:
        return runs[0] if len(runs) == 1 else None
    fitting = [run for run in runs if run.ranks.keys() <= report.pids]
    return fitting[0] if len(fitting) == 1 else None


def ranks_by_process(report: Report, run: LocalRun | None) -> Mapping[Process, int]:
    """Global ranks, out of the largest communicator where that is the run's default process group.

    It is taken for it where it is as large as the run and has each rank that lives here at its place.
    """
    if run is None or len(report.largest) != run.world_size:
        return {}
    places = {(process.pid, rank) for process, rank in report.largest.items()}
    return report.largest if set(run.ranks.items()) <= places else {}
