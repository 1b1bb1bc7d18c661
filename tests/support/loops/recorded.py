"""What a black box holds of a training loop, in the terms of the loop's own stopwatch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions.vocabulary import Capability, Unseen


class Recorded(NamedTuple):
    """The contents of one black box."""

    steps: list[tuple[int, float, float]]
    """Number, begin and end, in the order of their ends."""
    intervals: list[tuple[str, float, float]]
    """The phases: name, begin and end."""
    losses: dict[int, list[float]]
    """By step."""
    scalars: dict[str, list[tuple[int, float]]]
    work: dict[str, float]
    """Sums by unit."""
    checkpoints: list[tuple[int, float, float]]
    """Completed saves: step, begin, end."""
    capabilities: Mapping[Capability, Unseen | None]
    errors: int
    steps_completed: int
    ended_by: str


def recorded(path: Path) -> Recorded:
    """Read a black box whose ring has not been overwritten."""
    with closing(Reader(path)) as reader:
        by_kind: dict[int, list[RawRecord]] = defaultdict(list)
        for columns in reader.read_to_end():
            for each in columns.records():
                by_kind[each.kind].append(each)
        now = reader.now()
        scalars: dict[str, list[tuple[int, float]]] = defaultdict(list)
        losses: dict[int, list[float]] = defaultdict(list)
        for each in by_kind[RecordKind.SCALAR]:
            value, step = layout.SCALAR.unpack_from(each.payload)
            scalars[name := reader.name(each.name)].append((step, value))
            if name == "loss":
                losses[step].append(value)
        work: dict[str, float] = defaultdict(float)
        for each in by_kind[RecordKind.WORK]:
            work[reader.name(each.name)] += layout.WORK.unpack_from(each.payload)[0]
        steps, phases = by_kind[RecordKind.STEP], by_kind[RecordKind.PHASE]
        return Recorded(
            [(layout.STEP.unpack_from(each.payload)[0], each.start, each.end) for each in steps],
            [(reader.name(each.name), each.start, each.end) for each in phases],
            dict(losses),
            dict(scalars),
            dict(work),
            list(_saves(reader, by_kind[RecordKind.CHECKPOINT])),
            now.capabilities,
            now.errors,
            now.steps_completed,
            now.ended_by,
        )


def _saves(reader: Reader, records: Iterable[RawRecord]) -> Iterator[tuple[int, float, float]]:
    for each in records:
        _, step, stage, failed = layout.CHECKPOINT.unpack_from(each.payload)[:4]
        if stage == 0 and not failed and reader.name(each.name) == "save":
            yield step, each.start, each.end


def self_seconds(intervals: Iterable[Sequence[object]]) -> dict[str, float]:
    """Seconds of each name, without the time of other intervals inside of its own."""
    totals: dict[str, float] = defaultdict(float)
    open_: list[tuple[str, float]] = []
    for name, began, ended in sorted(intervals, key=lambda each: (each[1], -each[2])):  # type: ignore
        while open_ and open_[-1][1] <= began:
            open_.pop()
        totals[name] += ended - began
        if open_:
            totals[open_[-1][0]] -= min(ended, open_[-1][1]) - began
        open_.append((name, ended))
    return dict(totals)
