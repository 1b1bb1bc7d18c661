"""How much Python a call runs, counted in lines: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Lines executed by the call and all it calls; work inside one call of C counts as one line.

    Garbage is not collected meanwhile: that runs Python too (Hypothesis times it), and when is chance.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
