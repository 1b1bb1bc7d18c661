"""Which rank waits in which operation, and for which ranks: the edges of the graph of waits.

A rank waits in the oldest operation of each group that it has enqueued and not completed. It waits for the
members that have not enqueued that operation; where all have, for those whose device is still at an earlier
one; where a member has completed it, everyone had come, and the rank is stuck by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rankwatch_agent.training.flight_recorder.operations import standard_name
from rankwatch_diagnosis.hang.job import Group, Job
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, Operation

_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Operations that a member may leave before all the others have come."""
_MAX_FRONTS = 64
"""Different oldest operations of one group that are examined; a job that hangs has one or two."""


@dataclass(eq=False)
class Wait:
    """An operation that does not complete."""

    group: Group
    operation: str
    sequence: int
    point_to_point: bool
    waiting: list[int]
    """Ranks for which it is the oldest operation of the group."""
    since_ns: dict[int, int]
    """When each of these enqueued it, wall clock, nanoseconds."""
    record: int = UNKNOWN
    """Of a send or receive: its place in the recorder of the rank that waits."""
    arrived: list[int] = field(default_factory=list)
    """Members that have enqueued it and not completed it."""
    absent: list[int] = field(default_factory=list)
    """Members with a dump that have not enqueued it."""
    no_dump: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """Members that have enqueued it and whose device is at an earlier operation; only where all came."""

    @property
    def leaves_early(self) -> bool:
        """Whether a member may complete it before the others come."""
        return standard_name(self.operation) in _ROOTED or self.operation.startswith(
            ("all_to_all", "alltoall")
        )

    @property
    def everyone_came(self) -> bool:
        """Whether a member has completed it, which none can before all have come."""
        return bool(self.completed) and not (self.leaves_early and (self.absent or self.no_dump))

    @property
    def waits_for(self) -> list[int]:
        """The ranks that those in it wait for. One without a dump counts only where nobody else is to
        blame."""
        if self.everyone_came:
            return []
        return self.absent or self.no_dump or self.behind


def find_waits(job: Job) -> list[Wait]:
    """All operations in which a rank waits."""
    heads = {rank: each.pending[0] for rank, each in job.snapshots.items() if each.pending}
    found = [wait for group in job.groups for wait in _collective_waits(group, job, heads)]
    return found + _point_to_point_waits(job, heads)


def _collective_waits(group: Group, job: Job, heads: dict[int, Operation]) -> list[Wait]:
    fronts: dict[int, list[int]] = defaultdict(list)
    for rank, pending in group.pending.items():
        if pending:
            fronts[min(pending)].append(rank)
    waits = []
    for sequence in sorted(fronts)[:_MAX_FRONTS]:
        waiting = sorted(fronts[sequence])
        name = group.pending[waiting[0]][sequence].name
        since = {rank: group.pending[rank][sequence].created_ns for rank in waiting}
        wait = Wait(group, name, sequence, False, waiting, since)
        for rank in group.members:
            _list_for(wait, rank, job).append(rank)
        if group.members_known and not wait.completed and not wait.absent and not wait.no_dump:
            wait.behind = _behind(wait, heads)
        waits.append(wait)
    return waits


def _list_for(wait: Wait, rank: int, job: Job) -> list[int]:
    """The list of the wait that this member belongs in."""
    group = wait.group
    if rank not in job.snapshots:
        return wait.no_dump
    if wait.sequence in group.pending.get(rank, ()):
        return wait.arrived
    last = group.last_enqueued(rank)
    if last is None or last < wait.sequence:
        # An entry that was not understood may have been this one.
        return wait.no_dump if job.snapshots[rank].skipped_entries else wait.absent
    if rank in group.status and group.status[rank][1] < wait.sequence:
        return wait.arrived
    return wait.completed


def _behind(wait: Wait, heads: dict[int, Operation]) -> list[int]:
    operations = {rank: wait.group.pending[rank].get(wait.sequence) for rank in wait.arrived}
    present = {rank: each for rank, each in operations.items() if each is not None}
    late = [rank for rank, each in present.items() if heads[rank].record < each.record]
    if not late and any(each.started for each in present.values()):
        late = [rank for rank, each in present.items() if not each.started]
    return late if len(late) < len(present) else []


def _point_to_point_waits(job: Job, heads: dict[int, Operation]) -> list[Wait]:
    """Sends and receives: the oldest of each direction between two ranks belongs to the peer's oldest."""
    oldest: dict[tuple[Group, int, int, bool], Operation] = {}
    for rank, snapshot in job.snapshots.items():
        for operation in snapshot.pending:
            peer = job.peer_of(rank, operation)
            if operation.peer != UNKNOWN and peer is not None:
                group = job.group_of[(rank, operation.group)]
                oldest.setdefault((group, rank, peer, operation.sends), operation)
    waits = []
    for (group, rank, peer, sends), operation in oldest.items():
        name = f"{operation.name} {rank}{'->' if sends else '<-'}{peer}"
        since = {rank: operation.created_ns}
        wait = Wait(group, name, operation.sequence, True, [rank], since, operation.record, [rank])
        counterpart = oldest.get((group, peer, rank, not sends))
        if peer not in job.snapshots:
            wait.no_dump.append(peer)
        elif counterpart is None:
            wait.absent.append(peer)
        else:
            wait.arrived.append(peer)
            if heads[rank] is operation and heads[peer].record < counterpart.record:
                wait.behind.append(peer)
        waits.append(wait)
    return waits


def wait_for_unknown(job: Job) -> set[int]:
    """Ranks with a send or receive whose peer is not in the dumps: it is unknown for which rank they wait."""
    return {
        rank
        for rank, snapshot in job.snapshots.items()
        if any(each.own != UNKNOWN and job.peer_of(rank, each) is None for each in snapshot.pending)
    }


def is_front(wait: Wait, rank: int, job: Job) -> bool:
    """Whether the wait is the very operation that the rank's device is at."""
    pending = job.snapshots[rank].pending
    if wait.point_to_point:
        return pending[0].record == wait.record
    return pending[0] is wait.group.pending[rank].get(wait.sequence)
