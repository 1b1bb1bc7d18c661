"""SIGTERM as a request to stop: all ranks leave after the same step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist


class Preemption:
    """Knows whether any rank was asked to stop."""

    def __init__(self, *, watching: bool) -> None:
        self._watching = watching
        self.signalled = False
        """Set by the signal on this rank; the others learn of it in `agreed`."""

    def agreed(self, device: torch.device) -> bool:
        """True on all ranks once any rank was asked. A collective, unless nothing is watched."""
        if not self._watching:
            return False
        asked = torch.tensor(int(self.signalled), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked.item())


@contextmanager
def watch_for_preemption(wanted: bool) -> Iterator[Preemption]:
    """Catch SIGTERM within the block, if `wanted`. Main thread only."""
    preemption = Preemption(watching=wanted)

    def remember(_signal: int, _frame: FrameType | None) -> None:
        preemption.signalled = True

    if not wanted:
        yield preemption
        return
    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield preemption
    finally:
        signal.signal(signal.SIGTERM, before)
