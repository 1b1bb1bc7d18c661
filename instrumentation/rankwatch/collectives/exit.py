"""The exit of an interpreter while collectives are in flight."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import time
from collections.abc import Collection
from typing import Any

_EXIT_SECONDS = 2.0


class ExitWait:
    """Waits, when the interpreter exits, for the futures that would call back into it.

    A collective that fails later would call into a dead interpreter, which aborts the process. So the exit
    waits for the collectives in flight, at most two seconds. The groups of those that remain are kept from
    being destroyed, because their destruction would fail the collectives.
    """

    def __init__(self, in_flight: Collection[object]) -> None:
        self._in_flight = in_flight
        atexit.register(self._wait)

    def cancel(self) -> None:
        """No further collective is followed. Those in flight are still waited for."""
        if not self._in_flight:
            atexit.unregister(self._wait)

    def _wait(self) -> None:
        deadline = time.monotonic() + _EXIT_SECONDS
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._in_flight:
            c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
            for group in list(c10d._world.pg_map):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
