"""The steps of a rank on the compute stream of its GPU, as pieces that follow one another."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions.vocabulary import OTHER
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.run.boxes import Box
from rankwatch_diagnosis.run.snapshots import parse_members

LEAST_GAP_SECONDS = 5e-5
"""Time that no phase claims is a piece from here on; below it is a pause."""
PASSES = ("forward", "backward")
_LONGEST_SECONDS = 1e6
_SLACK_SECONDS = 1e-6
"""By which two sums of times may differ."""
_ROUNDING_SECONDS = 1e-7
"""By which the start of a wait may come too early where it follows from its end, on a host long up."""
_MESSAGES = {"send", "recv"}


class Message(NamedTuple):
    """A send or receive that a row waits for."""

    operation: str
    peer: int
    """Rank at the other end."""


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
    """Its end on the GPU, or that of the last of the waits that it stands for."""
    messages: tuple[Message, ...] = ()
    enqueued: float = 0.0
    """When the messages were."""
    ahead: float = 0.0
    """As in its row."""


@dataclass(slots=True)
class DeviceStep:
    """A step on the compute stream of a GPU."""

    start: float = 0.0
    end: float = 0.0
    known: bool = False
    """Whether own time and waits were told apart."""
    timed: bool = False
    """Whether its phases were timed."""
    place: int = -1
    """Among the steps of its process, from 0 on."""
    pieces: list[Piece] = field(default_factory=list)


DeviceSteps = dict[tuple[int, float], DeviceStep]
"""By number and by start on the host, as the numbers may begin again with each epoch."""


def device_steps(box: Box, groups: Mapping[int, str]) -> DeviceSteps:
    """Return the steps of a box on the device."""
    found: DeviceSteps = defaultdict(DeviceStep)
    starts: dict[int, float] = {}
    places: dict[int, int] = {}
    members = {each.number: parse_members(each.members, each.size) for each in box.now.groups}
    for record in box.records:
        start, name = record.start, box.names.get(record.name, "")
        if record.kind == RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            starts[number], places[number] = start, layout.place(flags)
        elif record.kind == RecordKind.DEVICE_PHASE:
            own, step = layout.DEVICE.unpack_from(record.payload)
            if 0.0 <= own < _LONGEST_SECONDS:
                piece = Piece(start, own, name, last=record.end)
                found[step, starts.get(step, 0.0)].pieces.append(piece)
        elif record.kind == RecordKind.DEVICE_WAIT:
            step, wait = _wait(record, name, groups, members)
            if 0.0 <= wait.seconds < _LONGEST_SECONDS:
                found[step, starts.get(step, 0.0)].pieces.append(wait)
        elif record.kind == RecordKind.DEVICE_STEP:
            step, waited, flags = layout.DEVICE_STEP.unpack_from(record.payload)
            each = found[step, starts.get(step, 0.0)]
            each.start, each.end, each.timed = start, record.end, not flags & layout.UNTIMED_PHASES
            each.place = places.get(step, -1)
            seen = sum(piece.seconds for piece in each.pieces if piece.communicates)
            # A wait whose record is lost would pass for own work.
            each.known = not flags & layout.UNKNOWN_WAITS and abs(seen - waited) <= _SLACK_SECONDS
    return found


def events_of(device: DeviceSteps, *, by_place: bool) -> Iterator[int]:
    """Yield the numbers of the steps of a rank that are single events, or their places."""
    odd = outlying([each.end - each.start for each in device.values()])
    for (number, _), step, is_event in zip(device, device.values(), odd, strict=True):
        if is_event:
            yield step.place if by_place else number


def _wait(
    record: RawRecord,
    name: str,
    groups: Mapping[int, str],
    members: Mapping[int, tuple[int, ...] | None],
) -> tuple[int, Piece]:
    """Return the step, and the wait of the compute stream in it."""
    seconds, step, _, first, group, second, phase, third, _, fourth = layout.DEVICE_WAIT.unpack_from(
        record.payload
    )
    messages = _messages((first, second, third, fourth), members.get(group) or ())
    start = min(record.end, record.end - seconds + _ROUNDING_SECONDS) if messages else record.start
    return step, Piece(
        start,
        seconds,
        name,
        groups.get(group, ""),
        True,
        inside=phase != 0,
        last=record.end,
        messages=messages,
        enqueued=record.start,
    )


def _messages(words: Iterable[int], members: Sequence[int]) -> tuple[Message, ...]:
    """Return what the words of a record stand for; nothing if a peer is not a known member."""
    found = []
    for word in words:
        peer = (word & ~layout.MESSAGE_RECEIVED) - 1
        if word and not 0 <= peer < len(members):
            return ()
        if word:
            found.append(Message("recv" if word & layout.MESSAGE_RECEIVED else "send", members[peer]))
    return tuple(found)


def on_device(step: DeviceStep) -> list[Piece]:
    """Return the pieces of a step one after another; what no phase claims comes last."""
    if not step.known:
        return []
    found: list[Piece] = []
    ends: list[tuple[float, float]] = []
    at = step.start
    for piece in sorted(step.pieces, key=lambda each: each.start):
        if piece.messages:
            piece = piece._replace(ahead=_ahead(piece, at, ends))
        if found and _take_turns(found[-1], piece):
            found[-1] = _together(found[-1], piece)
        else:
            found.append(piece._replace(start=at))
        at += piece.seconds
        while ends and ends[-1][0] >= piece.last:  # what comes after it comes after this one
            ends.pop()
        ends.append((piece.last, at))
    if step.end - at > LEAST_GAP_SECONDS:
        found.append(Piece(at, step.end - at, OTHER))
    return _messages_by_pass(found)


def _ahead(wait: Piece, start: float, ends: Sequence[tuple[float, float]]) -> float:
    """Return by how many seconds its messages were enqueued before it begins at `start`.

    ends: of the pieces before it, on the GPU and where they are laid out, both ascending.
    """
    over = bisect_right(ends, wait.enqueued + _SLACK_SECONDS, key=itemgetter(0))
    return start - ends[over - 1][1] if over else 0.0


def _messages_by_pass(pieces: Sequence[Piece]) -> list[Piece]:
    """Name the wait for messages before each pass of a pipeline after what the pass needs: `recv_forward`.

    A batch of sends and receives is one wait, and a stage that is late is waited for in its receives.
    """
    found = []
    following = ""
    for piece in reversed(pieces):
        if piece.operation in PASSES:
            following = piece.operation
        elif piece.operation not in _MESSAGES or piece.inside:
            following = ""
        elif not piece.messages:
            piece = piece._replace(operation=f"recv_{following}" if following else "recv")
        found.append(piece)
    return found[::-1]


def _take_turns(before: Piece, piece: Piece) -> bool:
    """Return True for waits of one phase for collectives that took turns, with each other or with own work.

    Only their sum ends for all ranks at once: a slow rank hardly waits for those before the last one.
    """
    if not (before.communicates and piece.communicates and before.inside == piece.inside):
        return False
    if before.messages or piece.messages:
        return False
    messages = [each.operation in _MESSAGES for each in (before, piece)]
    if any(messages) or not piece.inside:
        return all(messages)
    return before.group == piece.group or piece.start < before.last


def _together(before: Piece, piece: Piece) -> Piece:
    """Join both waits. Where their groups differ, nobody knows who waits for whom in it but by its end."""
    group = before.group
    if piece.group != group:
        names = {each.partition(" ")[0] for each in (group, piece.group)}
        group = "+".join(sorted(names))
    last = max(before.last, piece.last)
    return before._replace(seconds=before.seconds + piece.seconds, group=group, last=last)
