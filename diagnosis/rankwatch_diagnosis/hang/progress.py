"""Whether a run still moves, from the age of what is pending and from snapshots taken one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rankwatch_diagnosis.hang.snapshot import HangSnapshot

_CLOCK_STEP_NS = 10_000_000_000
"""By how much a wall clock may be set back while a run goes on."""


class Progress(NamedTuple):
    """What the times of the snapshots tell."""

    moving: bool
    """All ranks advance, or nothing has waited long."""
    timed: bool
    """The snapshots tell when they were taken, or there are several of a rank."""
    oldest_seconds: float | None
    """Age of the oldest pending operation; None where no snapshot tells its time."""


def with_sound_times(snapshots: Sequence[HangSnapshot]) -> list[HangSnapshot]:
    """The snapshots, without times that lie before the newest entry: those are of another clock or moment."""
    return [_with_sound_time(each) for each in snapshots]


def newest_of_each(snapshots: Sequence[HangSnapshot]) -> dict[int, HangSnapshot]:
    """The last snapshot of each rank."""
    return {each.rank: each for each in snapshots}


def progress_of(snapshots: Sequence[HangSnapshot], stall_seconds: float) -> Progress:
    """Judge the times. A dump without a time is taken as made at a stall: that is when PyTorch writes one."""
    newest = newest_of_each(snapshots)
    ages = [
        (each.taken_ns - each.pending[0].created_ns) / 1e9
        for each in newest.values()
        if each.taken_ns and each.pending
    ]
    oldest = max(ages, default=None)
    first: dict[int, HangSnapshot] = {}
    for each in snapshots:
        first.setdefault(each.rank, each)
    again = [rank for rank in newest if first[rank] is not newest[rank]]
    if again:
        advanced = all(_position(first[rank]) != _position(newest[rank]) for rank in again)
        # A healthy rank may compute between two snapshots: the age of what waits decides, where it is known.
        return Progress(advanced if oldest is None else oldest < stall_seconds, True, oldest)
    timed = all(each.taken_ns for each in newest.values())
    return Progress(timed and (oldest is None or oldest < stall_seconds), timed, oldest)


def _with_sound_time(snapshot: HangSnapshot) -> HangSnapshot:
    if not snapshot.taken_ns or snapshot.taken_ns >= snapshot.newest_ns - _CLOCK_STEP_NS:
        return snapshot
    return msgspec.structs.replace(snapshot, taken_ns=0)


def _position(snapshot: HangSnapshot) -> tuple[int, int, int]:
    completed = sum(status[1] for status in snapshot.status.values())
    return snapshot.newest_record, completed, len(snapshot.pending)
