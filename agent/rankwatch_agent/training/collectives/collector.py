"""Collector `collectives`: how far each rank has come in each group, from the flight recorders.

A pull copies the whole ring in the training process (a C++ thread, about 45 ms for 2,000 entries), so
a healthy rank is asked seldom, and those of a run that looks stuck at once and again every few
seconds; the longer it looks so, the less often: a run may stand for a day, or go on without a rank.
What must be complete and cheap comes through the black box (collector `ranks`); for NCCL, whose
completions the black box does not see, what is counted here is a sample.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankwatch.flight_recorder import SUFFIX
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.training.collectives.rendezvous import RunRendezvous
from rankwatch_agent.training.collectives.series import run_series
from rankwatch_agent.training.conditions import RankCondition, RunCondition, RunConditions
from rankwatch_agent.training.flight_recorder.client import FlightRecorderClient
from rankwatch_agent.training.flight_recorder.rank import Fetched, RecordedRank

_MAX_RANKS = 64
"""Sockets asked in one run: more ranks than any node has GPUs."""
_ASKED_AT_ONCE = 8
_LISTED_EACH_SECONDS = 5.0
_SHARE_OF_SUSPICION = 0.1
"""Of the time that a run has been suspect, which may pass between two questions to a rank."""
_MOST_OF_PULL = 0.5
"""Of the pause for healthy ranks, at most, for suspect ones: the rule on silent ranks looks back a minute."""
_NOBODY = RunCondition(run="", moment=0.0, ranks=(), suspected_since=None)


class CollectivesCollector:
    """Asks the worker server of each rank below a directory.

    directory: holds `<run>/<rank>.sock`.
    pull_seconds: between two questions to a rank of a healthy run.
    suspect_seconds: likewise when the run has just become suspect.
    timeout_seconds: for one question to one rank; eight ranks are asked at a time.
    conditions: what the collector `ranks` says about the ranks; without it all count as healthy.
    """

    name = "collectives"

    def __init__(
        self,
        *,
        directory: Path,
        interval_seconds: float = 1.0,
        deadline_seconds: float = 30.0,
        pull_seconds: float = 60.0,
        suspect_seconds: float = 5.0,
        timeout_seconds: float = 2.0,
        max_names: int = 64,
        conditions: RunConditions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._directory = directory
        self._pull_seconds = pull_seconds
        self._suspect_seconds = suspect_seconds
        self._timeout_seconds = timeout_seconds
        self._max_names = max_names
        self._conditions = conditions or RunConditions()
        self._monotonic = monotonic
        self._ranks: dict[Path, RecordedRank] = {}
        self._rendezvous: dict[str, RunRendezvous] = {}
        self._listed = float("-inf")

    def collect(self) -> Collection:
        """Ask the ranks whose time has come. Raises NotApplicable where no rank serves a flight recorder."""
        now = self._monotonic()
        if now - self._listed >= _LISTED_EACH_SECONDS:
            self._listed = now
            self._ranks = {path: self._ranks.get(path) or self._new(path) for path in self._choose()}
        if not self._ranks:
            raise NotApplicable("no rank serves a flight recorder")
        told = {path: self._told(path) for path in self._ranks}
        due = [path for path in self._ranks if self._is_due(path, *told[path], now)]
        if due:
            self._pull(due, {path: rank for path, (_, rank) in told.items()}, now)
        return Collection(series=[*self._series(told)])

    def _choose(self) -> list[Path]:
        """The sockets to ask. Ranks that were killed leave theirs: they give way to the living."""
        found = sorted(_sockets(self._directory), key=lambda path: (self._ended(path), path))
        return found[:_MAX_RANKS]

    def _ended(self, path: Path) -> bool:
        _, rank = self._told(path)
        return rank is not None and rank.ended

    def _told(self, path: Path) -> tuple[RunCondition, RankCondition | None]:
        """What is known about the run and the rank."""
        run = self._conditions.runs.get(path.parent.name, _NOBODY)
        box = path.stem
        return run, next((each for each in run.ranks if each.path.stem == box), None)

    def _is_due(self, path: Path, run: RunCondition, rank: RankCondition | None, now: float) -> bool:
        if rank is not None and rank.ended:
            return False
        return now - self._ranks[path].asked >= self._seconds_between(run, now)

    def _seconds_between(self, run: RunCondition, now: float) -> float:
        if run.suspected_since is None:
            return self._pull_seconds
        patience = _SHARE_OF_SUSPICION * (now - run.suspected_since)
        return min(_MOST_OF_PULL * self._pull_seconds, max(self._suspect_seconds, patience))

    def _pull(self, due: list[Path], told: dict[Path, RankCondition | None], now: float) -> None:
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            for first in range(0, len(due), _ASKED_AT_ONCE):
                # Side by side: a stopped rank takes its whole timeout, and just then the others are wanted.
                asked = due[first : first + _ASKED_AT_ONCE]
                for path, fetched in zip(asked, pool.map(self._fetch, asked), strict=True):
                    # One after another: a reply takes many times its size in memory.
                    rank = told[path]
                    self._ranks[path].take(now, fetched, () if rank is None else rank.groups)
        for run in {path.parent.name for path in due}:
            living = [path for path, rank in told.items() if rank is None or not rank.ended]
            ledgers = [self._ranks[path].ledgers for path in living if path.parent.name == run]
            self._rendezvous.setdefault(run, RunRendezvous()).compare(ledgers)

    def _fetch(self, path: Path) -> Fetched:
        return self._ranks[path].fetch()

    def _series(self, told: dict[Path, tuple[RunCondition, RankCondition | None]]) -> Iterator[Series]:
        counted: dict[str, set[tuple[str, ...]]] = {}
        for path, (_, condition) in told.items():
            by_black_box = frozenset() if condition is None else condition.counted
            counted.setdefault(path.parent.name, set()).update(by_black_box)
            lost = condition is not None and condition.ended
            yield from self._ranks[path].series((path.parent.name, path.stem), by_black_box, gone=lost)
        for run in self._rendezvous.keys() - counted.keys():
            del self._rendezvous[run]
        for run, rendezvous in self._rendezvous.items():
            for series in run_series(run, rendezvous):
                if series.labels[1:4] not in counted[run]:
                    yield series

    def _new(self, path: Path) -> RecordedRank:
        client = FlightRecorderClient(path, timeout_seconds=self._timeout_seconds)
        return RecordedRank(client, max_groups=self._max_names)


def _sockets(directory: Path) -> Iterator[Path]:
    for path in directory.glob(f"*/*{SUFFIX}"):
        try:
            mode = path.stat(follow_symlinks=False).st_mode
        except OSError:
            continue  # gone meanwhile
        # A link in place of a run's directory would lead to somebody else's sockets.
        if stat.S_ISSOCK(mode) and path.stem.isdecimal() and not path.parent.is_symlink():
            yield path
