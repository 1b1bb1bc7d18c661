"""Collector `ranks`: steps, phases, loss, checkpoints and life of every rank, from the black boxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.collection import Collection, Histogram, Series
from rankwatch_agent.ranks.account import RankAccount
from rankwatch_agent.ranks.census import Census
from rankwatch_agent.ranks.durations import StepDurations
from rankwatch_agent.ranks.follower import RankFollower
from rankwatch_agent.ranks.series import RankSeries


class RanksCollector:
    """Follows every black box below a directory.

    directory: holds `<run>/<rank>.blackbox`; it may appear later.
    interval_seconds: between two reads; a ring of 16,384 records lasts about 30 s at 20 steps/s.
    retention_seconds: how long ended runs are kept before their files are removed.
    max_runs: runs followed at once.
    max_names: distinct names (scalars, groups, ...) exported per kind and rank.
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
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._max_names = max_names
        self._monotonic = monotonic
        self._wall = wall
        self._durations: dict[str, StepDurations] = {}
        self._census = Census(directory, self._follow, max_runs=max_runs, retention_seconds=retention_seconds)

    def collect(self) -> Collection:
        """Read all boxes once."""
        census = self._census
        census.discover()
        census.poll(self._monotonic())
        offset = self._wall() - self._monotonic()
        make = RankSeries(lambda moment: moment + offset)
        series = [each for rank in census.ranks.values() for each in make.of(rank)]
        series.append(Series(metric("rankwatch_blackboxes"), (), len(census.ranks)))
        faults = metric("rankwatch_blackbox_faults_total")
        series.extend(Series(faults, (reason,), count) for reason, count in census.faults.by_reason.items())
        return Collection(series=series, histograms=self._histograms())

    def _follow(self, path: Path) -> RankFollower:
        durations = self._durations.setdefault(path.parent.name, StepDurations())
        return RankFollower(path, RankAccount(durations.observe, self._max_names))

    def _histograms(self) -> list[Histogram]:
        runs = {path.parent.name for path in self._census.ranks}
        for run in self._durations.keys() - runs:
            del self._durations[run]
        declared = metric("rankwatch_step_duration_seconds")
        return [
            Histogram(declared, (run,), durations.buckets(), durations.sum)
            for run, durations in self._durations.items()
        ]
