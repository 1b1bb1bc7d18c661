"""Which thread trains. Events of the others would tear its steps and phases apart."""

from __future__ import annotations

import sys
import threading
from threading import get_ident
from types import FrameType

_STEPS_TO_TAKE_OVER = 3
"""Optimizer steps of another thread, while the training thread does nothing, after which that one trains."""


class TrainingThread:
    """The thread that trains: the first that runs a backward pass or an optimizer, as long as it lives."""

    def __init__(self) -> None:
        self._ident = 0
        self._thread: threading.Thread | None = None
        self._foreign_steps = 0
        self._foreign_ident = 0

    @property
    def known(self) -> bool:
        """True once a thread has trained."""
        return self._ident != 0

    def is_here(self) -> bool:
        """True in the training thread, and in every thread before there is one."""
        return self._ident in (0, get_ident())

    def trains_here(self) -> bool:
        """True if this thread trains, from now on if there was none or it is gone."""
        ident = get_ident()
        if ident == self._ident:
            self._foreign_steps = 0
            return True
        if self._thread is None or not self._thread.is_alive():
            self._take(ident)
            return True
        return False

    def stepped_elsewhere(self) -> bool:
        """An optimizer has stepped in this other thread. True if this thread trains from now on."""
        ident = get_ident()
        self._foreign_steps = self._foreign_steps + 1 if ident == self._foreign_ident else 1
        self._foreign_ident = ident
        if self._foreign_steps < _STEPS_TO_TAKE_OVER:
            return False
        self._take(ident)
        return True

    def _take(self, ident: int) -> None:
        self._ident, self._foreign_steps = ident, 0
        self._thread = threading.current_thread()


def is_inside_backward() -> bool:
    """True if this thread is inside of a backward pass, by its stack: in a hook of a gradient."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "backward" and "torch" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
