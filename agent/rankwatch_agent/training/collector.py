"""Collector `ranks`: steps, phases, loss, checkpoints and lifecycle of every rank, from the black boxes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import ENDED_STATES, BoxFault
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import look
from rankwatch_agent.runtime.collector import Collection, Histogram, Series, sample
from rankwatch_agent.runtime.node_events import NodeEvents, RestartCycles
from rankwatch_agent.runtime.turns import Turns
from rankwatch_agent.runtime.writers import PathReaders
from rankwatch_agent.training.boxes.discovery import Discovery
from rankwatch_agent.training.boxes.follower import RankFollower, run_label
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.collectives.comparison import RunComparison
from rankwatch_agent.training.collectives.totals import MOST_PENDING_OF_RANK
from rankwatch_agent.training.conditions import RankCondition, RunCondition, RunConditions
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers
from rankwatch_agent.training.life.attempts import RunAttempts
from rankwatch_agent.training.life.series import LifeCounters, life_series
from rankwatch_agent.training.notes import STEP, Durations, Exemplars, Notes, RankNotes
from rankwatch_agent.training.series.ranks import RankSeries
from rankwatch_agent.training.series.runs import half_losses, half_writes, run_series, sum_series
from rankwatch_agent.training.series.selection import ComparedFigures, RankSelection, SelectedRanks
from rankwatch_agent.training.steps.recent import (
    RankPlace,
    RecentMeans,
    half_means,
    node_series,
    step_series,
)
from rankwatch_agent.training.tracked_runs import TrackedRuns

_STEPS = metric("rankwatch_step_duration_seconds")
_SAVES = metric("rankwatch_checkpoint_duration_seconds")
MAX_SERIES = 30_000
"""Series from black boxes at one time: 256 ranks of the reference trainer."""
_MAX_WAITING, _MIN_WAITING = 1 << 17, 64
"""Records of each kind that wait for others, over all ranks, and those that each rank may always keep."""


@dataclass
class _Run:
    """What is kept of a run over its ranks here, as long as one of its boxes is followed."""

    steps: Durations = field(default_factory=Durations)
    checkpoints: dict[str, Durations] = field(default_factory=dict)
    """By operation."""
    comparison: RunComparison = field(default_factory=RunComparison)
    outstanding: RankSelection = field(default_factory=RankSelection)

    def observe_checkpoint(self, operation: str, seconds: float) -> None:
        self.checkpoints.setdefault(operation, Durations()).observe(seconds)


@dataclass(eq=False)
class RanksCollector:
    """Follows every black box below a directory."""

    _: KW_ONLY
    directory: Path
    """Holds `<run>/<rank>.blackbox`; it may appear later."""
    interval_seconds: float = 1.0
    """Between two reads; a ring of 16,384 records lasts about 30 s at 20 steps/s."""
    deadline_seconds: float = 10.0
    retention_seconds: float = 3600.0
    """How long ended runs are kept before their files are removed."""
    max_runs: int = 100
    """Runs followed at once."""
    max_names: int = 64
    """Distinct names (scalars, groups, ...) exported per kind and rank."""
    conditions: RunConditions = field(default_factory=RunConditions)
    """Takes the condition of each rank, for other collectors to read."""
    tracked: TrackedRuns = field(default_factory=TrackedRuns)
    """Likewise the runs that use an experiment tracker."""
    notes: Notes | None = None
    """Takes what becomes spans; None where nobody wants traces."""
    exemplars: Exemplars = field(default_factory=Exemplars)
    """The traces that belong to measurements."""
    events: NodeEvents = field(default_factory=NodeEvents)
    """Events of the node that tell of the end of processes."""
    cycles: RestartCycles = field(default_factory=RestartCycles)
    """The restart cycles of their jobs, as a launcher reports them."""
    state_directory: Path | None = None
    """Directory where the counts of attempts and the account of time are kept; None keeps none."""
    plateau_steps: int = 0
    """Over which the loss must improve; 0 looks for no plateau."""
    step_window_seconds: float = 300.0
    """Over which the means of recent steps are taken."""
    max_single_ranks: int = 512
    """Ranks of the largest run of which the means of each rank are exported."""
    gpu_users: Callable[[], Mapping[str, Container[int]]] = dict
    """UUID of a GPU -> the users whose processes are on it. One that it does not name may be that of any
    rank."""
    procfs: Path = Path("/proc")
    """Path where the resident memory of ranks is read; its process ids are those of the agent."""
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """The clocks, in seconds."""

    name = "ranks"

    def __post_init__(self) -> None:
        self._offset = self.wall() - self.monotonic()
        """Unix time less monotonic time, at the last read."""
        self._runs: dict[str, _Run] = {}
        self._paths = PathReaders()
        self.attempts = RunAttempts(
            events=self.events, cycles=self.cycles, procfs=self.procfs, wall=self._wall_of
        )
        """How each attempt of a run began and ended."""
        self._life = LifeCounters(self.state_directory, self.wall())
        self.ledgers = RunLedgers(self.state_directory, self.wall())
        """Account of what the time of each run was spent on."""
        self._discovery = Discovery(
            self.directory,
            self._follow,
            max_runs=self.max_runs,
            retention_seconds=self.retention_seconds,
            monotonic=self.monotonic,
        )

    def collect(self) -> Collection:
        """Read all boxes once."""
        discovery = self._discovery
        discovery.discover()
        moment, wall = self.monotonic(), self.wall()
        self._offset = wall - moment
        self._paths.advance()
        discovery.poll(moment)
        self._paths.advance()
        runs, read = self._read_runs(moment)
        counted = {
            rank.path: frozenset(rank.totals.collectives.totals) for each in runs.values() for rank in each
        }
        conditions = self.conditions.update(read, moment, counted)
        faults = discovery.faults
        self.attempts.update(runs, moment, faults)
        self._life.update(self.attempts.all(), wall, self._offset, faults)
        self.tracked.update(runs, moment, faults)
        followed = {rank.run for rank in discovery.ranks.values()}
        self._runs = {run: each for run, each in self._runs.items() if run in followed}
        self.ledgers.update(runs, moment, wall, faults, followed)
        self._compare_ranks(runs)
        series = self._series(runs, conditions)
        series.append(sample("rankwatch_blackboxes", (), len(discovery.ranks)))
        series.extend(self._life.series())
        series.extend(faults.series())
        return Collection(series=series, histograms=list(self._histograms(runs)))

    def close(self) -> None:
        """End the processes that read files of ranks that failed."""
        self._paths.close()

    def _wall_of(self, moment: float) -> float:
        """Return the Unix time of a monotonic moment."""
        return moment + self._offset

    def _read_runs(
        self, moment: float
    ) -> tuple[dict[str, list[RankFollower]], dict[str, list[RankCondition]]]:
        """Return the ranks of each run whose boxes have been read, with what follows from all boxes, and how
        they are."""
        users = self.gpu_users()
        runs: dict[str, list[RankFollower]] = {}
        conditions: dict[str, list[RankCondition]] = {}
        for rank in self._discovery.read_ranks():
            with self._discovery.faults.contain(rank.path):
                rank.totals.recent.take(rank.totals.steps, moment)
                rank.judge_gpu(users)
                conditions.setdefault(rank.run, []).append(_condition(rank))
                runs.setdefault(rank.run, []).append(rank)
        return runs, conditions

    def _compare_ranks(self, runs: Mapping[str, list[RankFollower]]) -> None:
        """Compare the collectives that the ranks have completed since the last time."""
        room = _room([rank for ranks in runs.values() for rank in ranks])
        for run, ranks in runs.items():
            with self._discovery.faults.contain(ranks[0].path):
                for rank in ranks:
                    rank.totals.steps.keep_at_most(room[rank.owner])
                    rank.totals.collectives.note_completed(min(MOST_PENDING_OF_RANK, room[rank.owner]))
                self._runs[run].comparison.compare(
                    each.totals.collectives.groups for each in ranks if each.totals.collectives.present
                )
                for rank in ranks:
                    if rank.state in ENDED_STATES:
                        rank.totals.collectives.end_process()

    def _series(
        self, runs: Mapping[str, list[RankFollower]], conditions: Mapping[str, RunCondition]
    ) -> list[Series]:
        """Return the series of all runs, as far as their owners' shares go."""
        series: list[Series] = []
        faults, parts = self._discovery.faults, self._parts(runs, conditions)
        turns = Turns(parts, owner=lambda part: part.rank.owner, spent=lambda: len(series), most=MAX_SERIES)
        for part in turns:
            with faults.contain(part.rank.path):
                series.extend(part.series)
        for part in turns.left:
            message = f"{part.rank.path}: already exporting {MAX_SERIES} series of black boxes"
            faults.note(part.rank.path, BoxFault.TOO_MANY_SERIES, message)
        return series

    def _parts(
        self, runs: Mapping[str, list[RankFollower]], conditions: Mapping[str, RunCondition]
    ) -> Iterator[_Part]:
        wall, shown = self._wall_of, self._choose(runs)
        doubtful = {box for each in conditions.values() for box in each.doubtful()}
        make = RankSeries(wall, self.procfs, doubtful, shown)
        for run, ranks in runs.items():
            headers, recent = [each.header for each in ranks], _recent(ranks)
            of_run = [
                run_series(run, ranks, self.tracked.url(run)),
                life_series(run, self.attempts.of(run), headers, wall),
                step_series(run, [rank.totals.recent.step_seconds for rank in ranks]),
                node_series(run, recent),
                sum_series(run, ranks, wall),
            ]
            if run in shown:
                of_run += [half_means(run, recent), half_losses(run, ranks), half_writes(run, ranks)]
            of_run.append(self.ledgers.series(run))
            yield from (_Part(ranks[0], each) for each in of_run)
            yield from (_Part(rank, make.of(rank)) for rank in ranks)
            yield _Part(ranks[0], make.reporting(run))
            yield _Part(ranks[0], self._runs[run].comparison.series(run))

    def _choose(self, runs: Mapping[str, Sequence[RankFollower]]) -> dict[str, SelectedRanks]:
        """Choose, of large runs, the ranks to export one by one."""
        return {
            run: self._runs[run].outstanding.choose(map(_standing, ranks))
            for run, ranks in runs.items()
            if max(each.header.identity.world_size for each in ranks) > self.max_single_ranks
        }

    def _follow(self, path: Path) -> RankFollower:
        run, _ = run_label(path, look(path).st_uid, self.directory)
        kept = self._runs.setdefault(run, _Run())
        totals = RankTotals(
            kept.steps.observe,
            self.max_names,
            None if self.notes is None else RankNotes(self.notes),
            kept.observe_checkpoint,
            self.ledgers.of(run),
            step_window_seconds=self.step_window_seconds,
        )
        totals.learning.watch_plateau(self.plateau_steps)
        rank = RankFollower(
            path,
            totals,
            directory=self.directory,
            before_new_process=self.attempts.before_new_process,
            find=self._paths.find,
        )
        if rank.run != run:
            rank.close()
            raise BlackBoxError(f"{path} was replaced by another user", reason=BoxFault.FOREIGN_OWNER)
        return rank

    def _histograms(self, runs: Container[str]) -> Iterator[Histogram]:
        here = [(run, each) for run, each in self._runs.items() if run in runs]
        for run, kept in here:
            exemplars = self.exemplars.of(run, STEP)
            yield Histogram(_STEPS, (run,), kept.steps.buckets(), kept.steps.sum, exemplars)
        for run, kept in here:
            for name, each in kept.checkpoints.items():
                exemplars = self.exemplars.of(run, name)
                yield Histogram(_SAVES, (run, name), each.buckets(), each.sum, exemplars)


class _Part(NamedTuple):
    """Series of a run, of a rank of the run or of all of them. They are made as they are read."""

    rank: RankFollower
    series: Iterable[Series]


def _recent(ranks: Sequence[RankFollower]) -> dict[RankPlace, RecentMeans]:
    """Return what the ranks of a run take for their steps, of those that complete any."""
    means = {
        (each.run, str(each.header.identity.rank), each.stage): each.totals.recent.means for each in ranks
    }
    return {placed: each for placed, each in means.items() if each is not None}


def _standing(rank: RankFollower) -> ComparedFigures:
    means, loss = rank.totals.recent.means, rank.totals.learning.loss
    return ComparedFigures(
        rank=str(rank.header.identity.rank),
        stage=rank.stage,
        local_seconds=None if means is None else means.local_seconds,
        token_seconds=None if means is None or means.tokens <= 0 else means.local_seconds / means.tokens,
        late_seconds=0.0 if means is None else means.late_long_seconds,
        loss=loss.trend if loss.count else None,
        write_seconds=rank.totals.checkpoints.write_seconds,
    )


def _room(ranks: Sequence[RankFollower]) -> dict[int, int]:
    """Return how many records of each kind may wait for others, for each rank of an owner, so that hundreds
    of boxes do not fill the agent's memory."""
    by_owner = Counter(rank.owner for rank in ranks)
    return {
        owner: max(_MIN_WAITING, _MAX_WAITING // len(by_owner) // count) for owner, count in by_owner.items()
    }


def _condition(rank: RankFollower) -> RankCondition:
    phase = rank.open_phase
    return RankCondition(
        rank=rank.header.identity.rank,
        path=rank.path,
        state=rank.state,
        last_progress=max(rank.totals.last_progress, rank.header.started_monotonic),
        timeout=rank.timeout,
        open_phase=phase,
        pid=rank.header.pid,
        groups=rank.now.groups,
        started=rank.header.started_monotonic,
        owner=rank.owner,
        steps=rank.totals.steps.local_steps,
        local_seconds=rank.totals.steps.local_seconds,
        role=str(rank.header.identity.coordinates.get("pp", "")),
        gpu=rank.gpu,
        short_name=rank.header.identity.short_name,
    )
