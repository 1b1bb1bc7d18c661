"""Ranks that wait for each other in several groups: who called another order than its peers?"""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch_diagnosis.hang.job import Group, Job
from rankwatch_diagnosis.hang.waits import Wait

_FEWEST_PEERS = 2
"""Peers of one mind that it takes to call a rank the odd one."""


def odd_by_count(job: Job, waits: Sequence[Wait]) -> list[int]:
    """A rank that has come to an operation with fewer operations behind it than its peers skipped one.

    And one that has more than those peers, and has not come, called one too many. Compared are numbers in
    groups of the same description, such as each rank's own tensor-parallel group.
    """
    found: set[int] = set()
    for wait in waits:
        for other in waits:
            if other.group is wait.group or not other.group.description:
                continue
            found |= _fewer(job, wait, other) | _more(job, wait, other)
    return sorted(found)


def _fewer(job: Job, wait: Wait, other: Wait) -> set[int]:
    return {
        rank
        for rank in set(wait.arrived) & set(other.absent)
        if (usual := _usual(job, rank, wait, other.group)) is not None
        and (_count_before(rank, wait, other.group) or 0) < usual
    }


def _more(job: Job, wait: Wait, other: Wait) -> set[int]:
    return {
        rank
        for rank in set(wait.absent) & set(other.arrived)
        if (usual := _usual(job, rank, wait, other.group)) is not None and other.sequence > usual
    }


def _usual(job: Job, rank: int, wait: Wait, like: Group) -> int | None:
    """The number of operations that the peers in `wait` had enqueued in their group of that description.

    None where they are not of one mind. Peers are those that share a group with the rank, such as its
    replicas in other pipelines; where these are too few, everyone: stages may differ.
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
    """Operations of the group that the rank had enqueued when it came to `wait`; hosts run ahead."""
    last = group.last_enqueued(rank)
    came = wait.group.pending[rank].get(wait.sequence)
    if last is None or came is None:
        return last
    return last - sum(each.record > came.record for each in group.pending[rank].values())


def odd_by_majority(waits: Sequence[Wait]) -> list[int]:
    """The ranks that are in the minority of every operation of the circle; nobody where one is a tie.

    Not in a circle with sends or receives: in a pipeline most ranks of a stage may be the victims.
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
