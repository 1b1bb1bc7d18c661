"""The timelines of all ranks as one table: which collectives they share, and where they wait for each other.

A collective is a row where all its members wait for it in most steps. What a rank waits for alone (it was
early, and the others hid the same collective behind their compute) counts to the next row that all of them
share: there the wait would show in the end, whichever collective of the sequence it began in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_profiler_traces.recording import is_message
from rankwatch_profiler_traces.stream import Place
from rankwatch_profiler_traces.timeline import HOST, Meeting, StepLine, Timeline

_LEAST_HOST_SECONDS = 5e-5
"""Time in which nothing runs is a row from here on; below it is a pause."""
_PASSES = ("forward", "backward")
_MOSTLY = 0.5
_KINDS: Mapping[str, Kind] = {"data_loading": Kind.DATA_LOADING, HOST: Kind.OTHER}
_ALIKE = ("all_reduce", "broadcast", "reduce")
"""Collectives whose members all pass the same size."""

Key = tuple[str, str, int]
"""Operation, group and number in the step of a collective."""


class RankTimeline(NamedTuple):
    """The steps of a rank, and where it stands in the job."""

    rank: int
    place: Place
    timeline: Timeline
    origin: float
    """Seconds from any moment that all ranks share to the origin of the timeline."""


class Shared(NamedTuple):
    """The collectives of the job."""

    kept: frozenset[Key]
    """Those that are rows."""
    unlike: int
    """Runs that a member lacks, or has with another size."""
    runs: int
    """All runs."""
    uneven_share: float
    """Part of a step by which ranks differ in how much of the shared transfers they hide behind compute. A
    slow rank hides more; if it were as fast as the others, the transfer would show instead."""


class _Run(NamedTuple):
    hidden: bool
    size_bytes: int
    exposed: float
    seconds: float


class _Row(NamedTuple):
    step: int
    operation: str
    kind: Kind
    start: float
    seconds: float
    microbatch: int
    group: str


def share_collectives(ranks: Sequence[RankTimeline], steps: frozenset[int]) -> Shared:
    """Find the collectives that their members wait for in most steps, and count those that do not match."""
    runs: dict[int, dict[Key, list[_Run]]] = {step: defaultdict(list) for step in steps}
    members: dict[str, set[int]] = defaultdict(set)
    for each in ranks:
        for line in each.timeline.steps:
            if line.step not in steps:
                continue
            for item in line.items:
                if isinstance(item, Meeting) and not is_message(item.operation):
                    runs[line.step][item.operation, item.group, item.number].append(
                        _Run(item.hidden, item.size_bytes, item.exposed, item.seconds)
                    )
                    members[item.group].add(each.rank)
    seen: Counter[Key] = Counter()
    exposed: Counter[Key] = Counter()
    unlike = 0
    for of_step in runs.values():
        for key, found in of_step.items():
            whole = len(found) >= len(members[key[1]]) or not key[1]
            seen[key] += 1
            exposed[key] += whole and not any(run.hidden for run in found)
            unlike += not whole or (key[0] in _ALIKE and len({run.size_bytes for run in found}) > 1)
    kept = frozenset(key for key, count in seen.items() if exposed[key] > _MOSTLY * count)
    uneven = sum(_uneven(of_step[key]) for of_step in runs.values() for key in kept & of_step.keys())
    share = uneven / max(_seconds(ranks, steps), 1e-9)
    return Shared(kept, unlike, sum(seen.values()), share)


def _uneven(runs: Sequence[_Run]) -> float:
    """Return the seconds from the least to the most that a member sees of the transfer, without its wait."""
    transfer = min(each.seconds for each in runs)
    seen = [max(0.0, each.exposed - (each.seconds - transfer)) for each in runs]
    return max(seen) - min(seen)


def _seconds(ranks: Sequence[RankTimeline], steps: frozenset[int]) -> float:
    """Return the seconds of all steps, each as long as the longest rank takes."""
    longest: dict[int, float] = defaultdict(float)
    for each in ranks:
        for line in each.timeline.steps:
            if line.step in steps:
                longest[line.step] = max(longest[line.step], line.seconds)
    return sum(longest.values())


def as_table(ranks: Sequence[RankTimeline], steps: frozenset[int], shared: Shared) -> OperationTable:
    """Return the rows of all ranks in these steps."""
    found = [
        (each, list(_rows(line, each.origin, shared.kept)))
        for each in ranks
        for line in each.timeline.steps
        if line.step in steps
    ]
    idle = {row.operation for _, rows in found for row in rows if row.operation in _KINDS}
    columns: dict[str, list[object]] = {name: [] for name in _Row._fields}
    places: list[tuple[int, int, int]] = []
    for each, rows in found:
        for row in [*rows, *_without(rows, idle)]:
            for name, value in zip(_Row._fields, row, strict=True):
                columns[name].append(value)
            places.append((each.rank, *each.place))
    place = np.array(places, dtype=np.int64).reshape(-1, 3)
    operations, operation = _numbered(columns["operation"])
    groups, group = _numbered(["", *columns["group"]])
    return OperationTable(
        step=np.array(columns["step"], dtype=np.int64),
        rank=place[:, 0],
        operation=operation,
        kind=np.array(columns["kind"], dtype=np.int8),
        start_seconds=np.array(columns["start"], dtype=np.float64),
        duration_seconds=np.array(columns["seconds"], dtype=np.float64),
        stage=place[:, 1].astype(np.int32),
        replica=place[:, 2].astype(np.int32),
        microbatch=np.array(columns["microbatch"], dtype=np.int32),
        group=group[1:],
        work=np.full(len(place), np.nan),
        operations=operations,
        groups=groups,
    )


def _without(rows: Sequence[_Row], idle: set[str]) -> Iterator[_Row]:
    """Yield a row of 0 s for what other ranks wait for and this one does not: that is known, not missing."""
    if rows:
        for operation in sorted(idle - {row.operation for row in rows}):
            yield rows[0]._replace(operation=operation, kind=_KINDS[operation], seconds=0.0, group="")


def _numbered(names: Sequence[object]) -> tuple[tuple[str, ...], np.ndarray]:
    numbers: dict[str, int] = {}
    found = np.array([numbers.setdefault(str(name), len(numbers)) for name in names], dtype=np.int32)
    return tuple(numbers), found


class _Stretch:
    """What a rank does between two rows of communication: runs of a phase, and the time without any."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, float]] = []

    def add(self, operation: str, seconds: float) -> None:
        """Add to the run that goes on, or to the idle time behind it; else begin another run."""
        for at in range(len(self.parts) - 1, -1, -1):
            name, before = self.parts[at]
            if name == operation:
                self.parts[at] = (name, before + seconds)
                return
            if name not in _KINDS:
                break
        self.parts.append((operation, seconds))


def _rows(line: StepLine, origin: float, kept: frozenset[Key]) -> Iterator[_Row]:
    """Yield the step as rows without a gap, collectives that are none folded into the next one that is."""
    at = origin + line.start
    stretch = _Stretch()
    passes = _Passes()
    carried = 0.0
    rows: list[_Row] = []
    for item in [*line.items, None]:
        if item is not None and not isinstance(item, Meeting):
            stretch.add(*item)
            continue
        if item is not None and not (
            is_message(item.operation) or (item.operation, item.group, item.number) in kept
        ):
            carried += item.exposed
            continue
        for operation, seconds in stretch.parts:
            kind = _KINDS.get(operation, Kind.COMPUTE)
            if kind is Kind.COMPUTE or seconds > _LEAST_HOST_SECONDS:
                number = passes.of(operation)
                rows.append(_Row(line.step, operation, kind, at, seconds, number, ""))
            at += seconds
        stretch = _Stretch()
        if item is not None:
            message = is_message(item.operation)
            seconds = carried + item.exposed
            number = passes.latest
            passes.separated |= message
            rows.append(_Row(line.step, item.operation, Kind.COMMUNICATION, at, seconds, number, item.group))
            at += seconds
            carried = 0.0
    yield from _with_receives(rows)


class _Passes:
    """Counts the forward and backward passes of a step: a pass ends where the phase does, or at a message."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._phase = ""
        self.separated = False
        self.latest = 0

    def of(self, operation: str) -> int:
        """Return the microbatch of the next row."""
        if operation in _PASSES:
            if operation != self._phase or self.separated:
                self.latest = self._count[operation]
                self._count[operation] += 1
            self.separated = False
        if operation not in _KINDS:
            self._phase = operation
        return self.latest


def _with_receives(rows: Sequence[_Row]) -> list[_Row]:
    """Give each receive to the pass that follows it."""
    found = list(rows)
    following: int | None = None
    for at in range(len(found) - 1, -1, -1):
        row = found[at]
        if row.operation in _PASSES:
            following = row.microbatch
        elif row.operation == "recv" and following is not None:
            found[at] = row._replace(microbatch=following)
    return found
