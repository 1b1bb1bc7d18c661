"""The operations of each step of one rank, one after another, out of the records of its black box.

A phase is laid out as its own time followed by the communication that the training thread was blocked in.
A collective that a thread was seen to wait for blocks from there to its end, a blocking one from its enqueue;
other asynchronous ones, such as the gradient buckets of DDP, from the last enqueue in their phase to the last
end, at most to the end of the phase (as `ranks.split` has it). One whose end was not seen has no row.
Where the GPU's clock was read, its times replace those of the host.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import COMMUNICATION, DATA_WAIT, OTHER, TOKENS
from rankwatch_diagnosis.run.boxes import Box
from rankwatch_diagnosis.run.step_layout import Blocked, Phase, Piece, lay_out

MOST_MICROBATCHES = 4_096
_PASSES = ("forward", "backward")
_COMPUTE = (*_PASSES, "optimizer")


class Row(NamedTuple):
    """One row of the table of operations; times are seconds, starts on the rank's monotonic clock."""

    step: int
    operation: str
    kind: str
    start: float
    seconds: float
    microbatch: int
    group: str
    work: float | None


def rows_of(box: Box, groups: Mapping[int, str]) -> Iterator[Row]:
    """All rows of the steps that the box holds whole; `groups` names those of its numbers.

    Without the first step of the process: it opens connections, fills caches and compiles.
    """
    device = _on_device(box)
    work = _work(box)
    # Ends of asynchronous collectives are recorded by another thread, often after the step.
    collectives = sorted(_collectives(box, groups))
    starts = [each.start for each in collectives]
    phases: list[Phase] = []
    warm = False
    for record in box.records:
        if record.kind == RecordKind.PHASE:
            phases.append(Phase(record.start, record.end, box.names.get(record.name, "")))
        elif record.kind == RecordKind.STEP:
            number, failed = layout.STEP.unpack_from(record.payload)
            # Where older records are gone, the first step is not whole.
            if warm and not failed and number >= 0:
                of_step = collectives[bisect_left(starts, record.start) : bisect_left(starts, record.end)]
                pieces = lay_out(record.start, record.end, phases, of_step, device.get(number, {}))
                yield from _rows(number, pieces, work.get(number, []))
            phases = []
            warm = True


def _collectives(box: Box, groups: Mapping[int, str]) -> Iterator[Blocked]:
    """From where a thread began to wait, where that was seen. Those without a duration are left out."""
    for record in box.records:
        if record.kind != RecordKind.COLLECTIVE:
            continue
        _, _, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
        if flags & layout.UNTIMED:
            continue
        start, blocking = record.start, bool(flags & layout.BLOCKING)
        if start <= waited <= record.end:
            start, blocking = waited, True
        name = box.names.get(record.name, "")
        yield Blocked(start, record.end, name, groups.get(group, ""), blocking)


def _on_device(box: Box) -> dict[int, dict[str, list[tuple[float, float]]]]:
    """Step -> phase -> (seconds on the GPU, of these its own) of each time it ran."""
    found: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in box.records:
        if record.kind == RecordKind.DEVICE_PHASE:
            seconds, local, step = layout.DEVICE.unpack_from(record.payload)
            if 0.0 <= local <= seconds < 1e6:
                found[step][box.names.get(record.name, "")].append((seconds, local))
    return found


def _work(box: Box) -> dict[int, list[float]]:
    """Step -> amounts of the unit that work is told in: tokens where they are told."""
    amounts: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    count: Counter[str] = Counter()
    for record in box.records:
        if record.kind == RecordKind.WORK:
            amount, step = layout.WORK.unpack_from(record.payload)
            unit = box.names.get(record.name, "")
            if 0.0 < amount < 1e18 and len(amounts[unit][step]) < MOST_MICROBATCHES:
                amounts[unit][step].append(amount)
                count[unit] += 1
    if not count:
        return {}
    return amounts[TOKENS] if count[TOKENS] else amounts[min(count, key=lambda unit: (-count[unit], unit))]


def _rows(step: int, pieces: list[Piece], amounts: list[float]) -> Iterator[Row]:
    count = Counter(piece.operation for piece in pieces)
    microbatches = _microbatches(pieces)
    most = max(count[name] for name in _PASSES)
    for piece, microbatch in zip(pieces, microbatches, strict=True):
        work: float | None = None
        if piece.operation in _PASSES and amounts and microbatch < MOST_MICROBATCHES:
            work = amounts[microbatch] if len(amounts) == most else sum(amounts) / most
        yield Row(
            step, piece.operation, _kind(piece), piece.start, piece.seconds, microbatch, piece.group, work
        )


def _microbatches(pieces: list[Piece]) -> list[int]:
    """Passes are counted in their order; a receive belongs to the one that follows, all else to the last."""
    passed: Counter[str] = Counter()
    found = []
    latest = 0
    for piece in pieces:
        if piece.operation in _PASSES:
            latest = passed[piece.operation]
            passed[piece.operation] += 1
        found.append(latest)
    following = 0
    for at in reversed(range(len(pieces))):
        if pieces[at].operation in _PASSES:
            following = found[at]
        elif pieces[at].operation == "recv" and not pieces[at].inside:
            found[at] = following
    return found


def _kind(piece: Piece) -> str:
    if piece.communicates or piece.operation == COMMUNICATION:
        return "communication"
    if piece.operation == DATA_WAIT:
        return "data_loading"
    return "compute" if piece.operation in _COMPUTE else OTHER
