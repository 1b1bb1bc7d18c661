"""Collector `ranks`: steps, phases, loss, checkpoints and life of every rank, from the black boxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rankwatch.conventions import ENDED_STATES, metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.training.account import RankAccount
from rankwatch_agent.training.collectives.meeting import RunMeetings
from rankwatch_agent.training.collectives.series import run_series
from rankwatch_agent.training.discovery import Census
from rankwatch_agent.training.durations import StepDurations
from rankwatch_agent.training.follower import RankFollower
from rankwatch_agent.training.series import RankSeries
from rankwatch_agent.training.suspicion import RankCondition, Suspicion


class RanksCollector:
    """Follows every black box below a directory.

    directory: holds `<run>/<rank>.blackbox`; it may appear later.
    interval_seconds: between two reads; a ring of 16,384 records lasts about 30 s at 20 steps/s.
    retention_seconds: how long ended runs are kept before their files are removed.
    max_runs: runs followed at once.
    max_names: distinct names (scalars, groups, ...) exported per kind and rank.
    suspicion: is told how each rank is; other collectors read it.
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
        suspicion: Suspicion | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._max_names = max_names
        self._monotonic = monotonic
        self._wall = wall
        self._durations: dict[str, StepDurations] = {}
        self._meetings: dict[str, RunMeetings] = {}
        self._suspicion = suspicion or Suspicion()
        self._census = Census(directory, self._follow, max_runs=max_runs, retention_seconds=retention_seconds)

    def collect(self) -> Collection:
        """Read all boxes once."""
        census = self._census
        census.discover()
        moment = self._monotonic()
        census.poll(moment)
        runs = self._runs()
        self._suspicion.tell({run: map(_condition, ranks) for run, ranks in runs.items()}, moment)
        offset = self._wall() - self._monotonic()
        make = RankSeries(lambda moment: moment + offset)
        series: list[Series] = []
        for run, ranks in runs.items():
            meetings = self._meet(run, ranks)
            for rank in ranks:
                series.extend(make.of(rank))
            series.extend(run_series(run, meetings))
        series.append(Series(metric("rankwatch_blackboxes"), (), len(census.ranks)))
        faults = metric("rankwatch_blackbox_faults_total")
        series.extend(Series(faults, (reason,), count) for reason, count in census.faults.by_reason.items())
        return Collection(series=series, histograms=self._histograms())

    def _runs(self) -> dict[str, list[RankFollower]]:
        runs: dict[str, list[RankFollower]] = {}
        for path, rank in self._census.ranks.items():
            runs.setdefault(path.parent.name, []).append(rank)
        return runs

    def _meet(self, run: str, ranks: list[RankFollower]) -> RunMeetings:
        """Compare the collectives that the ranks have completed since the last time."""
        meetings = self._meetings.setdefault(run, RunMeetings())
        for rank in ranks:
            rank.account.collectives.note_completed()
        meetings.meet(each.account.collectives.ledgers for each in ranks if each.account.collectives.present)
        for rank in ranks:
            if rank.state in ENDED_STATES:
                rank.account.collectives.leave()
        return meetings

    def _follow(self, path: Path) -> RankFollower:
        durations = self._durations.setdefault(path.parent.name, StepDurations())
        return RankFollower(path, RankAccount(durations.observe, self._max_names))

    def _histograms(self) -> list[Histogram]:
        runs = {path.parent.name for path in self._census.ranks}
        for run in self._durations.keys() - runs:
            del self._durations[run]
        for run in self._meetings.keys() - runs:
            del self._meetings[run]
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
        last_progress=max(rank.account.last_progress, rank.header.started_monotonic),
        timeout=rank.account.progress.timeout(phase[0] if phase else None),
        open_phase=phase,
        pid=rank.header.pid,
        groups=rank.now.groups,
        counted=frozenset(rank.account.collectives.totals),
        started=rank.header.started_monotonic,
    )
