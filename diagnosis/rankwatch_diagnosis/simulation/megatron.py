"""The step of a Megatron job with a distributed optimizer, as tables of production jobs show it.

Neighbouring stages exchange messages in batches. Parameters are gathered before the step and gradients
scattered after it. Ranks wait where no operation is named after it: for their input, at barriers before the
first small all-reduce, and for the global norm in the clipping of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.simulation.program import (
    Message,
    Planned,
    Program,
    Transfer,
    one_forward_one_backward,
)
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Workload


class Barrier(StrEnum):
    """Who waits for whom after the last backward, in this order where there are several."""

    LAST_STAGE = "last_stage"
    """The replicas of the last stage, for the mean loss."""
    FIRST_REPLICA = "first_replica"
    """The stages of the first replica, which reports."""
    REPLICA = "replica"
    """The stages of each replica."""
    JOB = "job"


NORM, CLIP = "norm_all_reduce", "optimizer_clip_main_grad"
"""The wait for the global norm of the gradients, and the clipping by it."""
STALL = "stall"
"""What holds up a rank where nothing is recorded: its host, a page fault, another process."""
UNRECORDED = ("wait_for_batch", STALL, "barrier", "prepare_gradients")
"""Operations that such a job names nowhere."""


@dataclass(frozen=True, kw_only=True)
class Megatron:
    """What such a job does beyond passes and collectives."""

    barriers: tuple[Barrier, ...] = (Barrier.LAST_STAGE, Barrier.REPLICA)

    def plan(self, shape: JobShape) -> Program:
        """The program of a step of every stage."""
        return tuple(tuple(self._stage(shape, stage)) for stage in range(shape.pipeline_parallel))

    def _stage(self, shape: JobShape, stage: int) -> Iterator[Planned]:
        if shape.data_parallel > 1:
            yield Planned("params_all_gather", Kind.COMMUNICATION, Transfer.REPLICAS)
        yield Planned("wait_for_batch", Kind.DATA_LOADING)
        yield from _passes(shape, stage)
        for barrier in Barrier:
            if barrier in self.barriers and (barrier is not Barrier.LAST_STAGE or stage == _last(shape)):
                only = 0 if barrier is Barrier.FIRST_REPLICA else None
                yield Planned("barrier", Kind.COMMUNICATION, _TRANSFER[barrier], only_replica=only)
        yield Planned("layernorm_grads_all_reduce", Kind.COMMUNICATION, Transfer.SHARDS)
        if shape.pipeline_parallel > 1 and stage in (0, _last(shape)):
            yield Planned("embedding_grads_all_reduce", Kind.COMMUNICATION, Transfer.ENDS)
        yield Planned("prepare_gradients", Kind.OTHER)
        if shape.data_parallel > 1:
            yield Planned("grads_reduce_scatter", Kind.COMMUNICATION, Transfer.REPLICAS)
        yield Planned(NORM, Kind.COMMUNICATION, Transfer.WORLD)
        yield Planned(CLIP, Kind.COMPUTE)
        yield Planned("optimizer", Kind.COMPUTE)


_TRANSFER = {
    Barrier.LAST_STAGE: Transfer.STAGE,
    Barrier.FIRST_REPLICA: Transfer.PIPELINE,
    Barrier.REPLICA: Transfer.PIPELINE,
    Barrier.JOB: Transfer.WORLD,
}


def _last(shape: JobShape) -> int:
    return shape.pipeline_parallel - 1


def _passes(shape: JobShape, stage: int) -> Iterator[Planned]:
    """1F1B: each batch hands on what was computed, and takes in what is computed next."""
    order = list(one_forward_one_backward(stage, shape.pipeline_parallel, shape.microbatches))
    middle = shape.microbatches // 2
    yield from _exchange(shape, stage, None, order[0])
    for number, (operation, microbatch) in enumerate(order):
        following = order[number + 1] if number + 1 < len(order) else None
        if (operation, microbatch) == ("forward", middle):
            yield Planned(STALL, Kind.OTHER)
        yield Planned(operation, Kind.COMPUTE, microbatch=microbatch)
        if shape.tensor_parallel > 1:
            yield Planned("all_reduce", Kind.COMMUNICATION, Transfer.SHARDS, microbatch, of=operation)
        if following is None:
            yield Planned("gc", Kind.OTHER)
        yield from _exchange(shape, stage, (operation, microbatch), following)


def _exchange(
    shape: JobShape, stage: int, done: tuple[str, int] | None, following: tuple[str, int] | None
) -> Iterator[Planned]:
    """Batches are of opposite directions: after a forward comes what a backward needs, or the other way."""
    sent = _message(shape, done, stage, outgoing=True)
    received = _message(shape, following, stage, outgoing=False)
    if sent and received and sent.operation == received.operation:
        yield Planned("exchange", Kind.COMMUNICATION, Transfer.EXCHANGE, message=sent)
        yield Planned("exchange", Kind.COMMUNICATION, Transfer.EXCHANGE, received=received)
    elif sent or received:
        yield Planned("exchange", Kind.COMMUNICATION, Transfer.EXCHANGE, message=sent, received=received)


def _message(shape: JobShape, which: tuple[str, int] | None, stage: int, *, outgoing: bool) -> Message | None:
    """What a pass hands on or needs; nothing at the ends of the pipeline."""
    if which is None:
        return None
    operation, microbatch = which
    ahead = 1 if operation == "forward" else -1
    other = stage + ahead if outgoing else stage - ahead
    if not 0 <= other <= _last(shape):
        return None
    return Message(operation, microbatch, other if outgoing else stage)


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
