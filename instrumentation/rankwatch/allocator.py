"""What torch's allocator of GPU memory holds, sampled a few times a minute after a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer

SAMPLE_SECONDS = 10.0
"""Shortest time between two samples. One copies a few hundred counters of the host, and no GPU is asked."""


class AllocatorMemory:
    """Samples the allocator of the rank's device into the now block. Never makes torch initialise CUDA.

    cuda: `torch.cuda`. device: index of the rank's device; the current one while that is not known.
    """

    def __init__(
        self,
        writer: Writer,
        cuda: Any,
        *,
        device: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._cuda = cuda
        self._device = device
        self._clock = clock
        self._next = 0.0

    def resolve(self) -> None:
        """Take a sample if the last one is old enough."""
        moment = self._clock()
        if moment >= self._next:
            self._next = moment + SAMPLE_SECONDS
            self.sample()

    def sample(self) -> None:
        """Take a sample; nothing while CUDA is not in use."""
        if not self._cuda.is_initialized():
            return
        device = self._device()
        found = self._cuda.memory_stats_as_nested_dict(
            self._cuda.current_device() if device is None else device
        )
        if not found:
            return
        words = self._writer.integers
        words[Now.ALLOCATOR_ALLOCATED] = _bytes(found, "allocated_bytes", "current")
        words[Now.ALLOCATOR_RESERVED] = _bytes(found, "reserved_bytes", "current")
        words[Now.ALLOCATOR_PEAK] = _bytes(found, "allocated_bytes", "peak")
        words[Now.ALLOCATOR_RETRIES] = int(found.get("num_alloc_retries", 0))
        words[Now.ALLOCATOR_OUT_OF_MEMORY] = int(found.get("num_ooms", 0))
        self._writer.floats[Now.ALLOCATOR_SAMPLED] = self._clock()


def _bytes(found: Mapping[str, Any], name: str, which: str) -> int:
    return int(found.get(name, {}).get("all", {}).get(which, 0))
