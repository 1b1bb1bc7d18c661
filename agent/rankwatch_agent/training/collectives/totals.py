"""The collectives of one rank, from the records of its black box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.steps import StepAssembler

OVERFLOW = "(more)"
"""Stands for every name beyond the bound."""


class BoundedNames:
    """Lets through the first `most` names of each kind; later ones become `(more)` or nothing."""

    def __init__(self, most: int) -> None:
        self.dropped = 0
        """Uses of a name beyond the bound."""
        self._most = most
        self._known: dict[str, set[str]] = {}

    def bound(self, kind: str, name: str) -> str:
        """The name itself, or `(more)` where there are too many of its kind."""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = set()
        if name in known:
            return name
        if len(known) < self._most:
            known.add(name)
            return name
        self.dropped += 1
        return OVERFLOW


MOST_PENDING = 1024
"""Collectives of a group kept for comparison; a rank that is further ahead of its peers forgets some."""
MOST_PENDING_OF_RANK = 8192
"""Likewise over all groups of a rank."""


class GroupKey(NamedTuple):
    """A process group as labels name it."""

    group: str
    members: str
    """Empty where they are not known: then its collectives cannot be compared between ranks."""


class CollectiveTotals:
    """Collectives of one group and operation."""

    __slots__ = ("bytes", "count", "operation", "seconds", "timed", "wait_seconds")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.count = 0
        self.bytes = 0
        self.seconds = 0.0
        self.timed = True
        """Whether the source has told the time of one."""
        self.wait_seconds: float | None = None
        """Beyond the last arriver of this node; None while none was compared."""


Finished = tuple[float, int, CollectiveTotals]
"""A completed collective: seconds (NaN where not known), bytes of input, where its wait is added up."""


class GroupCollectives:
    """Completed collectives of one rank in one group, by their number in the group."""

    __slots__ = ("completed", "finished", "key", "size")

    def __init__(self, key: GroupKey, size: int) -> None:
        self.key = key
        self.size = size
        """Number of the group's ranks; 0 while it is not known."""
        self.finished: dict[int, Finished] = {}
        """By number, in the order of completion."""
        self.completed = 0
        """Highest number that completed, from 1; 0 while none has."""

    def note_completed(self) -> None:
        """Take the highest number among those kept; call it before they are compared."""
        if self.finished:
            self.completed = max(self.completed, max(self.finished) + 1)

    def let_go(self, keep: int) -> None:
        """Forget all but the newest: their peers' records are lost, or still far away."""
        finished = self.finished
        for number in list(finished)[: max(0, len(finished) - keep)]:
            del finished[number]


_unpack = layout.COLLECTIVE.unpack_from
_BLOCKING, _UNTIMED = layout.BLOCKING, layout.UNTIMED
_APART = layout.FAILED | layout.POINT_TO_POINT
"""Of these no two ranks can be compared: they failed, or differ between the ranks by design."""


class RankCollectives:
    """Adds up the collectives of one rank, across restarts of its process.

    names: keeps the number of groups and operations small.
    steps: takes each collective too, for what it blocked.
    """

    def __init__(self, names: BoundedNames, steps: StepAssembler) -> None:
        self.totals: dict[tuple[str, str, str], CollectiveTotals] = {}
        """(group, members, operation) -> totals."""
        self.present = True
        """Whether the process takes part in comparisons."""
        self._names = names
        self._follow = steps.unsettled.collectives.append
        self._name_of: Callable[[int], str] = str
        self._groups_now: Callable[[], Sequence[GroupNow]] = tuple
        # By numbers of the present process's names: thousands of records a second take this way.
        self._kinds: dict[tuple[int, int], tuple[CollectiveTotals, GroupCollectives]] = {}
        self._groups: dict[int, GroupCollectives] = {}

    @property
    def groups(self) -> Sequence[GroupCollectives]:
        """The groups of the present process, one for each number of a name."""
        return tuple(self._groups.values())

    def begin_process(self) -> None:
        """Another process takes the rank: its names and its collectives are numbered anew."""
        self.present = True
        self._kinds.clear()
        self._groups.clear()

    def end_process(self) -> None:
        """The process ended: from now on its peers are compared without it."""
        self.present = False
        for group_state in self._groups.values():
            group_state.finished.clear()

    def expect(self, name_of: Callable[[int], str], groups_now: Callable[[], Sequence[GroupNow]]) -> None:
        """Say how the records to come are to be read: names by number, and the groups as they stand."""
        self._name_of = name_of
        self._groups_now = groups_now

    def observe(self, groups: Sequence[GroupNow]) -> None:
        """Take the table of groups: a group is known before its first collective completes."""
        for group in groups:
            if group.number not in self._groups:
                self._open(group.number, groups)

    def take(self, operation: int, start: float, end: float, raw: bytes, at: int) -> None:
        """Take one record, whose payload begins in `raw` at `at`."""
        size, number, group, flags, waited = _unpack(raw, at)
        totals, group_state = self._kinds.get((operation, group)) or self._kind(operation, group)
        totals.count += 1
        totals.bytes += size
        if flags & _UNTIMED:
            seconds = nan
        else:
            seconds = end - start
            totals.seconds += seconds
            totals.timed = True
            if start <= waited <= end:  # the thread blocked from there, whatever it did before
                self._follow((waited, end, True))
            else:
                self._follow((start, end, flags & _BLOCKING != 0))
        if not flags & _APART:
            group_state.finished[number] = (seconds, size, totals)

    def note_completed(self) -> None:
        """Bring the numbers of the last completed collectives up to date, and what is kept within bounds."""
        kept = 0
        for group_state in self._groups.values():
            group_state.note_completed()
            kept += len(group_state.finished)
        for group_state in self._groups.values() if kept > MOST_PENDING_OF_RANK else ():
            group_state.let_go(MOST_PENDING // 8)

    def key(self, number: int) -> GroupKey | None:
        """The labels of a group by the number of its name; None where it is not known."""
        group_state = self._groups.get(number)
        return None if group_state is None else group_state.key

    def completed(self, number: int) -> int:
        """Highest number of a collective that completed in the group, from 1; 0 where none is known."""
        group_state = self._groups.get(number)
        return 0 if group_state is None else group_state.completed

    def _kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupCollectives]:
        # Numbers that name nothing are one number: there are four billion of them.
        at = (operation if operation < layout.NAME_COUNT else 0, group if group < layout.NAME_COUNT else 0)
        kind = self._kinds.get(at)
        if kind is None:
            kind = self._kinds[at] = self._new_kind(*at)
        return kind

    def _new_kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupCollectives]:
        group_state = self._groups.get(group) or self._open(group, self._groups_now())
        name = self._names.bound("operation", self._name_of(operation))
        key = (*group_state.key, name)
        totals = self.totals.get(key)
        if totals is None:
            totals = self.totals[key] = CollectiveTotals(name)
            totals.timed = False
        return totals, group_state

    def _open(self, number: int, groups: Sequence[GroupNow]) -> GroupCollectives:
        name = self._name_of(number)
        found = {(each.members, each.size) for each in groups if each.number == number}
        # Several groups of one name cannot be told apart by a record: none of their members is named.
        members, size = found.pop() if len(found) == 1 else ("", 0)
        if self._names.bound("group", f"{name} {members}") == OVERFLOW:
            key, size = GroupKey(OVERFLOW, ""), 0
        else:
            key = GroupKey(name, members)
        group_state = self._groups[number] = GroupCollectives(key, size)
        return group_state
