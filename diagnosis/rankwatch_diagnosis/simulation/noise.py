"""Random differences of a healthy job, drawn once so that it can be replayed with and without a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.program import Meeting, Program
from rankwatch_diagnosis.simulation.shape import JobShape

Floats = NDArray[np.float64]

RANKS_PER_NODE = 8
DRIFT_STEPS = 10.0
"""After so many steps a device's drift is forgotten but for 1 / e."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far durations spread around their mean."""

    sigma: float = 0.03
    """Log-normal, of each compute operation by itself."""
    communication_sigma: float = 0.05
    """Log-normal, of each transfer; shared by the members of a collective."""
    host_sigma: float = 0.10
    """Log-normal, of data loading and other host work."""
    rank_sigma: float = 0.004
    """Lasting differences between healthy devices; no two chips hold exactly the same clock."""
    drift_sigma: float = 0.004
    """How far each device wanders around its own mean, as temperature and clocks do: slowly."""
    outlier_probability: float = 0.001
    """Share of compute operations that something else on the node delays."""
    outlier_share: float = 0.3
    """Mean delay of such an operation, as a share of its duration (exponential)."""
    clock_sigma_seconds: float = 0.0001
    """Offset between the clocks of nodes, as chrony keeps it on a local network."""

    def __post_init__(self) -> None:
        """Raises UserError for a spread below 0 or above 1."""
        for name, value in vars(self).items():
            if not 0.0 <= value <= 1.0:
                raise UserError(f"{name} is {value}, expected 0 to 1")


class Delays(NamedTuple):
    """Operations that are delayed."""

    where: NDArray[np.int64]
    """Indices into the flat array of a stage."""
    factors: Floats

    def taken_out(self, operations: Floats) -> Floats:
        """The factors of a stage as they were without the delays."""
        without = operations.copy()
        without.reshape(-1)[self.where] /= self.factors
        return without


class Draws(NamedTuple):
    """Random factors of a job."""

    operations: tuple[Floats, ...]
    """By stage, of shape (step, operation, replica, shard); mean 1 but for delays."""
    delays: tuple[Delays, ...]
    """By stage: what is delayed by something else on the node, already within `operations`."""
    ranks: Floats
    """(step, stage, replica, shard): factor on compute, of the device and of its drift; median 1."""
    clock_offset_seconds: Floats
    """By rank."""


def draw(noise: Noise, shape: JobShape, program: Program, steps: int, random: np.random.Generator) -> Draws:
    """All factors of the job."""
    layout = (shape.pipeline_parallel, shape.data_parallel, shape.tensor_parallel)
    lasting = noise.rank_sigma * random.standard_normal(layout)
    ranks = np.exp(lasting + noise.drift_sigma * _drift(steps, layout, random))
    nodes = -(-shape.ranks // RANKS_PER_NODE)
    offsets = noise.clock_sigma_seconds * random.standard_normal(nodes)
    stages = [_stage(noise, shape, program, stage, steps, random) for stage in range(layout[0])]
    return Draws(
        operations=tuple(operations for operations, _ in stages),
        delays=tuple(delays for _, delays in stages),
        ranks=ranks,
        clock_offset_seconds=np.repeat(offsets, RANKS_PER_NODE)[: shape.ranks],
    )


def _drift(steps: int, layout: tuple[int, int, int], random: np.random.Generator) -> Floats:
    """An autoregressive walk of unit variance."""
    kept = np.exp(-1.0 / DRIFT_STEPS)
    walk: Floats = random.standard_normal((steps, *layout))
    walk[1:] *= np.sqrt(1.0 - kept**2)
    for step in range(1, steps):
        walk[step] += kept * walk[step - 1]
    return walk


def _stage(
    noise: Noise, shape: JobShape, program: Program, stage: int, steps: int, random: np.random.Generator
) -> tuple[Floats, Delays]:
    planned = program[stage]
    size = (steps, len(planned), shape.data_parallel, shape.tensor_parallel)
    sigma = np.array([_sigma(noise, each.kind.name) for each in planned])[None, :, None, None]
    normal = random.standard_normal(size)
    for index, each in enumerate(planned):
        if each.meeting is Meeting.SHARDS:
            normal[:, index] = normal[:, index, :, :1]
        elif each.meeting is Meeting.REPLICAS:
            normal[:, index] = normal[:, index, :1, :]
        elif each.meeting is Meeting.WORLD:
            normal[:, index] = 0.0
    factors: Floats = np.exp(sigma * normal - sigma**2 / 2.0)
    compute = np.array([each.kind.name == "COMPUTE" for each in planned])[None, :, None, None]
    struck = compute & (random.random(size) < noise.outlier_probability)
    delays = 1.0 + noise.outlier_share * random.standard_exponential(int(struck.sum()))
    factors[struck] *= delays
    return factors, Delays(np.flatnonzero(struck), delays)


def _sigma(noise: Noise, kind: str) -> float:
    return {"COMPUTE": noise.sigma, "COMMUNICATION": noise.communication_sigma}.get(kind, noise.host_sigma)
