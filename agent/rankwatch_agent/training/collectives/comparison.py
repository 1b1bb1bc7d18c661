"""Compares the ranks of this node on the same collectives: who waited, and how long the transfer took.

A collective completes on all of its ranks at about the same moment, so the one that entered it last spent the
least time in it. That time is the transfer; what the others spent beyond it, they waited. Only ranks of this
node are compared, so no clock but the machine's own is used.

Bytes on the bus follow the formulas of nccl-tests, so that bandwidth is comparable between operations and
numbers of ranks, and with what the hardware can do. Source: nccl-tests, doc/PERFORMANCE.md; for gather and
scatter, which that page leaves out, src/gather.cu and src/scatter.cu.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import isnan
from operator import itemgetter
from typing import NamedTuple

from rankwatch_agent.runtime.collector import FigureTable, Series
from rankwatch_agent.training.collectives.totals import (
    MOST_PENDING,
    OVERFLOW,
    UNKNOWN_BYTES,
    Completed,
    GroupCollectives,
    GroupKey,
)

SMALL, MEDIUM, LARGE = "small", "medium", "large"
MEDIUM_BYTES = 64 << 10
LARGE_BYTES = 1 << 20
"""A collective below 64 KiB costs latency rather than bandwidth; NCCL changes its protocol in between."""
_MOST_SERIES = 512
"""Combinations of group, operation and size class per run; far beyond what a job has."""
_MOST_KINDS = 4096
_TRANSFERS = FigureTable(
    {
        "rankwatch_collective_transfers_total": "count",
        "rankwatch_collective_transfer_seconds_total": "seconds",
        "rankwatch_collective_bus_bytes_total": "bus_bytes",
    }
)
_SECONDS, _SIZE, _TOTALS = itemgetter(0), itemgetter(1), itemgetter(2)


BUS_FACTORS = {
    "all_reduce": (2, 1),
    "all_gather": (1, 1),
    "reduce_scatter": (1, 1),
    "all_to_all": (1, 1),
    "gather": (1, 1),
    "scatter": (1, 1),
    "broadcast": (1, 0),
    "reduce": (1, 0),
}
"""Operation -> how often the total size passes the bus, and how many shares of it never do. A barrier moves
next to nothing."""

_INPUT_IS_ONE_SHARE = frozenset({"all_gather", "gather"})
"""Operations of which each rank's input is its share of the total size. (The root alone has an input to a
scatter: it is the total.)"""


class _Kind(NamedTuple):
    """What the formulas depend on."""

    key: GroupKey
    operation: str
    ranks: int


class TransferTotals:
    """Collectives that all local ranks of their group completed, of one operation and size class."""

    __slots__ = ("bus_bytes", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bus_bytes: float | None = None
        """None where the size of the group or the formula is not known."""


_KindTotals = tuple[dict[str, TransferTotals], int, float | None]
"""Totals by size class; the factor from bytes of an input to the total size, and from that to the bus."""


class RunComparison:
    """The collectives of one run, compared between the ranks of this node."""

    def __init__(self) -> None:
        self.transfers: dict[tuple[str, str, str, str], TransferTotals] = {}
        """(group, members, operation, size class) -> totals."""
        self._kinds: dict[_Kind, _KindTotals] = {}

    def compare(self, ranks: Iterable[Sequence[GroupCollectives]]) -> None:
        """Compare what all ranks of a group have completed; the rest stays for the next time.

        ranks: the groups of each rank that still lives or has just ended.
        """
        by_key: dict[GroupKey, list[GroupCollectives]] = {}
        for groups in ranks:
            own: set[GroupKey] = set()
            for group in groups:
                if not group.key.members or group.key in own:  # unknown, or two of one rank
                    group.completed.clear()
                    continue
                own.add(group.key)
                by_key.setdefault(group.key, []).append(group)
        for key, members in by_key.items():
            self._compare_group(key, members)

    def series(self, run: str) -> Iterator[Series]:
        """Yield the transfers of the run on this node."""
        for kind, each in self.transfers.items():
            yield from _TRANSFERS.series((run, *kind), each)

    def _compare_group(self, key: GroupKey, members: list[GroupCollectives]) -> None:
        # Column by column rather than number by number: thousands a second come this way.
        completed = [each.completed for each in members]
        ranks = max(each.size for each in members)
        by_operation: dict[str, list[int]] = {}
        for number in _common(completed):
            by_operation.setdefault(completed[0][number][2].operation, []).append(number)
        for operation, numbers in by_operation.items():
            columns = _agreed([[each.pop(number) for number in numbers] for each in completed], operation)
            self._add_up(_Kind(key, operation, ranks), columns)
        for each in members:
            if len(each.completed) > MOST_PENDING:
                each.drop_oldest(MOST_PENDING // 2)

    def _add_up(self, kind: _Kind, columns: Sequence[Sequence[Completed]]) -> None:
        """Add up wait and transfer of the same collectives, one column for each rank."""
        durations = [[each[0] for each in column] for column in columns]
        shortest = list(map(min, *durations)) if len(durations) > 1 else durations[0]
        if len(columns) > 1:
            transfer = sum(shortest)
            for column, seconds in zip(columns, durations, strict=True):
                for _, _, totals in column[:1]:
                    totals.wait_seconds = (totals.wait_seconds or 0.0) + max(0.0, sum(seconds) - transfer)
        by_size: dict[int, tuple[int, float]] = {}
        for size, least in zip(_largest(columns), shortest, strict=True):
            count, total = by_size.get(size, (0, 0.0))
            by_size[size] = (count + 1, total + least)
        for size, (count, total) in by_size.items():
            if size != UNKNOWN_BYTES:  # else its size class is not known
                self._add(kind, size, count, total)

    def _add(self, kind: _Kind, input_bytes: int, count: int, seconds: float) -> None:
        by_class, scale, factor = self._kinds.get(kind) or self._new_kind(kind)
        total = input_bytes * scale
        size = size_class(total)
        transfers = by_class.get(size)
        if transfers is None:
            transfers = by_class[size] = self._new_transfers(kind, size)
        transfers.count += count
        transfers.seconds += seconds
        if factor is not None:
            transfers.bus_bytes = (transfers.bus_bytes or 0.0) + count * total * factor

    def _new_kind(self, kind: _Kind) -> _KindTotals:
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()  # only what is looked up: the totals stay
        scale = total_bytes(kind.operation, 1, max(1, kind.ranks))
        found = self._kinds[kind] = ({}, scale, bus_factor(kind.operation, kind.ranks))
        return found

    def _new_transfers(self, kind: _Kind, size: str) -> TransferTotals:
        at = (*kind.key, kind.operation, size)
        if at not in self.transfers and len(self.transfers) >= _MOST_SERIES:
            at = (OVERFLOW, "", OVERFLOW, size)
        return self.transfers.setdefault(at, TransferTotals())


def _common(completed: Sequence[Mapping[int, object]]) -> Collection[int]:
    first, *others = completed
    numbers: Set[int] = set(first) if not others else first.keys()
    for more in others:
        numbers = more.keys() & numbers
    return numbers


def _agreed(columns: Sequence[Sequence[Completed]], operation: str) -> Sequence[Sequence[Completed]]:
    """Return the columns without collectives in which some rank called another operation or has no duration:
    these have neither wait nor transfer."""
    if all(
        len(set(map(_TOTALS, column))) == 1
        and column[0][2].operation == operation
        and not isnan(sum(map(_SECONDS, column)))
        for column in columns
    ):
        return columns
    rows = [
        row
        for row in zip(*columns, strict=True)
        if all(each[2].operation == operation and not isnan(each[0]) for each in row)
    ]
    return list(zip(*rows, strict=True)) or [() for _ in columns]


def _largest(columns: Sequence[Sequence[Completed]]) -> Iterable[int]:
    """Return bytes of the largest input to each: only the root has one to a scatter."""
    sizes = [map(_SIZE, column) for column in columns]
    return map(max, *sizes) if len(sizes) > 1 else sizes[0]


def total_bytes(operation: str, input_bytes: int, ranks: int) -> int:
    """Return the size of nccl-tests, S, from the largest input of a rank, in bytes."""
    return input_bytes * ranks if operation in _INPUT_IS_ONE_SHARE else input_bytes


def bus_factor(operation: str, ranks: int) -> float | None:
    """Return what to multiply the total size with; None where it is not known."""
    if operation not in BUS_FACTORS or ranks < 1:
        return None
    times, own = BUS_FACTORS[operation]
    return times * (ranks - own) / ranks


def size_class(total: int) -> str:
    if total < MEDIUM_BYTES:
        return SMALL
    return MEDIUM if total < LARGE_BYTES else LARGE
