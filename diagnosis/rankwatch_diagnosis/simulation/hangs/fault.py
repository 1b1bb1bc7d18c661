"""What stops a simulated job, and the process groups in which it does.

Groups are named as Megatron or as torch's device mesh names them. Needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.shape import JobShape


class HangKind(StrEnum):
    """What the faulty ranks do, in a step, before an operation of one of their groups."""

    NONE = "none"
    """Nothing: every step is completed."""
    SLEEP = "sleep"
    """Stop before the operation, and stay alive."""
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
"""Kinds that make members of a group disagree about what they call."""


@dataclass(frozen=True, kw_only=True)
class HangFault:
    """One kind, on some ranks, at one operation of one step."""

    kind: HangKind = HangKind.SLEEP
    ranks: tuple[int, ...] = (0,)
    plane: Plane = Plane.DATA
    """Group of the faulty operation."""
    step: int = 3
    occurrence: int = 0
    """Index of the operation among those of the step on that plane."""

    def check(self, shape: JobShape, steps: int) -> None:
        """Raises UserError where the fault does not fit the job."""
        for rank in self.ranks:
            shape.place(rank)
        if not self.ranks and self.kind is not HangKind.NONE:
            raise UserError(f"fault {self.kind} needs ranks")
        if len(self.ranks) >= shape.ranks:
            raise UserError("a hang needs some of the ranks, not all")
        if not 0 <= self.step < steps:
            raise UserError(f"step is {self.step}, expected 0 to {steps - 1}")
        if self.occurrence < 0:
            raise UserError(f"occurrence is {self.occurrence}, expected at least 0")
        if self.kind not in (HangKind.NONE, HangKind.STUCK_DATA):
            self._check_plane(shape)

    def _check_plane(self, shape: JobShape) -> None:
        if self.plane is Plane.PIPELINE and self.kind in DESYNC:
            raise UserError(f"fault {self.kind} affects collectives, not messages between stages")
        used = {
            Plane.DATA: shape.data_parallel > 1,
            Plane.TENSOR: shape.tensor_parallel > 1,
            Plane.PIPELINE: shape.pipeline_parallel > 1,
            Plane.WORLD: shape.pipeline_parallel > 1 or shape.tensor_parallel > 1,
        }
        if not used[self.plane]:
            raise UserError(f"plane is {self.plane}, which this job has no operation on")


class Naming(StrEnum):
    """Whose names the groups have."""

    MEGATRON = "megatron"
    DEVICE_MESH = "device-mesh"


DESCRIPTIONS: Mapping[Naming, Mapping[Plane, str]] = MappingProxyType(
    {
        Naming.MEGATRON: {
            Plane.WORLD: "default_pg",
            Plane.DATA: "DATA_PARALLEL_GROUP",
            Plane.TENSOR: "TENSOR_MODEL_PARALLEL_GROUP",
            Plane.PIPELINE: "PIPELINE_MODEL_PARALLEL_GROUP",
        },
        Naming.DEVICE_MESH: {
            Plane.WORLD: "default_pg",
            Plane.DATA: "mesh_dp",
            Plane.TENSOR: "mesh_tp",
            Plane.PIPELINE: "mesh_pp",
        },
    }
)


class Group(NamedTuple):
    """One process group."""

    name: str
    """A number as text, counted over the whole job as torch does."""
    description: str
    plane: Plane
    ranks: tuple[int, ...]


class Groups:
    """All groups of a job, and those of each rank."""

    def __init__(self, shape: JobShape, naming: Naming) -> None:
        self.all = tuple(_groups(shape, DESCRIPTIONS[naming]))
        self._of: dict[tuple[int, Plane], Group] = {
            (rank, group.plane): group for group in self.all for rank in group.ranks
        }

    def of(self, rank: int, plane: Plane) -> Group:
        """The rank's group on that plane; each rank has one on every plane."""
        return self._of[rank, plane]


def _groups(shape: JobShape, descriptions: Mapping[Plane, str]) -> list[Group]:
    stages, replicas = range(shape.pipeline_parallel), range(shape.data_parallel)
    shards = range(shape.tensor_parallel)
    rank: Callable[[int, int, int], int] = shape.rank
    members: list[tuple[Plane, Sequence[int]]] = [(Plane.WORLD, range(shape.ranks))]
    members += [(Plane.DATA, [rank(a, b, c) for b in replicas]) for a in stages for c in shards]
    members += [(Plane.TENSOR, [rank(a, b, c) for c in shards]) for a in stages for b in replicas]
    members += [(Plane.PIPELINE, [rank(a, b, c) for a in stages]) for b in replicas for c in shards]
    return [
        Group(str(number), descriptions[plane], plane, tuple(ranks))
        for number, (plane, ranks) in enumerate(members)
    ]
