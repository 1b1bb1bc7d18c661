"""Collector `ranks`: steps, phases, loss, checkpoints and lifecycle of every rank, from the black boxes."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from rankwatch.conventions import ENDED_STATES, metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.training.collectives.rendezvous import RunRendezvous
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from rankwatch_agent.training.discovery import Discovery
from rankwatch_agent.training.follower import RankFollower
from rankwatch_agent.training.series import RankSeries, run_series
from rankwatch_agent.training.totals import RankTotals

BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds from a 5 ms toy step to one that takes minutes; each about 2.2 times the one before."""


class StepDurations:
    """The histogram of step durations of one run on this node, over all of its ranks."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one step."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Cumulative counts by upper bound; the last bound is infinite."""
        total = 0
        found = []
        for bound, count in zip((*BOUNDS_SECONDS, math.inf), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return tuple(found)


class RanksCollector:
    """Follows every black box below a directory.

    directory: holds `<run>/<rank>.blackbox`; it may appear later.
    interval_seconds: between two reads; a ring of 16,384 records lasts about 30 s at 20 steps/s.
    retention_seconds: how long ended runs are kept before their files are removed.
    max_runs: runs followed at once.
    max_names: distinct names (scalars, groups, ...) exported per kind and rank.
    conditions: takes the condition of each rank, for other collectors to read.
    monotonic, wall: the clocks, in seconds.
    """

    name = "ranks"

    def __init__(
        self,
        *,
        directory: Path,
        interval_seconds: float = 1.0,
        deadline_seconds: float = 10.0,
        retention_seconds: float = 3600.0,
        max_runs: int = 100,
        max_names: int = 64,
        conditions: RunConditions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._max_names = max_names
        self._monotonic = monotonic
        self._wall = wall
        self._durations: dict[str, StepDurations] = {}
        self._rendezvous: dict[str, RunRendezvous] = {}
        self._conditions = conditions or RunConditions()
        self._discovery = Discovery(
            directory, self._follow, max_runs=max_runs, retention_seconds=retention_seconds
        )

    def collect(self) -> Collection:
        """Read all boxes once."""
        discovery = self._discovery
        discovery.discover()
        moment = self._monotonic()
        discovery.poll(moment)
        runs = self._runs()
        self._conditions.update({run: map(_condition, ranks) for run, ranks in runs.items()}, moment)
        offset = self._wall() - self._monotonic()
        make = RankSeries(lambda moment: moment + offset)
        series: list[Series] = []
        for run, ranks in runs.items():
            series.extend(run_series(run, ranks))
            rendezvous = self._compare_ranks(run, ranks)
            for rank in ranks:
                series.extend(make.of(rank))
            series.extend(rendezvous.series(run))
        series.append(Series(metric("rankwatch_blackboxes"), (), len(discovery.ranks)))
        faults = metric("rankwatch_blackbox_read_errors_total")
        series.extend(
            Series(faults, (reason,), count) for reason, count in discovery.faults.by_reason.items()
        )
        return Collection(series=series, histograms=self._histograms())

    def _runs(self) -> dict[str, list[RankFollower]]:
        runs: dict[str, list[RankFollower]] = {}
        for path, rank in self._discovery.ranks.items():
            runs.setdefault(path.parent.name, []).append(rank)
        return runs

    def _compare_ranks(self, run: str, ranks: list[RankFollower]) -> RunRendezvous:
        """Compare the collectives that the ranks have completed since the last time."""
        rendezvous = self._rendezvous.setdefault(run, RunRendezvous())
        for rank in ranks:
            rank.totals.collectives.note_completed()
        rendezvous.compare(
            each.totals.collectives.groups for each in ranks if each.totals.collectives.present
        )
        for rank in ranks:
            if rank.state in ENDED_STATES:
                rank.totals.collectives.end_process()
        return rendezvous

    def _follow(self, path: Path) -> RankFollower:
        durations = self._durations.setdefault(path.parent.name, StepDurations())
        return RankFollower(path, RankTotals(durations.observe, self._max_names))

    def _histograms(self) -> list[Histogram]:
        runs = {path.parent.name for path in self._discovery.ranks}
        for run in self._durations.keys() - runs:
            del self._durations[run]
        for run in self._rendezvous.keys() - runs:
            del self._rendezvous[run]
        declared = metric("rankwatch_step_duration_seconds")
        return [
            Histogram(declared, (run,), durations.buckets(), durations.sum)
            for run, durations in self._durations.items()
        ]


def _condition(rank: RankFollower) -> RankCondition:
    phase = rank.open_phase
    return RankCondition(
        rank=rank.header.identity.rank,
        path=rank.path,
        state=rank.state,
        last_progress=max(rank.totals.last_progress, rank.header.started_monotonic),
        timeout=rank.totals.timeouts.timeout(phase[0] if phase else None),
        open_phase=phase,
        pid=rank.header.pid,
        groups=rank.now.groups,
        counted=frozenset(rank.totals.collectives.totals),
        started=rank.header.started_monotonic,
    )
