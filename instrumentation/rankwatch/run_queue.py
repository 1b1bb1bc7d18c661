"""How long the training thread was ready to run and had no CPU, sampled once a second after a step.

Where a host has fewer CPUs than its ranks need, each of them is late now and then, and the peers wait for it.
That looks like a slow rank or a slow network, and is neither.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer

SAMPLE_SECONDS = 1.0
"""Shortest time between two samples. One reads a small file of the kernel's."""


class RunQueueWait:
    """Samples the wait of the thread that makes this object.

    Raises OSError, ValueError or IndexError where the kernel does not measure it.

    procfs: where /proc is mounted.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._floats = writer.floats
        self._file = procfs / str(os.getpid()) / "task" / str(threading.get_native_id()) / "schedstat"
        self._clock = clock
        self._waited_before = self._waited()
        self._began = clock()
        self._next = self._began + SAMPLE_SECONDS

    def resolve(self) -> None:
        """Take a sample if the last one is old enough."""
        if self._clock() >= self._next:
            self.sample()

    def sample(self) -> None:
        """Take a sample; nothing once the thread has ended."""
        moment = self._clock()
        try:
            waited = self._waited() - self._waited_before
        except OSError:
            self._next = math.inf
            return
        self._next = moment + SAMPLE_SECONDS
        self._floats[Now.CPU_WAITED] = waited
        self._floats[Now.CPU_WATCHED] = moment - self._began

    def _waited(self) -> float:
        """The second number of the file: nanoseconds on a run queue."""
        return int(self._file.read_bytes().split()[1]) / 1e9
