"""The program of a step: the operations of each stage in 1F1B order, as Megatron and torch run them.

Also the order in which a program can be run, which follows from whom each operation waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from rankwatch_diagnosis.operations.table import Kind

RANKS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """Parallelism of a job; rank = (stage * replicas + replica) * shards + shard, as Megatron orders them."""

    data_parallel: int = 8
    """Replicas of the model."""
    pipeline_parallel: int = 1
    """Stages of each replica."""
    tensor_parallel: int = 1
    """Shards of each stage."""
    microbatches: int = 4
    """Of each replica in one step."""

    @property
    def ranks(self) -> int:
        """World size."""
        return self.pipeline_parallel * self.ranks_per_stage

    @property
    def ranks_per_stage(self) -> int:
        """Ranks that hold the same stage, over all replicas and shards."""
        return self.data_parallel * self.tensor_parallel

    def rank(self, stage: int, replica: int, shard: int) -> int:
        """Global rank at these coordinates."""
        return (stage * self.data_parallel + replica) * self.tensor_parallel + shard

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and shard of a rank."""
        rest, shard = divmod(rank, self.tensor_parallel)
        stage, replica = divmod(rest, self.data_parallel)
        return stage, replica, shard


class Transfer(Enum):
    """How an operation communicates, and so whom it waits for."""

    NONE = "none"
    SHARDS = "shards"
    """The tensor-parallel group."""
    REPLICAS = "replicas"
    """The data-parallel group."""
    STAGE = "stage"
    """All ranks of the stage."""
    PIPELINE = "pipeline"
    """All stages of a replica, with all of their shards."""
    ENDS = "ends"
    """The first and the last stage of a replica, which hold the same embedding."""
    WORLD = "world"
    SEND = "send"
    """Hands a message over without waiting."""
    RECEIVE = "receive"
    """Waits for the message."""
    EXCHANGE = "exchange"
    """A send and a receive in one batch. A message waits for both of its ends."""


ACROSS_STAGES = (Transfer.PIPELINE, Transfer.ENDS, Transfer.WORLD)
"""Collectives with members on several stages."""


class Message(NamedTuple):
    """What travels between stages: activations forward, gradients backward."""

    operation: str
    """forward or backward."""
    microbatch: int
    to_stage: int


class Planned(NamedTuple):
    """One operation of a step on one stage."""

    operation: str
    kind: Kind
    transfer: Transfer = Transfer.NONE
    microbatch: int = 0
    message: Message | None = None
    """What is sent or received; of an exchange, what is sent."""
    of: str = ""
    """The pass that a collective or a message belongs to: forward or backward."""
    received: Message | None = None
    """For an exchange."""
    only_replica: int | None = None
    """The others do not take part, and go on at once."""


Program = tuple[tuple[Planned, ...], ...]
"""Operations of a step, by stage."""


class Turn(NamedTuple):
    """Which operation of which stage is next."""

    stage: int
    operation: int


def plan(shape: JobShape) -> Program:
    """The program of a step of every stage."""
    return tuple(tuple(_stage(shape, stage)) for stage in range(shape.pipeline_parallel))


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """(forward or backward, microbatch) in the order of the schedule (PipeDream-Flush, arXiv 2006.09503)."""
    warmup = min(stages - 1 - stage, microbatches)
    yield from (("forward", microbatch) for microbatch in range(warmup))
    for microbatch in range(microbatches - warmup):
        yield "forward", warmup + microbatch
        yield "backward", microbatch
    yield from (("backward", microbatch) for microbatch in range(microbatches - warmup, microbatches))


def in_order(program: Program) -> list[Turn]:
    """All operations of a step in an order that can be run: none before those that it waits for have begun.
    The turns of a collective across stages follow each other. Raises ValueError for a program that blocks."""
    waited_for = partners(program)
    position = [0] * len(program)
    sent: set[Message] = set()
    turns: list[Turn] = []
    while any(position[stage] < len(each) for stage, each in enumerate(program)):
        before = len(turns)
        for stage, operations in enumerate(program):
            while position[stage] < len(operations):
                turn = Turn(stage, position[stage])
                planned = operations[turn.operation]
                others = waited_for.get(turn, ())
                if planned.transfer is Transfer.RECEIVE and planned.message not in sent:
                    break
                if any(position[other.stage] < other.operation for other in others):
                    break
                if planned.transfer is Transfer.SEND and planned.message is not None:
                    sent.add(planned.message)
                for each in others if planned.transfer in ACROSS_STAGES else (turn,):
                    turns.append(each)
                    position[each.stage] += 1
        if len(turns) == before:
            raise ValueError(f"the program blocks at operations {position} of its stages")
    return turns


def partners(program: Program) -> Mapping[Turn, tuple[Turn, ...]]:
    """By operation that waits for other stages: the operations that must have begun. All members of a
    collective across stages, itself included; the other ends of an exchange's messages."""
    found: dict[Turn, tuple[Turn, ...]] = {}
    members: dict[tuple[Transfer, int], list[Turn]] = defaultdict(list)
    sent: dict[Message, Turn] = {}
    received: dict[Message, Turn] = {}
    for stage, operations in enumerate(program):
        called = dict.fromkeys(ACROSS_STAGES, 0)
        for index, planned in enumerate(operations):
            if planned.transfer in ACROSS_STAGES:
                members[planned.transfer, called[planned.transfer]].append(Turn(stage, index))
                called[planned.transfer] += 1
            if planned.transfer is Transfer.EXCHANGE:
                sent.update({planned.message: Turn(stage, index)} if planned.message else {})
                received.update({planned.received: Turn(stage, index)} if planned.received else {})
    for turns in members.values():
        found.update(dict.fromkeys(turns, tuple(turns)))
    for message, sender in sent.items():
        receiver = received[message]
        found[sender] = (*found.get(sender, ()), receiver)
        found[receiver] = (*found.get(receiver, ()), sender)
    return found


def _stage(shape: JobShape, stage: int) -> Iterator[Planned]:
    stages = shape.pipeline_parallel
    yield Planned("host_work", Kind.OTHER)
    if stage in (0, stages - 1):
        yield Planned("data_loading", Kind.DATA_LOADING)
    for operation, microbatch in one_forward_one_backward(stage, stages, shape.microbatches):
        yield from _pass(shape, stage, operation, microbatch)
    if shape.data_parallel > 1:
        yield Planned("all_reduce", Kind.COMMUNICATION, Transfer.REPLICAS)
    if stages > 1 or shape.tensor_parallel > 1:
        yield Planned("all_reduce", Kind.COMMUNICATION, Transfer.WORLD)
    yield Planned("optimizer", Kind.COMPUTE)


def _pass(shape: JobShape, stage: int, operation: str, microbatch: int) -> Iterator[Planned]:
    """Receive, compute, reduce over the shards, send."""
    ahead = 1 if operation == "forward" else -1
    stages = range(shape.pipeline_parallel)
    if stage - ahead in stages:
        message = Message(operation, microbatch, stage)
        yield Planned("recv", Kind.COMMUNICATION, Transfer.RECEIVE, microbatch, message, operation)
    yield Planned(operation, Kind.COMPUTE, microbatch=microbatch)
    if shape.tensor_parallel > 1:
        yield Planned("all_reduce", Kind.COMMUNICATION, Transfer.SHARDS, microbatch, of=operation)
    if stage + ahead in stages:
        message = Message(operation, microbatch, stage + ahead)
        yield Planned("send", Kind.COMMUNICATION, Transfer.SEND, microbatch, message, operation)


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
    """The step of a Megatron job with a distributed optimizer, as tables of production jobs show it.

    Neighbouring stages exchange messages in batches. Parameters are gathered before the step and gradients
    scattered after it. Ranks wait where no operation is named after it: for their input, at barriers before
    the first small all-reduce, and for the global norm in the clipping of gradients.
    """

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
