"""What the times of snapshots prove: that one rank waits for another, and for how long at least.

Snapshots are taken one after another while a run may move: a rank that one of them shows to wait may have
been served when the next is taken. So nobody is accused but by what was so at one moment, and for as long as
a stall lasts before it: the one waited, and neither did anything. A snapshot without a time counts as made at
a stall.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankwatch_diagnosis.hang.desync import Mismatch
from rankwatch_diagnosis.hang.job import Job
from rankwatch_diagnosis.hang.waits import Wait

_EVER_NS = 1 << 62
"""Later than any wall clock."""


class Standing:
    """The moments of one job's snapshots.

    stall_seconds: how long something must have been so.
    """

    def __init__(self, job: Job, stall_seconds: float) -> None:
        self._stall_ns = int(stall_seconds * 1e9)
        self._taken = {rank: each.taken_ns or _EVER_NS for rank, each in job.snapshots.items()}
        self._missing = bool(job.missing)
        self._moved = {rank: each.moved_ns if each.taken_ns else 0 for rank, each in job.snapshots.items()}

    def accused(self, wait: Wait, waiting: Collection[int]) -> set[int]:
        """Those that the wait is for and that did nothing for so long while one of `waiting` stood in it.

        Asked are three that tell most, not all: that keeps it linear.
        """
        if not waiting:
            return set()
        began = {rank: max(wait.since_ns[rank], self._moved[rank]) for rank in waiting}
        telling = {
            min(waiting, key=began.__getitem__),
            max(waiting, key=self._taken.__getitem__),
            max(waiting, key=lambda rank: self._taken[rank] - began[rank]),
        }
        return {rank for rank in wait.waits_for if any(self._for_long(wait, each, rank) for each in telling)}

    def _for_long(self, wait: Wait, rank: int, target: int) -> bool:
        """Whether one stood in the wait and the other did nothing, where it has a dump."""
        # A host may be far ahead of its device: only silence tells that the device has come to the wait, too.
        return self.together((rank, target), wait.since_ns[rank])

    def stuck(self, wait: Wait, rank: int) -> bool:
        """Whether it did nothing since others completed, long before it was asked, what it stands in."""
        if self._taken[rank] == _EVER_NS:
            return True
        views = [wait.group.views.get(each) for each in wait.completed]
        # It was over at the newest end that one of them has noticed. Gloo tells no ends, and has no device
        # that comes later than its host: there it is over when all have called.
        ended = [view.ended_ns for view in views if view is not None and view.ended_ns]
        over = min(ended) if ended else max(self._arrivals(wait), default=0)
        return over > 0 and self.together((rank,), over)

    def together(self, ranks: Collection[int], since_ns: int = 0) -> bool:
        """Whether all of them stood still at one moment, since so long."""
        seen = [rank for rank in ranks if rank in self._taken]
        began = max((self._moved[rank] for rank in seen), default=0)
        return self._end(seen) - max(began, since_ns) >= self._stall_ns

    def all_came(self, wait: Wait) -> bool:
        """Whether an operation that everyone has come to has stood since so long."""
        return self.together(wait.arrived, max(wait.since_ns.values(), default=0))

    def settled(self, mismatch: Mismatch) -> bool:
        """Whether who has not called yet cannot make others the odd ones, or stands, too."""
        if mismatch.settled:
            return True
        called = {rank for ranks in mismatch.calls.values() for rank in ranks}
        views, number = mismatch.group.views, mismatch.sequence
        since = [at for rank in called if (at := views[rank].created_at(number))]
        outside = [rank for rank in mismatch.group.members if rank not in called]
        silent = any(rank not in self._taken for rank in outside)
        return self.together([*outside, *(called if silent else ())], min(since, default=0))

    def _arrivals(self, wait: Wait) -> list[int]:
        """When each member enqueued it, at the latest; nothing where one of them cannot be told."""
        group = wait.group
        if self._missing and not group.told:
            return []  # who is missing may be a member
        views = [group.views.get(rank) for rank in group.members]
        found = [0 if view is None else view.created_at(wait.sequence) for view in views]
        return found if all(found) else []

    def _end(self, ranks: Sequence[int]) -> int:
        return min((self._taken[rank] for rank in ranks), default=_EVER_NS)
