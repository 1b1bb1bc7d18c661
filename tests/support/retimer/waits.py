"""Who waits for whom, seen in the times alone: barriers without a row, and computation that hides a wait.

A set of ranks (a stage, a replica, the job) meets where nobody goes on before the last one has come, in any
step, and where that explains most of what the early ones wait. One rank that goes on earlier disproves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind

from .messages import FUZZ_SECONDS, is_message
from .program import Floats, Node, Program

_LEAST_WAIT_SECONDS = 1e-3
_LEAST_EXPLAINED = 0.5
_MOST_CONTRADICTED = 0.01


class Barrier(NamedTuple):
    """These nodes begin when the last of them is ready."""

    nodes: tuple[int, ...]


def hidden_barriers(program: Program) -> list[Barrier]:
    """Barriers before collectives, the first ones first: of a stage, then of a replica, or of the job."""
    found: list[Barrier] = []
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
        found.extend(each.nodes for each in _meetings(program, nodes, arrive, leave))
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
) -> Iterator[Barrier]:
    """The whole job if it meets; else stages that meet, and then replicas with those of them."""
    if _meet(nodes, ready, leave):
        yield Barrier(tuple(nodes))
        return
    for part_of in (program.stage_of, program.replica_of):
        for members in _parts(program, nodes, part_of):
            if _meet(members, ready, leave):
                yield Barrier(members)
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
