"""What the box of a rank holds as slices of time: steps, phases, collectives, checkpoints, and moments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions import LOSS
from rankwatch_diagnosis.run.boxes import Box

STEPS, PHASES, COLLECTIVES, CHECKPOINTS = "steps", "phases", "collectives", "checkpoints"
TRACKS = (STEPS, PHASES, COLLECTIVES, CHECKPOINTS)
"""The rows of a rank, from the top. One whose slices overlap takes several."""
MOST_LANES = 16
_LONGEST_SECONDS = 1e9


class Slice(NamedTuple):
    """Something that lasts. Moments are monotonic, in seconds."""

    start: float
    end: float
    track: str
    name: str
    facts: Mapping[str, Any]


class Moment(NamedTuple):
    """Something that happens."""

    at: float
    name: str
    facts: Mapping[str, Any]


class Value(NamedTuple):
    """A value of the loss."""

    at: float
    value: float


class RankSlices(NamedTuple):
    """Everything of one rank."""

    slices: list[Slice]
    moments: list[Moment]
    losses: list[Value]
    steps: dict[int, tuple[float, float]]
    """Step -> its first begin and its last end: a step that was repeated has one entry."""


def rank_slices(box: Box) -> RankSlices:
    """All that the box holds, in no order. What is still open ends when the box was read."""
    groups = {each.number: f"{each.name} {each.members}".strip() for each in box.now.groups}
    found = RankSlices([], [], [], {})
    for record in box.records:
        if 0.0 <= record.end - record.start < _LONGEST_SECONDS:
            _add(found, record, box.names, groups)
    found.slices.extend(_open(box))
    return found


def _add(found: RankSlices, record: RawRecord, names: Mapping[int, str], groups: Mapping[int, str]) -> None:
    start, end, name = record.start, record.end, names.get(record.name, "") or "unnamed"
    match record.kind:
        case RecordKind.PHASE:
            found.slices.append(Slice(start, end, PHASES, name, {}))
        case RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            first, last = found.steps.get(number, (start, end))
            found.steps[number] = (min(first, start), max(last, end))
            facts = {"step": number} | ({"failed": True} if flags & layout.STEP_FAILED else {})
            found.slices.append(Slice(start, end, STEPS, f"step {number}", facts))
        case RecordKind.COLLECTIVE:
            found.slices.append(_collective(record, name, groups))
        case RecordKind.CHECKPOINT:
            found.slices.append(_checkpoint(record, name, names))
        case RecordKind.LIFECYCLE:
            step, detail = layout.LIFECYCLE.unpack_from(record.payload)
            cause = {"cause": names[detail]} if names.get(detail) else {}
            found.moments.append(Moment(end, name, {"step": step} | cause))
        case RecordKind.SCALAR if name == LOSS:
            value, _ = layout.SCALAR.unpack_from(record.payload)
            if math.isfinite(value):
                found.losses.append(Value(end, value))


def _collective(record: RawRecord, name: str, groups: Mapping[int, str]) -> Slice:
    size, number, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
    facts: dict[str, Any] = {"group": groups.get(group, ""), "number": number, "bytes": size}
    facts |= {"failed": True} if flags & layout.FAILED else {}
    facts |= {"end": "not seen"} if flags & layout.UNTIMED else {}
    if record.start <= waited <= record.end:
        facts["waited_for_seconds"] = round(record.end - waited, 9)
    return Slice(record.start, record.end, COLLECTIVES, name, facts)


def _checkpoint(record: RawRecord, name: str, names: Mapping[int, str]) -> Slice:
    size, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(record.payload)
    facts = {"step": step, "bytes": size} | ({"failed": True} if failed else {})
    if 0.0 <= blocked < _LONGEST_SECONDS:
        facts["blocked_training_seconds"] = round(blocked, 9)
    return Slice(record.start, record.end, CHECKPOINTS, f"{name} {names.get(stage, '')}".strip(), facts)


def _open(box: Box) -> Iterator[Slice]:
    """The step and the phase that had not ended when the box was read, or when its process did."""
    end = box.last_sign if box.ended else box.seen_wall - box.wall(0.0)
    if box.open_phase is not None and box.open_phase[1] <= end:
        yield Slice(box.open_phase[1], end, PHASES, box.open_phase[0], {"open": True})
    if 0.0 < box.now.step_began <= end:
        facts = {"step": box.now.step, "open": True}
        yield Slice(box.now.step_began, end, STEPS, f"step {box.now.step}", facts)


def in_lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """Each slice with its lane, by start: in one lane slices follow or contain each other, as viewers want.

    Slices come from several threads, and asynchronous collectives overlap. One that would need more than
    MOST_LANES is left out.
    """
    lanes: list[list[float]] = [[] for _ in range(MOST_LANES)]
    """By lane: ends of the slices that are open, the innermost last."""
    for each in sorted(slices, key=lambda each: (each.start, -each.end)):
        for lane, ends in enumerate(lanes):
            while ends and ends[-1] <= each.start:
                ends.pop()
            if not ends or ends[-1] >= each.end:
                ends.append(each.end)
                yield lane, each
                break
