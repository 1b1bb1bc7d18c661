"""What the records of a black box say, as rows. Moments are monotonic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch_agent.training.series.runs import of_run
from rankwatch_diagnosis.run.boxes import Box, Boxes


class Step(NamedTuple):
    """A step that has ended, also by an exception."""

    number: int
    start: float
    end: float
    flags: int


class CheckpointOperation(NamedTuple):
    """A checkpoint operation of one rank, without its stages."""

    rank: int
    name: str
    step: int
    end: float
    seconds: float
    blocking_seconds: float
    """Part of it that held up training."""
    failed: bool


def steps_of(box: Box) -> Iterator[Step]:
    """Yield the steps in their order."""
    for record in box.records:
        if record.kind == RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            yield Step(number, record.start, record.end, flags)


def scalars_of(box: Box, *names: str) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and value of each scalar with one of these names."""
    for record in box.records:
        if record.kind == RecordKind.SCALAR and (name := box.names.get(record.name, "")) in names:
            value, step = layout.SCALAR.unpack_from(record.payload)
            yield name, step, value


def work_of(box: Box) -> Iterator[tuple[str, int, float]]:
    """Yield unit, step and amount of each report of work."""
    for record in box.records:
        if record.kind == RecordKind.WORK:
            amount, step = layout.WORK.unpack_from(record.payload)
            yield box.names.get(record.name, ""), step, amount


def checkpoint_operations(box: Box) -> Iterator[CheckpointOperation]:
    """Yield the checkpoint operations in the order of their ends."""
    for record in box.records:
        if record.kind == RecordKind.CHECKPOINT:
            _, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(record.payload)
            if not stage:
                seconds = max(0.0, record.end - record.start)
                blocking = min(seconds, blocked) if blocked > 0.0 else 0.0
                name = box.names.get(record.name, "")
                yield CheckpointOperation(box.rank, name, step, record.end, seconds, blocking, bool(failed))


Capabilities = Mapping[Capability, Unseen | None]
"""Capability -> why a rank does not see it; None where all ranks see it. Left out where it is not known."""


def capabilities(boxes: Boxes) -> Capabilities:
    """Return the capabilities of the run; empty where all its calls are explicit."""
    return of_run(each.now.capabilities for each in boxes.by_rank.values())


def visible_lines(found: Capabilities) -> Iterator[str]:
    """Yield a line with what is seen, and a line for each reason why something is not."""
    if seen := [each.value for each, why in found.items() if why is None]:
        yield f"visible:     {', '.join(seen)}"
    head = "not visible: "
    for line in unseen_parts(found):
        yield f"{head}{line}"
        head = " " * len(head)


def unseen_parts(found: Capabilities) -> Iterator[str]:
    """Yield for each reason the capabilities that are not visible, and the reason."""
    by_reason: dict[Unseen, list[str]] = {}
    for each, why in found.items():
        if why is not None:
            by_reason.setdefault(why, []).append(each.value)
    for why, names in by_reason.items():
        yield f"{', '.join(names)}, because {why.sentence}"


def tracked(boxes: Boxes) -> tuple[str, ...]:
    """Return the pages of the run in its experiment trackers; of one without a page its kind and its run
    there."""
    found = (each for box in boxes.by_rank.values() for each in box.trackers)
    return tuple(dict.fromkeys(each.url or f"{each.kind.value} {each.run}" for each in found))
