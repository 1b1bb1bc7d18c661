"""Waits for works: when they block the thread, and the end of operations that shows only there.

On gloo the work of a send, a receive or a reduce-scatter has no future, and no thread runs it. It ends inside
`work.wait()`, on the waiting thread. For the other asynchronous operations the wait shows since when the
thread was blocked. So `Work.wait` is replaced while the hook is installed. All of PyTorch's callers in Python
use it: `dist.send`, `dist.recv`, what `isend`, `irecv` and `batch_isend_irecv` return, the schedules of
`torch.distributed.pipelining`, and FSDP. `tensor_waits` covers callers in C++.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rankwatch.collectives.call import Call
from rankwatch.collectives.device_waits import DeviceWaits
from rankwatch.compiling import uncompiled
from rankwatch.failures import Failures

_FOLLOW = "follow the wait for an operation"
_thread = threading.get_ident

MOST_FOLLOWED = 1024
"""Most operations that are followed to their wait; further ones count as abandoned at once."""


class _Followed(weakref.ref[Any]):
    """A work, its key, and the call it belongs to."""

    __slots__ = ("call", "key")
    key: int
    call: Call


class Waiting:
    """Follows works to the end of their `wait`.

    A work is identified by its Python object. PyTorch creates a new object each time it passes a work to
    Python, unless one is alive. So the last object of each thread is kept alive until the thread holds it
    itself: until its next send or receive, or the end of its wait. The trainer keeps the others alive.
    """

    def __init__(self, work_class: Any, failures: Failures, device: DeviceWaits | None = None) -> None:
        self._work_class = work_class
        self._device = device
        self._failures = failures
        self._followed: dict[int, _Followed] = {}
        self._in_hand: dict[int, Any] = {}
        self._found = work_class.__dict__["wait"]
        self._ours = work_class.wait = self._replacement(work_class.wait)

    def follow(self, work: Any, call: Call) -> None:
        """Have the call informed of the wait for its work, or that the trainer or `remove` abandons it."""
        self._in_hand[_thread()] = work
        followed = self._followed
        if len(followed) >= MOST_FOLLOWED:
            call.abandoned()
            return
        known = _Followed(work, self._gone)
        known.key = key = id(work)
        known.call = call
        followed[key] = known

    def remove(self) -> None:
        """Restore the original `wait`, unless somebody else has replaced ours."""
        if self._work_class.__dict__["wait"] is self._ours:
            self._work_class.wait = self._found
        for key in list(self._followed):
            if known := self._followed.pop(key, None):
                self._guard(known.call.abandoned)
        self._in_hand.clear()

    def forget(self) -> None:
        """Forget the parent's works in a forked child. The objects in hand stay alive: destroying a work may
        take a lock that a thread of the parent held."""
        self._followed.clear()

    def _replacement(self, original: Any) -> Any:
        followed = self._followed
        take = followed.pop

        # The names matter: they let pybind11 see that the `wait` of a work written in Python calls itself
        # with this very `self`, so it does not call back.
        def wait(self: Any, *arguments: Any, **named: Any) -> Any:
            known = take(id(self), None) if followed else None
            waits = device if device is not None and device.begins_work(self) else None
            if known is None and waits is None:
                return original(self, *arguments, **named)
            began = 0.0 if known is None else begun(known.call)
            failed = True
            try:
                result = original(self, *arguments, **named)
                failed = False
                return result
            finally:
                if waits is not None:
                    waits.ends()
                if known is not None:
                    ended(self, known.call, began, failed)

        begun, ended, device = self._begun, self._ended, self._device
        replacement = uncompiled(wait)
        replacement.__doc__ = original.__doc__
        return replacement

    def _begun(self, call: Call) -> float:
        moment = time.monotonic()
        try:
            call.wait_began(moment)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW, error)
        return moment

    def _ended(self, work: Any, call: Call, began: float, failed: bool) -> None:
        try:
            call.wait_ended(began, time.monotonic(), failed=failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)
        thread = _thread()
        if self._in_hand.get(thread) is work:
            self._in_hand.pop(thread, None)

    def _gone(self, known: _Followed) -> None:
        if self._followed.pop(known.key, None) is not None:
            self._guard(known.call.abandoned)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - called from destructors
            self._failures.note(_FOLLOW, error)
