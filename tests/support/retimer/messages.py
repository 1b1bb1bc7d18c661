"""Which send belongs to which receive: by stage, replica and order, as a pipeline sends them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .program import Program

FUZZ_SECONDS = 2e-4
"""Clocks and recorders are this wrong: one operation may seem to begin before the last one ended."""
_FEW = 0.01


class Message(NamedTuple):
    """Indices of the nodes that send and receive it."""

    sender: int
    receiver: int


class _Stream(NamedTuple):
    replica: int
    from_stage: int
    to_stage: int
    shard: int


def messages_of(program: Program) -> list[Message]:
    """All matched messages. A table in which a stream has more sends than receives cannot be re-timed."""
    sends: dict[_Stream, list[int]] = defaultdict(list)
    receives: dict[_Stream, list[int]] = defaultdict(list)
    stages = max(program.stage_of.values()) + 1
    shards = _shards(program)
    for index, node in enumerate(program.nodes):
        for name in node.names:
            if not is_message(name):
                continue
            ahead = 1 if _goes_forward(program, index, name) else -1
            stage, replica = program.stage_of[node.rank], program.replica_of[node.rank]
            if _sends(name):
                stream = _Stream(replica, stage, (stage + ahead) % stages, shards[node.rank])
                sends[stream].append(index)
            else:
                stream = _Stream(replica, (stage - ahead) % stages, stage, shards[node.rank])
                receives[stream].append(index)
    return list(_matched(sends, receives))


def is_message(name: str) -> bool:
    return _sends(name) or "recv" in name or "receive" in name


def senders_leave_early(program: Program, messages: list[Message]) -> bool:
    """True if a send ends before its receiver has come: it hands the message over without waiting."""
    if not messages:
        return False
    sender, receiver = np.array(messages).T
    late = program.start[receiver] > program.start[sender] + FUZZ_SECONDS
    early = late & (program.end[sender] < program.start[receiver] - FUZZ_SECONDS)
    return bool(early.sum() > _FEW * max(1, late.sum()))


def _sends(name: str) -> bool:
    return "send" in name


def _matched(sends: dict[_Stream, list[int]], receives: dict[_Stream, list[int]]) -> Iterator[Message]:
    for stream in sends.keys() | receives.keys():
        ours, theirs = sends[stream], receives[stream]
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} sends and {len(theirs)} receives in {stream}")
        yield from (Message(*pair) for pair in zip(ours, theirs, strict=True))


def _goes_forward(program: Program, index: int, name: str) -> bool:
    """By its name; else a send goes the way of the computation before it, a receive of the one after it."""
    if "forward" in name or "backward" in name:
        return "forward" in name
    walk = range(index, -1, -1) if _sends(name) else range(index, len(program.nodes))
    computed = next(program.nodes[at].names[0] for at in walk if program.computes(program.nodes[at]))
    return "forward" in computed


def _shards(program: Program) -> dict[int, int]:
    """Rank -> its index among the ranks of the same stage and replica."""
    seats: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in sorted(program.stage_of):
        seats[program.stage_of[rank], program.replica_of[rank]].append(rank)
    return {rank: index for ranks in seats.values() for index, rank in enumerate(ranks)}
