"""What the work of a job takes: mean seconds, lengths of documents, noise, and the fault.

Random factors are drawn once, so that a job can run with and without its fault on the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.simulation.program import RANKS_PER_NODE, JobShape, Program, Transfer
from rankwatch.conventions.states import Cause, SlowPhase

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

    def role(self, stage: int, stages: int) -> float:
        """Factor on forward and backward of a stage, by design."""
        if stages == 1:
            return 1.0
        extra = {0: self.first_stage_extra, stages - 1: self.last_stage_extra}
        return 1.0 + extra.get(stage, 0.0)

    def ring(self, members: int) -> float:
        """Seconds of a gradient all-reduce over so many replicas, by the volume that each link carries."""
        return self.gradient_seconds * (members - 1) / members


def production_workload(forward_seconds: float) -> Workload:
    """Seconds in the proportions of two production jobs whose forward took 0.07 and 0.22 seconds."""
    return Workload(
        forward_seconds=forward_seconds,
        optimizer_seconds=0.4 * forward_seconds,
        data_seconds=0.2 * forward_seconds,
        host_seconds=0.002 * forward_seconds,
        send_seconds=0.006 * forward_seconds,
        tensor_seconds=0.06 * forward_seconds,
        gradient_seconds=1.0 * forward_seconds,
        norm_seconds=0.02 * forward_seconds,
        embedding_seconds=0.15 * forward_seconds,
        layernorm_seconds=0.01 * forward_seconds,
        clip_seconds=0.05 * forward_seconds,
        prepare_seconds=0.2 * forward_seconds,
    )


def squared_lengths(shape: JobShape, steps: int, random: np.random.Generator) -> Floats:
    """(step, replica, microbatch): sum of squared document lengths, over its mean. Documents fill a context
    one after the other, and the last one is cut off, as in packed pre-training data. All microbatches hold
    equally many tokens, but attention works on pairs of tokens of one document, so its cost grows with this
    sum."""
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


NO_NOISE = Noise(**{each.name: 0.0 for each in fields(Noise)})
PASSES_ONLY = Workload(
    **{each.name: 0.0 for each in fields(Workload)} | {"forward_seconds": 1.0, "backward_factor": 2.0}
)
"""Nothing but forward and backward passes takes time: sums can be done by hand."""


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
