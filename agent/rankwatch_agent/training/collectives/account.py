"""The collectives of one rank, from the records of its black box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.ledger import (
    MOST_PENDING,
    MOST_PENDING_OF_RANK,
    CollectiveTotals,
    GroupKey,
    GroupLedger,
)
from rankwatch_agent.training.names import OVERFLOW, BoundedNames
from rankwatch_agent.training.steps import StepAssembler

_unpack = layout.COLLECTIVE.unpack_from
_BLOCKING, _UNTIMED = layout.BLOCKING, layout.UNTIMED
_APART = layout.FAILED | layout.POINT_TO_POINT
"""Of these no two ranks can be compared: they failed, or differ between the ranks by design."""


class CollectiveAccount:
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
        self._follow = steps.waiting.collectives.append
        self._name_of: Callable[[int], str] = str
        self._groups_now: Callable[[], Sequence[GroupNow]] = tuple
        # By numbers of the present process's names: thousands of records a second take this way.
        self._kinds: dict[tuple[int, int], tuple[CollectiveTotals, GroupLedger]] = {}
        self._ledgers: dict[int, GroupLedger] = {}

    @property
    def ledgers(self) -> Sequence[GroupLedger]:
        """The groups of the present process, one for each number of a name."""
        return tuple(self._ledgers.values())

    def begin_process(self) -> None:
        """Another process takes the rank: its names and its collectives are numbered anew."""
        self.present = True
        self._kinds.clear()
        self._ledgers.clear()

    def leave(self) -> None:
        """The process ended: from now on its peers are compared without it."""
        self.present = False
        for ledger in self._ledgers.values():
            ledger.finished.clear()

    def expect(self, name_of: Callable[[int], str], groups_now: Callable[[], Sequence[GroupNow]]) -> None:
        """Say how the records to come are to be read: names by number, and the groups as they stand."""
        self._name_of = name_of
        self._groups_now = groups_now

    def observe(self, groups: Sequence[GroupNow]) -> None:
        """Take the table of groups: a group is known before its first collective completes."""
        for group in groups:
            if group.number not in self._ledgers:
                self._open(group.number, groups)

    def take(self, operation: int, start: float, end: float, raw: bytes, at: int) -> None:
        """Take one record, whose payload begins in `raw` at `at`."""
        size, number, group, flags, waited = _unpack(raw, at)
        totals, ledger = self._kinds.get((operation, group)) or self._kind(operation, group)
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
            ledger.finished[number] = (seconds, size, totals)

    def note_completed(self) -> None:
        """Bring the numbers of the last completed collectives up to date, and what is kept within bounds."""
        kept = 0
        for ledger in self._ledgers.values():
            ledger.note_completed()
            kept += len(ledger.finished)
        for ledger in self._ledgers.values() if kept > MOST_PENDING_OF_RANK else ():
            ledger.let_go(MOST_PENDING // 8)

    def key(self, number: int) -> GroupKey | None:
        """The labels of a group by the number of its name; None where it is not known."""
        ledger = self._ledgers.get(number)
        return None if ledger is None else ledger.key

    def completed(self, number: int) -> int:
        """Highest number of a collective that completed in the group, from 1; 0 where none is known."""
        ledger = self._ledgers.get(number)
        return 0 if ledger is None else ledger.completed

    def _kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupLedger]:
        # Numbers that name nothing are one number: there are four billion of them.
        at = (operation if operation < layout.NAME_COUNT else 0, group if group < layout.NAME_COUNT else 0)
        kind = self._kinds.get(at)
        if kind is None:
            kind = self._kinds[at] = self._new_kind(*at)
        return kind

    def _new_kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupLedger]:
        ledger = self._ledgers.get(group) or self._open(group, self._groups_now())
        name = self._names.bound("operation", self._name_of(operation))
        key = (*ledger.key, name)
        totals = self.totals.get(key)
        if totals is None:
            totals = self.totals[key] = CollectiveTotals(name)
            totals.timed = False
        return totals, ledger

    def _open(self, number: int, groups: Sequence[GroupNow]) -> GroupLedger:
        name = self._name_of(number)
        found = {(each.members, each.size) for each in groups if each.number == number}
        # Several groups of one name cannot be told apart by a record: none of their members is named.
        members, size = found.pop() if len(found) == 1 else ("", 0)
        if self._names.bound("group", f"{name} {members}") == OVERFLOW:
            key, size = GroupKey(OVERFLOW, ""), 0
        else:
            key = GroupKey(name, members)
        ledger = self._ledgers[number] = GroupLedger(key, size)
        return ledger
