"""The process groups of a simulated job, named as Megatron or as torch's device mesh names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_diagnosis.simulation.hangs.fault import Plane
from rankwatch_diagnosis.simulation.shape import JobShape


class Naming(StrEnum):
    """Whose names the groups bear."""

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
        """The group of that plane which the rank belongs to; each rank has one on every plane."""
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
