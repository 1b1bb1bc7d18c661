"""A recorded job with faults: its table, as a recorder would have written it, and what each of them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from support.retimer.faults import Fault
from support.retimer.program import Floats, programs_of
from support.retimer.replay import Replay, Seconds, Times


@dataclass(frozen=True, kw_only=True)
class Base:
    """A recording, its replay, and the seconds that a job without faults would have."""

    table: OperationTable
    replay: Replay
    seconds: Seconds

    @property
    def passes(self) -> int:
        """Forward and backward passes of a rank in a step."""
        nodes = self.replay.program.nodes
        return sum(node.rank == nodes[0].rank and node.microbatch >= 0 for node in nodes)

    def run_seconds(self, seconds: Seconds) -> float:
        """All steps together."""
        return float(self.replay.step_seconds(self.replay.run(seconds)).sum())


def base_of(table: OperationTable) -> Base:
    """The recording as it is. Raises ValueError if its steps are not alike."""
    programs = programs_of(table)
    if len(programs) != 1:
        raise ValueError(f"the steps of the table follow {len(programs)} programs")
    replay = Replay(programs[0])
    return Base(table=table, replay=replay, seconds=replay.recorded())


@dataclass(frozen=True, kw_only=True)
class FaultyJob:
    """Faults, and what belongs to the job, injected into a base. Random numbers depend on the seed alone."""

    base: Base
    faults: Sequence[Fault]
    conditions: Sequence[Fault] = ()
    """What the job would have without its faults too: chips that differ, jitter, drift."""
    seed: int = 0

    def seconds(self, without: frozenset[int] = frozenset()) -> Seconds:
        """Of all nodes, without the faults of these indices."""
        changed = self.base.seconds.copy()
        everything = (*self.conditions, *self.faults)
        for index, fault in enumerate(everything):
            if index - len(self.conditions) in without:
                continue
            fault.inject(self.base.replay, changed, np.random.default_rng((self.seed, index)))
        return changed

    def table(self) -> OperationTable:
        """As a recorder would have written it."""
        seconds = self.seconds()
        replay = self.base.replay
        return record(self.base.table, replay, replay.run(seconds), seconds)

    def slowdown(self, of: Sequence[int] | None = None) -> float:
        """The run with all faults over the run without those of these indices; None: without any."""
        chosen = frozenset(range(len(self.faults)) if of is None else of)
        return self.base.run_seconds(self.seconds()) / self.base.run_seconds(self.seconds(chosen))

    def step_seconds(self, without: frozenset[int] = frozenset()) -> Floats:
        """(step,): without the faults of these indices."""
        return self.base.replay.step_seconds(self.base.replay.run(self.seconds(without)))


LOADING = "data-loading"


def record(table: OperationTable, replay: Replay, times: Times, seconds: Seconds) -> OperationTable:
    """The rows of these steps with new starts and durations.

    Communication includes the wait, rows of a batch share start and duration, and a barrier without a row
    shows as a pause, as in the first recording.
    """
    program = replay.program
    start, duration = table.start_seconds.copy(), table.duration_seconds.copy()
    for node, rows in enumerate(program.rows):
        start[rows] = times.start[node]
        duration[rows] = times.end[node] - times.start[node]
    for mark in program.marks:
        start[mark.rows] = times.end[mark.node] + mark.after_seconds
    written = replace(table, start_seconds=start, duration_seconds=duration)
    kept = written.take(np.isin(written.step, program.steps))
    return _with_loading(kept, replay, times, seconds) if seconds.loading else kept


def _with_loading(table: OperationTable, replay: Replay, times: Times, seconds: Seconds) -> OperationTable:
    """A row for each pause in which a rank loaded data."""
    program = replay.program
    rank = [program.nodes[node].rank for node in seconds.loading]
    waited = np.array(list(seconds.loading.values()))
    start = times.start[list(seconds.loading)] - waited
    steps = len(program.steps)
    columns = {
        "step": np.broadcast_to(program.steps, start.shape),
        "rank": _per_step(rank, steps),
        "operation": np.full(start.shape, len(table.operations)),
        "kind": np.full(start.shape, Kind.DATA_LOADING),
        "start_seconds": start,
        "duration_seconds": waited,
        "stage": _per_step([program.stage_of[each] for each in rank], steps),
        "replica": _per_step([program.replica_of[each] for each in rank], steps),
        "microbatch": _per_step([program.nodes[node].microbatch for node in seconds.loading], steps),
        "group": np.zeros(start.shape),
        "work": np.full(start.shape, np.nan),
    }
    both = {
        name: np.concatenate([getattr(table, name), column.ravel().astype(getattr(table, name).dtype)])
        for name, column in columns.items()
    }
    return replace(table, operations=(*table.operations, LOADING), **both)


def _per_step(values: Sequence[int], steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.repeat(np.array(values)[:, None], steps, axis=1)
