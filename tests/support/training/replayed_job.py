"""A simulated job as agents see it live: boxes grow in simulated time, and each node is scraped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.simulation.black_boxes import (
    BEGAN_MONOTONIC,
    RANKS_PER_NODE,
    SimulatedBox,
    job_boxes,
)
from bench.simulation.job import SimulatedJob
from bench.simulation.program import JobShape
from rankwatch_agent.training.collector import RanksCollector

CLUSTER, RUN = "c", "job"
_NEVER = float("inf")
_HOLD_LOCKS = """
import fcntl, os, sys
files = []
for path in sys.argv[1:]:
    os.chmod(path, 0o644)
    files.append(open(path, "r+b"))
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


@dataclass(kw_only=True)
class Scrapes:
    """Values by series, as text formats write it; None where a scrape did not have it."""

    interval_seconds: float
    count: int = 0
    values: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, series: Mapping[str, float]) -> None:
        for each in series.keys() - self.values.keys():
            self.values[each] = [None] * self.count
        for name, values in self.values.items():
            values.append(series.get(name))
        self.count += 1


class _GrowingBox:
    """The box of one rank, written up to a moment."""

    def __init__(self, box: SimulatedBox, moments: Iterator[float]) -> None:
        self._moments = moments
        self._next = next(moments, _NEVER)
        box.close()  # the lock is held by another process, as that of a real rank is

    def grow(self, until: float) -> None:
        while self._next <= until:
            self._next = next(self._moments, _NEVER)


class _Clock:
    """Seconds since the run began; Unix time is the same, as the time of rule tests begins at 0."""

    now = 0.0

    def monotonic(self) -> float:
        return BEGAN_MONOTONIC + self.now

    def wall(self) -> float:
        return self.now


def scrape_live(
    job: SimulatedJob,
    shape: JobShape,
    directory: Path,
    *,
    names: frozenset[str],
    interval_seconds: float,
    large: bool = False,
) -> Scrapes:
    """The whole run, from its first scrape to the last one before its end; only metrics of these names.
    large: agents export it as a run of which not every rank is exported."""
    single = 1 if large else shape.ranks
    boxes = [_GrowingBox(*each) for each in job_boxes(job.table, shape, directory, run=RUN)]
    clock = _Clock()
    agents = {
        node: RanksCollector(
            directory=folder, monotonic=clock.monotonic, wall=clock.wall, max_single_ranks=single
        )
        for node, folder in _by_node(directory).items()
    }
    scrapes = Scrapes(interval_seconds=interval_seconds)
    ends = float(job.step_seconds.sum())
    with _locked(sorted(directory.rglob("*.blackbox"))):
        while (scrapes.count + 1) * interval_seconds < ends:
            for each in boxes:
                each.grow(clock.now)
            series = {
                _text(each.metric.name, tuple(each.metric.labels), each.labels, node): each.value
                for node, agent in agents.items()
                for each in agent.collect().series
                if each.metric.name in names
            }
            scrapes.add(series)
            clock.now += interval_seconds
    return scrapes


def _by_node(directory: Path) -> dict[str, Path]:
    """Give each node a directory of its own, with the boxes of its ranks; by the names of the nodes."""
    nodes: dict[str, Path] = {}
    for path in sorted((directory / RUN).iterdir(), key=lambda path: int(path.stem)):
        node = f"node-{int(path.stem) // RANKS_PER_NODE}"
        nodes[node] = directory / node
        (nodes[node] / RUN).mkdir(parents=True, exist_ok=True)
        path.rename(nodes[node] / RUN / path.name)
    return nodes


@cache
def _text(name: str, labels: Sequence[str], values: Sequence[str], node: str) -> str:
    """A series with the labels that scraping adds."""
    pairs = {**dict(zip(labels, values, strict=True)), "cluster": CLUSTER, "node": node, "instance": node}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in pairs.items()) + "}"


@contextmanager
def _locked(paths: Sequence[Path]) -> Iterator[None]:
    """Another process holds the locks of these boxes: to their readers the ranks are alive."""
    command = [sys.executable, "-c", _HOLD_LOCKS, *map(str, paths)]
    with (
        ExitStack() as stack,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
