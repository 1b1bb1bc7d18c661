"""The collectives of one rank: what they add up to, and those that wait to be compared with other ranks'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.runtime.collector import FigureTable, Series, sample
from rankwatch_agent.training.steps.assembly import StepAssembler
from rankwatch_agent.training.steps.split import MESSAGE

OVERFLOW = "(more)"
"""Stands for every name beyond the bound."""
MOST_TOTALS = 256
"""Combinations of group and operation of a rank; beyond, those of a group are one operation, `(more)`."""
MOST_PENDING = 1024
"""Collectives of a group kept for comparison; a rank that is further ahead of its peers drops some."""
MOST_PENDING_OF_RANK = 8192
"""Likewise over all groups of a rank."""
UNKNOWN_BYTES = -1
"""Bytes of a collective whose source does not give them."""
BLACK_BOX = "black_box"
FLIGHT_RECORDER = "flight_recorder"
"""Values of the label `source`."""
_unpack = layout.COLLECTIVE.unpack_from
_BLOCKING, _UNTIMED = layout.BLOCKING, layout.UNTIMED
_MESSAGE = layout.POINT_TO_POINT
_NOT_COMPARED = layout.FAILED | layout.POINT_TO_POINT
"""Flags of collectives that no two ranks share: they failed, or differ between the ranks by design."""


class BoundedNames:
    """Lets through the first `most` names of each kind; later ones become `(more)` or nothing."""

    def __init__(self, most: int) -> None:
        self.dropped = 0
        """Uses of a name beyond the bound."""
        self._most = most
        self._known: dict[str, set[str]] = {}

    def bound(self, kind: str, name: str) -> str:
        """Return the name itself, or `(more)` where there are too many of its kind."""
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


class GroupKey(NamedTuple):
    """A process group as labels name it."""

    group: str
    members: str
    """Empty where they are not known: then its collectives cannot be compared between ranks."""


class Position(NamedTuple):
    """How far a rank has come in a group; numbers count from 1, and 0 stands for none yet."""

    enqueued: int | None
    """None where only sends and receives are known, whose numbers differ between ranks by design."""
    completed: int | None
    """None where completions are not seen."""
    oldest: float | None
    """Unix time at which the oldest incomplete one was enqueued; None where all are complete."""
    signature: int | None = None
    """A hash of operation, size and types of the oldest incomplete one."""


class CollectiveTotals:
    """Collectives of one group and operation."""

    __slots__ = ("bytes", "count", "operation", "seconds", "sized", "timed", "wait_seconds")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.count = 0
        self.bytes = 0
        self.sized = True
        """Whether the source gave the bytes of each."""
        self.seconds = 0.0
        self.timed = False
        """Whether the source gave the duration of one."""
        self.wait_seconds: float | None = None
        """Beyond the last arriver of this node; None while none was compared."""


_POSITION = FigureTable(
    {
        "rankwatch_collective_last_enqueued": "enqueued",
        "rankwatch_collective_last_completed": "completed",
        "rankwatch_collective_oldest_incomplete_timestamp_seconds": "oldest",
        "rankwatch_collective_oldest_incomplete_signature": "signature",
    }
)
Completed = tuple[float, int, CollectiveTotals]
"""A completed collective: seconds (NaN where not known), bytes of input (or UNKNOWN_BYTES), where its wait is
added up."""


class GroupCollectives:
    """Completed collectives of one rank in one group, kept until those of its peers are known."""

    __slots__ = ("completed", "key", "last_completed", "size")

    def __init__(self, key: GroupKey, size: int) -> None:
        self.key = key
        self.size = size
        """Number of the group's ranks; 0 while it is not known."""
        self.completed: dict[int, Completed] = {}
        """By number, in the order of completion."""
        self.last_completed = 0
        """Highest number that completed, from 1; 0 while none has."""

    def note_completed(self) -> None:
        """Take the highest number among those kept; call it before they are compared."""
        if self.completed:
            self.last_completed = max(self.last_completed, max(self.completed) + 1)

    def drop_oldest(self, keep: int) -> None:
        """Drop all but the newest `keep`: the records of their peers are lost, or still far away."""
        for number in list(self.completed)[: max(0, len(self.completed) - keep)]:
            del self.completed[number]


class RankCollectives:
    """Adds up the collectives in the black box of one rank, across restarts of its process.

    names: bounds the number of groups and operations.
    steps: takes each collective too, for the time that it blocked.
    """

    def __init__(self, names: BoundedNames, steps: StepAssembler) -> None:
        self.totals: dict[tuple[str, str, str], CollectiveTotals] = {}
        """(group, members, operation) -> totals."""
        self.present = True
        """Whether the process takes part in comparisons."""
        self.last_failed = False
        """Its newest operation ended with an error: another rank may be gone."""
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
        """Note that another process takes the rank: its names and its collectives are numbered anew."""
        self.present = True
        self.last_failed = False
        self._kinds.clear()
        self._groups.clear()

    def end_process(self) -> None:
        """End the process: from now on its peers are compared without it."""
        self.present = False
        for group in self._groups.values():
            group.completed.clear()

    def resolve_by(self, name_of: Callable[[int], str], groups_now: Callable[[], Sequence[GroupNow]]) -> None:
        """Set how the next records are resolved: names by number, and the present table of groups."""
        self._name_of = name_of
        self._groups_now = groups_now

    def observe(self, groups: Sequence[GroupNow]) -> None:
        """Take the table of groups: a group is known before its first collective completes."""
        for group in groups:
            if group.number not in self._groups:
                self._add_group(group.number, groups)

    def take(self, operation: int, start: float, end: float, raw: bytes, at: int) -> None:
        """Take one record, whose payload begins in `raw` at `at`."""
        size, number, group, flags, waited = _unpack(raw, at)
        self.last_failed = flags & layout.FAILED != 0
        totals, pending = self._kinds.get((operation, group)) or self._kind(operation, group)
        totals.count += 1
        totals.bytes += size
        if flags & _UNTIMED:
            seconds = nan
        else:
            seconds = end - start
            totals.seconds += seconds
            totals.timed = True
            if start <= waited <= end:  # the thread blocked from there, whatever it did before
                start, flags = waited, flags | _BLOCKING
            if flags & _MESSAGE:
                self._follow((start, end, flags & _BLOCKING != 0, MESSAGE))
            else:
                self._follow((start, end, flags & _BLOCKING != 0))
        if not flags & _NOT_COMPARED:
            pending.completed[number] = (seconds, size, totals)

    def note_completed(self, most: int = MOST_PENDING_OF_RANK) -> None:
        """Update the last completed number of each group, and keep at most about `most` pending."""
        kept = 0
        for group in self._groups.values():
            group.note_completed()
            kept += len(group.completed)
        for group in self._groups.values() if kept > most else ():
            group.drop_oldest(most // layout.MAX_GROUPS)

    def positions(
        self, groups: Iterable[GroupNow], wall: Callable[[float], float]
    ) -> dict[GroupKey, Position]:
        """Return how far the rank has come in each group. Of groups with the same labels the first counts."""
        positions: dict[GroupKey, Position] = {}
        for group in groups:
            pending = self._groups.get(group.number)
            if pending is not None and pending.key.group != OVERFLOW and pending.key not in positions:
                positions[pending.key] = Position(
                    enqueued=group.enqueued,
                    completed=pending.last_completed or None,
                    oldest=wall(group.oldest) if group.oldest else None,
                )
        return positions

    def _kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupCollectives]:
        # Numbers that name nothing are one number: there are four billion of them.
        at = (operation if operation < layout.NAME_COUNT else 0, group if group < layout.NAME_COUNT else 0)
        kind = self._kinds.get(at)
        if kind is None:
            kind = self._kinds[at] = self._new_kind(*at)
        return kind

    def _new_kind(self, operation: int, group: int) -> tuple[CollectiveTotals, GroupCollectives]:
        pending = self._groups.get(group) or self._add_group(group, self._groups_now())
        name = self._names.bound("operation", self._name_of(operation))
        return totals_of(self.totals, pending.key, name), pending

    def _add_group(self, number: int, groups: Sequence[GroupNow]) -> GroupCollectives:
        name = self._name_of(number)
        found = {(each.members, each.size) for each in groups if each.number == number}
        # A record does not distinguish several groups of one name, so none of their members is named.
        members, size = found.pop() if len(found) == 1 else ("", 0)
        if self._names.bound("group", f"{name} {members}") == OVERFLOW:
            key, size = GroupKey(OVERFLOW, ""), 0
        else:
            key = GroupKey(name, members)
        pending = self._groups[number] = GroupCollectives(key, size)
        return pending


def totals_of(
    known: dict[tuple[str, str, str], CollectiveTotals], group: GroupKey, operation: str
) -> CollectiveTotals:
    """Return the totals of an operation in a group, made where there are none."""
    if len(known) >= MOST_TOTALS and (*group, operation) not in known:
        operation = OVERFLOW
    found = known.get((*group, operation))
    if found is None:
        found = known[*group, operation] = CollectiveTotals(operation)
    return found


def totals_series(
    key: tuple[str, str], totals: Mapping[tuple[str, str, str], CollectiveTotals]
) -> Iterator[Series]:
    """Yield counts, bytes, time and wait of a rank by group and operation; `key` is (run, rank)."""
    for kind, each in totals.items():
        at = (*key, *kind)
        yield sample("rankwatch_collectives_total", at, each.count)
        if each.sized:
            yield sample("rankwatch_collective_bytes_total", at, each.bytes)
        if each.timed:
            yield sample("rankwatch_collective_seconds_total", at, each.seconds)
        if each.wait_seconds is not None:
            yield sample("rankwatch_collective_wait_seconds_total", at, each.wait_seconds)


def position_series(
    key: tuple[str, str], source: str, positions: Mapping[GroupKey, Position]
) -> Iterator[Series]:
    """Yield how far a rank has come in each group; `key` is (run, rank)."""
    for group, position in positions.items():
        yield from _POSITION.series((*key, *group, source), position)
