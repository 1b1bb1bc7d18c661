"""What the work of a healthy job takes: mean seconds, lengths of documents, and noise.

Random factors are drawn once, so that a job can run with and without its fault on the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.program import Program, Transfer
from rankwatch_diagnosis.simulation.shape import RANKS_PER_NODE, JobShape

Floats = NDArray[np.float64]

CONTEXT_TOKENS = 8_192
_MOST_DOCUMENTS = 24
"""In one microbatch."""
_MEDIAN_TOKENS = 600.0
_LENGTH_SIGMA = 1.2
"""Of the log-normal law of document lengths: web text has a few documents of a whole context."""
_DRIFT_STEPS = 10.0
"""Steps after which the correlation of a device's drift has fallen to 1 / e."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Seconds of each operation, of one microbatch where it belongs to one."""

    forward_seconds: float = 0.010
    backward_factor: float = 2.0
    """Backward over forward: gradients of inputs and of weights are one matrix product each."""
    first_stage_extra: float = 0.03
    """Share that the embedding adds to the first of several stages."""
    last_stage_extra: float = 0.06
    """Share that head and loss add to the last of several stages."""
    optimizer_seconds: float = 0.004
    data_seconds: float = 0.002
    """Wait for the loader, on the first and the last stage (which need inputs and labels)."""
    host_seconds: float = 0.001
    """Other host work of a step on every rank: logging, the interpreter."""
    send_seconds: float = 0.0004
    """Transfer of one microbatch's activations between two stages."""
    tensor_seconds: float = 0.0006
    """Transfers of the tensor-parallel collectives of one forward, taken together."""
    gradient_seconds: float = 0.008
    """Gradient all-reduce over many replicas; a ring of n takes (n - 1) / n of it."""
    norm_seconds: float = 0.0003
    """Job-wide all-reduce of the gradient norm."""
    embedding_seconds: float = 0.0015
    """All-reduce of the embedding's gradients between the first and the last stage, in a Megatron job."""
    layernorm_seconds: float = 0.0001
    """All-reduce of the small gradients in a tensor-parallel group, in a Megatron job."""
    clip_seconds: float = 0.0005
    """Clipping of the gradients by their norm, in a Megatron job."""
    prepare_seconds: float = 0.002
    """Before the gradients are scattered, in a Megatron job: nothing is recorded then."""

    def __post_init__(self) -> None:
        """Raises UserError for a negative time and for a job that computes nothing."""
        for name, value in vars(self).items():
            if not 0.0 <= value < float("inf"):
                raise UserError(f"{name} is {value}, expected a number of at least 0")
        if self.forward_seconds == 0.0 or self.backward_factor == 0.0:
            raise UserError("forward and backward must take time")

    def role(self, stage: int, stages: int) -> float:
        """Factor on forward and backward of a stage, by design."""
        if stages == 1:
            return 1.0
        extra = {0: self.first_stage_extra, stages - 1: self.last_stage_extra}
        return 1.0 + extra.get(stage, 0.0)

    def ring(self, members: int) -> float:
        """Seconds of a gradient all-reduce over so many replicas, by the volume that each link carries."""
        return self.gradient_seconds * (members - 1) / members


def squared_lengths(shape: JobShape, steps: int, random: np.random.Generator) -> Floats:
    """(step, replica, microbatch): sum of squared document lengths, over its mean.

    Documents fill a context one after the other, and the last one is cut off, as in packed pre-training data.
    All microbatches hold equally many tokens, but attention works on pairs of tokens of one document, so its
    cost grows with this sum.
    """
    size = (steps, shape.data_parallel, shape.microbatches, _MOST_DOCUMENTS)
    lengths = _MEDIAN_TOKENS * np.exp(_LENGTH_SIGMA * random.standard_normal(size, dtype=np.float32))
    ends = np.minimum(np.cumsum(lengths, axis=-1), CONTEXT_TOKENS)
    taken = np.diff(ends, axis=-1, prepend=0.0)
    sums = np.sum(taken**2, axis=-1, dtype=np.float64)
    relative: Floats = sums / sums.mean()
    return relative


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
    """Lasting differences between healthy devices: no two chips hold exactly the same clock."""
    drift_sigma: float = 0.004
    """How far each device drifts around its own mean, slowly, as temperature and clocks do."""
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
    """By stage: delays by something else on the node, already part of `operations`."""
    ranks: Floats
    """(step, stage, replica, shard): factor on compute, of the device and of its drift; median 1."""
    clock_offset_seconds: Floats
    """By rank."""


def draw(noise: Noise, shape: JobShape, program: Program, steps: int, random: np.random.Generator) -> Draws:
    """Draw all factors of the job."""
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
    kept = np.exp(-1.0 / _DRIFT_STEPS)
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
        if each.transfer is Transfer.SHARDS:
            normal[:, index] = normal[:, index, :, :1]
        elif each.transfer is Transfer.REPLICAS:
            normal[:, index] = normal[:, index, :1, :]
        elif each.transfer is Transfer.WORLD:
            normal[:, index] = 0.0
    factors: Floats = np.exp(sigma * normal - sigma**2 / 2.0)
    compute = np.array([each.kind.name == "COMPUTE" for each in planned])[None, :, None, None]
    delayed = compute & (random.random(size) < noise.outlier_probability)
    delays = 1.0 + noise.outlier_share * random.standard_exponential(int(delayed.sum()))
    factors[delayed] *= delays
    return factors, Delays(np.flatnonzero(delayed), delays)


def _sigma(noise: Noise, kind: str) -> float:
    return {"COMPUTE": noise.sigma, "COMMUNICATION": noise.communication_sigma}.get(kind, noise.host_sigma)
