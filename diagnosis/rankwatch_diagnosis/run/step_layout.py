"""Phases and collectives of one step as pieces that follow one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankwatch.conventions import COMMUNICATION, OTHER

LEAST_GAP_SECONDS = 5e-5
"""Time that no phase claims is a piece from here on; below it is a pause."""
_SLACK_SECONDS = 1e-6


class Phase(NamedTuple):
    """A phase that was recorded; seconds on the monotonic clock."""

    start: float
    end: float
    name: str


class Blocked(NamedTuple):
    """A collective, send or receive, from enqueue to end."""

    start: float
    end: float
    operation: str
    group: str
    blocking: bool


class Piece(NamedTuple):
    """A part of the step."""

    start: float
    seconds: float
    operation: str
    group: str = ""
    communicates: bool = False
    inside: bool = False
    """It lay inside a phase."""


def lay_out(
    start: float,
    end: float,
    phases: Sequence[Phase],
    collectives: Sequence[Blocked],
    device: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Piece]:
    """The pieces of the step from `start` to `end`, none before the end of the one before it.

    device: phase -> (seconds on the GPU, of these its own) in order, where the GPU's clock was read.
    """
    within = sorted(
        (
            each
            for each in phases
            if each.start >= start - _SLACK_SECONDS and each.end <= end + _SLACK_SECONDS
        ),
        key=lambda each: (each.start, -each.end),
    )
    blocked = _blocked(start, end, within, collectives)
    counted: dict[str, int] = {}
    pieces = [
        Piece(each.start, each.end - each.start, each.operation, each.group, True) for each in blocked[None]
    ]
    for at, phase in enumerate(within):
        number = counted.get(phase.name, 0)
        counted[phase.name] = number + 1
        on_device = device.get(phase.name, ())
        if number < len(on_device):
            pieces += _device_pieces(phase, *on_device[number])
        else:
            pieces += _host_pieces(phase, within[at + 1 :], blocked[at])
    pieces.sort(key=lambda each: each.start)
    return _in_turn(start, end, pieces)


def _blocked(
    start: float, end: float, phases: Sequence[Phase], collectives: Sequence[Blocked]
) -> dict[int | None, list[Blocked]]:
    """By innermost phase (None: outside of all): the parts in which the training thread stood."""
    found: dict[int | None, list[Blocked]] = {None: [], **{at: [] for at in range(len(phases))}}
    last: dict[int | None, Blocked] = {}
    holders = _holders(phases, [each.start for each in collectives])
    for each, holder in zip(collectives, holders, strict=True):
        if each.start < start - _SLACK_SECONDS:
            continue
        limit = end if holder is None else phases[holder].end
        if each.blocking:
            found[holder].append(each._replace(end=min(each.end, limit)))
            continue
        known = last.get(holder)
        enqueued = max(each.start, known.start) if known else each.start
        latest = each if known is None or each.end >= known.end else known
        last[holder] = latest._replace(start=enqueued, end=min(latest.end, limit))
    for holder, each in last.items():
        if holder is None:
            limit = min((phase.start for phase in phases if phase.start >= each.start), default=end)
            each = each._replace(end=min(each.end, limit))
        found[holder].append(each)
    return {
        holder: _without_overlap(sorted(parts, key=lambda each: each.start))
        for holder, parts in found.items()
    }


def _without_overlap(parts: Sequence[Blocked]) -> list[Blocked]:
    found: list[Blocked] = []
    until = 0.0
    for each in parts:
        begin = max(each.start, until)
        if each.end > begin or each.end == each.start:
            found.append(each._replace(start=begin, end=max(begin, each.end)))
            until = max(until, each.end)
    return found


def _holders(phases: Sequence[Phase], moments: Sequence[float]) -> list[int | None]:
    """For each moment the innermost phase that holds it; phases are in order of their starts."""
    order = sorted(range(len(moments)), key=lambda at: moments[at])
    found: list[int | None] = [None] * len(moments)
    still_open: list[int] = []
    following = 0
    for at in order:
        while following < len(phases) and phases[following].start <= moments[at]:
            still_open.append(following)
            following += 1
        while still_open and phases[still_open[-1]].end <= moments[at]:
            still_open.pop()
        found[at] = still_open[-1] if still_open else None
    return found


def _host_pieces(phase: Phase, later: Sequence[Phase], blocked: Sequence[Blocked]) -> list[Piece]:
    """Its own time, then what blocked it; phases inside it are pieces of their own."""
    inner = 0.0
    until = phase.start
    for each in later:
        if each.start >= phase.end:
            break
        if each.start >= until:
            inner += each.end - each.start
            until = each.end
    standing = sum(each.end - each.start for each in blocked)
    own = max(0.0, phase.end - phase.start - inner - standing)
    pieces = [Piece(phase.start, own, phase.name)]
    at = phase.start + own
    for stood in blocked:
        seconds = stood.end - stood.start
        pieces.append(Piece(at, seconds, stood.operation, stood.group, True, inside=True))
        at += seconds
    return pieces


def _device_pieces(phase: Phase, seconds: float, own: float) -> list[Piece]:
    """Of the GPU only the time before its last collective is known to be its own."""
    pieces = [Piece(phase.start, own, phase.name)]
    if seconds - own > LEAST_GAP_SECONDS:
        pieces.append(Piece(phase.start + own, seconds - own, COMMUNICATION, "", True, inside=True))
    return pieces


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
