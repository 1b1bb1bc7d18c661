"""A job that hangs: one snapshot for each rank that can still write one, and the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.hangs.execution import Calls, Execution, Track, calls_of
from rankwatch_diagnosis.simulation.hangs.fault import DESYNC, Groups, HangFault, HangKind, Naming
from rankwatch_diagnosis.simulation.hangs.snapshots import VERSIONS, Recorder, Snapshots
from rankwatch_diagnosis.simulation.program import plan
from rankwatch_diagnosis.simulation.shape import JobShape

MOST_CALLS = 5_000_000
"""Of all ranks together: some gigabytes of dumps."""


@dataclass(frozen=True, kw_only=True)
class HangJob:
    """Everything that determines the dumps of a job."""

    shape: JobShape = field(default_factory=JobShape)
    fault: HangFault = field(default_factory=HangFault)
    recorder: Recorder = field(default_factory=Recorder)
    naming: Naming = Naming.MEGATRON
    steps: int = 6
    seed: int = 0

    def check(self) -> None:
        """Raises UserError where the parts do not fit, or the job is too large."""
        if self.steps < 1:
            raise UserError(f"steps is {self.steps}, expected at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}, expected at least 0")
        if self.recorder.version not in VERSIONS:
            raise UserError(f"version is {self.recorder.version}, expected one of {', '.join(VERSIONS)}")
        if self.recorder.entries < 1 or self.recorder.run_ahead < 0:
            raise UserError("a recorder holds at least 1 entry, and no host runs behind its device")
        self.fault.check(self.shape, self.steps)
        calls = self.shape.ranks * self.steps * (6 * self.shape.microbatches + 4)
        if calls > MOST_CALLS:
            raise UserError(f"the job has up to {calls:,} calls, expected at most {MOST_CALLS:,}")


@dataclass(frozen=True, kw_only=True)
class HangTruth:
    """What a diagnosis of the dumps ought to say."""

    state: str
    """hang, desync or ok."""
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    """Ranks that leave no dump."""
    group: str | None
    """Name of the group in which the first of `ranks` stops or disagrees."""
    group_description: str | None
    operation: str | None
    blocked_ranks: int
    """Number of ranks that wait for ever, those of `ranks` included."""

    def as_json(self) -> dict[str, object]:
        """Ready for json.dumps."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class SimulatedHang:
    """What the job leaves behind."""

    snapshots: Mapping[int, dict[str, Any]]
    """By rank."""
    truth: HangTruth
    calls: Sequence[Calls]
    """What each rank would have called, by rank."""
    tracks: Sequence[Track]
    """How far it got, by rank."""
    groups: Groups


def simulate_hang(job: HangJob) -> SimulatedHang:
    """Run the job until nothing moves. Raises UserError for a job that cannot be."""
    job.check()
    groups = Groups(job.shape, job.naming)
    program = plan(job.shape)
    calls = [calls_of(job.shape, program, job.steps, rank, job.fault) for rank in range(job.shape.ranks)]
    execution = Execution(job.shape, groups, calls, np.random.default_rng(job.seed))
    execution.run()
    snapshots = Snapshots(job.shape, groups, job.recorder)
    lost = frozenset(job.fault.ranks if job.fault.kind is HangKind.KILLED else ())
    return SimulatedHang(
        snapshots={
            rank: snapshots.dump(rank, calls[rank], track)
            for rank, track in enumerate(execution.tracks)
            if rank not in lost
        },
        truth=_truth(job, groups, calls, execution),
        calls=calls,
        tracks=execution.tracks,
        groups=groups,
    )


def _truth(job: HangJob, groups: Groups, calls: list[Calls], execution: Execution) -> HangTruth:
    fault = job.fault
    blocked = sum(track.blocked for track in execution.tracks)
    if fault.kind is HangKind.NONE:
        return HangTruth(
            state="ok",
            ranks=(),
            missing_ranks=(),
            group=None,
            group_description=None,
            operation=None,
            blocked_ranks=blocked,
        )
    ranks = tuple(sorted(fault.ranks))
    stopped = calls[ranks[0]].stops_before
    plane = fault.plane if stopped is None else calls[ranks[0]].calls[stopped].plane
    operation = "all_reduce" if stopped is None else calls[ranks[0]].calls[stopped].operation
    group = groups.of(ranks[0], plane)
    # A rank that skipped one of its last calls and finished looks like one that stopped there.
    disagrees = fault.kind in DESYNC and any(execution.tracks[rank].blocked for rank in ranks)
    return HangTruth(
        state="desync" if disagrees else "hang",
        ranks=ranks,
        missing_ranks=ranks if fault.kind is HangKind.KILLED else (),
        group=group.name,
        group_description=group.description,
        operation=operation,
        blocked_ranks=blocked,
    )
