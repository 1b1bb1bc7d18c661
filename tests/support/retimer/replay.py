"""The replay: when each node starts and ends, from the seconds of its own work and whom it waits for.

    start = end of the node before + pause
    end = max(starts of all that meet, ends of all that are awaited) + seconds

Pauses and seconds are what the recording leaves once the waits are taken out, so a replay of them is the
recording again; with other seconds it is what the job would have done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import numpy as np

from rankwatch_diagnosis.operations.table import Kind
from support.retimer.program import Floats, Program
from support.retimer.waiting import (
    FUZZ_SECONDS,
    hidden_barriers,
    hidden_waits,
    is_message,
    messages_of,
    senders_leave_early,
)

_OWN = ()


@dataclass(kw_only=True)
class Seconds:
    """(node, step), of the nodes of a replay: faults change these."""

    pause: Floats
    work: Floats
    loading: dict[int, Floats] = field(default_factory=dict)
    """Node -> the part of its pause in which the rank loaded data, by step; a table has rows for it."""

    def copy(self) -> Seconds:
        return Seconds(pause=self.pause.copy(), work=self.work.copy(), loading=dict(self.loading))


@dataclass(frozen=True, kw_only=True)
class Times:
    """(node, step)"""

    start: Floats
    end: Floats


class Replay:
    """A program with its waits. Nodes of barriers without a row come after those of the table."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.before = [node.before for node in program.nodes]
        """By node: the one before it on its rank; -1 for none."""
        self.meets: list[tuple[int, ...]] = [_OWN] * len(program.nodes)
        """By node: whose starts its end waits for; () for its own only."""
        self.awaits: list[tuple[int, ...]] = [_OWN] * len(program.nodes)
        """By node: whose ends its end waits for."""
        self._partners: dict[int, set[int]] = defaultdict(set)
        self._match_messages()
        self._match_collectives()
        for nodes in hidden_waits(program):
            self._let_meet(nodes)
        for nodes in hidden_barriers(program):
            self._insert(nodes)
        self._order = self._in_order()

    def recorded(self) -> Seconds:
        """Pauses and seconds of work as the table has them."""
        start, end = self._with_barriers()
        pause, work = start.copy(), np.empty_like(end)
        for node, before in enumerate(self.before):
            if before >= 0:
                pause[node] -= end[before]
            work[node] = end[node] - self._released(node, start, end)
        return Seconds(pause=pause, work=work)

    def run(self, seconds: Seconds) -> Times:
        """Start and end of every node with these seconds."""
        start, end = np.empty_like(seconds.pause), np.empty_like(seconds.work)
        for node, ends in self._order:
            if ends:
                end[node] = self._released(node, start, end) + seconds.work[node]
            else:
                before = self.before[node]
                start[node] = seconds.pause[node] + (end[before] if before >= 0 else 0.0)
        return Times(start=start, end=end)

    def step_seconds(self, times: Times) -> Floats:
        """(step,): from the first start to the last end."""
        count = len(self.program.nodes)
        seconds: Floats = times.end[:count].max(axis=0) - times.start[:count].min(axis=0)
        return seconds

    def own_work(self, node: int) -> bool:
        """True for computation that waits for nobody."""
        return self.program.nodes[node].kind is Kind.COMPUTE and not self.meets[node]

    def partners(self, node: int) -> frozenset[int]:
        """Nodes at the other end of its messages."""
        return frozenset(self._partners[node])

    def impossible(self, seconds: Seconds) -> float:
        """Share of the meetings that end before the last one has come: 0 if they are matched rightly."""
        waiting = [node for node in range(len(self.program.nodes)) if self.meets[node] or self.awaits[node]]
        return float(np.mean(seconds.work[waiting] < -FUZZ_SECONDS)) if waiting else 0.0

    def _match_messages(self) -> None:
        messages = messages_of(self.program)
        early = senders_leave_early(self.program, messages)
        for sender, receiver in messages:
            self._partners[sender].add(receiver)
            self._partners[receiver].add(sender)
            if early:
                self.awaits[receiver] = (*self.awaits[receiver], sender)
        if not early:
            for node, others in self._partners.items():
                self.meets[node] = tuple(sorted({node, *others}))

    def _match_collectives(self) -> None:
        seen: dict[tuple[int, int, str], int] = defaultdict(int)
        members: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        for index, node in enumerate(self.program.nodes):
            if node.kind is not Kind.COMMUNICATION or is_message(node.names[0]):
                continue
            key = (node.rank, node.group, node.names[0])
            members[node.group, node.names[0], seen[key]].append(index)
            seen[key] += 1
        for nodes in members.values():
            self._let_meet(tuple(nodes))

    def _let_meet(self, nodes: tuple[int, ...]) -> None:
        if len(nodes) > 1:
            for node in nodes:
                self.meets[node] = nodes

    def _insert(self, nodes: Sequence[int]) -> None:
        """A node without a row before each of these."""
        first = len(self.before)
        added = tuple(range(first, first + len(nodes)))
        for node, barrier in zip(nodes, added, strict=True):
            self.before.append(self.before[node])
            self.before[node] = barrier
            self.meets.append(added)
            self.awaits.append(_OWN)

    def _with_barriers(self) -> tuple[Floats, Floats]:
        """Recorded starts and ends; those of barriers follow from whom they wait for."""
        program, count = self.program, len(self.before)
        start, end = np.empty((2, count, len(program.steps)))
        start[: len(program.nodes)], end[: len(program.nodes)] = program.start, program.end
        for node in range(len(program.nodes), count):
            start[node] = end[self.before[node]]
            if node == self.meets[node][-1]:
                together = list(self.meets[node])
                end[together] = start[together].max(axis=0)
        return start, end

    def _released(self, node: int, start: Floats, end: Floats) -> Floats:
        """When the last of those that a node waits for has come."""
        meets = self.meets[node]
        released = start[list(meets)].max(axis=0) if meets else start[node]
        for other in self.awaits[node]:
            released = np.maximum(released, end[other])
        return released

    def _in_order(self) -> list[tuple[int, bool]]:
        """(node, False) to start it and (node, True) to end it, each after what it depends on."""
        after: dict[tuple[int, bool], list[tuple[int, bool]]] = {}
        for node, before in enumerate(self.before):
            after[node, False] = [(before, True)] if before >= 0 else []
            after[node, True] = [
                (node, False),
                *((other, False) for other in self.meets[node]),
                *((other, True) for other in self.awaits[node]),
            ]
        return list(TopologicalSorter(after).static_order())
