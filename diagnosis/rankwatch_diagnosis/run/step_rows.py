"""The steps of a rank as rows of operations, from its black box.

A step becomes a row for each operation, one after another: a phase is its own time followed by the
communication that blocked the training thread in it, as `rankwatch_agent.training.split` tells the two apart.
On a GPU the times of the compute stream replace those of the host; a step whose own time and waits could not
be told apart there has no rows. A short step has rows if its phases were timed, or if it is a single event:
then its own time is `other`. A collective whose end was not seen has no row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import COMMUNICATION, DATA_WAIT, OTHER, TOKENS
from rankwatch_agent.training.split import Blocked, Collective, Interval, blocked_times, own_seconds
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.run.boxes import Box, Boxes

MOST_MICROBATCHES = 4_096
LEAST_GAP_SECONDS = 5e-5
"""Time that no phase claims is a row from here on; below it is a pause."""
_SLACK_SECONDS = 1e-6
"""By how much a phase may reach beyond its step: their clock reads differ."""
_LONGEST_SECONDS = 1e6
_PASSES = ("forward", "backward")
_COMPUTE = (*_PASSES, "optimizer")
_MESSAGES = {"send", "recv"}


class Row(NamedTuple):
    """One row of the table; times are seconds, starts on the rank's monotonic clock."""

    step: int
    operation: str
    kind: str
    start: float
    seconds: float
    microbatch: int
    group: str
    work: float | None


class Piece(NamedTuple):
    """A part of a step."""

    start: float
    seconds: float
    operation: str
    group: str = ""
    communicates: bool = False
    inside: bool = False
    """It lay inside a phase."""
    last: float = 0.0
    """End of the last of the waits that it stands for, on a GPU."""


@dataclass(slots=True)
class DeviceStep:
    """A step on the compute stream of a GPU."""

    start: float = 0.0
    end: float = 0.0
    known: bool = False
    """Whether own time and waits were told apart."""
    timed: bool = False
    """Whether its phases were timed."""
    pieces: list[Piece] = field(default_factory=list)


DeviceSteps = dict[tuple[int, float], DeviceStep]
"""By number and by start on the host, as the numbers may begin again with each epoch."""


def rows_by_rank(boxes: Boxes) -> dict[int, list[Row]]:
    """The rows of every rank; of one without whole steps none."""
    found = {}
    for rank, box in boxes.by_rank.items():
        groups = {each.number: f"{each.name} {each.members}".strip() for each in box.now.groups}
        found[rank] = box, groups, device_steps(box, groups)
    events = {number for _, _, device in found.values() for number in _events(device)}
    return {rank: list(rows_of(*of_rank, events)) for rank, of_rank in found.items()}


def rows_of(
    box: Box, groups: Mapping[int, str], device: DeviceSteps, events: Container[int]
) -> Iterator[Row]:
    """All rows of the steps that the box holds whole; `groups` names those of its numbers.

    Without the first step of the process: it opens connections, fills caches and compiles. events: numbers of
    steps that were long on some rank.
    """
    work = _work(box)
    # Another thread records the ends of asynchronous collectives, often after the step.
    collectives = sorted(_collectives(box, groups))
    starts = [each[0] for each in collectives]
    phases: list[Interval] = []
    warm = False
    for record in box.records:
        if record.kind == RecordKind.PHASE:
            phases.append((record.start, record.end, box.names.get(record.name, "")))
        elif record.kind == RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            # Where older records are gone, the first step is not whole.
            if warm and not flags & layout.STEP_FAILED and number >= 0:
                if flags & layout.STEP_ON_DEVICE:
                    step = device.get((number, record.start), DeviceStep())
                    pieces = _on_device(step) if step.timed or number in events else []
                else:
                    of_step = collectives[bisect_left(starts, record.start) : bisect_left(starts, record.end)]
                    pieces = lay_out(record.start, record.end, phases, of_step)
                yield from _rows(number, pieces, work.get(number, []))
            phases = []
            warm = True


def _collectives(box: Box, groups: Mapping[int, str]) -> Iterator[Collective]:
    """With operation and group; from the beginning of a wait where one was seen."""
    for record in box.records:
        if record.kind != RecordKind.COLLECTIVE:
            continue
        _, _, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
        if flags & layout.UNTIMED:
            continue
        start, blocking = record.start, bool(flags & layout.BLOCKING)
        if start <= waited <= record.end:
            start, blocking = waited, True
        yield start, record.end, blocking, box.names.get(record.name, ""), groups.get(group, "")


def device_steps(box: Box, groups: Mapping[int, str]) -> DeviceSteps:
    """The steps of a box on the device."""
    found: DeviceSteps = defaultdict(DeviceStep)
    starts: dict[int, float] = {}
    for record in box.records:
        start, name = record.start, box.names.get(record.name, "")
        if record.kind == RecordKind.STEP:
            starts[layout.STEP.unpack_from(record.payload)[0]] = start
        elif record.kind == RecordKind.DEVICE_PHASE:
            own, step = layout.DEVICE.unpack_from(record.payload)
            if 0.0 <= own < _LONGEST_SECONDS:
                found[step, starts.get(step, 0.0)].pieces.append(Piece(start, own, name))
        elif record.kind == RecordKind.DEVICE_WAIT:
            seconds, step, _, group, phase, _ = layout.DEVICE_WAIT.unpack_from(record.payload)
            if 0.0 <= seconds < _LONGEST_SECONDS:
                piece = Piece(
                    start, seconds, name, groups.get(group, ""), True, inside=phase != 0, last=record.end
                )
                found[step, starts.get(step, 0.0)].pieces.append(piece)
        elif record.kind == RecordKind.DEVICE_STEP:
            step, _, flags = layout.DEVICE_STEP.unpack_from(record.payload)
            each = found[step, starts.get(step, 0.0)]
            each.start, each.end = start, record.end
            each.known, each.timed = not flags & layout.UNKNOWN_WAITS, not flags & layout.UNTIMED_PHASES
    return found


def _events(device: DeviceSteps) -> Iterator[int]:
    """Numbers of the steps of a rank that are single events."""
    odd = outlying([each.end - each.start for each in device.values()])
    return (number for (number, _), each in zip(device, odd, strict=True) if each)


def _on_device(step: DeviceStep) -> list[Piece]:
    """The pieces of a step one after another; what no phase claims comes last."""
    if not step.known:
        return []
    found: list[Piece] = []
    at = step.start
    for piece in sorted(step.pieces, key=lambda each: each.start):
        if found and _take_turns(found[-1], piece):
            found[-1] = _together(found[-1], piece)
        else:
            found.append(piece._replace(start=at))
        at += piece.seconds
    if step.end - at > LEAST_GAP_SECONDS:
        found.append(Piece(at, step.end - at, OTHER))
    return _messages_by_pass(found)


def _messages_by_pass(pieces: Sequence[Piece]) -> list[Piece]:
    """Name the wait for messages before each pass of a pipeline after what the pass needs: `recv_forward`.

    A batch of sends and receives is one wait, and a stage that is late is waited for in its receives.
    """
    found = []
    following = ""
    for piece in reversed(pieces):
        if piece.operation in _PASSES:
            following = piece.operation
        elif piece.operation in _MESSAGES and not piece.inside:
            piece = piece._replace(operation=f"recv_{following}" if following else "recv")
        else:
            following = ""
        found.append(piece)
    return found[::-1]


def _take_turns(before: Piece, piece: Piece) -> bool:
    """True for waits of one phase for collectives that took turns, with each other or with own work.

    Only their sum ends for all ranks at once: a slow rank hardly waits for those before the last one.
    """
    if not (before.communicates and piece.communicates and before.inside == piece.inside):
        return False
    messages = [each.operation in _MESSAGES for each in (before, piece)]
    if any(messages) or not piece.inside:
        return all(messages)
    return before.group == piece.group or piece.start < before.last


def _together(before: Piece, piece: Piece) -> Piece:
    """Both as one wait. Where their groups differ, nobody knows who waits for whom in it but by its end."""
    group = before.group
    if piece.group != group:
        names = {each.partition(" ")[0] for each in (group, piece.group)}
        group = "+".join(sorted(names))
    last = max(before.last, piece.last)
    return before._replace(seconds=before.seconds + piece.seconds, group=group, last=last)


def _work(box: Box) -> dict[int, list[float]]:
    """Step -> amounts of work in one unit: tokens where the run reports any, else its most common unit."""
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
        elif pieces[at].operation.startswith("recv") and not pieces[at].inside:
            found[at] = following
    return found


def _kind(piece: Piece) -> str:
    if piece.communicates or piece.operation == COMMUNICATION:
        return "communication"
    if piece.operation == DATA_WAIT:
        return "data_loading"
    return "compute" if piece.operation in _COMPUTE else OTHER


def lay_out(
    start: float,
    end: float,
    phases: Iterable[Interval],
    collectives: Sequence[Collective],
) -> list[Piece]:
    """The pieces of the step from `start` to `end`, none before the end of the one before it.

    collectives: enqueued within the step, each with its operation and its group as further items.
    """
    within = [
        each for each in phases if each[0] >= start - _SLACK_SECONDS and each[1] <= end + _SLACK_SECONDS
    ]
    within.sort(key=lambda each: (each[1], -each[0]))
    blocked = blocked_times(start, end, within, collectives)
    own = own_seconds(within, blocked)
    order = sorted(range(len(within)), key=lambda at: (within[at][0], -within[at][1]))
    by_phase = _by_phase(within, order, blocked)
    pieces = [_communication(each[0], each, inside=False) for each in by_phase[None]]
    for at in order:
        begun, _, name = within[at]
        pieces += _host_pieces(begun, name, own[at], by_phase[at])
    pieces.sort(key=lambda each: each.start)
    return _in_turn(start, end, pieces)


def _by_phase(
    phases: Sequence[Interval], order: Sequence[int], blocked: Sequence[Blocked]
) -> dict[int | None, list[Blocked]]:
    """Blocked times by the innermost phase that holds their beginning; None for those outside of all phases.

    order: the phases in the order of their starts.
    """
    found: dict[int | None, list[Blocked]] = defaultdict(list)
    still_open: list[int] = []
    following = 0
    for each in blocked:
        while following < len(order) and phases[order[following]][0] <= each[0]:
            still_open.append(order[following])
            following += 1
        while still_open and phases[still_open[-1]][1] <= each[0]:
            still_open.pop()
        found[still_open[-1] if still_open else None].append(each)
    return found


def _host_pieces(begun: float, name: str, own: float, blocked: Sequence[Blocked]) -> list[Piece]:
    """The own time of a phase, then what blocked it; phases inside it are pieces of their own."""
    pieces = [Piece(begun, own, name)]
    at = begun + own
    for each in blocked:
        pieces.append(_communication(at, each, inside=True))
        at += pieces[-1].seconds
    return pieces


def _communication(at: float, blocked: Blocked, *, inside: bool) -> Piece:
    start, end, (_, _, _, *names) = blocked
    operation, group = names
    return Piece(at, end - start, operation, group, True, inside)


def _in_turn(start: float, end: float, pieces: Sequence[Piece]) -> list[Piece]:
    """Move what overlaps behind what came before it, and make pieces of the gaps."""
    found: list[Piece] = []
    at = start
    for piece in pieces:
        if piece.start - at > LEAST_GAP_SECONDS:
            found.append(Piece(at, piece.start - at, OTHER))
        at = max(at, piece.start)
        found.append(piece._replace(start=at))
        at += piece.seconds
    if end - at > LEAST_GAP_SECONDS:
        found.append(Piece(at, end - at, OTHER))
    return found
