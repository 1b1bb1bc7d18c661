"""Which rank waits in which operation, and for which ranks: the edges of the graph of waits. And their proof.

A rank waits in the oldest operation of each group that it has enqueued and not completed. It waits for the
members that have not enqueued that operation; where all have, for those whose device is still at an earlier
one; where a member has completed it, everyone had come, and the rank is stuck by itself.

Snapshots are taken one after another while a run may move: a rank that one of them shows to wait may have
been served when the next is taken. So a rank is only blamed for what was so at one moment, and for as long
as a stall lasts before it: a peer waited, and neither of the two did anything. A snapshot without a time
counts as taken at a stall, because that is when PyTorch writes one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rankwatch_agent.training.flight_recorder.operations import standard_name
from rankwatch_diagnosis.hang.job import UNKNOWN, Group, HangSnapshot, Job, Operation

if TYPE_CHECKING:
    from rankwatch_diagnosis.hang.engine import Mismatch


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
        """The ranks that those in it wait for. One without a dump counts only if nobody else is to blame."""
        if self.everyone_came:
            return []
        return self.absent or self.no_dump or self.behind


def find_waits(job: Job) -> list[Wait]:
    """Find all operations in which a rank waits."""
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
    """Return the list of the wait that this member belongs in."""
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
    """Match sends and receives: of each direction between two ranks the oldest belongs to the peer's."""
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
    """Find ranks with a send or receive whose peer is not in the dumps: it is unknown whom they wait for."""
    return {
        rank
        for rank, snapshot in job.snapshots.items()
        if any(each.own != UNKNOWN and job.peer_of(rank, each) is None for each in snapshot.pending)
    }


def is_front(wait: Wait, rank: int, job: Job) -> bool:
    """Say whether the wait is the very operation that the rank's device is at."""
    pending = job.snapshots[rank].pending
    if wait.point_to_point:
        return pending[0].record == wait.record
    return pending[0] is wait.group.pending[rank].get(wait.sequence)


_CLOCK_STEP_NS = 10_000_000_000
"""By how much a wall clock may be set back while a run goes on."""
_NEVER_NS = 1 << 62
"""Later than any wall clock."""


class RunTiming(NamedTuple):
    """Whether the run moves."""

    moving: bool
    """All ranks advance, or nothing has waited long."""
    timed: bool
    """The snapshots hold the time at which they were taken, or there are several of a rank."""
    oldest_seconds: float | None
    """Age of the oldest pending operation; None where no snapshot holds its time."""


def with_sound_times(snapshots: Sequence[HangSnapshot]) -> list[HangSnapshot]:
    """Return the snapshots, without times before the newest entry: those are of another clock or moment."""
    return [
        each
        if not each.taken_ns or each.taken_ns >= each.newest_ns - _CLOCK_STEP_NS
        else msgspec.structs.replace(each, taken_ns=0)
        for each in snapshots
    ]


def newest_of_each(snapshots: Sequence[HangSnapshot]) -> dict[int, HangSnapshot]:
    """Return the last snapshot of each rank."""
    return {each.rank: each for each in snapshots}


def timing_of(snapshots: Sequence[HangSnapshot], stall_seconds: float) -> RunTiming:
    """Judge by the age of what is pending, and by snapshots of one rank that were taken one after another."""
    newest = newest_of_each(snapshots)
    ages = [
        (each.taken_ns - each.pending[0].created_ns) / 1e9
        for each in newest.values()
        if each.taken_ns and each.pending
    ]
    oldest = max(ages, default=None)
    first: dict[int, HangSnapshot] = {}
    for each in snapshots:
        first.setdefault(each.rank, each)
    again = [rank for rank in newest if first[rank] is not newest[rank]]
    if again:
        advanced = all(_position(first[rank]) != _position(newest[rank]) for rank in again)
        # A healthy rank may compute between two snapshots: the age of what waits decides, where it is known.
        return RunTiming(advanced if oldest is None else oldest < stall_seconds, True, oldest)
    timed = all(each.taken_ns for each in newest.values())
    return RunTiming(timed and (oldest is None or oldest < stall_seconds), timed, oldest)


def _position(snapshot: HangSnapshot) -> tuple[int, int, int]:
    completed = sum(status[1] for status in snapshot.status.values())
    return snapshot.newest_record, completed, len(snapshot.pending)


class Stillness:
    """Which ranks of a job stood still at one moment, and for how long.

    stall_seconds: how long is long enough to be no normal moment of a run.
    """

    def __init__(self, job: Job, stall_seconds: float) -> None:
        self._stall_ns = int(stall_seconds * 1e9)
        self._taken = {rank: each.taken_ns or _NEVER_NS for rank, each in job.snapshots.items()}
        self._missing = bool(job.missing)
        self._moved = {rank: each.moved_ns if each.taken_ns else 0 for rank, each in job.snapshots.items()}

    def were_still(self, ranks: Collection[int], since_ns: int = 0) -> bool:
        """Say whether none of these ranks moved for a stall's time, at a moment that all snapshots share.

        since_ns: the stall began at this moment at the earliest.
        """
        seen = [rank for rank in ranks if rank in self._taken]
        began = max((self._moved[rank] for rank in seen), default=0)
        end = min((self._taken[rank] for rank in seen), default=_NEVER_NS)
        return end - max(began, since_ns) >= self._stall_ns

    def blamed(self, wait: Wait, waiting: Collection[int]) -> set[int]:
        """Return the ranks that the wait is for, and that stood still while one of `waiting` stood in it.

        Only the three ranks that show most are compared: that keeps it linear.
        """
        if not waiting:
            return set()
        began = {rank: max(wait.since_ns[rank], self._moved[rank]) for rank in waiting}
        witnesses = {
            min(waiting, key=began.__getitem__),
            max(waiting, key=self._taken.__getitem__),
            max(waiting, key=lambda rank: self._taken[rank] - began[rank]),
        }
        # A host may be far ahead of its device: only silence shows that the device has come to the wait too.
        return {
            rank
            for rank in wait.waits_for
            if any(self.were_still((each, rank), wait.since_ns[each]) for each in witnesses)
        }

    def is_stuck(self, wait: Wait, rank: int) -> bool:
        """Say whether the rank stood still in what others had completed long before it was asked."""
        if self._taken[rank] == _NEVER_NS:
            return True
        views = [wait.group.views.get(each) for each in wait.completed]
        # It was over at the newest end that one of them has noticed. Gloo records no ends, and has no device
        # that comes later than its host: there it is over when all have called.
        ended = [view.ended_ns for view in views if view is not None and view.ended_ns]
        over = min(ended) if ended else max(self._arrivals(wait), default=0)
        return over > 0 and self.were_still((rank,), over)

    def all_still_in(self, wait: Wait) -> bool:
        """Say whether all that have come to an operation stood still in it."""
        return self.were_still(wait.arrived, max(wait.since_ns.values(), default=0))

    def is_settled(self, mismatch: Mismatch) -> bool:
        """Say whether it is known which ranks are the odd ones.

        It is where the ranks that have not called yet are too few to change the majority, or stood still too.
        """
        if mismatch.settled:
            return True
        called = {rank for ranks in mismatch.calls.values() for rank in ranks}
        views, number = mismatch.group.views, mismatch.sequence
        since = [at for rank in called if (at := views[rank].created_at(number))]
        outside = [rank for rank in mismatch.group.members if rank not in called]
        silent = any(rank not in self._taken for rank in outside)
        return self.were_still([*outside, *(called if silent else ())], min(since, default=0))

    def _arrivals(self, wait: Wait) -> list[int]:
        """Return when each member enqueued it, at the latest; empty where one of them is not known."""
        group = wait.group
        if self._missing and not group.members_known:
            return []  # who is missing may be a member
        views = [group.views.get(rank) for rank in group.members]
        found = [0 if view is None else view.created_at(wait.sequence) for view in views]
        return found if all(found) else []
