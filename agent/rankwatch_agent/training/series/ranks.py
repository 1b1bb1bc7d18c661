"""The series of one rank, from its follower."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS, OUTSTANDING, Kind
from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch_agent.runtime.collector import FigureTable, Series, Wall, sample
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.collectives.totals import BLACK_BOX, position_series, totals_series
from rankwatch_agent.training.series.selection import SelectedRanks
from rankwatch_agent.training.steps.recent import late_series, rank_series, token_series

_REPORTED = {**OF_RUNNING_RANKS, **OF_RANKS_THAT_HAD_THEM}
_EXPLAINED = {"rankwatch_step_local_seconds_total": (Capability.WAITS, Unseen.CUDA_GRAPH)}
"""Metric -> capability and reason by which a rank explains that it has none."""
_RANK = FigureTable(
    {
        "rankwatch_rank_start_timestamp_seconds": "header.started_monotonic",
        "rankwatch_rank_resumes_total": "totals.lifecycle.resumes",
        "rankwatch_rank_failures_total": "totals.lifecycle.failures",
        "rankwatch_steps_total": "totals.steps.steps",
        "rankwatch_step_seconds_total": "totals.steps.seconds",
        "rankwatch_step_message_seconds_total": "totals.steps.message_seconds",
        "rankwatch_step_phase_seconds_total": "totals.steps.phase_seconds",
        "rankwatch_outside_step_seconds_total": "totals.steps.section_seconds",
        "rankwatch_work_total": "totals.steps.work_done.by_unit",
        "rankwatch_late_steps_total": "totals.steps.variation.late_steps",
        "rankwatch_late_step_seconds_total": "totals.steps.variation.late_seconds",
        "rankwatch_step_variation_total": "totals.steps.variation.terms",
        "rankwatch_scalar": "totals.scalars",
        "rankwatch_scalar_nonfinite_total": "totals.nonfinite",
        "rankwatch_scalar_last_nonfinite_timestamp_seconds": "totals.last_nonfinite",
        "rankwatch_blackbox_records_total": "totals.records",
        "rankwatch_blackbox_names_dropped_total": "totals.names.dropped",
        "rankwatch_blackbox_records_missed_total": "missed",
        "rankwatch_instrumentation_errors": "now.errors",
    }
)
_GPU_MEMORY = FigureTable(
    {
        "rankwatch_rank_gpu_memory_allocated_bytes": "allocated",
        "rankwatch_rank_gpu_memory_reserved_bytes": "reserved",
        "rankwatch_rank_gpu_memory_peak_bytes": "peak",
        "rankwatch_rank_gpu_memory_retries_total": "retries",
        "rankwatch_rank_gpu_memory_failures_total": "out_of_memory",
    }
)
"""Figures of torch's allocator."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT_FIELD = 1


def resident_bytes(procfs: Path, pid: int) -> int | None:
    """Return the resident memory of a process; None where it is gone or hidden."""
    try:
        return int((procfs / str(pid) / "statm").read_bytes().split()[_RESIDENT_FIELD]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


class RankSeries:
    """Makes the series of a rank; `wall` turns monotonic time into Unix time.

    procfs: the agent's own, whose process ids are those of the kernel's lock holders.
    doubtful: boxes of ranks of which it matters where they stand.
    shown: of large runs, the ranks whose means are exported; of all other runs, every rank's are.
    """

    def __init__(
        self, wall: Wall, procfs: Path, doubtful: Container[Path], shown: Mapping[str, SelectedRanks]
    ) -> None:
        self._doubtful = doubtful
        self._shown = shown
        self._reporting: dict[str, Counter[str]] = {}
        """By run: how many of its living ranks have each metric that alerts depend on."""
        self._wall = wall
        self._procfs = procfs

    def of(self, rank: RankFollower) -> Iterator[Series]:
        """Yield everything exported about this rank."""
        key, living = (rank.run, str(rank.header.identity.rank)), rank.state not in ENDED_STATES
        found = [*_RANK.series(key, rank, self._wall), *self._state(rank, key, living=living)]
        found.extend(_steps_and_scalars(rank, key))
        found.extend(rank.totals.learning.series(key, self._wall))
        found.extend(self._compared(rank, key))
        found.extend(self._collectives(rank, key))
        found.extend(rank.totals.checkpoints.series(key, self._wall))
        if living:  # the next attempt reaches the same steps with other parameters
            found.extend(rank.totals.fingerprints.series(key))
        found.extend(self._memory(rank, key))
        if living:  # an ended rank must not make up for a running one that lacks them
            self._count(rank, found)
        if (
            rank.run in self._shown
        ):  # counters of what never happened are a third of the series of a large run
            found = [each for each in found if each.value or each.metric.kind is not Kind.COUNTER]
        yield from found

    def reporting(self, run: str) -> Iterator[Series]:
        """Yield how many living ranks of a run, of those made so far, have what alerts depend on."""
        found = self._reporting.get(run, Counter[str]())
        for name, count in {**dict.fromkeys(_REPORTED, 0), **found}.items():
            yield sample("rankwatch_node_ranks_reporting", (run, name), count)

    def _count(self, rank: RankFollower, series: Collection[Series]) -> None:
        """Count names that are exported, not those that should be, and those whose lack the rank explains."""
        names = {
            each.metric.name
            for each in series
            if (wanted := _REPORTED.get(each.metric.name)) is not None
            and (not wanted or wanted in each.labels)
        }
        said = rank.now.capabilities.items()
        names.update(name for name, reason in _EXPLAINED.items() if reason in said)
        self._reporting.setdefault(rank.run, Counter()).update(names)

    def _state(self, rank: RankFollower, key: tuple[str, str], *, living: bool) -> Iterator[Series]:
        """Yield who it is, how it is, and what it does now."""
        header, identity = rank.header, rank.header.identity
        place = (str(identity.local_rank), str(identity.world_size), rank.stage, rank.replica)
        yield sample("rankwatch_rank_info", (*key, *place, identity.host, str(header.pid)), 1)
        yield sample("rankwatch_rank_state", (*key, rank.state), 1)
        if target := rank.now.target_steps or header.target_steps:
            yield sample("rankwatch_target_steps", key, target)
        phase = rank.open_phase
        last_sign = self._wall(
            max(rank.totals.last_record, rank.now.step_began, phase[1] if phase is not None else 0.0)
        )
        yield sample("rankwatch_rank_heartbeat_timestamp_seconds", key, last_sign)
        progress = rank.totals.last_progress or header.started_monotonic
        yield sample("rankwatch_progress_timestamp_seconds", key, self._wall(progress))
        if not living:
            yield sample("rankwatch_rank_end_timestamp_seconds", key, last_sign)
            return
        if phase is not None:
            began = self._wall(phase[1])
            yield sample("rankwatch_rank_phase_start_timestamp_seconds", (*key, phase[0]), began)
        if rank.timeout is not None:
            yield sample("rankwatch_progress_timeout_seconds", key, rank.timeout)
        if rank.gpu:  # which another run may use once the rank has ended
            started = self._wall(header.started_monotonic)
            yield sample("rankwatch_rank_gpu_info", (*key, rank.gpu), 1)
            yield sample("rankwatch_rank_gpu_start_timestamp_seconds", (*key, rank.gpu), started)

    def _compared(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        """Yield what ranks are compared by: of large runs, where this one may stand out in it."""
        totals, run = rank.totals, self._shown.get(rank.run)
        label = "" if run is None else OUTSTANDING
        means, placed = totals.recent.means, (*key, rank.stage)
        if (run is None or key[1] in run.loss) and totals.learning.loss.count:
            yield sample("rankwatch_loss_trend", (*key, label), totals.learning.loss.trend)
        written = totals.checkpoints.write_seconds
        if (run is None or key[1] in run.writes) and written is not None:
            yield sample("rankwatch_checkpoint_last_write_seconds", key, written)
        if means is None:
            return
        if run is None or key[1] in run.work:
            yield from rank_series(placed, label, rank.replica, means)
        if run is None or key[1] in run.work | run.loss:  # a loss counts per token, too
            yield from token_series(placed, label, means)
        if run is None or key[1] in run.work | run.lateness:
            yield from late_series(placed, label, means)

    def _collectives(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        totals = rank.totals.collectives
        yield from totals_series(key, totals.totals)
        if rank.state in ENDED_STATES and rank.state is not RankState.LOST:
            return  # it ended in an orderly way; of a lost one it matters where it stood
        if rank.path in self._doubtful:
            yield from position_series(key, BLACK_BOX, totals.positions(rank.now.groups, self._wall))

    def _memory(self, rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
        resident = None if rank.pid is None else resident_bytes(self._procfs, rank.pid)
        if resident is not None:
            yield sample("rankwatch_rank_resident_memory_bytes", key, resident)
        if rank.now.allocator is not None:
            yield from _GPU_MEMORY.series(key, rank.now.allocator)


def _steps_and_scalars(rank: RankFollower, key: tuple[str, str]) -> Iterator[Series]:
    """Yield those that a rank may lack."""
    steps = rank.totals.steps
    if steps.last_step >= 0:
        yield sample("rankwatch_step", key, steps.last_step)
    if steps.local_known:
        yield sample("rankwatch_step_local_seconds_total", key, steps.local_seconds)
    for name, value in rank.totals.scalars.items():
        if value - value:  # NaN for NaN and for infinity, which not every store keeps
            yield sample("rankwatch_scalar_value_nonfinite", (*key, name), 1)
    if dropped := rank.now.device_marks_dropped:
        yield sample("rankwatch_instrumentation_device_events_dropped", key, dropped)
