"""The end of an interpreter that has collectives under way."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import time
from collections.abc import Collection
from typing import Any

_LEAVE_SECONDS = 2.0


class Leaving:
    """Waits, when the interpreter ends, for the futures that would call back into it.

    A collective that fails after that would call into a dead interpreter, which aborts the process: wait
    for those under way, but at most two seconds, and keep the groups of the others from being destroyed,
    which would fail them.
    """

    def __init__(self, under_way: Collection[object]) -> None:
        self._under_way = under_way
        atexit.register(self._leave)

    def cancel(self) -> None:
        """No collective is followed any more; those under way are still waited for."""
        if not self._under_way:
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._under_way and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._under_way:
            c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
            for group in list(c10d._world.pg_map):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
