"""What stops a simulated job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.shape import JobShape


class HangKind(StrEnum):
    """What the culprits do, in a step, before an operation of one of their groups."""

    NONE = "none"
    """Nothing: every step is completed."""
    SLEEP = "sleep"
    """Stop before the operation, and go on living."""
    KILLED = "killed"
    """Stop there for good, and leave no dump."""
    SKIP = "skip"
    """Leave the operation out and go on with the next."""
    OTHER_OPERATION = "other-operation"
    """Call another collective in its place."""
    OTHER_SIZE = "other-size"
    """Call it with half as many elements."""
    STUCK_DATA = "stuck-data"
    """Stop at the beginning of the step."""


class Plane(StrEnum):
    """Kind of process group."""

    DATA = "data"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    WORLD = "world"


DESYNC = frozenset({HangKind.SKIP, HangKind.OTHER_OPERATION, HangKind.OTHER_SIZE})
"""What makes members of a group disagree about what they call."""


@dataclass(frozen=True, kw_only=True)
class HangFault:
    """One kind, on some ranks, at one operation of one step."""

    kind: HangKind = HangKind.SLEEP
    ranks: tuple[int, ...] = (0,)
    plane: Plane = Plane.DATA
    """Group of the operation that is struck."""
    step: int = 3
    occurrence: int = 0
    """Which operation of the step on that plane."""

    def check(self, shape: JobShape, steps: int) -> None:
        """Raises UserError where the fault does not fit the job."""
        for rank in self.ranks:
            shape.place(rank)
        if not self.ranks and self.kind is not HangKind.NONE:
            raise UserError(f"fault {self.kind} needs ranks")
        if len(self.ranks) >= shape.ranks:
            raise UserError("a hang strikes some of the ranks, not all")
        if not 0 <= self.step < steps:
            raise UserError(f"step is {self.step}, expected 0 to {steps - 1}")
        if self.occurrence < 0:
            raise UserError(f"occurrence is {self.occurrence}, expected at least 0")
        if self.kind not in (HangKind.NONE, HangKind.STUCK_DATA):
            self._check_plane(shape)

    def _check_plane(self, shape: JobShape) -> None:
        if self.plane is Plane.PIPELINE and self.kind in DESYNC:
            raise UserError(f"fault {self.kind} strikes collectives, not messages between stages")
        used = {
            Plane.DATA: shape.data_parallel > 1,
            Plane.TENSOR: shape.tensor_parallel > 1,
            Plane.PIPELINE: shape.pipeline_parallel > 1,
            Plane.WORLD: shape.pipeline_parallel > 1 or shape.tensor_parallel > 1,
        }
        if not used[self.plane]:
            raise UserError(f"plane is {self.plane}, which this job has no operation on")
