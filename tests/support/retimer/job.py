"""A recorded job with faults: its table, and what each of them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankwatch_diagnosis.operations.table import OperationTable

from .faults import Fault
from .program import Floats, programs_of
from .recorder import record
from .replay import Replay, Seconds


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
