"""Collector `ranks`: steps, phases, loss, checkpoints and lifecycle of every rank, from the black boxes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import ENDED_STATES, BoxFault
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import look
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.runtime.node_events import NodeEvents, RestartCycles
from rankwatch_agent.runtime.turns import take_turns
from rankwatch_agent.runtime.writers import PathReaders
from rankwatch_agent.training.collectives.rendezvous import RunRendezvous
from rankwatch_agent.training.collectives.totals import MOST_PENDING_OF_RANK
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from rankwatch_agent.training.discovery import Discovery
from rankwatch_agent.training.follower import RankFollower, run_label
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers
from rankwatch_agent.training.life.attempts import RunAttempts
from rankwatch_agent.training.life.counters import LifeCounters, life_series
from rankwatch_agent.training.node_sums import half_losses, half_writes, sum_series
from rankwatch_agent.training.outstanding import OutstandingRanks, Shown, Standing
from rankwatch_agent.training.recent import Placed, RecentMeans, half_series, node_series, step_series
from rankwatch_agent.training.series import RankSeries, run_series
from rankwatch_agent.training.spans.records import STEP, Durations, Exemplars, Notes, RankNotes
from rankwatch_agent.training.totals import RankTotals
from rankwatch_agent.training.tracked_runs import TrackedRuns

_STEPS = metric("rankwatch_step_duration_seconds")
_SAVES = metric("rankwatch_checkpoint_duration_seconds")
MAX_SERIES = 30_000
"""Series from black boxes at one time: 256 ranks of the reference trainer."""
_MAX_WAITING, _MIN_WAITING = 1 << 17, 64
"""Records of each kind that wait for others, over all ranks, and those that each rank may always keep."""


class RanksCollector:
    """Follows every black box below a directory.

    directory: holds `<run>/<rank>.blackbox`; it may appear later.
    interval_seconds: between two reads; a ring of 16,384 records lasts about 30 s at 20 steps/s.
    retention_seconds: how long ended runs are kept before their files are removed.
    max_runs: runs followed at once.
    max_names: distinct names (scalars, groups, ...) exported per kind and rank.
    conditions: takes the condition of each rank, for other collectors to read.
    tracked: likewise the runs that use an experiment tracker.
    notes: takes what becomes spans; None where nobody wants traces.
    exemplars: the traces that belong to measurements.
    events: what the node knows of the end of processes.
    cycles: the restart cycles of their jobs, as a launcher reports them.
    state_directory: where the counts of attempts are kept; None keeps none.
    ledgers: keeps account of the time of all runs.
    plateau_steps: over which the loss must improve; 0 looks for no plateau.
    step_window_seconds: over which the means of recent steps are taken.
    max_single_ranks: ranks of the largest run of which the means of each rank are exported.
    gpu_users: UUID of a GPU -> the users whose processes are on it. One that it does not name may be that of
        any rank.
    procfs: where the resident memory of ranks is read; its process ids are those of the agent.
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
        tracked: TrackedRuns | None = None,
        notes: Notes | None = None,
        exemplars: Exemplars | None = None,
        events: NodeEvents | None = None,
        cycles: RestartCycles | None = None,
        state_directory: Path | None = None,
        ledgers: RunLedgers | None = None,
        plateau_steps: int = 0,
        step_window_seconds: float = 300.0,
        max_single_ranks: int = 512,
        gpu_users: Callable[[], Mapping[str, Container[int]]] = dict,
        procfs: Path = Path("/proc"),
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._max_names = max_names
        self._plateau_steps = plateau_steps
        self._step_window = step_window_seconds
        self._max_single_ranks = max_single_ranks
        self._outstanding: dict[str, OutstandingRanks] = {}
        """Of large runs."""
        self._gpu_users = gpu_users
        self._procfs = procfs
        self._monotonic = monotonic
        self._wall = wall
        self._durations: dict[str, Durations] = {}
        self._checkpoints: dict[str, dict[str, Durations]] = {}
        """Run -> operation -> its durations."""
        self._rendezvous: dict[str, RunRendezvous] = {}
        self._conditions = conditions or RunConditions()
        self._notes = notes
        self._tracked = tracked or TrackedRuns()
        self._directory = directory
        self._paths = PathReaders()
        self._exemplars = exemplars or Exemplars()
        self.attempts = RunAttempts(
            events=events or NodeEvents(),
            cycles=cycles or RestartCycles(),
            procfs=procfs,
            wall=self._wall_of,
        )
        """How each attempt of a run began and ended."""
        self._life = LifeCounters(state_directory, wall())
        self.ledgers = ledgers or RunLedgers(None, wall())
        """What the time of each run was spent on."""
        self._discovery = Discovery(
            directory,
            self._follow,
            max_runs=max_runs,
            retention_seconds=retention_seconds,
            monotonic=monotonic,
        )

    def collect(self) -> Collection:
        """Read all boxes once."""
        discovery = self._discovery
        discovery.discover()
        moment = self._monotonic()
        self._paths.advance()
        discovery.poll(moment)
        self._paths.advance()
        runs: dict[str, list[RankFollower]] = {}
        for rank in discovery.read_ranks():
            runs.setdefault(rank.run, []).append(rank)
            rank.totals.recent.take(rank.totals.steps, moment)
        users = self._gpu_users()
        for rank in discovery.read_ranks():
            rank.judge_gpu(users)
        self._conditions.update({run: map(_condition, ranks) for run, ranks in runs.items()}, moment)
        self.attempts.update((rank for ranks in runs.values() for rank in ranks), moment)
        self._life.update(self.attempts.all(), self._wall(), self._wall_of(0.0))
        self._tracked.update((rank for ranks in runs.values() for rank in ranks), moment)
        followed = {rank.run for rank in discovery.ranks.values()}
        self.ledgers.update(runs, moment, self._wall(), followed)
        self._compare_ranks(runs)
        series = self._series(runs)
        series.append(Series(metric("rankwatch_blackboxes"), (), len(discovery.ranks)))
        series.extend(self._life.series())
        faults = metric("rankwatch_blackbox_faults_total")
        series.extend(
            Series(faults, (reason,), count) for reason, count in discovery.faults.by_reason.items()
        )
        last = metric("rankwatch_blackbox_last_fault_timestamp_seconds")
        series.extend(Series(last, (reason,), moment) for reason, moment in discovery.faults.last.items())
        return Collection(series=series, histograms=self._histograms(runs))

    def close(self) -> None:
        """End the processes that read files of ranks that failed."""
        self._paths.close()

    def _wall_of(self, moment: float) -> float:
        """Unix time of a monotonic moment."""
        return moment + self._wall() - self._monotonic()

    def _compare_ranks(self, runs: Mapping[str, list[RankFollower]]) -> None:
        """Compare the collectives that the ranks have completed since the last time."""
        room = _room([rank for ranks in runs.values() for rank in ranks])
        for run, ranks in runs.items():
            for rank in ranks:
                rank.totals.steps.keep_at_most(room[rank.owner])
                rank.totals.collectives.note_completed(min(MOST_PENDING_OF_RANK, room[rank.owner]))
            self._rendezvous.setdefault(run, RunRendezvous()).compare(
                each.totals.collectives.groups for each in ranks if each.totals.collectives.present
            )
            for rank in ranks:
                if rank.state in ENDED_STATES:
                    rank.totals.collectives.end_process()

    def _series(self, runs: Mapping[str, list[RankFollower]]) -> list[Series]:
        """The series of all runs, as far as their owners' shares go."""
        doubtful = {box for each in self._conditions.runs.values() for box in each.doubtful()}
        shown = self._choose(runs)
        make = RankSeries(self._wall_of, self._procfs, doubtful, shown)
        series: list[Series] = []

        def add(part: _Part) -> float:
            before = len(series)
            try:
                series.extend(part.make())
            except (ArithmeticError, LookupError, ValueError) as error:  # of figures that no trainer has
                path = part.rank.path
                message = f"could not use the figures of {path}: {error}"
                self._discovery.faults.note(path, BoxFault.GARBAGE, message)
            return len(series) - before

        parts: list[_Part] = []
        for run, ranks in runs.items():
            first = ranks[0]
            parts.append(_Part(first, partial(run_series, run, ranks, self._tracked.url(run))))
            parts.append(_Part(first, partial(self._life_series, run, ranks)))
            steps = [rank.totals.recent.step_seconds for rank in ranks]
            parts.append(_Part(first, partial(step_series, run, steps)))
            parts.append(_Part(first, partial(node_series, run, _recent(ranks))))
            parts.append(_Part(first, partial(sum_series, run, ranks, self._wall_of)))
            if run in shown:
                parts.append(_Part(first, partial(half_series, run, _recent(ranks))))
                parts.append(_Part(first, partial(half_losses, run, ranks)))
                parts.append(_Part(first, partial(half_writes, run, ranks)))
            parts.append(_Part(first, partial(self.ledgers.series, run)))
            parts.extend(_Part(rank, partial(make.of, rank)) for rank in ranks)
            parts.append(_Part(first, partial(make.reporting, run)))
            parts.append(_Part(first, partial(self._rendezvous[run].series, run)))
        for part in take_turns(parts, owner=lambda part: part.rank.owner, use=add, most=MAX_SERIES):
            message = f"{part.rank.path}: already exporting {MAX_SERIES} series of black boxes"
            self._discovery.faults.note(part.rank.path, BoxFault.TOO_MANY_SERIES, message)
        return series

    def _choose(self, runs: Mapping[str, Sequence[RankFollower]]) -> dict[str, Shown]:
        """Of large runs, the ranks to export one by one."""
        large = {
            run: ranks
            for run, ranks in runs.items()
            if max(each.header.identity.world_size for each in ranks) > self._max_single_ranks
        }
        self._outstanding = {run: self._outstanding.get(run, OutstandingRanks()) for run in large}
        return {run: self._outstanding[run].choose(map(_standing, ranks)) for run, ranks in large.items()}

    def _life_series(self, run: str, ranks: Sequence[RankFollower]) -> Iterable[Series]:
        headers = [each.header for each in ranks]
        return life_series(run, self.attempts.of(run), headers, self._wall_of)

    def _follow(self, path: Path) -> RankFollower:
        run, _ = run_label(path, look(path).st_uid, self._directory)
        durations = self._durations.setdefault(run, Durations())
        notes = None if self._notes is None else RankNotes(self._notes)
        checkpoints = partial(self._observe_checkpoint, run)
        totals = RankTotals(
            durations.observe,
            self._max_names,
            notes,
            checkpoints,
            self.ledgers.of(run),
            step_window_seconds=self._step_window,
        )
        totals.learning.watch_plateau(self._plateau_steps)
        rank = RankFollower(
            path,
            totals,
            directory=self._directory,
            before_new_process=self.attempts.before_new_process,
            find=self._paths.find,
        )
        if rank.run != run:
            rank.close()
            raise BlackBoxError(f"{path} was replaced by another user", reason=BoxFault.FOREIGN_OWNER)
        return rank

    def _observe_checkpoint(self, run: str, operation: str, seconds: float) -> None:
        self._checkpoints.setdefault(run, {}).setdefault(operation, Durations()).observe(seconds)

    def _histograms(self, runs: Container[str]) -> list[Histogram]:
        followed = {rank.run for rank in self._discovery.ranks.values()}
        for run in self._durations.keys() - followed:
            del self._durations[run]
            self._checkpoints.pop(run, None)
        for run in self._rendezvous.keys() - followed:
            del self._rendezvous[run]
        found = [
            Histogram(_STEPS, (run,), each.buckets(), each.sum, self._exemplars.of(run, STEP))
            for run, each in self._durations.items()
            if run in runs
        ]
        for run, operations in self._checkpoints.items():
            found += [
                Histogram(_SAVES, (run, name), each.buckets(), each.sum, self._exemplars.of(run, name))
                for name, each in operations.items()
                if run in runs
            ]
        return found


class _Part(NamedTuple):
    """Series of a run, of a rank of the run or of all of them."""

    rank: RankFollower
    make: Callable[[], Iterable[Series]]


def _recent(ranks: Sequence[RankFollower]) -> dict[Placed, RecentMeans]:
    """What the ranks of a run take for their steps, of those that complete any."""
    means = {
        (each.run, str(each.header.identity.rank), each.stage): each.totals.recent.means for each in ranks
    }
    return {placed: each for placed, each in means.items() if each is not None}


def _standing(rank: RankFollower) -> Standing:
    means, loss = rank.totals.recent.means, rank.totals.learning.loss
    return Standing(
        rank=str(rank.header.identity.rank),
        stage=rank.stage,
        local_seconds=None if means is None else means.local_seconds,
        token_seconds=None if means is None or means.tokens <= 0 else means.local_seconds / means.tokens,
        late_seconds=0.0 if means is None else means.late_long_seconds,
        loss=loss.trend if loss.count else None,
        write_seconds=rank.totals.checkpoints.write_seconds,
    )


def _room(ranks: Sequence[RankFollower]) -> dict[int, int]:
    """How many records of each kind may wait for others, for each rank of an owner, so that hundreds of boxes
    do not fill the agent's memory."""
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
        counted=frozenset(rank.totals.collectives.totals),
        started=rank.header.started_monotonic,
        owner=rank.owner,
        steps=rank.totals.steps.local_steps,
        local_seconds=rank.totals.steps.local_seconds,
        role=str(rank.header.identity.coordinates.get("pp", "")),
        gpu=rank.gpu,
        short_name=rank.header.identity.short_name,
    )
