"""The program of a step: the operations of each stage in 1F1B order, as Megatron and torch run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.simulation.shape import JobShape


class Transfer(Enum):
    """How an operation communicates, and so whom it waits for."""

    NONE = "none"
    SHARDS = "shards"
    """The tensor-parallel group."""
    REPLICAS = "replicas"
    """The data-parallel group."""
    WORLD = "world"
    SEND = "send"
    """Hands a message over without waiting."""
    RECEIVE = "receive"
    """Waits for the message."""


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
    of: str = ""
    """The pass that a collective or a message belongs to: forward or backward."""


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
    """All operations of a step in an order that can be run: sends before receives, job-wide ones in a row."""
    position = [0] * len(program)
    sent: set[Message] = set()
    turns: list[Turn] = []
    while any(position[stage] < len(each) for stage, each in enumerate(program)):
        before = len(turns)
        for stage, operations in enumerate(program):
            position[stage] = _advance(stage, operations, position[stage], sent, turns)
        if len(turns) == before:
            _pass_world(program, position, turns)
    return turns


def _advance(
    stage: int, operations: Sequence[Planned], index: int, sent: set[Message], turns: list[Turn]
) -> int:
    while index < len(operations):
        planned = operations[index]
        if planned.transfer is Transfer.WORLD:
            break
        if planned.transfer is Transfer.RECEIVE and planned.message not in sent:
            break
        if planned.transfer is Transfer.SEND and planned.message is not None:
            sent.add(planned.message)
        turns.append(Turn(stage, index))
        index += 1
    return index


def _pass_world(program: Program, position: list[int], turns: list[Turn]) -> None:
    for stage in range(len(program)):
        turns.append(Turn(stage, position[stage]))
        position[stage] += 1


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
