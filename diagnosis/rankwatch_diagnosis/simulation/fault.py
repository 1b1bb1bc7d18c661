"""What is wrong with a simulated job: a fault, and when it is present."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.shape import JobShape

SIMULATED = tuple(cause for cause in Cause if cause is not Cause.INCONCLUSIVE)
"""Causes that a job can be given."""
SIMULATED_PHASES = tuple(phase for phase in SlowPhase if phase is not SlowPhase.CHECKPOINT)
"""Phases of a slow rank that a job can be given: simulated steps save no checkpoints."""

_MOST_FACTOR = 1_000.0
_GOLDEN_RATIO = 0.6180339887498949
"""Its multiples modulo 1 are spread evenly and never repeat, so any window holds its share of steps."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One cause, on some ranks or a stage, over some steps."""

    cause: Cause = Cause.NONE
    ranks: tuple[int, ...] = ()
    """For `slow_rank`; for `network` those with a slow link, none for the whole fabric."""
    phase: SlowPhase = SlowPhase.COMPUTE
    """For `slow_rank`: the part of the work that takes longer."""
    stage: int | None = None
    """For `slow_stage`."""
    factor: float = 1.2
    """On what the cause slows down: work of ranks, compute of a stage, transfers, data loading of all
    ranks. For `unequal_batches`, factor - 1 is the share of compute that grows with the square of
    sequence length. For `jitter`, it is the mean pause as a share of a rank's compute in a step; of an
    unrecorded fault, the pause in each step."""
    probability: float = 0.05
    """For `jitter`: that a rank pauses in a step."""
    first_step: int = 0
    duration: int | None = None
    """In steps; None lasts to the end."""
    period: int | None = None
    """Steps from the start of one episode to the next; None: one episode."""
    active_share: float = 0.5
    """Part of each period in which the fault is active."""
    share_of_steps: float = 1.0
    """Part of these steps in which the fault is active, here and there instead of in a row."""
    unrecorded: bool = False
    """For `slow_rank` with phase `other`: the rank is held up between two operations, where a production job
    records nothing."""

    def check(self, shape: JobShape, steps: int) -> None:
        """Raises UserError where the fault does not fit the job."""
        self._check_numbers(steps)
        for rank in self.ranks:
            shape.place(rank)
        if len(set(self.ranks)) < len(self.ranks):
            raise UserError(f"ranks are {self.ranks}, expected each one once")
        if self.cause is Cause.SLOW_RANK and not self.ranks:
            raise UserError(f"fault {self.cause} needs ranks")
        if self.phase not in SIMULATED_PHASES:
            raise UserError(f"phase is {self.phase}, expected one of {', '.join(SIMULATED_PHASES)}")
        if self.cause is Cause.SLOW_STAGE and self.stage is None:
            raise UserError(f"fault {self.cause} needs a stage")
        if self.stage is not None and not 0 <= self.stage < shape.pipeline_parallel:
            raise UserError(f"stage is {self.stage}, expected 0 to {shape.pipeline_parallel - 1}")
        if self.unrecorded and (self.cause, self.phase) != (Cause.SLOW_RANK, SlowPhase.OTHER):
            raise UserError(f"an unrecorded fault is a {Cause.SLOW_RANK} of phase {SlowPhase.OTHER}")
        if self.cause not in SIMULATED:
            raise UserError(f"fault is {self.cause}, expected one of {', '.join(SIMULATED)}")

    def _check_numbers(self, steps: int) -> None:
        if not 1.0 < self.factor <= _MOST_FACTOR:
            raise UserError(f"factor is {self.factor}, expected above 1 and at most {_MOST_FACTOR:g}")
        if self.cause is Cause.UNEQUAL_BATCHES and self.factor > 2.0:
            raise UserError(f"factor is {self.factor}, expected at most 2 for {self.cause}")
        if not 0 <= self.first_step < steps:
            raise UserError(f"first step is {self.first_step}, expected 0 to {steps - 1}")
        if self.duration is not None and self.duration < 1:
            raise UserError(f"duration is {self.duration}, expected at least 1 step")
        if self.period is not None and self.period < 2:
            raise UserError(f"period is {self.period}, expected at least 2 steps")
        for name in ("probability", "active_share", "share_of_steps"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise UserError(f"{name} is {getattr(self, name)}, expected above 0 and at most 1")

    def active(self, steps: int) -> NDArray[np.bool_]:
        """By step: the fault is active."""
        if self.cause is Cause.NONE:
            return np.zeros(steps, dtype=np.bool_)
        since = np.arange(steps) - self.first_step
        active = since >= 0
        if self.duration is not None:
            active &= since < self.duration
        if self.period is not None:
            active &= since % self.period < max(1, round(self.active_share * self.period))
        if self.share_of_steps < 1.0:
            active &= (_GOLDEN_RATIO * since) % 1.0 < self.share_of_steps
        return active
