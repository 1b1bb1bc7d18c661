"""From waits to root causes: the ranks that others wait for and that wait for nobody themselves.

Ranks and waits are the nodes of one graph: a rank points to the operations in which it waits, an operation
to the ranks that it waits for. A group of a thousand members costs a thousand edges that way, not a million.
A part of the graph that no edge leaves is where the run is stuck: a single rank is a root cause; several
ranks wait for each other in a cycle, and one of them may have called in another order than its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwatch_diagnosis.hang.job import Group, Job
from rankwatch_diagnosis.hang.waits import Stillness, Wait, is_front, wait_for_unknown


def components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Find the strongly connected components of the graph node -> nodes, by Tarjan's algorithm, sinks first.

    Without recursion, because a job may have tens of thousands of ranks.
    """
    order: list[int] = [0] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for root in range(len(edges)):
        if order[root]:
            continue
        work = [(root, 0)]
        while work:
            node, position = work.pop()
            if position == 0:
                count += 1
                order[node] = low[node] = count
                stack.append(node)
                on_stack[node] = True
            for next_position in range(position, len(edges[node])):
                target = edges[node][next_position]
                if not order[target]:
                    work += [(node, next_position + 1), (target, 0)]
                    break
                if on_stack[target]:
                    low[node] = min(low[node], order[target])
            else:
                if low[node] == order[node]:
                    found.append(_cut(stack, on_stack, node))
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return found


def _cut(stack: list[int], on_stack: list[bool], node: int) -> list[int]:
    start = len(stack) - 1
    while stack[start] != node:
        start -= 1
    part = stack[start:]
    del stack[start:]
    for each in part:
        on_stack[each] = False
    return part


def terminal(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the components that no edge leaves."""
    parts = components(edges)
    part_of = [0] * len(edges)
    for index, part in enumerate(parts):
        for node in part:
            part_of[node] = index
    return [
        part
        for index, part in enumerate(parts)
        if all(part_of[target] == index for node in part for target in edges[node])
    ]


def reaching(edges: Sequence[Sequence[int]], targets: Sequence[int]) -> set[int]:
    """Return the nodes from which a target can be reached, the targets included."""
    backwards: list[list[int]] = [[] for _ in edges]
    for node, out in enumerate(edges):
        for target in out:
            backwards[target].append(node)
    seen = set(targets)
    work = list(targets)
    while work:
        for node in backwards[work.pop()]:
            if node not in seen:
                seen.add(node)
                work.append(node)
    return seen


_CLOCK_SKEW_NS = 100_000_000
"""By how much the wall clocks of two hosts may differ; NTP keeps them closer."""
_FEWEST_PEERS = 2
"""Peers that agree which it takes to call a rank the odd one."""


@dataclass
class RootCauses:
    """What the graph of waits shows."""

    ranks: list[int] = field(default_factory=list)
    """Ranks that others wait for, proved by the times of the snapshots."""
    unproven: list[int] = field(default_factory=list)
    """Ranks that others seem to wait for."""
    stuck: set[int] = field(default_factory=set)
    """Ranks with a pending operation that their peers have completed."""
    cycles: list[list[int]] = field(default_factory=list)
    """Ranks that wait for each other, none of which is known to have begun it."""
    out_of_order: bool = False
    """A root cause enqueued its operations in another order, or another number of them, than its peers."""
    arrived_by_all: list[Wait] = field(default_factory=list)
    """Operations that all members have come to and none completes."""
    blocked: dict[int, int] = field(default_factory=dict)
    """Root cause -> number of ranks that wait for it, directly or through others."""


class _Graph:
    """Nodes: the ranks of the job, then the waits."""

    def __init__(self, job: Job, waits: Sequence[Wait], stuck: set[int]) -> None:
        self.ranks = len(job.world)
        self.waits = waits
        self.edges: list[list[int]] = [[] for _ in range(self.ranks + len(waits))]
        self.waited_for: set[int] = set()
        self.waits_of: list[list[int]] = [[] for _ in waits]
        """Of each wait, the ranks that point to it."""
        for node, wait in enumerate(waits, self.ranks):
            targets = wait.waits_for
            # A device or a missing rank is judged by what devices reached, not by what hosts enqueued.
            only_front = targets is not wait.absent
            for rank in wait.waiting:
                if rank in stuck or rank in targets or (only_front and not is_front(wait, rank, job)):
                    continue
                self.edges[rank].append(node)
                self.waits_of[node - self.ranks].append(rank)
            self.edges[node] = list(targets)
            self.waited_for.update(targets)

    def blamed(self, stillness: Stillness) -> set[int]:
        """Return the ranks that are waited for, as far as the times of the snapshots prove it."""
        found: set[int] = set()
        for wait, waiting in zip(self.waits, self.waits_of, strict=True):
            found |= stillness.blamed(wait, waiting)
        return found


def find_root_causes(job: Job, waits: Sequence[Wait], stillness: Stillness) -> RootCauses:
    """Search the graph of all waits.

    A wait that no times prove still clears the rank that waits, and blames nobody.
    """
    found = RootCauses()
    for wait in waits:
        # Several in what a member may leave early may wait for one of them.
        if wait.everyone_came and not (wait.leaves_early and len(wait.arrived) > 1):
            found.stuck.update(rank for rank in wait.waiting if stillness.is_stuck(wait, rank))
    graph = _Graph(job, waits, found.stuck)
    _judge_ends(job, graph, found, stillness)
    # An operation that nobody waits in is no evidence.
    found.arrived_by_all = [wait for wait in found.arrived_by_all if _is_pending(wait, job, stillness)]
    found.ranks = sorted(set(found.ranks))
    for rank in found.ranks:
        reached = reaching(graph.edges, [rank])
        found.blocked[rank] = sum(node < graph.ranks for node in reached) - 1
    return found


def _judge_ends(job: Job, graph: _Graph, found: RootCauses, stillness: Stillness) -> None:
    """Judge each part of the graph that no edge leaves."""
    blamed = graph.blamed(stillness)
    unknown = wait_for_unknown(job)
    for part in terminal(graph.edges):
        ranks = [node for node in part if node < graph.ranks]
        if not ranks:
            found.arrived_by_all.append(graph.waits[part[0] - graph.ranks])
        elif len(ranks) > 1:
            in_cycle = [graph.waits[node - graph.ranks] for node in part if node >= graph.ranks]
            _resolve_cycle(job, in_cycle, found, stillness)
        elif ranks[0] not in unknown and (ranks[0] in blamed or ranks[0] in found.stuck):
            found.ranks.append(ranks[0])
        elif ranks[0] in graph.waited_for:
            found.unproven.append(ranks[0])


def _is_pending(wait: Wait, job: Job, stillness: Stillness) -> bool:
    waited_in = any(is_front(wait, rank, job) for rank in wait.waiting)
    return waited_in and not wait.completed and stillness.all_still_in(wait)


def _resolve_cycle(job: Job, waits: Sequence[Wait], found: RootCauses, stillness: Stillness) -> None:
    """Explain why ranks wait for each other: a call out of order, or a pipeline that waits both ways."""
    ranks = {rank for wait in waits for rank in (*wait.waiting, *wait.waits_for)}
    if not stillness.were_still(ranks):
        found.cycles.append(sorted(ranks))
        return
    collective = [wait for wait in waits if not wait.point_to_point]
    odd = _odd_by_count(job, collective)
    if not odd:
        without = _only_one(job, collective, ranks)
        if without is not None:
            found.ranks.append(without)
            return
        odd = _odd_by_majority(waits)
    if odd:
        found.ranks += odd
        found.out_of_order = True
    else:
        found.cycles.append(sorted(ranks))


def _only_one(job: Job, collective: Sequence[Wait], ranks: set[int]) -> int | None:
    """Return the one root cause without sends and receives, which may be posted long before their use."""
    graph = _Graph(job, collective, set())
    ends = [[node for node in part if node in ranks] for part in terminal(graph.edges)]
    waited_for = {rank for wait in collective for rank in wait.waits_for}
    found = [members for members in ends if members and waited_for.intersection(members)]
    if len(found) != 1 or len(found[0]) != 1:
        return None
    rank = found[0][0]
    if rank not in job.snapshots:
        return rank
    # It stopped first: the others came to a stop because of it.
    others = [job.snapshots[each].newest_ns for each in ranks if each != rank and each in job.snapshots]
    return rank if job.snapshots[rank].newest_ns <= min(others, default=0) + _CLOCK_SKEW_NS else None


def _odd_by_count(job: Job, waits: Sequence[Wait]) -> list[int]:
    """Return the ranks of a cycle that skipped an operation, or called one too many.

    A rank that has come to an operation with fewer operations behind it than its peers skipped one; a rank
    that has more than those peers, and has not come, called one too many. Numbers are compared in groups of
    the same description, such as each rank's own tensor-parallel group.
    """
    found: set[int] = set()
    for wait in waits:
        others = [each for each in waits if each.group is not wait.group and each.group.description]
        for other in others:
            skipped, called = (set(wait.arrived) & set(other.absent)), (set(wait.absent) & set(other.arrived))
            for rank in skipped | called:
                usual = _usual(job, rank, wait, other.group)
                before = _count_before(rank, wait, other.group) or 0 if rank in skipped else 0
                if usual is not None and (before < usual if rank in skipped else other.sequence > usual):
                    found.add(rank)
    return sorted(found)


def _usual(job: Job, rank: int, wait: Wait, like: Group) -> int | None:
    """Return how many operations the peers in `wait` had enqueued in their group of that description.

    None where they differ. Peers are those that share a group with the rank, such as its replicas in other
    pipelines; where these are too few, all ranks in the wait: stages may differ.
    """
    peers = {
        each
        for group in job.groups
        if rank in group.members and len(group.members) < len(job.world) and not group.point_to_point
        for each in group.members
    }
    for ranks in (peers.intersection(wait.arrived), set(wait.arrived)):
        counts = [
            _count_before(each, wait, group)
            for group in job.groups
            if group.description == like.description and group is not like
            for each in ranks.intersection(group.views) - {rank}
        ]
        if len(counts) >= _FEWEST_PEERS:
            known = set(counts)
            return known.pop() if len(known) == 1 else None
    return None


def _count_before(rank: int, wait: Wait, group: Group) -> int | None:
    """Count operations of the group that the rank had enqueued when it came to `wait`; hosts run ahead."""
    last = group.last_enqueued(rank)
    came = wait.group.pending[rank].get(wait.sequence)
    if last is None or came is None:
        return last
    return last - sum(each.record > came.record for each in group.pending[rank].values())


def _odd_by_majority(waits: Sequence[Wait]) -> list[int]:
    """Return the ranks in the minority of every operation of a cycle; nobody where one is a tie.

    Nobody in a cycle with sends or receives: in a pipeline most ranks of a stage may be the victims.
    """
    odd: set[int] | None = None
    for wait in waits:
        if wait.point_to_point:
            return []
        fewer, more = sorted((set(wait.arrived), set(wait.absent)), key=len)
        if len(fewer) == len(more):
            return []
        odd = fewer if odd is None else odd & fewer
    return sorted(odd or ())
