"""The series of one rank, from its follower."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from pathlib import Path

from rankwatch.blackbox.records import AllocatorNow
from rankwatch.conventions import Capability, Unseen
from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS, OUTSTANDING, Kind, metric
from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.training.collectives.totals import (
    BLACK_BOX,
    position_series,
    totals_series,
)
from rankwatch_agent.training.follower import RankFollower
from rankwatch_agent.training.outstanding import Shown
from rankwatch_agent.training.recent import late_series, rank_series, token_series
from rankwatch_agent.training.totals import RankTotals

_REPORTED = {**OF_RUNNING_RANKS, **OF_RANKS_THAT_HAD_THEM}
_EXPLAINED = {"rankwatch_step_local_seconds_total": (Capability.WAITS, Unseen.CUDA_GRAPH)}
"""Metric -> capability and reason by which a rank explains that it has none."""


def run_series(run: str, ranks: Collection[RankFollower], tracker_url: str = "") -> Iterator[Series]:
    """What the run declares of itself. The rank that started last speaks for it: it may be a new attempt."""
    yield from capability_series(run, (each.now.capabilities for each in ranks))
    latest = max(ranks, key=lambda each: each.header.started_monotonic)
    header = latest.header
    declared = (header.identity.short_name, header.run_class, str(latest.owner), header.contact, tracker_url)
    yield sample("rankwatch_run_info", (run, *declared), 1)
    yield sample("rankwatch_run_attempt", (run,), header.identity.attempt)
    yield sample("rankwatch_run_world_size", (run,), header.identity.world_size)
    overlapped = max(each.totals.checkpoints.overlapped for each in ranks)
    yield sample("rankwatch_checkpoint_saves_overlapped_total", (run,), overlapped)
    if header.checkpoint_interval_seconds is not None:
        yield sample("rankwatch_run_checkpoint_interval_seconds", (run,), header.checkpoint_interval_seconds)


class RankSeries:
    """Makes the series of a rank; `wall` turns monotonic time into Unix time.

    procfs: the agent's own, whose process ids are those of the kernel's lock holders.
    doubtful: boxes of ranks of which it matters where they stand.
    shown: of large runs, the ranks whose means are exported; of all other runs, every rank's are.
    """

    def __init__(
        self,
        wall: Callable[[float], float],
        procfs: Path,
        doubtful: Container[Path],
        shown: Mapping[str, Shown],
    ) -> None:
        self._doubtful = doubtful
        self._shown = shown
        self._reporting: dict[str, Counter[str]] = {}
        """By run: how many of its living ranks have each metric that alerts depend on."""
        self._wall = wall
        self._procfs = procfs

    def of(self, rank: RankFollower) -> list[Series]:
        """Everything exported about this rank."""
        identity = rank.header.identity
        key = (rank.run, str(identity.rank))
        found = [*self._identity(rank, key), *self._lifecycle(rank, key)]
        totals = rank.totals
        for part in (_steps, _scalars, _telemetry):
            found.extend(part(totals, key))
        found.extend(self._events(totals, key))
        found.extend(self._compared(rank, key))
        found.extend(self._collectives(rank, key))
        found.extend(totals.checkpoints.series(key, self._wall))
        if rank.state not in ENDED_STATES:  # the next attempt reaches the same steps with other parameters
            found.extend(totals.fingerprints.series(key))
        found.append(sample("rankwatch_blackbox_records_missed_total", key, rank.missed))
        pid = rank.pid
        resident = None if pid is None else resident_bytes(self._procfs, pid)
        found.extend(memory_series(key, resident, rank.now.allocator))
        found.append(sample("rankwatch_instrumentation_errors", key, rank.now.errors))
        if dropped := rank.now.device_marks_dropped:
            found.append(sample("rankwatch_instrumentation_device_events_dropped", key, dropped))
        self._count(rank, found)
        return [each for each in found if not _is_idle(each)] if rank.run in self._shown else found

    def _compared(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        """What ranks are compared by: of large runs, where this one may stand out in it."""
        totals, run = rank.totals, self._shown.get(rank.run)
        label = "" if run is None else OUTSTANDING
        means, placed = totals.recent.means, (*key, rank.stage)
        if run is None or key[1] in run.loss:
            yield from totals.learning.trend_series((*key, label))
        if run is None or key[1] in run.writes:
            yield from totals.checkpoints.write_series(key)
        if means is None:
            return
        if run is None or key[1] in run.work:
            yield from rank_series(placed, label, rank.replica, means)
        if run is None or key[1] in run.work | run.loss:  # a loss counts per token, too
            yield from token_series(placed, label, means)
        if run is None or key[1] in run.work | run.lateness:
            yield from late_series(placed, label, means)

    def reporting(self, run: str) -> Iterator[Series]:
        """How many living ranks of a run, of those made so far, have what alerts depend on."""
        found = self._reporting.get(run, Counter[str]())
        for name, count in {**dict.fromkeys(_REPORTED, 0), **found}.items():
            yield sample("rankwatch_node_ranks_reporting", (run, name), count)

    def _count(self, rank: RankFollower, series: Collection[Series]) -> None:
        """Count names that are exported, not those that should be, and those whose lack the rank explains.

        An ended rank must not make up for a running one that lacks them.
        """
        if rank.state in ENDED_STATES:
            return
        names = {
            each.metric.name
            for each in series
            if (wanted := _REPORTED.get(each.metric.name)) is not None
            and (not wanted or wanted in each.labels)
        }
        said = rank.now.capabilities.items()
        names.update(name for name, reason in _EXPLAINED.items() if reason in said)
        self._reporting.setdefault(rank.run, Counter()).update(names)

    def _identity(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        header = rank.header
        identity = header.identity
        labels = (
            *key,
            str(identity.local_rank),
            str(identity.world_size),
            rank.stage,
            rank.replica,
            identity.host,
            str(header.pid),
        )
        yield sample("rankwatch_rank_info", labels, 1)
        started = self._wall(header.started_monotonic)
        if rank.gpu and rank.state not in ENDED_STATES:  # another run may use the GPU by now
            yield sample("rankwatch_rank_gpu_info", (*key, rank.gpu), 1)
            yield sample("rankwatch_rank_gpu_start_timestamp_seconds", (*key, rank.gpu), started)
        yield sample("rankwatch_rank_state", (*key, rank.state), 1)
        yield sample("rankwatch_rank_start_timestamp_seconds", key, started)
        yield sample("rankwatch_rank_starts_total", key, rank.starts)
        if target := rank.now.target_steps or header.target_steps:
            yield sample("rankwatch_target_steps", key, target)

    def _lifecycle(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        totals = rank.totals
        life = totals.lifecycle
        yield sample("rankwatch_rank_resumes_total", key, life.resumes)
        yield sample("rankwatch_rank_preemptions_total", key, life.preemptions)
        for failure, count in life.failures.items():
            yield sample("rankwatch_rank_failures_total", (*key, failure.exception, failure.kind), count)
        last_sign = max(
            totals.last_record, rank.now.step_began, rank.open_phase[1] if rank.open_phase else 0.0
        )
        yield sample("rankwatch_rank_heartbeat_timestamp_seconds", key, self._wall(last_sign))
        if rank.state in ENDED_STATES:
            yield sample("rankwatch_rank_end_timestamp_seconds", key, self._wall(last_sign))
        progress = totals.last_progress or rank.header.started_monotonic
        yield sample("rankwatch_progress_timestamp_seconds", key, self._wall(progress))
        if rank.state in ENDED_STATES:
            return
        phase = rank.open_phase
        if phase is not None:
            yield sample(
                "rankwatch_rank_phase_start_timestamp_seconds", (*key, phase[0]), self._wall(phase[1])
            )
        if rank.timeout is not None:
            yield sample("rankwatch_progress_timeout_seconds", key, rank.timeout)

    def _events(self, totals: RankTotals, key: tuple[str, str]) -> Iterator[Series]:
        """When something rare was last seen: rules read these of the few ranks that have any."""
        for name, at in totals.last_nonfinite.items():
            metric_name = "rankwatch_scalar_last_nonfinite_timestamp_seconds"
            yield sample(metric_name, (*key, name), self._wall(at))
        for name, norm in totals.learning.norms.items():
            if norm.exploded_at is not None:
                metric_name = "rankwatch_norm_last_explosion_timestamp_seconds"
                yield sample(metric_name, (*key, name), self._wall(norm.exploded_at))

    def _collectives(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        totals = rank.totals.collectives
        yield from totals_series(key, totals.totals)
        if rank.state in ENDED_STATES and rank.state is not RankState.LOST:
            return  # it ended in an orderly way; of a lost one it matters where it stood
        if rank.path in self._doubtful:
            yield from position_series(key, BLACK_BOX, totals.positions(rank.now.groups, self._wall))


def _is_idle(series: Series) -> bool:
    """True for a counter of what has not happened: of 16,384 ranks, a third of the series would be these."""
    return series.metric.kind is Kind.COUNTER and series.value == 0


def _steps(totals: RankTotals, key: tuple[str, str]) -> Iterator[Series]:
    steps = totals.steps
    if steps.last_step >= 0:
        yield sample("rankwatch_step", key, steps.last_step)
    yield sample("rankwatch_steps_total", key, steps.steps)
    yield sample("rankwatch_step_seconds_total", key, steps.seconds)
    if steps.local_known:
        yield sample("rankwatch_step_local_seconds_total", key, steps.local_seconds)
    yield sample("rankwatch_step_message_seconds_total", key, steps.message_seconds)
    yield from _by("rankwatch_step_phase_seconds_total", key, steps.phase_seconds)
    yield from _by("rankwatch_outside_step_seconds_total", key, steps.section_seconds)
    yield from _by("rankwatch_work_total", key, totals.steps.work_done.by_unit)
    variation = steps.variation
    yield sample("rankwatch_late_steps_total", key, variation.late_steps)
    yield sample("rankwatch_late_step_seconds_total", key, variation.late_seconds)
    yield sample("rankwatch_step_microbatches_total", key, variation.microbatches)
    yield from _by("rankwatch_step_variation_total", key, variation.terms)


def _scalars(totals: RankTotals, key: tuple[str, str]) -> Iterator[Series]:
    yield from _by("rankwatch_scalar", key, totals.scalars)
    # Not every store keeps NaN.
    nonfinite = {name: 1 for name, value in totals.scalars.items() if value - value}
    yield from _by("rankwatch_scalar_value_nonfinite", key, nonfinite)
    yield from _by("rankwatch_scalar_nonfinite_total", key, totals.nonfinite)
    yield from totals.learning.series(key)


def _telemetry(totals: RankTotals, key: tuple[str, str]) -> Iterator[Series]:
    yield sample("rankwatch_blackbox_records_total", key, totals.records)
    yield sample("rankwatch_blackbox_names_dropped_total", key, totals.names.dropped)


def _by(name: str, key: tuple[str, str], values: dict[str, float] | dict[str, int]) -> Iterator[Series]:
    declared = metric(name)
    for label, value in values.items():
        yield Series(declared, (*key, label), value)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT_FIELD = 1


def resident_bytes(procfs: Path, pid: int) -> int | None:
    """Resident memory of a process; None where it is gone or hidden."""
    try:
        return int((procfs / str(pid) / "statm").read_bytes().split()[_RESIDENT_FIELD]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def memory_series(
    key: tuple[str, str], resident: int | None, allocator: AllocatorNow | None
) -> Iterator[Series]:
    """The series of one rank; none of what is not known."""
    if resident is not None:
        yield sample("rankwatch_rank_resident_memory_bytes", key, resident)
    if allocator is None:
        return
    for name, value in (
        ("rankwatch_rank_gpu_memory_allocated_bytes", allocator.allocated),
        ("rankwatch_rank_gpu_memory_reserved_bytes", allocator.reserved),
        ("rankwatch_rank_gpu_memory_peak_bytes", allocator.peak),
        ("rankwatch_rank_gpu_memory_retries_total", allocator.retries),
        ("rankwatch_rank_gpu_memory_failures_total", allocator.out_of_memory),
    ):
        yield sample(name, key, value)


def of_run(
    ranks: Iterable[Mapping[Capability, Unseen | None]],
) -> dict[Capability, Unseen | None]:
    """Capability -> why ranks do not see it, by most of those that do not; None where every rank sees it.

    Left out is what no rank knows yet.
    """
    listed = list(ranks)
    found: dict[Capability, Unseen | None] = {}
    for capability in Capability:
        states = [each[capability] for each in listed if capability in each]
        reasons = Counter(why for why in states if why is not None)
        if states:
            found[capability] = reasons.most_common(1)[0][0] if reasons else None
    return found


def capability_series(run: str, ranks: Iterable[Mapping[Capability, Unseen | None]]) -> Iterator[Series]:
    """One series for each capability that is known; none for a run of explicit hooks."""
    declared = metric("rankwatch_run_capability_visible")
    for capability, why in of_run(ranks).items():
        yield Series(declared, (run, capability, why or ""), 1 if why is None else 0)
