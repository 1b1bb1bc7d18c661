"""From waits to culprits: the ranks that others wait for and that wait for nobody themselves.

Ranks and waits are the nodes of one graph: a rank points to the operations in which it waits, an operation to
the ranks that it waits for. A group of a thousand members costs a thousand edges that way, not a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwatch_diagnosis.hang.circle import odd_by_count, odd_by_majority
from rankwatch_diagnosis.hang.graph import reaching, terminal
from rankwatch_diagnosis.hang.job import Job
from rankwatch_diagnosis.hang.standing import Standing
from rankwatch_diagnosis.hang.waits import Wait, is_front, wait_for_unknown

_CLOCK_SKEW_NS = 100_000_000
"""By how much the wall clocks of two hosts may differ; NTP keeps them closer."""


@dataclass
class Blame:
    """What the graph of waits says."""

    culprits: list[int] = field(default_factory=list)
    unproven: list[int] = field(default_factory=list)
    """Ranks that others seem to wait for; the times of the snapshots do not prove it."""
    stuck: set[int] = field(default_factory=set)
    """Ranks with an operation that their peers have completed."""
    circles: list[list[int]] = field(default_factory=list)
    """Ranks that wait for each other, without one that could be told to have begun it."""
    out_of_order: bool = False
    """A culprit enqueued its operations in another order, or another number of them, than its peers."""
    together: list[Wait] = field(default_factory=list)
    """Operations that all members have come to and none completes."""
    blocked: dict[int, int] = field(default_factory=dict)
    """Culprit -> ranks that wait for it, directly or through others."""


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
            # A device or a missing rank is judged by where devices stand, not by what hosts enqueued ahead.
            only_front = targets is not wait.absent
            for rank in wait.waiting:
                if rank in stuck or rank in targets or (only_front and not is_front(wait, rank, job)):
                    continue
                self.edges[rank].append(node)
                self.waits_of[node - self.ranks].append(rank)
            self.edges[node] = list(targets)
            self.waited_for.update(targets)

    def accused(self, standing: Standing) -> set[int]:
        """Ranks that are waited for, as far as the times of the snapshots prove it."""
        found: set[int] = set()
        for wait, waiting in zip(self.waits, self.waits_of, strict=True):
            found |= standing.accused(wait, waiting)
        return found


def find_blame(job: Job, waits: Sequence[Wait], standing: Standing) -> Blame:
    """Search the graph of all waits.

    A wait that no times prove still clears the rank that waits, and accuses nobody.
    """
    blame = Blame()
    for wait in waits:
        # Several in what a member may leave early may wait for one of them.
        if wait.everyone_came and not (wait.leaves_early and len(wait.arrived) > 1):
            blame.stuck.update(rank for rank in wait.waiting if standing.stuck(wait, rank))
    graph = _Graph(job, waits, blame.stuck)
    accused = graph.accused(standing)
    lost = wait_for_unknown(job)
    for part in terminal(graph.edges):
        ranks = [node for node in part if node < graph.ranks]
        if not ranks:
            blame.together.append(waits[part[0] - graph.ranks])
        elif len(ranks) > 1:
            of_circle = [waits[node - graph.ranks] for node in part if node >= graph.ranks]
            _resolve_circle(job, of_circle, blame, standing)
        elif ranks[0] not in lost and (ranks[0] in accused or ranks[0] in blame.stuck):
            blame.culprits.append(ranks[0])
        elif ranks[0] in graph.waited_for:
            blame.unproven.append(ranks[0])
    # An operation that nobody waits in is no evidence.
    blame.together = [wait for wait in blame.together if _stands(wait, job, standing)]
    blame.culprits = sorted(set(blame.culprits))
    for culprit in blame.culprits:
        reached = reaching(graph.edges, [culprit])
        blame.blocked[culprit] = sum(node < graph.ranks for node in reached) - 1
    return blame


def _stands(wait: Wait, job: Job, standing: Standing) -> bool:
    waited_in = any(is_front(wait, rank, job) for rank in wait.waiting)
    return waited_in and not wait.completed and standing.all_came(wait)


def _resolve_circle(job: Job, waits: Sequence[Wait], blame: Blame, standing: Standing) -> None:
    """Ranks wait for each other: by a call out of order, or because a pipeline waits in both directions."""
    ranks = {rank for wait in waits for rank in (*wait.waiting, *wait.waits_for)}
    if not standing.together(ranks):
        blame.circles.append(sorted(ranks))
        return
    collective = [wait for wait in waits if not wait.point_to_point]
    odd = odd_by_count(job, collective)
    if not odd:
        without = _only_one(job, collective, ranks)
        if without is not None:
            blame.culprits.append(without)
            return
        odd = odd_by_majority(waits)
    if odd:
        blame.culprits += odd
        blame.out_of_order = True
    else:
        blame.circles.append(sorted(ranks))


def _only_one(job: Job, collective: Sequence[Wait], ranks: set[int]) -> int | None:
    """The one rank to blame without sends and receives, which may be posted long before their use."""
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
