"""Who waits for whom, seen in the times alone: barriers without a row, and computation that hides a wait.

A set of ranks (a stage, a replica, the job) meets where nobody goes on before the last one has come, in any
step, and where that explains most of what the early ones wait. One rank that goes on earlier disproves it.
Sends and receives belong together by stage, replica and order, as a pipeline sends them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind
from support.retimer.program import Floats, Node, Program

_LEAST_WAIT_SECONDS = 1e-3
_LEAST_EXPLAINED = 0.5
_MOST_CONTRADICTED = 0.01


def hidden_barriers(program: Program) -> list[tuple[int, ...]]:
    """Barriers before collectives, the first ones first: of a stage, then of a replica, or of the job.

    The nodes of one begin when the last of them is ready.
    """
    found: list[tuple[int, ...]] = []
    for nodes in _places(program, _is_collective).values():
        ready = {node: program.end[program.nodes[node].before] for node in nodes}
        leave = {node: program.start[node] for node in nodes}
        found.extend(_meetings(program, nodes, ready, leave))
    return found


def hidden_waits(program: Program) -> list[tuple[int, ...]]:
    """Computation that occurs once in a step and ends only after the last of a set has begun it."""
    found: list[tuple[int, ...]] = []
    places = _places(program, lambda node: node.kind is Kind.COMPUTE)
    names = [name for name, _ in places]
    for (name, _), nodes in places.items():
        if names.count(name) > 1:
            continue
        arrive = {node: program.start[node] for node in nodes}
        leave = {node: program.end[node] for node in nodes}
        found.extend(_meetings(program, nodes, arrive, leave))
    return found


def _is_collective(node: Node) -> bool:
    return node.kind is Kind.COMMUNICATION and not is_message(node.names[0])


def _places(program: Program, chosen: Callable[[Node], bool]) -> dict[tuple[str, int], list[int]]:
    """(name, its occurrence on the rank) -> nodes of all ranks there."""
    seen: dict[tuple[int, str], int] = defaultdict(int)
    places: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, node in enumerate(program.nodes):
        if chosen(node):
            name = node.names[0]
            if node.before >= 0:
                places[name, seen[node.rank, name]].append(index)
            seen[node.rank, name] += 1
    return places


def _meetings(
    program: Program, nodes: list[int], ready: dict[int, Floats], leave: dict[int, Floats]
) -> Iterator[tuple[int, ...]]:
    """The whole job if it meets; else stages that meet, and then replicas with those of them."""
    if _meet(nodes, ready, leave):
        yield tuple(nodes)
        return
    for part_of in (program.stage_of, program.replica_of):
        for members in _parts(program, nodes, part_of):
            if _meet(members, ready, leave):
                yield members
                last = _last(members, ready)
                ready.update(dict.fromkeys(members, last))


def _parts(program: Program, nodes: list[int], part_of: dict[int, int]) -> Iterator[tuple[int, ...]]:
    parts: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        parts[part_of[program.nodes[node].rank]].append(node)
    yield from (tuple(each) for each in parts.values())


def _meet(members: Sequence[int], ready: dict[int, Floats], leave: dict[int, Floats]) -> bool:
    if len(members) < 2:
        return False
    last = _last(members, ready)
    arrived = np.array([ready[node] for node in members])
    left = np.array([leave[node] for node in members])
    if np.mean(left < last - FUZZ_SECONDS) > _MOST_CONTRADICTED:
        return False
    waits = last - arrived
    long = waits > _LEAST_WAIT_SECONDS
    stayed = (left - arrived)[long]
    return bool(long.any() and np.median(waits[long] / stayed) >= _LEAST_EXPLAINED)


def _last(members: Sequence[int], ready: dict[int, Floats]) -> Floats:
    last: Floats = np.max([ready[node] for node in members], axis=0)
    return last


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
    computed = next(program.nodes[at].names[0] for at in walk if program.nodes[at].kind is Kind.COMPUTE)
    return "forward" in computed


def _shards(program: Program) -> dict[int, int]:
    """Rank -> its index among the ranks of the same stage and replica."""
    seats: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in sorted(program.stage_of):
        seats[program.stage_of[rank], program.replica_of[rank]].append(rank)
    return {rank: index for ranks in seats.values() for index, rank in enumerate(ranks)}
