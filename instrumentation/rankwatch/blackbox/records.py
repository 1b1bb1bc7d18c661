"""What a reader hands out: header, now block and records, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rankwatch.identity import Identity


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fixed part of a black box."""

    identity: Identity
    pid: int
    """Process id as the writer saw it; another PID namespace may know it by another number."""
    started_monotonic: float
    started_wall: float
    """One moment on both clocks, seconds."""
    target_steps: int | None
    capacity: int
    """Records the ring holds."""

    def wall(self, monotonic: float) -> float:
        """Unix time of a moment on the writer's monotonic clock, by the pair of the header."""
        return monotonic - self.started_monotonic + self.started_wall


class GroupNow(NamedTuple):
    """A process group of the rank, as the now block tells it."""

    number: int
    """Number of the name of the group, as records of collectives give it."""
    name: str
    members: str
    """Its global ranks in short form (see `rankwatch.members`); empty where they are not known."""
    size: int
    enqueued: int
    """Collectives enqueued up to now, sends and receives left out."""
    oldest: float
    """Enqueue of the oldest operation that is not complete (of a send or receive: when a thread began to wait
    for it), monotonic; 0 for none, or not known."""
    operation: str
    """Name of the operation that was enqueued last."""


@dataclass(frozen=True, kw_only=True)
class NowBlock:
    """The last words: what the rank was doing when the block was read."""

    step: int
    step_began: float
    """Start of the open step on the monotonic clock; 0 while none is open."""
    step_ended: float
    steps_completed: int
    errors: int
    """Errors inside rankwatch, swallowed."""
    loss: float
    checkpoint_step: int
    checkpoint_ended: float
    phases_began: Mapping[int, float]
    """Number of a phase's name -> when it last began; phases that never began are left out."""
    gpu: str
    """UUID of the GPU the rank works on; empty while it is not known."""
    groups: tuple[GroupNow, ...] = ()
    """Process groups in which an operation was enqueued, in the order of the first."""


class RawRecord(NamedTuple):
    """One record of the ring; the payload is decoded by whoever wants it (see `layout`)."""

    kind: int
    name: int
    start: float
    end: float
    payload: bytes
