"""SIGTERM as a wish to stop in order: all ranks leave after the same step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist


class Preemption:
    """Whether some rank was asked to stop."""

    def __init__(self, *, watching: bool) -> None:
        self._watching = watching
        self.signalled = False
        """Set by the signal on this rank; the others learn of it in `agreed`."""

    def agreed(self, device: torch.device) -> bool:
        """True on all ranks once any was asked. A collective where watching, nothing where not."""
        if not self._watching:
            return False
        asked = torch.tensor(int(self.signalled), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked.item())


@contextmanager
def watch_for_preemption(wanted: bool) -> Iterator[Preemption]:
    """Catches SIGTERM for the length of the block, where that is wanted; main thread only."""
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
