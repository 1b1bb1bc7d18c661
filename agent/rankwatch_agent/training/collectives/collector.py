"""Collector `collectives`: how far each rank has come in each group, from the flight recorders.

An answer copies the whole ring in the training process (a C++ thread, about 45 ms for 2,000 entries). So a
healthy rank is asked seldom; those of a run that looks stuck are asked at once and again every few seconds.
The longer a run looks so, the less often: it may hang for a day, or go on without a rank. What must be
complete and cheap comes through the black box (collector `ranks`); for NCCL, whose completions the black box
does not see, what is counted here is a sample.
"""

from __future__ import annotations

import logging
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import SOCKET_SUFFIX
from rankwatch.blackbox.records import GroupNow
from rankwatch.untrusted.folders import look
from rankwatch_agent.runtime.collector import Collection, Series, sample
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.turns import in_turns, share
from rankwatch_agent.training.boxes.follower import run_label
from rankwatch_agent.training.boxes.run_directories import BoxFaults, RunDirectories
from rankwatch_agent.training.collectives.comparison import RunComparison
from rankwatch_agent.training.collectives.totals import (
    FLIGHT_RECORDER,
    GroupCollectives,
    GroupKey,
    Position,
    position_series,
    totals_series,
)
from rankwatch_agent.training.conditions import (
    CountedCollectives,
    RankCondition,
    RunCondition,
    RunConditions,
)
from rankwatch_agent.training.flight_recorder.ask import (
    CapturingRankError,
    FlightRecorderClient,
    FlightRecorderError,
    Replies,
    ask_all,
)
from rankwatch_agent.training.flight_recorder.merge import MergedRecorder
from rankwatch_agent.training.flight_recorder.parse import NCCL2

_MAX_RANKS = 64
"""Sockets asked, shared between their owners: more ranks than any node has GPUs."""
_PULL_SECONDS = 5.0
"""Time for the questions of one collection. A rank that is left out comes first in the next one."""
_MAX_SERIES = 10_000
"""Series from flight recorders at one time, shared between their owners."""
_ASKED_AT_ONCE = 2
_MOST_PENDING = 1 << 17
"""Collectives that wait to be compared, shared between the owners of ranks and their ranks: 16,384 for each
of eight GPUs. Each takes 200 bytes."""
_LISTED_EACH_SECONDS = 5.0
_SHARE_OF_SUSPICION = 0.1
"""Of the time that a run has been suspect, which may pass between two questions to a rank."""
_MOST_OF_PULL = 0.5
"""Of the pause for healthy ranks, at most, for suspect ones: the rule on silent ranks looks back a minute."""
_UNKNOWN_RUN = RunCondition(run="", moment=0.0, ranks=(), suspected_since=None)
_log = logging.getLogger(__name__)

_Known = Mapping[Path, tuple[RunCondition, RankCondition]]
"""By socket: the condition of the run and of the rank."""


class CollectivesCollector:
    """Asks the worker server of each rank below a directory.

    directory: holds `<run>/<rank>.sock`.
    pull_seconds: between two questions to a rank of a healthy run.
    suspect_seconds: likewise when the run has just become suspect.
    timeout_seconds: for one question to one rank; two ranks are asked at a time.
    conditions: the state of the ranks by the collector `ranks`; without it all count as healthy.
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
        self._directories = RunDirectories(directory, BoxFaults(), suffix=SOCKET_SUFFIX, monotonic=monotonic)
        self._pull_seconds = pull_seconds
        self._suspect_seconds = suspect_seconds
        self._timeout_seconds = timeout_seconds
        self._max_names = max_names
        self._conditions = conditions or RunConditions()
        self._monotonic = monotonic
        self._ranks: dict[Path, RecordedRank] = {}
        self._comparisons: dict[str, RunComparison] = {}
        self._listed = float("-inf")

    def collect(self) -> Collection:
        """Ask the ranks whose time has come. Raises NotApplicable where no rank serves a flight recorder."""
        now = self._monotonic()
        known = {
            rank.path.with_suffix(SOCKET_SUFFIX): (run, rank)
            for run in self._conditions.runs.values()
            for rank in run.ranks
        }
        if now - self._listed >= _LISTED_EACH_SECONDS:
            self._listed = now
            self._ranks = self._choose(known)
        if not self._ranks:
            raise NotApplicable("no rank serves a flight recorder")
        conditions = {path: self._condition(path, known) for path in self._ranks}
        doubtful = {
            path for path, (run, rank) in conditions.items() if rank is None or rank.path in run.doubtful()
        }
        due = [path for path in self._ranks if self._is_due(path, *conditions[path], now)]
        ranks = {path: rank for path, (_, rank) in conditions.items()}
        if due:
            self._pull(due, ranks, now)
        return Collection(series=self._series(ranks, doubtful, self._counted(), now))

    def _choose(self, known: _Known) -> dict[Path, RecordedRank]:
        """Return the sockets to ask. Ranks that were killed leave theirs: they give way to the living."""
        self._directories.update()
        found = [
            (path, owner)
            for run in self._directories.runs.values()
            for path, owner in run.boxes.items()
            if path.stem.isdecimal()
        ]
        found.sort(key=lambda socket: socket[0] in known and known[socket[0]][1].ended)
        chosen, _ = share(found, owner=lambda socket: socket[1], most=_MAX_RANKS)
        ranks = {}
        for path, owner in sorted(chosen):
            try:
                if not stat.S_ISSOCK(look(path).st_mode):
                    continue
                run, _ = run_label(path, owner, self._directory)
            except OSError:
                continue  # gone meanwhile
            rank = self._ranks.get(path)
            if rank is None or rank.owner != owner:
                client = FlightRecorderClient(path, owner, timeout_seconds=self._timeout_seconds)
                rank = RecordedRank(client, max_groups=self._max_names, run=run, owner=owner)
            ranks[path] = rank
        return ranks

    def _condition(self, path: Path, known: _Known) -> tuple[RunCondition, RankCondition | None]:
        """Return the state of the run and of the rank, as far as it is known."""
        if path in known:
            return known[path]
        return self._conditions.runs.get(self._ranks[path].run, _UNKNOWN_RUN), None

    def _is_due(self, path: Path, run: RunCondition, rank: RankCondition | None, now: float) -> bool:
        if rank is not None and rank.ended:
            return False
        return now - self._ranks[path].asked >= self._seconds_between(run, now)

    def _seconds_between(self, run: RunCondition, now: float) -> float:
        if run.suspected_since is None:
            return self._pull_seconds
        patience = _SHARE_OF_SUSPICION * (now - run.suspected_since)
        return min(_MOST_OF_PULL * self._pull_seconds, max(self._suspect_seconds, patience))

    def _pull(self, due: list[Path], conditions: dict[Path, RankCondition | None], now: float) -> None:
        began = self._monotonic()
        due.sort(key=lambda path: self._ranks[path].asked)
        in_turns, _ = share(due, owner=lambda path: self._ranks[path].owner, most=len(due))
        clients = {path: self._ranks[path].client for path in in_turns}
        owners = Counter(rank.owner for rank in self._ranks.values())
        for path, answer in ask_all(clients, at_once=_ASKED_AT_ONCE):
            rank = conditions[path]
            self._ranks[path].take(now, answer, () if rank is None else rank.groups)
            self._ranks[path].keep_at_most(_MOST_PENDING // len(owners) // owners[self._ranks[path].owner])
            if self._monotonic() - began > _PULL_SECONDS:
                break
        living = [path for path, rank in conditions.items() if rank is None or not rank.ended]
        for run in {self._ranks[path].run for path in due}:
            groups = [self._ranks[path].groups for path in living if self._ranks[path].run == run]
            self._comparisons.setdefault(run, RunComparison()).compare(groups)

    def _counted(self) -> CountedCollectives:
        """Return by socket what the black box beside it counts, by the last pass of the collector `ranks`."""
        counted = self._conditions.counted
        return {path: counted.get(path.with_suffix(layout.SUFFIX), frozenset()) for path in self._ranks}

    def _series(
        self,
        conditions: Mapping[Path, RankCondition | None],
        doubtful: Set[Path],
        counted: CountedCollectives,
        now: float,
    ) -> list[Series]:
        of_runs: dict[str, set[tuple[str, ...]]] = {}
        for path, by_black_box in counted.items():
            of_runs.setdefault(self._ranks[path].run, set()).update(by_black_box)
        for run in self._comparisons.keys() - of_runs.keys():
            del self._comparisons[run]

        def of_rank(path: Path) -> Iterator[Series]:
            rank, condition = self._ranks[path], conditions[path]
            by_black_box = counted[path]
            ended = condition is not None and condition.ended
            key = (rank.run, path.stem)
            if path in doubtful and not ended:
                yield from rank.places(key, now, by_black_box)
            yield from rank.series(key, by_black_box)

        def of_run(run: str) -> Iterator[Series]:
            transfers = self._comparisons[run].series(run)
            return (each for each in transfers if each.labels[1:4] not in of_runs[run])

        of_owner: dict[int, list[Iterator[Series]]] = {}
        for path in conditions:
            of_owner.setdefault(self._ranks[path].owner, []).append(of_rank(path))
        for run, owner in {rank.run: rank.owner for rank in self._ranks.values()}.items():
            if run in self._comparisons:
                of_owner[owner].append(of_run(run))
        return in_turns(map(chain.from_iterable, of_owner.values()), most=_MAX_SERIES)


class RecordedRank:
    """The recorders of one rank: torch with CUDA has one of NCCL and one of the other backends."""

    def __init__(
        self, client: FlightRecorderClient, *, max_groups: int, run: str = "", owner: int = 0
    ) -> None:
        self.client = client
        self.run = run
        self.owner = owner
        """User id of the socket's owner."""
        self.asked = float("-inf")
        """When it was last asked, monotonic."""
        self._max_groups = max_groups
        self._recorders: dict[str, MergedRecorder] = {}
        self._answered = False
        self._answered_at = 0.0
        self._pulls = {"success": 0, "failure": 0, "capturing": 0}
        self._warned = False

    @property
    def groups(self) -> Sequence[GroupCollectives]:
        """Collectives with a duration, by group."""
        return [group for recorder in self._recorders.values() for group in recorder.groups]

    def take(self, now: float, answer: Replies | FlightRecorderError, known: Sequence[GroupNow]) -> None:
        """Merge one answer; `known` are the groups in the rank's black box. A failure is counted, and a rank
        that was not asked because it captures a graph, which is asked again soon."""
        if isinstance(answer, CapturingRankError):
            self._pulls["capturing"] += 1
            return
        self.asked = now
        try:
            if isinstance(answer, FlightRecorderError):
                raise answer
            for name, body in answer.items():
                dump = self.client.parse(body)
                recorder = self._recorders.get(name)
                if recorder is None:
                    recorder = MergedRecorder(self._max_groups, only_active=name == NCCL2)
                    self._recorders[name] = recorder
                recorder.merge(dump, known)
        except FlightRecorderError as error:
            self._answered = False
            self._pulls["failure"] += 1
            if not self._warned:
                self._warned = True
                _log.warning("%s (logged once for this rank)", error)
            return
        self._answered, self._answered_at = True, now
        self._pulls["success"] += 1

    def keep_at_most(self, most: int) -> None:
        """Keep about the newest `most` collectives, of each group its part, for comparison."""
        kept = sum(len(group.completed) for group in self.groups)
        for group in self.groups if kept > most else ():
            group.drop_oldest(most * len(group.completed) // kept)

    def places(
        self, key: tuple[str, str], now: float, counted: Set[tuple[str, str, str]]
    ) -> Iterator[Series]:
        """Yield where a living rank stands, by its last dump, and for how long it has not answered; `key` is
        (run, rank), `now` monotonic.

        counted: as for `series`. In their groups the black box knows what is incomplete, and at once.
        """
        if self._answered:
            known = {at[:2] for at in counted}
            positions = {
                group: position._replace(oldest=None) if group in known else position
                for group, position in self._positions().items()
            }
            yield from position_series(key, FLIGHT_RECORDER, positions)
        if self._pulls["success"]:
            silent = 0.0 if self._answered else now - self._answered_at
            yield sample("rankwatch_flight_recorder_silent_seconds", key, silent)

    def series(self, key: tuple[str, str], counted: Set[tuple[str, str, str]]) -> Iterator[Series]:
        """Yield everything else about this rank; `key` is (run, rank).

        counted: (group, members, operation) of what the black box counts: left out here.
        """
        recorders = self._recorders.values()
        sampled = {at: totals for recorder in recorders for at, totals in recorder.totals.items()}
        yield from totals_series(key, {at: each for at, each in sampled.items() if at not in counted})
        for outcome, count in self._pulls.items():
            yield sample("rankwatch_flight_recorder_pulls_total", (*key, outcome), count)
        missed = sum(each.missed for each in recorders)
        yield sample("rankwatch_flight_recorder_entries_missed_total", key, missed)

    def _positions(self) -> dict[GroupKey, Position]:
        """Return positions. Of a group that has two backends, the one that is used counts, NCCL first."""
        positions: dict[GroupKey, Position] = {}
        for recorder in self._recorders.values():
            for group, position in recorder.positions.items():
                if position.enqueued or group not in positions:
                    positions[group] = position
        return positions
